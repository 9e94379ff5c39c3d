"""Compaction on Spark: better objects, the same rows for every snapshot, and nobody notices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline import spark as hs
from halocline.compaction import CompactPolicy, CompactReason, Plan
from halocline.errors import CorruptionError, NotFoundError, UnavailableError, UsageError
from halocline.objects.columns import ROWID
from tests.roles import maintenance_of
from tests.spark.compacting import (
    OPTIONS,
    Beside,
    Gate,
    current,
    drop,
    failing,
    job_runs,
    overlapping,
    put,
    rows_at,
    until,
)
from tests.unit.read import moving


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Any]:
    with hc.open(tmp_path / "shop [1] a=b", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "n": int}, primary_key="id")
        yield db
        if not db.core.closed:
            assert db.check() == []


def files(db: hc.Database) -> set[str]:
    with db.begin() as txn:
        return set(txn.changes_of("t").state.shelf.objects.list("1"))


def swept(db: hc.Database, there: set[str]) -> bool:
    """Has GC had all files of a dead job? A task that Spark has not ended yet may write another."""
    db.gc()
    return files(db) == there


def test_overlap_objects_and_tombstones_are_fewer_afterwards(spark: Any, db: hc.Database) -> None:
    model = overlapping(db)
    drop(db, *list(model)[::3])
    model = {key: n for place, (key, n) in enumerate(model.items()) if place % 3}
    db.flush()
    rowids = {entry.stats.rowid_min for entry in current(db)}
    report = hs.compact(spark, db, "t")
    table = report["t"]
    assert [done.reason for done in table.done] == [CompactReason.OVERLAP]
    assert table.done[0].tasks > 1
    assert (table.before.depth_max, table.after.depth_max) == (6, 1)
    assert table.after.data_objects < table.before.data_objects
    assert (table.before.tombstones, table.after.tombstones) == (120, 0)
    assert (table.before.dead_rows, table.after.dead_rows) == (120, 0)
    assert (report.rows_dropped, table.lost) == (120, 0)
    assert report.bytes_read > 0
    assert report.bytes_written == sum(entry.stats.size_bytes for entry in current(db))
    assert "overlap depth      6 -> 1" in str(report)
    assert rows_at(db) == model
    assert min(rowids) <= min(entry.stats.rowid_min for entry in current(db)), "they are the same"
    assert hs.compact(spark, db).groups == 0, "nothing is owed any more"


def test_outputs_do_not_overlap_and_are_within_the_limits(spark: Any, db: hc.Database) -> None:
    model = overlapping(db, objects=8, keys=110)
    hs.compact(spark, db)
    data = [entry for entry in current(db) if entry.kind == "data"]
    assert sum(entry.stats.rows for entry in data) == len(model)
    assert max(entry.stats.rows for entry in data) <= OPTIONS.object_rows
    assert min(entry.stats.rows for entry in data) > OPTIONS.object_rows // 4
    ranges = sorted((entry.stats.key_min, entry.stats.key_max) for entry in data)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(ranges))
    assert {entry.level for entry in data} == {2}
    assert rows_at(db) == model


def test_time_travel_before_between_and_after(spark: Any, db: hc.Database) -> None:
    history: dict[int, Any] = {}
    model: dict[int, Any] = {}
    for number in range(30):
        fresh = {number * 7 % 90 + key: number for key in range(10)}
        model = model | fresh
        history[put(db, fresh)] = dict(model)
        if number % 3 == 0:
            db.flush()
        if number % 15 == 14:
            hs.compact(spark, db)
    hs.compact(spark, db)
    for ts, rows in history.items():
        assert rows_at(db, ts) == rows
    first, last = min(history), max(history)
    changes = db.changes("t", since=first, until=last)
    assert changes.num_rows == sum(
        1 if key not in before else 2
        for before, after in itertools.pairwise(history.values())
        for key in {k for k in after if after[k] != before.get(k)}
    )


KEYS: dict[str, tuple[dict[str, Any], Any]] = {
    "text": ({"k": str}, lambda n: {"k": f"key {n * 37 % 1000:03d}"}),
    "date": ({"k": "date"}, lambda n: {"k": date(2020, 1, 1) + timedelta(days=n)}),
    "decimal": ({"k": "decimal(20,2)"}, lambda n: {"k": Decimal(n - 200) / 4}),
    "two": ({"a": int, "b": str}, lambda n: {"a": n % 7 - 3, "b": f"b{n}"}),
}


@pytest.mark.parametrize("name", ["text", "date", "decimal", "two"])
def test_any_kind_of_key(spark: Any, db: hc.Database, name: str) -> None:
    columns, key = KEYS[name]
    db.create_table("k", {**columns, "n": int, "data": "list<string>"}, primary_key=list(columns))
    for part in range(6):
        with db.begin() as txn:
            rows = [{**key(n), "n": n, "data": [str(n)]} for n in range(part, 600, 6)]
            txn.insert("k", rows)
        db.flush("k")
    with db.begin() as txn:
        txn.delete("k", where="n % 5 = 0")
        txn.update("k", where="n % 7 = 0", set={"data": None})
    expected = sorted(map(repr, db.table("k").to_arrow().to_pylist()))
    report = hs.compact(spark, db, "k")
    assert report["k"].done[0].tasks > 1
    assert report["k"].after.depth_max <= 2
    assert sorted(map(repr, db.table("k").to_arrow().to_pylist())) == expected


def test_a_table_without_a_key(spark: Any, db: hc.Database) -> None:
    db.create_table("log", {"n": int})
    for part in range(5):
        with db.begin() as txn:
            txn.insert("log", [{"n": part * 1000 + n} for n in range(50)])
        db.flush("log")
    with db.begin() as txn:
        txn.delete("log", where="n % 10 = 3")
    expected = sorted(db.table("log").to_arrow().column("n").to_pylist())
    report = hs.compact(spark, db, "log")
    assert report["log"].after.data_objects < report["log"].before.data_objects
    assert sorted(db.table("log").to_arrow().column("n").to_pylist()) == expected


def test_objects_that_were_loaded_get_their_timestamps(spark: Any, db: hc.Database) -> None:
    stamps = []
    for part in range(6):
        ids = pa.array(range(part, 600, 6), pa.int64())
        frame = spark.createDataFrame(pa.table({"id": ids, "n": ids}))
        stamps.append(hs.load(frame, db, "t").commit_ts)
    hs.compact(spark, db)
    data = [entry for entry in current(db) if entry.kind == "data"]
    assert all(entry.stats.committed for entry in data)
    assert min(entry.commit_ts_min for entry in data) == stamps[0]
    for number, ts in enumerate(stamps):
        assert len(rows_at(db, ts)) == 100 * (number + 1)


@pytest.mark.parametrize("act", ["update", "delete", "flush", "insert", "bulk"])
def test_what_commits_while_it_runs_survives(
    spark: Any, db: hc.Database, act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = overlapping(db)
    drop(db, 50)
    del model[50]
    start = db.visible_ts
    gate = Gate(monkeypatch, tmp_path / "gate", after=act == "delete")
    running = Beside(lambda: hs.compact(spark, db))
    until(lambda: job_runs(db))
    if act == "update":
        put(db, {11: -1, 12: -2})
        after = model | {11: -1, 12: -2}
    elif act == "insert":
        put(db, {5000: 1, -1: 2})
        after = model | {5000: 1, -1: 2}
    elif act == "bulk":  # a tombstone object that a user's commit brings
        moving.bulk_delete(db, "t", [11, 12])
        after = {key: n for key, n in model.items() if key not in (11, 12)}
    else:
        drop(db, 11, 12)
        if act == "flush":
            db.flush()
        after = {key: n for key, n in model.items() if key not in (11, 12)}
    gate.open()
    report = running.result()
    assert (report.groups, report["t"].lost) == (1, 0)
    assert rows_at(db, start) == model
    assert rows_at(db) == after
    with db.begin() as txn:
        found = txn.get("t", 11)
    assert (found and found["n"]) == after.get(11)


def test_a_tombstone_object_that_concerns_another_object_too(spark: Any, db: hc.Database) -> None:
    """Only the tombstones of dropped rows leave it; those of the other object's rows stay."""
    put(db, dict.fromkeys(range(100), 1))
    db.flush()
    put(db, dict.fromkeys(range(100, 200), 2))
    db.flush()
    # Most of the first object, a few rows of the second: one tombstone object names them all.
    drop(db, *range(60), 150, 151)
    db.flush()
    (tombstones,) = [entry for entry in current(db) if entry.kind == "tombstone"]
    policy = CompactPolicy(fold_percent=1000)
    report = hs.compact(spark, db, "t", plan=policy)
    assert [done.reason for done in report["t"].done] == [CompactReason.DEAD]
    assert report.rows_dropped == 60
    (left,) = [entry for entry in current(db) if entry.kind == "tombstone"]
    assert left.id != tombstones.id
    assert left.stats.rows == 2
    assert rows_at(db) == dict.fromkeys(range(60, 100), 1) | {
        key: 2 for key in range(100, 200) if key not in (150, 151)
    }


def test_each_object_by_itself_when_many_have_dead_rows(spark: Any, db: hc.Database) -> None:
    for part in range(40):
        put(db, dict.fromkeys(range(part * 100, part * 100 + 100), part))
        db.flush()
    with db.begin() as txn:
        txn.delete("t", where="id % 3 = 0")
    db.flush()
    expected = rows_at(db)
    policy = CompactPolicy(fold_percent=1000, group_objects_max=100)
    report = hs.compact(spark, db, "t", plan=policy)
    (done,) = report["t"].done
    assert (done.reason, done.objects_in) == (CompactReason.DEAD, 40 + 11)
    assert done.tasks == 4, "two waves of two cores"
    assert report["t"].after.dead_rows == 0
    assert rows_at(db) == expected


def test_an_object_that_is_too_large_today_becomes_many(spark: Any, tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=replace(OPTIONS, object_rows=4096)) as db:
        db.create_table("t", {"id": int, "n": int}, primary_key="id")
        put(db, dict.fromkeys(range(4000), 1))
        db.flush()
        with db.begin() as txn:
            txn.delete("t", where="id % 3 = 0")
        db.flush()
        assert len(db.table("t").files()) == 1
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        (done, *_) = hs.compact(spark, db)["t"].done
        assert (done.rows_in, done.rows_dropped) == (4000, 1334)
        assert done.tasks > 1, "more objects than one task may write"
        assert max(entry.stats.rows for entry in current(db)) <= OPTIONS.object_rows
        assert rows_at(db) == {key: 1 for key in range(4000) if key % 3}
        assert db.check() == []


@pytest.mark.parametrize("act", ["truncate", "drop"])
def test_a_truncate_or_a_drop_beside_it_wins(
    spark: Any, db: hc.Database, act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = overlapping(db)
    before = db.visible_ts
    gate = Gate(monkeypatch, tmp_path / "gate")
    running = Beside(lambda: hs.compact(spark, db, "t"))
    until(lambda: job_runs(db))
    if act == "truncate":
        db.run(lambda txn: txn.truncate("t"))
    else:
        db.drop_table("t")
    gate.open()
    report = running.result()
    assert (report.groups, report["t"].lost) == (0, 1)
    assert not db.core.engine.jobs, "the job that lost is over"
    if act == "truncate":
        assert rows_at(db) == {}
        assert rows_at(db, before) == model


def test_of_two_compactions_of_the_same_objects_one_loses(
    spark: Any, db: hc.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = overlapping(db)
    gate = Gate(monkeypatch, tmp_path / "gate")
    running = Beside(lambda: hs.compact(spark, db, "t"))
    until(lambda: job_runs(db))
    assert hs.compact(spark, db, "t").groups == 0, "all of it is claimed"
    assert db.compact("t").groups == 0
    # A runner of another process knows nothing of what is claimed here.
    moving.merge(db, "t")
    gate.open()
    report = running.result()
    assert report["t"].lost == 1
    assert all(done.reason is CompactReason.SMALL for done in report["t"].done), "what came instead"
    assert rows_at(db) == model


def test_a_damaged_input_is_named_and_nothing_changes(spark: Any, db: hc.Database) -> None:
    model = overlapping(db)
    entry = current(db)[2]
    with db.begin() as txn:
        objects = txn.changes_of("t").state.shelf.objects
    whole = objects.read(entry.key)
    for place in (50, len(whole) // 2, len(whole) - 30):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        objects.put(entry.key, damaged)
        with db.begin() as txn:  # as a process that has not read it yet would find it
            txn.changes_of("t").state.shelf.reader.forget(entry.file)
        before = current(db)
        with pytest.raises(CorruptionError) as caught:
            hs.compact(spark, db)
        assert caught.value.path == f"objects/{entry.key}"
        assert current(db) == before
        assert not db.core.engine.jobs
    objects.put(entry.key, whole)
    assert hs.compact(spark, db).groups == 1
    assert rows_at(db) == model


@pytest.mark.parametrize("after", [False, True], ids=["before it writes", "after it wrote"])
def test_a_task_that_fails_changes_nothing_and_gc_has_its_files(
    spark: Any, db: hc.Database, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = overlapping(db)
    before, there = current(db), files(db)
    with monkeypatch.context() as patch:
        failing(patch, 1, after=after)
        with pytest.raises(UnavailableError, match="the Spark job failed") as caught:
            hs.compact(spark, db)
    assert caught.value.outcome == "not_committed"
    assert current(db) == before
    assert not db.core.engine.jobs
    assert files(db) > there or not after
    until(lambda: swept(db, there))
    assert hs.compact(spark, db).groups == 1
    assert rows_at(db) == model


def test_files_of_a_running_job_are_left_alone(
    spark: Any, db: hc.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, there = overlapping(db), files(db)
    gate = Gate(monkeypatch, tmp_path / "gate", after=True)
    running = Beside(lambda: hs.compact(spark, db))
    until(lambda: files(db) > there)
    written = files(db)
    assert any("jobs are running" in kept.reason for kept in db.gc().kept)
    assert files(db) >= written
    spark.sparkContext.cancelAllJobs()
    with pytest.raises(UnavailableError, match="cancel"):
        running.result()
    gate.open()
    until(lambda: swept(db, there))
    assert rows_at(db) == model


def test_closing_the_database_ends_the_job(
    spark: Any, db: hc.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlapping(db)
    gate = Gate(monkeypatch, tmp_path / "gate")
    running = Beside(lambda: hs.compact(spark, db))
    until(lambda: job_runs(db))
    db.close()
    with pytest.raises(UnavailableError, match="closed"):
        running.result()
    until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())
    gate.open()
    with hc.open(db.path, options=OPTIONS) as again:
        assert again.check() == []
        assert len(rows_at(again)) == 360


def test_small_groups_are_rewritten_here(spark: Any, tmp_path: Path) -> None:
    options = replace(OPTIONS, compact_local_bytes=1 << 30)
    with hc.open(tmp_path / "small", options=options) as db:
        db.create_table("t", {"id": int, "n": int}, primary_key="id")
        model = overlapping(db)
        report = hs.compact(None, db)
        assert [done.tasks for done in report["t"].done] == [0]
        assert rows_at(db) == model
        assert db.check() == []


def test_a_plan_is_carried_out_as_it_is(spark: Any, db: hc.Database) -> None:
    model = overlapping(db)
    shown: list[tuple[int, int]] = []
    with db.begin() as txn:
        state = txn.changes_of("t").state
    plan = maintenance_of(db).gatherer.plan(
        state, db.visible_ts, CompactPolicy(depth_max=2, group_objects_max=3), frozenset()
    )
    assert len(plan.groups) == 2
    report = hs.compact(None, db, "t", plan, progress=lambda done, of: shown.append((done, of)))
    assert (report.groups, report["t"].lost) == (2, 0)
    assert shown
    assert report["t"].after.depth_max == 2
    assert hs.compact(spark, db, "t", plan)["t"].lost == 2, "its objects have ended"
    assert hs.compact(spark, db, "t", Plan(groups=(), deferred=())).groups == 0
    assert rows_at(db) == model
    with db.begin() as txn:
        seen = [state.shelf.reader.read(e.file, state.schema) for e in current(db)]
    rowids = [rowid for table in seen for rowid in table.column(ROWID).to_pylist()]
    assert len(rowids) == len(set(rowids)) == len(model)


def test_what_cannot_be_is_refused(spark: Any, db: hc.Database) -> None:
    with pytest.raises(NotFoundError):
        hs.compact(spark, db, "nowhere")
    with pytest.raises(UsageError, match="database"):
        hs.compact(spark, "shop")
    with pytest.raises(UsageError, match="SparkSession"):
        hs.compact("local[2]", db)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Plan"):
        hs.compact(spark, db, "t", plan="all")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="one table"):
        hs.compact(spark, db, plan=Plan(groups=(), deferred=()))
    with hc.open(db.path, read_only=True) as reader, pytest.raises(UsageError, match="read-only"):
        hs.compact(spark, reader)
    with hc.open(db.path) as node, pytest.raises(UsageError, match="another process"):
        hs.compact(spark, node)
