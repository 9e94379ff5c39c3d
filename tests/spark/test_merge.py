"""Merge: actions, conditions, what is refused before a job starts, and damage that is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline import spark as hs
from halocline.errors import CorruptionError, SchemaError, UsageError

OPTIONS = hc.Options(
    page_rows=64, object_rows=256, row_group_rows=128, bulk_rows=50, background=False
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    """Keys 0..99 in an object, 100..119 in memory; `n` counts them, `at` is 10 everywhere."""
    with hc.open(tmp_path / "shop", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "n": int, "at": int, "text": str}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", [row(n) for n in range(100)])
        db.flush("t")
        with db.begin() as txn:
            txn.insert("t", [row(n) for n in range(100, 120)])
        yield db


def row(n: int) -> dict[str, Any]:
    return {"id": n, "n": n, "at": 10, "text": "old"}


def now(db: hc.Database) -> dict[int, tuple[Any, ...]]:
    rows = db.table("t").to_arrow().to_pylist()
    return {one["id"]: (one["n"], one["at"], one["text"]) for one in rows}


OLD = {n: (n, 10, "old") for n in range(120)}


def frame(spark: Any, rows: list[tuple[int, int, int, str]]) -> Any:
    names = ["id", "n", "at", "text"]
    return spark.createDataFrame(
        pa.Table.from_pylist([dict(zip(names, r, strict=True)) for r in rows])
    )


ROWS = [(5, -1, 9, "new"), (6, -1, 11, "new"), (105, -1, 12, "new"), (200, -1, 1, "new")]
NEW = {key: (n, at, text) for key, n, at, text in ROWS}


def test_merge_updates_and_inserts(spark: Any, db: hc.Database) -> None:
    report = hs.merge(frame(spark, ROWS), db, "t", on="ID")
    assert (report.inserted, report.updated, report.deleted) == (1, 3, 0)
    assert now(db) == OLD | NEW
    assert db.check() == []


def test_a_condition_chooses_among_rows_that_match(spark: Any, db: hc.Database) -> None:
    newer = "source.at > target.at"
    report = hs.merge(frame(spark, ROWS), db, "t", condition=newer)
    assert (report.inserted, report.updated) == (1, 2)
    assert now(db) == OLD | {key: NEW[key] for key in (6, 105, 200)}
    report = hs.merge(
        frame(spark, ROWS), db, "t", when_matched="delete", condition="source.text = target.text"
    )
    assert (report.inserted, report.deleted) == (0, 3)
    assert now(db) == {key: one for key, one in OLD.items() if key not in (6, 105)}
    assert db.check() == []


def test_all_pairs_of_actions(spark: Any, db: hc.Database) -> None:
    given = frame(spark, ROWS)
    report = hs.merge(given, db, "t", when_matched="ignore")
    assert (report.inserted, report.updated) == (1, 0)
    assert now(db) == OLD | {200: NEW[200]}
    only = given.select("id", "text")
    report = hs.merge(only, db, "t", when_not_matched="ignore")
    assert (report.inserted, report.updated) == (0, 4)
    assert now(db)[5] == (5, 10, "new")
    more = frame(spark, [*ROWS, (300, 1, 1, "x")])
    report = hs.merge(more, db, "t", when_matched="delete", when_not_matched="insert")
    assert (report.inserted, report.deleted) == (1, 4)
    report = hs.merge(more, db, "t", when_matched="delete", when_not_matched="ignore")
    assert (report.inserted, report.deleted) == (0, 1)
    assert now(db) == {key: one for key, one in OLD.items() if key not in (5, 6, 105)}
    assert db.check() == []


def test_a_column_that_only_the_condition_knows(spark: Any, db: hc.Database) -> None:
    operations = [{"id": 5, "op": "D"}, {"id": 6, "op": "U"}, {"id": 105, "op": "D"}]
    given = spark.createDataFrame(pa.Table.from_pylist(operations))
    kept = {"when_matched": "delete", "when_not_matched": "ignore"}
    report = hs.merge(given, db, "t", condition="source.op = 'D' and target.n > 5", **kept)
    assert report.deleted == 1
    assert set(OLD) - set(now(db)) == {105}
    with pytest.raises(SchemaError, match="op"):
        hs.merge(given, db, "t", condition="target.n > 5", **kept)
    with pytest.raises(SchemaError, match="op"):
        hs.merge(given, db, "t", **kept)


def test_a_merge_with_a_condition_conflicts_and_one_without_does_not(
    spark: Any, db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from halocline.spark import job

    joined = job.join

    def join(*given: Any) -> Any:
        db.run(lambda txn: txn.update("t", 6, {"text": "theirs"}))
        return joined(*given)

    monkeypatch.setattr(job, "join", join)
    with pytest.raises(hc.ConflictError):
        hs.merge(frame(spark, ROWS), db, "t", condition="source.at > target.at")
    assert now(db) == OLD | {6: (6, 10, "theirs")}
    report = hs.merge(frame(spark, ROWS), db, "t")
    assert (report.inserted, report.updated) == (1, 3)
    assert now(db) == OLD | NEW
    assert db.check() == []


def test_what_is_refused_before_a_job_starts(spark: Any, db: hc.Database, tmp_path: Path) -> None:
    jobs, given = db.core.engine.last_job_id, frame(spark, ROWS)
    for bad in (
        {"on": "n"},
        {"on": ["id", "n"]},
        {"when_matched": "replace"},
        {"when_not_matched": "delete"},
        {"when_matched": "ignore", "when_not_matched": "ignore"},
        {"when_matched": "ignore", "condition": "source.at > target.at"},
        {"condition": "at > 5"},
        {"condition": "other.at > 5"},
        {"condition": "source.at"},
        {"condition": ""},
        {"condition": "source.at > (select max(at) from t)"},
        {"condition": "sum(source.at) > 5"},
        {"condition": "source.at > 5; drop table t"},
        {"condition": "source.text > 5 and no_such_function(source.at)"},
        {"condition": 5},
    ):
        with pytest.raises(UsageError):
            hs.merge(given, db, "t", **bad)
    for bad in ({"condition": "source.nope > 5"}, {"condition": "target.nope > 5"}):
        with pytest.raises(SchemaError, match="nope"):
            hs.merge(given, db, "t", **bad)
    with pytest.raises(SchemaError, match="id"):
        hs.merge(given.drop("id"), db, "t")
    with pytest.raises(SchemaError, match="n"):
        hs.merge(given.withColumn("n", given["text"]), db, "t", when_matched="delete")
    with pytest.raises(hc.NotFoundError):
        hs.merge(given, db, "nope")
    (tmp_path / "empty").mkdir()
    for nothing in (str(tmp_path / "empty"), tmp_path, None, "nowhere"):
        with pytest.raises(UsageError, match="database"):
            hs.merge(given, nothing, "t")
    with pytest.raises(UsageError, match="DataFrame"):
        hs.merge(given.toArrow(), db, "t")
    assert db.core.engine.last_job_id == jobs
    assert now(db) == OLD


def test_damage_is_found_and_named_before_a_row_is_rewritten(spark: Any, db: hc.Database) -> None:
    (file,) = db.table("t").files()
    path = Path(str(file))
    whole = path.read_bytes()
    hurt = bytearray(whole)
    for at in range(200, len(whole) // 2):
        hurt[at] ^= 0x55
    path.write_bytes(bytes(hurt))
    only = frame(spark, ROWS).select("id", "text")
    for job in (
        lambda: hs.merge(only, db, "t"),
        lambda: hs.merge(frame(spark, ROWS), db, "t", condition="source.at > target.at"),
        lambda: hs.load(only, db, "t", on_conflict="upsert"),
        lambda: hs.update(only.where("id < 200"), db, "t"),
    ):
        with pytest.raises(CorruptionError) as caught:
            job()
        assert path.name in str(caught.value)
    path.write_bytes(whole)
    assert now(db) == OLD
    hs.merge(only, db, "t")
    assert now(db)[5] == (5, 10, "new")
