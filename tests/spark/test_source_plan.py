"""The data source without Spark: partitions and their rows, options, filters, leases."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, date, datetime
from itertools import count
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
import xxhash

import halocline as hc
from halocline.errors import (
    CorruptionError,
    DuplicateKeyError,
    NotFoundError,
    SchemaError,
    SnapshotExpiredError,
    UsageError,
)
from halocline.store.objects import MemoryObjects
from tests.spark.sources import BASICS, COLUMNS, OPTIONS, grow, plain

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from halocline.spark.types import spark_schema
from pyspark_halocline import DefaultSource, feed, live, parts, sink, travel
from pyspark_halocline.options import read_options


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "shop [1]", options=OPTIONS, retention="0s") as db:
        db.create_table("orders", COLUMNS, primary_key="id")
        yield db
        assert db.check() == []


def source(db: hc.Database, **options: Any) -> DefaultSource:
    return DefaultSource({"path": db.path, "table": "orders", **options})


def rows_of(reader: Any) -> list[dict[str, Any]]:
    """What Spark would make of a reader; everything travels as it does there."""
    reader = pickle.loads(pickle.dumps(reader))
    parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions()]
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def read(db: hc.Database, **options: Any) -> list[dict[str, Any]]:
    found = source(db, **options)
    return rows_of(found.reader(found.schema()))


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_the_local_engine(
    db: hc.Database, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {seed}")
    monkeypatch.setattr(parts, "PARTITION_BYTES", 20_000)
    monkeypatch.setattr(parts, "ROWS_BYTES", 500)
    db.snapshot("empty")
    where = "amount % 3 = 1 and (name is not null or len(tags) > 0)"
    for ts in grow(db, random.Random(seed), 8):
        with db.begin(at=ts) as txn:
            expected = plain(txn.scan("orders").to_pylist())
            ids = txn.scan("orders").column("id").to_pylist()
            chosen = plain(txn.scan("orders", columns=["name", "id"], where=where).to_pylist())
        assert plain(read(db, at=str(ts))) == expected
        assert plain(read(db, at=str(ts), columns="NAME, id", where=where)) == chosen
        assert plain(read(db, at=str(ts), columns="id")) == plain({"id": r} for r in ids)
    assert plain(read(db)) == expected, "live"
    assert read(db, at="empty") == []


def test_a_live_read_is_planned_anew_by_each_run(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = source(db)
    reader = found.reader(found.schema())
    (only,) = reader.partitions()

    def rows() -> list[Any]:
        return [row for batch in reader.read(only) for row in batch.to_pylist()]

    grow(db, random.Random(1), 2)
    old = db.table("orders").to_arrow().to_pylist()
    monkeypatch.setattr(live, "_run", lambda: "1")
    assert plain(rows()) == plain(old)
    grow(db, random.Random(2), 2)
    for work in (db.flush, db.compact, db.gc):
        work()
    assert plain(rows()) == plain(old), "a task that is tried again sees the same snapshot"
    monkeypatch.setattr(live, "_run", lambda: "2")
    assert plain(rows()) == plain(db.table("orders").to_arrow().to_pylist())
    pins = Path(db.path, "pins")
    view = only.view.name  # type: ignore[attr-defined]
    first, second = (pins / f"{view}-{run}.named" for run in (1, 2))
    db.gc()
    assert first.exists(), "its lease runs"
    monkeypatch.setattr(type(db.core.clock), "wall_us", lambda self: 1 << 60)
    db.gc()
    monkeypatch.undo()
    assert not [*pins.glob("*.lease"), *pins.glob("*.named")]
    monkeypatch.setattr(live, "_run", lambda: "2")
    rows()
    assert second.exists()
    second.write_bytes(b"{")
    with pytest.raises(hc.CorruptionError):
        rows()


def test_a_predicate_leaves_out_files(db: hc.Database) -> None:
    with db.begin() as txn:
        txn.insert("orders", [{"id": n, "name": f"n{n}"} for n in range(300)])
    db.flush("orders")
    found = source(db, at="latest", where="id between 10 and 20")
    parts = found.reader(found.schema()).partitions()
    files = [file for part in parts for file in part.files]  # type: ignore[attr-defined]
    assert len(files) == 1
    assert len(rows_of(found.reader(found.schema()))) == 11


def test_a_lease_keeps_the_snapshot_until_it_is_over(db: hc.Database) -> None:
    with db.begin() as txn:
        txn.insert("orders", [{"id": n} for n in range(200)])
    db.flush("orders")
    found = source(db, at="latest", lease="2h")
    reader = found.reader(found.schema())
    parts = reader.partitions()
    pins = list(Path(db.path, "pins").glob("*.lease"))
    assert len(pins) == 1
    with db.begin() as txn:
        txn.delete("orders", where="id < 150")
    for work in (db.flush, db.compact, db.gc):
        work()
    assert any("lease" in kept.reason for kept in db.gc().kept)
    rows = [row["id"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted(rows) == list(range(200))
    over = pins[0].rename(pins[0].with_name(f"{pins[0].name.partition('-')[0]}-5.lease"))
    assert not any("lease" in kept.reason for kept in db.gc().kept)
    assert not over.exists()
    with pytest.raises(hc.CorruptionError, match="missing"):
        [list(reader.read(part)) for part in parts]


def test_a_lease_that_a_crash_has_torn_holds_nothing(db: hc.Database) -> None:
    folder = Path(db.path, "pins")
    folder.mkdir(exist_ok=True)
    (folder / "7-9.lease").write_bytes(b"\0\0\0")
    db.gc()
    assert not (folder / "7-9.lease").exists()


def test_options_say_what_is_wrong_with_them() -> None:
    good = {"path": "shop", "table": "orders"}
    assert read_options({**good, "AT": "12"}).at == 12
    assert read_options({**good, "at": "2026-01-01T00:00:00+00:00"}).at == datetime(
        2026, 1, 1, tzinfo=UTC
    )
    assert read_options({**good, "at": "before"}).at == "before"
    assert read_options({**good, "columns": '["a, b", "c"]'}).columns == ("a, b", "c")
    for wrong, text in (
        ({"table": "orders"}, "path"),
        ({"path": "shop"}, "TEMPORARY VIEW"),
        ({**good, "wher": "id = 1"}, "wher"),
        ({**good, "uri": "halocline://host:1"}, "not both"),
        ({**good, "columns": "a,,b"}, "columns"),
        ({**good, "columns": "[1]"}, "columns"),
        ({**good, "columns": "a,A"}, "once"),
        ({**good, "pushdown": "yes"}, "pushdown"),
        ({**good, "pushdown": "true"}, "where="),
        ({**good, "maxRowsPerTrigger": "0"}, "maxRowsPerTrigger"),
        ({**good, "onConflict": "replace"}, "onConflict"),
        ({**good, "startingSnapshot": "1", "startingTimestamp": "2"}, "not both"),
    ):
        with pytest.raises(UsageError, match=text):
            read_options(wrong)


def test_what_cannot_be_read_is_refused(db: hc.Database, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        DefaultSource({"path": str(tmp_path / "none"), "table": "orders"}).schema()
    assert not (tmp_path / "none").exists()
    with pytest.raises(NotFoundError):
        DefaultSource({"path": db.path, "table": "ordrs"}).schema()
    with pytest.raises(SchemaError, match="nope"):
        source(db, columns="nope").schema()
    with pytest.raises(UsageError):
        read(db, where="1; drop table orders")
    with pytest.raises(SchemaError, match="bigint"):
        source(db).reader(StructType([StructField("id", StringType())])).partitions()
    with pytest.raises(UsageError, match="future"):
        read(db, at="999")
    assert rows_of(source(db).reader(StructType([StructField("id", LongType())]))) == []
    found = source(db)
    with pytest.raises(UsageError, match="changes"):
        found.streamReader(found.schema())
    with pytest.raises(UsageError, match="stream"):
        source(db, changes="true").reader(found.schema())


# -- writes --------------------------------------------------------------------------------------


def write(
    where: Any, table: Any, *, overwrite: bool = False, tasks: int = 2, **options: Any
) -> Any:
    """A write as Spark runs it: tasks of their own, then a commit from what they sent."""
    where = {"path": where} if isinstance(where, str) else where
    found = DefaultSource({**where, "table": "orders", **options})
    writer = pickle.loads(pickle.dumps(found.writer(spark_schema(table.schema), overwrite)))
    size = max(1, -(-table.num_rows // tasks))
    messages = [
        pickle.loads(pickle.dumps(writer.write(iter(table.slice(start, size).to_batches()))))
        for start in range(0, max(1, table.num_rows), size)
    ]
    writer.commit(messages)
    return writer, messages


@pytest.fixture
def shop(tmp_path: Path) -> str:
    path = str(tmp_path / "shop")
    with hc.open(path, options=OPTIONS) as db:
        db.create_table("orders", BASICS, primary_key="id")
        with db.begin() as txn:
            txn.insert("orders", [{"id": n, "name": "old"} for n in range(10)])
    return path


def frame(ids: Any, name: str | None = "new") -> pa.Table:
    ids = list(ids)
    return pa.table(
        {"name": pa.array([name] * len(ids), pa.string()), "id": pa.array(ids, pa.int64())}
    )


def names(path: str) -> dict[int, str]:
    with hc.open(path, read_only=True) as db:
        return {row["id"]: row["name"] for row in db.table("orders").to_arrow().to_pylist()}


def test_writes_append_overwrite_ignore_and_upsert(shop: str) -> None:
    write(shop, frame(range(10, 1000)))
    assert names(shop) == {n: "old" if n < 10 else "new" for n in range(1000)}
    write(shop, frame([5, 5, 1005, 1005, 1006]), onConflict="ignore")
    assert [names(shop).get(n) for n in (5, 1005, 1006)] == ["old", "new", "new"]
    write(shop, frame(range(995, 1010), "again"), onConflict="upsert")
    assert names(shop)[5] == "old"
    assert {names(shop)[n] for n in range(995, 1010)} == {"again"}
    write(shop, pa.table({"ID": [5, 2000]}), onConflict="upsert")  # some columns only
    assert [names(shop)[n] for n in (5, 2000)] == ["old", None]
    write(shop, frame(range(3), "over"), overwrite=True)
    assert names(shop) == dict.fromkeys(range(3), "over")
    write(shop, frame([]), overwrite=True)
    assert names(shop) == {}


def test_a_write_that_does_not_fit_changes_nothing(shop: str) -> None:
    before = names(shop)
    for table, error, text in (
        (frame([20, 5]), DuplicateKeyError, "5"),
        (frame([20, 21, 20]), DuplicateKeyError, "20"),
        (frame([20, None]), SchemaError, "'id', row 0: must not be null"),
        (frame([20]).append_column("more", pa.array([1])), SchemaError, "more"),
        (pa.table({"name": ["x"]}), SchemaError, "id"),
        (pa.table({"id": ["x"]}), SchemaError, "id"),
        (pa.table({"id": [1], "ID": [2]}), SchemaError, "twice"),
    ):
        with pytest.raises(error, match=text):
            write(shop, table)
    with pytest.raises(DuplicateKeyError):
        write(shop, frame([20, 21, 20]), onConflict="upsert")
    assert names(shop) == before


def test_a_relative_path_counts_from_where_spark_was_started(
    shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(shop).parent)
    found = DefaultSource({"path": Path(shop).name, "table": "orders"})
    reader = found.reader(found.schema())
    monkeypatch.chdir("/")  # where a task may be
    assert len(rows_of(reader)) == 10


class Tasks:
    """The number of the task that writes; each call of `write` is one more, or one attempt more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._numbers = count()
        monkeypatch.setattr(travel, "MESSAGE_BYTES", 1000)
        monkeypatch.setattr(sink, "CHUNK_ROWS", 500)
        monkeypatch.setattr(travel, "task_here", lambda: (next(self._numbers), 0))


def files_of(path: str) -> set[str]:
    return {file.name for file in Path(path, "objects").rglob("*.parquet")}


def current(path: str) -> set[str]:
    with hc.open(path, read_only=True) as db:
        return {Path(file).name for file in db.table("orders").files()}


@pytest.mark.parametrize("held", [False, True], ids=["closed", "open elsewhere"])
def test_tasks_make_objects_of_many_rows(
    shop: str, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    Tasks(monkeypatch)
    backwards = frame(range(5000, 100, -1))
    with hc.open(shop, options=OPTIONS) if held else nullcontext():
        writer, messages = write(shop, backwards, tasks=3)
    assert all(message.made for message in messages)
    assert sum(len(message.data) for message in messages) < 3000, "no rows but in objects"
    expected = {n: "old" if n < 10 else "new" for n in [*range(10), *range(101, 5001)]}
    assert names(shop) == expected
    made = {Path(one.key).name for message in messages for one in message.made}
    assert made == files_of(shop) == current(shop)
    writer.commit(messages)  # its answer got lost: the token is known
    writer.abort(messages)
    assert names(shop) == expected
    assert files_of(shop) == made
    with hc.open(shop, retention="0s", options=OPTIONS) as db:
        assert not db.core.engine.jobs
        db.gc()
        assert db.check() == []
    assert files_of(shop) == made
    write(shop, frame(range(3000), "over"), overwrite=True, tasks=2)
    assert names(shop) == dict.fromkeys(range(3000), "over")


def test_keys_of_objects_are_checked(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Tasks(monkeypatch)
    before = names(shop)
    for ids, inside, named in (
        ([*range(20, 2000), 5], False, [5]),
        ([*range(20, 1000), *range(30, 40), *range(1000, 2000)], True, [*range(30, 40)]),
        ([*range(20, 2020), *range(500, 510)], True, [*range(500, 510)]),
    ):
        with pytest.raises(DuplicateKeyError) as caught:
            write(shop, frame(ids))
        assert caught.value.inside_input == inside
        assert caught.value.keys == named
        assert names(shop) == before
    with hc.open(shop, options=OPTIONS) as db:
        assert not db.core.engine.jobs, "a write that cannot be has given its job up"
        db.gc()
        assert db.check() == []
    assert files_of(shop) == current(shop)


def test_only_the_attempt_that_won_is_committed(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Tasks(monkeypatch)
    monkeypatch.setattr(travel, "task_here", lambda: (0, 5))  # the same number for all attempts
    table = frame(range(100, 3000))
    found = DefaultSource({"path": shop, "table": "orders"})
    writer = found.writer(spark_schema(table.schema), False)
    lost, won = (cast(Any, writer.write(iter(table.to_batches()))) for _ in range(2))
    late: Any = writer.write(iter(table.to_batches()))  # a zombie, after the commit
    writer.commit([won])
    assert len(names(shop)) == 2910
    assert current(shop) == {Path(one.key).name for one in won.made}
    others = {Path(one.key).name for message in (lost, late) for one in message.made}
    assert files_of(shop) == current(shop) | others
    assert len(others) == 2 * len(won.made)
    with hc.open(shop, options=OPTIONS) as db:
        db.gc()
        assert db.check() == []
    assert files_of(shop) == current(shop)


def test_a_write_that_never_comes_to_its_commit(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Tasks(monkeypatch)
    table = frame(range(100, 3000))
    found = DefaultSource({"path": shop, "table": "orders"})
    writer = found.writer(spark_schema(table.schema), False)
    message = writer.write(iter(table.to_batches()))
    with hc.open(shop, options=OPTIONS) as db:
        db.gc()
        assert files_of(shop), "its commit may still come, whoever owns the database then"
        clock = db.core.clock
        monkeypatch.setattr(type(clock), "wall_us", lambda self: 1 << 60)
        db.gc()
        assert not files_of(shop)
        monkeypatch.undo()
    with pytest.raises(NotFoundError, match="run the write again"):
        writer.commit([message])
    assert len(names(shop)) == 10


def test_rows_that_travel_as_files_go_after_the_commit(
    shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tasks(monkeypatch)
    table = frame(range(100, 5000))
    writer, messages = write(shop, table, tasks=3, onConflict="ignore")
    assert all(message.files and not message.data for message in messages)
    assert len(names(shop)) == 4910
    (key, _), *_ = messages[0].files
    with hc.open(shop, options=OPTIONS) as db:
        assert not db.core.engine.jobs, "the job ended with the commit"
        db.gc()
        assert not Path(shop, "objects", key).exists()
        assert db.check() == []
    waiting, _ = write(shop, frame([]), onConflict="ignore")
    late = waiting.write(iter(frame(range(5000, 9000)).to_batches()))
    waiting.abort([late])
    (key, _), *_ = late.files
    file = Path(shop, "objects", key)
    assert file.exists(), "abort deletes nothing"
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)
    with pytest.raises(CorruptionError, match="not what its task wrote"):
        waiting.commit([late])
    with pytest.raises(NotFoundError, match="run the write again"):
        writer._commit(messages, "another token")


def test_rows_travel_in_the_message_where_a_task_has_no_names_left(
    shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tasks(monkeypatch)
    monkeypatch.setattr(travel, "FILE_BYTES", 4000)
    table = frame(range(100, 40_000))
    _, (message,) = write(shop, table, tasks=1)
    assert len(message.made) == travel.ORDINALS
    assert message.data
    assert len(names(shop)) == 39_910
    monkeypatch.setattr(travel, "task_here", lambda: None)  # beyond TASKS of them
    _, (message,) = write(shop, table, tasks=1, onConflict="upsert")
    assert message.data
    assert not message.made
    assert not message.files
    assert len(names(shop)) == 39_910


def test_a_token_makes_a_write_happen_once(shop: str) -> None:
    writer, messages = write(shop, frame([20]), token="night 1")
    writer.commit(messages)
    write(shop, frame([20, 21]), token="night 1")
    assert 20 in names(shop)
    assert 21 not in names(shop)
    writer, messages = write(shop, frame([30]))
    writer.commit(messages)  # a token of its own


@pytest.mark.parametrize("held", [False, True], ids=["closed", "open elsewhere"])
def test_a_write_without_rows_remembers_its_token(shop: str, held: bool) -> None:
    with hc.open(shop, options=OPTIONS) if held else nullcontext():
        write(shop, frame([]), token="night 0")
    write(shop, frame([20]), token="night 0")
    assert 20 not in names(shop)
    write(shop, frame([]))
    with hc.open(shop, options=OPTIONS) as db:
        before = db.visible_ts
        write(shop, frame([]))
        assert db.visible_ts == before, "without a token there is nothing to commit"
        assert not db.core.engine.jobs


def test_ignored_rows_by_keys_of_several_columns(tmp_path: Path) -> None:
    with hc.open(tmp_path / "shop", options=OPTIONS) as db:
        db.create_table("orders", {"a": str, "b": "date", "n": int}, primary_key=["a", "b"])
        days = [date(2024, 1, 1 + n) for n in range(20)]
        with db.begin() as txn:
            txn.insert("orders", pa.table({"a": ["x"] * 20, "b": days, "n": [0] * 20}))
        more = {"a": ["y", "x"] * 20, "b": [*days, *days], "n": list(range(40))}
        write(db.path, pa.table(more), onConflict="ignore")
        found = db.sql("select a, count(*) as c, min(n) as n from orders group by a order by a")
        assert found.to_pylist() == [{"a": "x", "c": 20, "n": 0}, {"a": "y", "c": 10, "n": 0}]


def test_rows_that_claim_to_be_huge_are_not_unpacked() -> None:
    batch = pa.record_batch([pa.array(["x" * (16 << 20)])], names=["text"])
    table = pa.Table.from_batches([batch] * 8)
    small = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(small, table.schema, options=options) as writer:
        writer.write_table(table)
    bomb = small.getvalue().to_pybytes()
    with pytest.raises(CorruptionError, match="once unpacked"):
        parts.from_stream(bomb)
    with pytest.raises(CorruptionError, match="once unpacked"):
        list(travel.travelled(MemoryObjects(), [travel.TaskMessage(rows=8, data=bomb)]))
    objects = MemoryObjects()
    objects.put("1/1-0.parquet", bomb)
    files = [("1/1-0.parquet", xxhash.xxh3_128_digest(bomb))]
    with pytest.raises(CorruptionError, match="once unpacked"):
        list(travel.travelled(objects, [travel.TaskMessage(rows=8, files=files)]))


# -- streams -------------------------------------------------------------------------------------


def stream(db: hc.Database, **options: Any) -> Any:
    found = source(db, changes="true", **options)
    return found.streamReader(found.schema())


def batch(reader: Any, start: Any, end: Any) -> list[dict[str, Any]]:
    parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions(start, end)]
    return [row for part in parts for one in reader.read(part) for row in one.to_pylist()]


def run(reader: Any, start: Any = None, limit: Any = None) -> tuple[list[Any], Any]:
    """Batches until there is nothing left; returns them and the last offset."""
    offset = reader.initialOffset() if start is None else start
    found: list[Any] = []
    while True:
        end = reader.latestOffset(offset, limit or reader.getDefaultReadLimit())
        if end == offset:
            return found, offset
        found.append(batch(reader, offset, end))
        reader.commit(end)
        offset = end


@pytest.mark.parametrize("seed", range(2))
def test_batches_of_the_feed_are_the_feed(
    db: hc.Database, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {seed}")
    if seed % 2:
        monkeypatch.setattr(feed, "ROWS_ALONG_MAX", 20)
    chance = random.Random(seed)
    with db.begin() as hold:  # so that the whole feed stays readable for the comparison
        first = hold.snapshot
        reader = stream(db, startingTimestamp=str(first), maxRowsPerTrigger="40")
        found, offset = [], None
        for _ in range(4):
            grow(db, chance, 2)
            more, offset = run(reader, offset)
            found += more
        reader.stop()
        whole = [row for one in found for row in one]
        assert plain(whole) == plain(db.changes("orders", since=first).to_pylist())
        assert len(found) > 4
        for one in found:
            commits = {row["_commit_ts"] for row in one}
            assert len(one) <= 40 or len(commits) == 1
        hold.rollback()


def test_a_stream_begins_with_the_rows_that_are_there(db: hc.Database) -> None:
    grow(db, random.Random(5), 3)
    then = db.snapshot("then")
    with db.begin(at="then") as txn:
        rows = txn.scan("orders").to_pylist()
    expected = plain([{**r, "_change": "insert", "_commit_ts": then} for r in rows])
    grow(db, random.Random(6), 2)
    reader = stream(db, startingSnapshot="then")
    assert reader.initialOffset() == {"timestamp": -1}
    (first, *rest), _ = run(reader)
    assert plain(first) == expected
    later = db.changes("orders", since="then").to_pylist()
    assert plain(row for one in rest for row in one) == plain(later)
    # Spark asks for the first batch again after a crash: by its end alone.
    assert plain(batch(reader, {"timestamp": -1}, {"timestamp": then})) == expected
    reader.stop()
    latest = stream(db, startingTimestamp="latest")
    assert run(latest)[0] == [[]]
    latest.stop()


def test_limits_and_the_end_of_available_now(db: hc.Database) -> None:
    first = db.visible_ts
    for number in range(5):
        with db.begin() as txn:
            txn.insert("orders", {"id": number})
    reader = stream(db, startingTimestamp=str(first), maxCommitsPerTrigger="2")
    reader.prepareForTriggerAvailableNow()
    with db.begin() as txn:
        txn.insert("orders", {"id": 99})
    found, offset = run(reader)
    assert [[row["id"] for row in one] for one in found] == [[0, 1], [2, 3], [4]]
    assert reader.reportLatestOffset() == offset
    reader.stop()
    again = stream(db, startingTimestamp=str(first), maxRowsPerTrigger="3")
    assert [len(one) for one in run(again)[0]] == [3, 3]
    assert len(run(again, limit=ReadAllAvailable())[0]) == 1
    again.stop()


def test_a_running_stream_holds_its_offset_and_an_old_one_is_told(db: hc.Database) -> None:
    reader = stream(db)
    offset = run(reader)[1]
    grow(db, random.Random(1), 3)
    db.gc()
    expected = plain(db.changes("orders", since=offset["timestamp"]).to_pylist())
    found, after = run(reader, offset)
    assert plain(row for one in found for row in one) == expected
    reader.stop()
    grow(db, random.Random(2), 2)
    db.gc()
    late = stream(db)
    with pytest.raises(SnapshotExpiredError):
        late.latestOffset(after, ReadAllAvailable())
    late.stop()
    ahead = stream(db)
    with pytest.raises(UsageError, match="older copy"):
        ahead.latestOffset({"timestamp": 10_000}, ReadAllAvailable())
    ahead.stop()


def test_changes_of_other_tables_make_no_batch(db: hc.Database) -> None:
    db.create_table("other", {"id": int}, primary_key="id")
    reader = stream(db)
    offset = run(reader)[1]
    with db.begin() as txn:
        txn.insert("other", {"id": 1})
    assert reader.latestOffset(offset, ReadAllAvailable()) == offset
    reader.stop()


def test_a_feed_that_is_applied_makes_a_copy(db: hc.Database, shop: str, tmp_path: Path) -> None:
    path = str(tmp_path / "copy")
    with hc.open(path, options=OPTIONS) as copy:
        copy.create_table("orders", COLUMNS, primary_key="id")
    reader = stream(db, maxCommitsPerTrigger="3")
    offset = run(reader)[1]
    for seed in range(3):
        grow(db, random.Random(seed), 3)
        while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
            parts = reader.partitions(offset, end)
            table = pa.Table.from_batches([one for part in parts for one in reader.read(part)])
            write(path, table, onConflict="changes")
            reader.commit(end)
            offset = end
        with hc.open(path, read_only=True) as copy:
            assert plain(copy.table("orders").to_arrow().to_pylist()) == plain(
                db.table("orders").to_arrow().to_pylist()
            )
    reader.stop()
    with pytest.raises(SchemaError, match="_change"):
        write(path, frame([1]), onConflict="changes")


def test_types_that_arrow_names_otherwise(tmp_path: Path) -> None:
    row = {"id": 1, "day": date(2024, 1, 2), "at": datetime(2024, 1, 2, tzinfo=UTC), "x": [1.5]}
    columns = {"id": int, "day": "date", "at": "timestamptz", "x": "list<double>"}
    with hc.open(tmp_path / "types", options=OPTIONS) as db:
        db.create_table("orders", columns, primary_key="id")
        with db.begin() as txn:
            txn.insert("orders", row)
        assert read(db) == [row]


# -- a database that is served ---------------------------------------------------------------------


def test_a_server_is_read_written_and_streamed_from(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "ROWS_ALONG_MAX", 50)
    grow(db, random.Random(3), 4)
    server = db.serve()
    where = {"uri": server.uri, "serverToken": server.token}

    def served(**options: Any) -> DefaultSource:
        return DefaultSource({**where, "table": "orders", **options})

    reader = served(where="amount > 20").reader(served().schema())
    with db.begin() as txn:
        expected = plain(txn.scan("orders", where="amount > 20").to_pylist())
    assert plain(rows_of(reader)) == expected
    since = db.visible_ts
    write(where, frame(range(1000, 1200), "far"), onConflict="upsert")
    assert db.sql("select count(*) from orders where name = 'far'")[0][0].as_py() == 200
    found = served(changes="true", startingTimestamp=str(since))
    stream = found.streamReader(found.schema())
    batches, _ = run(stream)
    stream.stop()
    rows = [row for one in batches for row in one]
    assert plain(rows) == plain(db.changes("orders", since=since).to_pylist())
    with pytest.raises(UsageError, match="token"):
        DefaultSource({"uri": server.uri, "table": "orders"}).schema()
