"""A table through Spark is the table: every tier, every snapshot, every type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyarrow.parquet as pq
import pytest

import halocline as hc
from halocline import spark as hs
from halocline.errors import NotFoundError, UsageError
from halocline.spark.pins import SessionPin
from tests.spark.shop import COLUMNS, fill, row

OPTIONS = hc.Options(
    page_rows=16, object_rows=64, row_group_rows=32, bulk_rows=50, background=False
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "shop [1] a=b", options=OPTIONS) as db:
        yield db
        assert db.check() == []


def plain(rows: Any) -> list[str]:
    return sorted(repr(sorted(one.items())) for one in rows)


def test_rows_are_those_of_the_local_engine_at_every_snapshot(spark: Any, db: hc.Database) -> None:
    for ts in [*fill(db), None]:
        with db.begin(at=ts) as txn:
            expected = plain(txn.scan("orders").to_pylist())
        frame = hs.table(spark, db, "orders", at=ts)
        assert plain(frame.toArrow().to_pylist()) == expected


def test_columns_and_predicate(spark: Any, db: hc.Database) -> None:
    fill(db)
    frame = hs.table(spark, db, "orders", columns=["NAME", "id"], where="id between 20 and 60")
    assert frame.columns == ["name", "id"]
    with db.begin() as txn:
        expected = txn.scan("orders", columns=["name", "id"], where="id between 20 and 60")
    assert plain(frame.toArrow().to_pylist()) == plain(expected.to_pylist())


def scans(frame: Any) -> list[str]:
    """The Parquet scans of a plan."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return [line for line in plan.splitlines() if "FileScan parquet" in line]


def read_schema(scan: str) -> str:
    return scan.partition("ReadSchema:")[2]


def test_filters_and_columns_reach_clean_dirty_and_late_files(spark: Any, db: hc.Database) -> None:
    stamps = fill(db)
    found = {}
    for ts in (stamps[0], None):
        for scan in scans(hs.table(spark, db, "orders", at=ts).where("small > 10").select("id")):
            assert "GreaterThan(small,10)" in scan.partition("PushedFilters:")[2]
            assert "name" not in read_schema(scan)
            kind = "dirty" if "_rowid" in read_schema(scan) else "clean"
            found["late" if "_commit_ts" in read_schema(scan) else kind] = scan
    assert set(found) == {"clean", "dirty", "late"}
    assert "LessThanOrEqual(_commit_ts" in found["late"]


def test_commit_ts_is_read_only_where_an_object_straddles_the_snapshot(
    spark: Any, db: hc.Database
) -> None:
    stamps = fill(db)
    now = scans(hs.table(spark, db, "orders").select("id"))
    assert not any("_commit_ts" in read_schema(scan) for scan in now)
    past = scans(hs.table(spark, db, "orders", at=stamps[0]).select("id"))
    assert any("_commit_ts" in read_schema(scan) for scan in past)


def test_where_rules_out_files_before_spark_hears_of_them(spark: Any, db: hc.Database) -> None:
    fill(db)
    all_files = hs.table(spark, db, "orders").inputFiles()
    some = hs.table(spark, db, "orders", where="id < 10")
    assert 1 <= len(some.inputFiles()) < len(all_files)
    with db.begin() as txn:
        assert some.count() == txn.scan("orders", where="id < 10").num_rows


def test_where_that_no_row_could_fulfil_is_told_at_once(spark: Any, db: hc.Database) -> None:
    fill(db)
    for wrong in ("name > 5", "id = 'x'", "sqrt(name) > 1", "id in (1, 'x')", "name", 5):
        with pytest.raises(UsageError):
            hs.table(spark, db, "orders", where=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("most", "join"), [(1000, "BroadcastHashJoin"), (3, "SortMergeJoin")])
def test_the_dead_travel_to_the_rows_unless_they_are_many(
    spark: Any, db: hc.Database, monkeypatch: pytest.MonkeyPatch, most: int, join: str
) -> None:
    monkeypatch.setattr("halocline.spark.scan.BROADCAST_MAX", most)
    fill(db)
    frame = hs.table(spark, db, "orders")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert [line for line in plan.splitlines() if join in line and "LeftAnti" in line], plan
    with db.begin() as txn:
        assert plain(frame.toArrow().to_pylist()) == plain(txn.scan("orders").to_pylist())


def test_missing_and_damaged_files_are_never_ignored(spark: Any, db: hc.Database) -> None:
    fill(db)
    names = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    path = Path(db.table("orders").files()[0])
    good = path.read_bytes()
    path.chmod(0o600)
    for name in names:
        spark.conf.set(name, "true")
    try:
        frame = hs.table(spark, db, "orders").select("id", "name")
        chunk = pq.read_metadata(path).row_group(0).column(0)
        damaged = bytearray(good)
        damaged[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(Exception, match=r"(?i)checksum"):
            frame.toArrow()
        path.unlink()
        with pytest.raises(Exception, match=r"(?i)not.?exist|not.?found"):
            frame.toArrow()
    finally:
        path.write_bytes(good)
        for name in names:
            spark.conf.unset(name)


def test_views_show_one_snapshot_until_they_are_refreshed(spark: Any, db: hc.Database) -> None:
    fill(db)
    db.create_table("other", {"id": int}, primary_key="id")
    with hs.attach(spark, db, prefix="v_") as views:
        assert views.names == ["v_orders", "v_other"]
        before = spark.sql("select count(*) from v_orders").collect()[0][0]
        with db.begin() as txn:
            txn.insert("orders", row(999))
            txn.insert("other", {"id": 1})
        query = "select (select count(*) from v_orders), (select count(*) from v_other)"
        assert tuple(spark.sql(query).collect()[0]) == (before, 0)
        views.refresh()
        assert tuple(spark.sql(query).collect()[0]) == (before + 1, 1)
        db.drop_table("other")
        views.refresh()
        assert views.names == ["v_orders"]
    assert not spark.catalog.tableExists("v_orders")


def test_a_snapshot_stays_readable_until_it_is_released(spark: Any, db: hc.Database) -> None:
    fill(db)
    frame = hs.table(spark, db, "orders")
    pins = len(db.core.pins)
    assert pins
    assert hs.release(spark, db) >= 1
    assert len(db.core.pins) < pins
    assert hs.release(spark, db) == 0
    assert frame.count() > 0


def until(true: Any) -> bool:
    """Wait for a thread to get there; False when it does not."""
    deadline = monotonic() + 30
    while not true() and monotonic() < deadline:
        sleep(0.02)
    return bool(true())


def test_a_pin_ends_with_its_lease(spark: Any, db: hc.Database) -> None:
    fill(db)
    pin = SessionPin(spark, db, lease="100ms")  # type: ignore[arg-type]
    assert until(lambda: not pin.held)


def test_what_attach_holds_is_not_the_sessions(spark: Any, db: hc.Database) -> None:
    fill(db)
    with hs.attach(spark, db, prefix="mine_"):
        held = len(db.core.pins)
        assert hs.release(spark, db) == 0
        assert len(db.core.pins) == held
    assert len(db.core.pins) == held - 1


@pytest.mark.parametrize("name", ["two words", "select", "a`b", "Grün"])
def test_views_of_tables_with_odd_names(spark: Any, db: hc.Database, name: str) -> None:
    db.create_table(name, {"id": int, "b c": str}, primary_key="id")
    with db.begin() as txn:
        txn.insert(name, {"id": 1, "b c": "x"})
    shown = "`" + name.replace("`", "``") + "`"
    with hs.attach(spark, db):
        assert spark.sql(f"select * from {shown}").collect() == [(1, "x")]
    assert not spark.catalog.tableExists(shown)


def test_many_rows_in_memory_travel_as_a_file_that_goes_with_the_snapshot(
    spark: Any, db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halocline.spark.scan.ROWS_IN_PLAN_MAX", 10)
    fill(db)
    folder = Path(db.table("orders").files()[0]).parent
    known = set(folder.iterdir())
    frame = hs.table(spark, db, "orders")
    with db.begin() as txn:
        expected = plain(txn.scan("orders").to_pylist())
    assert plain(frame.toArrow().to_pylist()) == expected
    leased = set(folder.iterdir()) - known
    assert len(leased) == 2, "rows of L0, and dead RowIDs"
    db.gc()
    assert all(path.exists() for path in leased), "the lease holds them"
    hs.release(spark, db)
    db.gc()
    assert not any(path.exists() for path in leased)


def test_a_handle_that_only_reads(spark: Any, db: hc.Database) -> None:
    fill(db)
    with hc.open(db.path, read_only=True) as reader, reader.begin() as txn:
        frame = hs.table(spark, reader, "orders")
        assert plain(frame.toArrow().to_pylist()) == plain(txn.scan("orders").to_pylist())
        assert hs.release(spark, reader) == 1


def test_a_scalar_subquery_over_a_union(spark: Any, db: hc.Database) -> None:
    """Spark's own rule for projections over unions fails here: `prepare` leaves it out."""
    fill(db)
    query = "select id, (select max(name) from v_orders c where c.id = o.id) as n from v_orders o"
    with hs.attach(spark, db, prefix="v_"):
        assert spark.sql(query).count() == db.table("orders").count()


def test_an_empty_table_has_its_columns(spark: Any, db: hc.Database) -> None:
    db.create_table("orders", COLUMNS, primary_key="id")
    frame = hs.table(spark, db, "orders")
    assert frame.columns == list(COLUMNS)
    assert frame.count() == 0


def test_what_cannot_be_is_refused(spark: Any, db: hc.Database) -> None:
    db.create_table("orders", COLUMNS, primary_key="id")
    pins = len(db.core.pins)
    with pytest.raises(NotFoundError):
        hs.table(spark, db, "ordrs")
    with pytest.raises(UsageError, match="database"):
        hs.table(spark, "shop", "orders")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="SparkSession"):
        hs.table(None, db, "orders")  # type: ignore[arg-type]
    with pytest.raises(hc.HaloclineError):
        hs.table(spark, db, "orders", columns=["nope"])
    with pytest.raises(UsageError):
        hs.table(spark, db, "orders", where="1; drop table orders")
    assert len(db.core.pins) == pins, "a refused call holds no snapshot"
