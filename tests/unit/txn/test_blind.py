"""Blind jobs: what others commit meanwhile never makes them fail, and the result is that of a job
that ran at its commit.

    40 rows in an object, 10 in memory --> job runs --> others commit --> job commits

| the job \\ others | update k   | delete k   | insert k    |
|-------------------|------------|------------|-------------|
| upsert            | ours wins  | our insert | ours wins   |
| ignore            | theirs     | our insert | theirs      |
| delete            | gone       | gone       | gone        |
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from tests.scenario.document import tables
from tests.unit.txn.blindjobs import begin_job, between_rounds

OPTIONS = hc.Options(
    page_rows=8,
    object_rows=64,
    row_group_rows=16,
    bulk_rows=8,
    object_rows_min=20,
    background=False,
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "shop", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "a": int, "b": str}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", [{"id": n, "a": 0, "b": "old"} for n in range(40)])
        db.flush("t")
        with db.begin() as txn:
            txn.insert("t", [{"id": n, "a": 0, "b": "old"} for n in range(40, 50)])
        yield db
        assert db.check() == []


def rows(ids: Any, a: int = 1, b: str = "job") -> Any:
    ids = list(ids)
    return pa.table({"id": ids, "a": [a] * len(ids), "b": [b] * len(ids)})


def now(db: hc.Database, at: Any = None) -> dict[int, tuple[Any, Any]]:
    return {row["id"]: (row["a"], row["b"]) for row in db.table("t").to_arrow(at=at).to_pylist()}


def others(db: hc.Database) -> None:
    """Touch rows in the object (1, 2), in memory (41, 42) and keys that were free (60, 61)."""
    for key in (1, 41):
        db.run(lambda txn, key=key: txn.update("t", key, {"a": 7}))
    for key in (2, 42):
        db.run(lambda txn, key=key: txn.delete("t", key))
    for key in (60, 61):
        db.run(lambda txn, key=key: txn.insert("t", {"id": key, "a": 7, "b": "theirs"}))
    db.run(lambda txn: txn.delete("t", 61))


KEYS = [0, 1, 2, 40, 41, 42, 60, 61, 62]
BEFORE = dict.fromkeys(range(50), (0, "old"))
THEIRS = {1: (7, "old"), 41: (7, "old"), 60: (7, "theirs")}


def after_others() -> dict[int, tuple[Any, Any]]:
    left = {key: row for key, row in BEFORE.items() if key not in (2, 42)}
    return left | THEIRS


def test_an_upsert_takes_the_place_of_whatever_is_there(db: hc.Database) -> None:
    job = begin_job(db, "t", "upsert", rows(KEYS))
    others(db)
    ts = job.commit()
    assert now(db) == after_others() | dict.fromkeys(KEYS, (1, "job"))
    assert now(db, at=ts - 1) == after_others()
    changes = db.changes("t", since=ts - 1).to_pylist()
    kinds = {(row["id"], row["_change"]): row["a"] for row in changes}
    assert {key for key, kind in kinds if kind == "insert"} == {2, 42, 61, 62}
    assert {key for key, kind in kinds if kind == "update_after"} == {0, 1, 40, 41, 60}
    assert {key: kinds[key, "update_before"] for key in (1, 41, 60)} == {1: 7, 41: 7, 60: 7}
    assert len(changes) == 4 + 2 * 5


def test_an_upsert_of_some_columns_keeps_what_others_wrote_in_the_rest(db: hc.Database) -> None:
    job = begin_job(db, "t", "upsert", rows(KEYS).select(["id", "b"]))
    others(db)
    ts = job.commit()
    expected = after_others()
    for key in KEYS:
        expected[key] = (expected.get(key, (None, ""))[0], "job")
    assert now(db) == expected
    assert (expected[1], expected[2]) == ((7, "job"), (None, "job"))
    changes = db.changes("t", since=ts - 1).to_pylist()
    assert sorted(row["id"] for row in changes if row["_change"] == "insert") == [2, 42, 61, 62]
    assert len(changes) == 4 + 2 * 5


def test_ignore_gives_way_to_rows_that_came_and_inserts_where_one_went(db: hc.Database) -> None:
    job = begin_job(db, "t", "ignore", rows(KEYS))
    blind = job.blind
    others(db)
    ts = job.commit()
    mine = dict.fromkeys([2, 42, 61, 62], (1, "job"))
    assert now(db) == after_others() | mine
    changes = db.changes("t", since=ts - 1).to_pylist()
    assert sorted((row["id"], row["_change"]) for row in changes) == [
        (key, "insert") for key in sorted(mine)
    ]
    assert blind.counts() == (4, 0, 0)


def test_delete_takes_what_is_there_at_its_commit(db: hc.Database) -> None:
    job = begin_job(db, "t", "delete", rows(KEYS))
    others(db)
    ts = job.commit()
    assert now(db) == {key: row for key, row in after_others().items() if key not in KEYS}
    changes = db.changes("t", since=ts - 1).to_pylist()
    assert sorted((row["id"], row["_change"]) for row in changes) == [
        (key, "delete") for key in (0, 1, 40, 41, 60)
    ]


def test_the_table_of_the_document_holds(db: hc.Database) -> None:
    header, *lines = tables()["Blind jobs: when the job commits"]
    assert header[1:] == ["blind upsert", "blind upsert a", "blind ignore", "blind delete"]
    assert [line[0] for line in lines] == ["K is `1 1`", "K is absent"]
    for place, line in enumerate(lines):
        for column, cell in enumerate(line[1:]):
            # K is there when the job begins, or is not; the end is the same.
            for begins in (True, False):
                key = 1000 + 100 * place + 10 * column + begins
                if begins:
                    db.run(lambda txn, key=key: txn.insert("t", {"id": key, "a": 9, "b": "9"}))
                mode = ["upsert", "upsert", "ignore", "delete"][column]
                given = rows([key], 2, "2")
                job = begin_job(db, "t", mode, given.select(["id", "a"]) if column == 1 else given)
                db.run(lambda txn, key=key: txn.delete("t", key))
                if place == 0:
                    db.run(lambda txn, key=key: txn.insert("t", {"id": key, "a": 1, "b": "1"}))
                job.commit()
                words = {"gone": None, "nothing": None}
                expected = words[cell] if cell in words else tuple(cell.split())
                found = now(db).get(key)
                assert expected == (found and (str(found[0]), str(found[1] or "null")))


@pytest.mark.parametrize("mode", ["upsert", "some", "ignore", "delete"])
def test_what_comes_between_the_last_rounds_counts_too(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Commits of others just before the lock, again and again on the same keys, then none."""
    given = rows(KEYS).select(["id", "b"]) if mode == "some" else rows(KEYS)
    job = begin_job(db, "t", "upsert" if mode == "some" else mode, given)
    blind = job.blind

    def touch(value: int) -> None:
        db.run(lambda txn: txn.upsert("t", {"id": 1, "a": value, "b": "late"}))
        db.run(lambda txn: txn.delete("t", 41) or txn.insert("t", {"id": 41, "a": value, "b": "x"}))
        db.run(lambda txn: txn.upsert("t", {"id": 62, "a": value, "b": "late"}))
        db.run(lambda txn: txn.delete("t", 60) or txn.insert("t", {"id": 60, "a": value, "b": "x"}))
        db.run(lambda txn: txn.delete("t", 0))

    between_rounds(db, monkeypatch, lambda: others(db), *[lambda n=n: touch(n) for n in range(20)])
    ts = job.commit()
    before = now(db, at=ts - 1)
    keys = set(KEYS)
    if mode == "delete":
        expected = {key: row for key, row in before.items() if key not in keys}
    elif mode == "ignore":
        expected = dict.fromkeys(keys, (1, "job")) | before
    else:
        expected = dict(before)
        for key in keys:
            a = expected.get(key, (None, ""))[0]
            expected[key] = (a if mode == "some" else 1, "job")
    assert now(db) == expected
    inserted, updated, deleted = blind.counts()
    assert (inserted, deleted) == (len(expected.keys() - before), len(before.keys() - expected))
    assert updated == (0 if mode in ("ignore", "delete") else len(keys & before.keys()))
    with db.begin() as txn:
        for key in range(70):
            row = txn.get("t", key)
            assert (None if row is None else (row["a"], row["b"])) == expected.get(key)


def test_jobs_that_are_not_blind_conflict(db: hc.Database) -> None:
    job = begin_job(db, "t", "update", rows([1, 2, 3]))
    db.run(lambda txn: txn.update("t", 2, {"a": 5}))
    with pytest.raises(hc.ConflictError):
        job.commit()
    job = begin_job(db, "t", "error", rows([60, 61]))
    db.run(lambda txn: txn.insert("t", {"id": 61, "a": 5, "b": "x"}))
    with pytest.raises(hc.ConflictError):
        job.commit()
    job = begin_job(db, "t", "upsert", rows([1]))
    assert job.commit()


def test_an_update_of_other_columns_merges(db: hc.Database) -> None:
    job = begin_job(db, "t", "update", rows([1, 2, 41]).select(["id", "b"]))
    db.run(lambda txn: txn.update("t", 2, {"a": 5}))
    db.run(lambda txn: txn.update("t", 41, {"a": 6}))
    job.commit()
    assert [now(db)[key] for key in (1, 2, 41)] == [(0, "job"), (5, "job"), (6, "job")]


def test_two_blind_jobs_the_later_commit_wins(db: hc.Database) -> None:
    first = begin_job(db, "t", "upsert", rows(range(30, 70), 1, "first"))
    second = begin_job(db, "t", "upsert", rows(range(35, 75), 2, "second"))
    ignored = begin_job(db, "t", "ignore", rows(range(60, 80), 3, "third"))
    gone = begin_job(db, "t", "delete", rows(range(70, 72)))
    first.commit()
    second.commit()
    ignored.commit()
    gone.commit()
    expected = BEFORE | dict.fromkeys(range(30, 70), (1, "first"))
    expected |= dict.fromkeys(range(35, 75), (2, "second"))
    expected |= dict.fromkeys(range(75, 80), (3, "third"))
    assert now(db) == {key: row for key, row in expected.items() if key not in (70, 71)}


@pytest.mark.parametrize("mode", ["upsert", "ignore", "delete"])
def test_truncate_wins_over_a_job_that_met_rows(db: hc.Database, mode: str) -> None:
    met, free = begin_job(db, "t", mode, rows([1, 60])), begin_job(db, "t", mode, rows([60, 61]))
    with db.begin() as txn:
        txn.truncate("t")
    db.run(lambda txn: txn.insert("t", {"id": 60, "a": 9, "b": "new"}))
    with pytest.raises(hc.ConflictError, match="truncated"):
        met.commit()
    free.commit()
    expected: dict[int, Any] = {
        "upsert": {60: (1, "job"), 61: (1, "job")},
        "ignore": {60: (9, "new"), 61: (1, "job")},
        "delete": {},
    }[mode]
    assert now(db) == expected


@pytest.mark.parametrize("mode", ["upsert", "ignore", "delete"])
def test_a_truncate_that_commits_after_the_job_takes_its_rows(db: hc.Database, mode: str) -> None:
    with db.begin() as txn:
        txn.truncate("t")
        job = begin_job(db, "t", mode, rows([1, 41, 60]))
        db.run(lambda txn: txn.update("t", 1, {"a": 3}))
        job.commit()
    assert now(db) == {}


def test_single_writers_with_an_older_snapshot_conflict_or_merge(db: hc.Database) -> None:
    one, two, three = db.begin(), db.begin(), db.begin()
    one.update("t", 1, {"b": "mine"})
    two.update("t", 41, {"a": 8})
    three.insert("t", {"id": 60, "a": 1, "b": "mine"})
    job = begin_job(db, "t", "upsert", rows([1, 41, 60]).select(["id", "b"]))
    db.run(lambda txn: txn.update("t", 41, {"b": "between"}))
    job.commit()
    for txn in (one, three):
        with pytest.raises(hc.ConflictError):
            txn.commit()
    two.commit()
    assert (now(db)[1], now(db)[41], now(db)[60]) == ((0, "job"), (8, "job"), (None, "job"))
    db.run(lambda txn: txn.update("t", 60, {"a": 4}))
    assert now(db)[60] == (4, "job")


def test_a_token_is_known_after_a_job(db: hc.Database) -> None:
    job = begin_job(db, "t", "delete", rows([100]), token="night 1")
    ts = job.commit()
    with db.begin(token="night 1") as txn:
        assert (txn.already_committed, txn.commit_ts) == (True, ts)


def test_a_job_that_has_been_ended_cannot_commit(db: hc.Database) -> None:
    job = begin_job(db, "t", "upsert", rows(range(10)))
    for known in list(db.core.engine.jobs):
        db.core.engine.jobs.pop(known)
    with pytest.raises(hc.UnavailableError, match="ended") as caught:
        job.commit()
    assert caught.value.outcome == "not_committed"
    assert now(db) == BEFORE
