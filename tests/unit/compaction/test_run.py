"""db.compact: better objects, the same rows for every snapshot, and no user who notices."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from halocline import (
    CorruptionError,
    Database,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from halocline.compaction import CompactReason
from halocline.compaction.plan import Job
from halocline.ids import NEVER
from tests.clock import ManualClock
from tests.store.faulty import FaultyFiles
from tests.unit.read import moving
from tests.unit.read.moving import TINY, bulk_delete, bulk_insert, flush, let_go, move, state_of
from tests.unit.rows.rig import seeds

Rows = dict[Any, Any]


@pytest.fixture
def db() -> Iterator[Any]:
    with Database(FaultyFiles(), "memory", options=TINY) as db:
        db.create_table("t", {"id": int, "n": int}, primary_key="id")
        yield db
        assert not db.check()


def rows_at(db: Database, ts: int | None = None) -> Rows:
    return {row["id"]: row["n"] for row in db.table("t").to_arrow(at=ts).to_pylist()}


def put(db: Database, rows: Rows) -> int:
    with db.begin() as txn:
        txn.upsert("t", [{"id": key, "n": n} for key, n in rows.items()])
    assert txn.commit_ts is not None
    return txn.commit_ts


def drop(db: Database, *keys: int) -> int:
    with db.begin() as txn:
        for key in keys:
            assert txn.delete("t", key)
    assert txn.commit_ts is not None
    return txn.commit_ts


def settle(db: Database) -> None:
    """All of L0 into objects."""
    move(db, "t")
    flush(db, "t")
    let_go(db, "t")


def current(db: Database) -> list[Any]:
    return list(state_of(db, "t").shape.tier.current())


class Before:
    """Does something just before a file is stored, once."""

    def __init__(self, db: Database, action: Callable[[], Any]) -> None:
        objects = state_of(db, "t").shelf.objects
        self._put, self._action = objects.put_new, action
        objects.put_new = self  # type: ignore[method-assign]

    def __call__(self, key: str, data: Any) -> None:
        action, self._action = self._action, lambda: None
        action()
        self._put(key, data)


def overlapping(db: Database, objects: int = 6) -> Rows:
    """Objects that all hold the same range of keys."""
    model: Rows = {}
    for number in range(objects):
        rows = {key * 10 + number: number for key in range(10)}
        put(db, rows)
        model |= rows
        settle(db)
    return model


def test_k06_overlap_objects_and_tombstones_are_fewer_afterwards(db: Any) -> None:
    model = overlapping(db)
    for key in list(model)[::3]:
        drop(db, key)
        del model[key]
    settle(db)
    report = db.compact("t")
    table = report["t"]
    assert table.before.depth_max == 6
    assert table.after.depth_max == 1
    assert table.after.data_objects < table.before.data_objects
    assert table.after.tombstone_objects < table.before.tombstone_objects
    assert (table.before.dead_rows, table.after.dead_rows) == (20, 0)
    assert report.rows_dropped == 20
    assert report.bytes_read > report.bytes_written > 0
    assert not (table.deferred)
    assert not (table.too_large)
    assert not (table.lost)
    assert rows_at(db) == model
    assert "overlap depth      6 -> 1" in str(report)
    assert not db.compact("t").groups, "nothing is owed any more"


def test_l10_l12_l16_inputs_go_one_level_up_in_objects_of_equal_size(db: Any) -> None:
    model = overlapping(db)
    db.compact()
    data = [entry for entry in current(db) if entry.kind == "data"]
    assert {entry.level for entry in data} == {2}
    assert [entry.stats.rows for entry in data] == [15] * 4
    ranges = sorted((entry.stats.key_min, entry.stats.key_max) for entry in data)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(ranges))
    assert rows_at(db) == model


def test_k01_l07_the_jobs_of_a_three_level_tree(db: Any) -> None:
    model = overlapping(db)
    assert {entry.level for entry in current(db)} == {1}, "L0 block sort: the mover's"
    assert [done.job for done in db.compact()["t"].done] == [Job.L1_MERGE]
    gone = [key for key in sorted(model)[:15] if key % 2]
    drop(db, *gone)
    model = {key: n for key, n in model.items() if key not in gone}
    assert [done.job for done in db.compact()["t"].done] == [Job.L2_BLOCK_COMPACT]
    for first in (1000, 2000, 3000, 4000):
        put(db, dict.fromkeys(range(first, first + 5), 0))
        settle(db)
        model |= dict.fromkeys(range(first, first + 5), 0)
    db.compact()
    rest = [key for key in sorted(model) if key % 10 > 2]
    drop(db, *rest)
    model = {key: n for key, n in model.items() if key not in rest}
    jobs = [done.job for done in db.compact()["t"].done]
    assert Job.L2_MERGE in jobs, "what the compacts left is small"
    assert rows_at(db) == model


def test_k08_more_than_a_fifth_must_have_ended(db: Any) -> None:
    put(db, dict.fromkeys(range(15), 0))
    settle(db)
    drop(db, 0, 1, 2)
    assert not db.compact("t").groups, "exactly 20 % is not more than 20 %"
    drop(db, 3)
    report = db.compact("t")
    assert [done.reason for done in report["t"].done] == [CompactReason.DEAD]
    assert report.rows_dropped == 4
    assert rows_at(db) == dict.fromkeys(range(4, 15), 0)


def test_an_object_of_ended_rows_alone_leaves_nothing(db: Any) -> None:
    put(db, dict.fromkeys(range(15), 0))
    settle(db)
    drop(db, *range(15))
    before = db.visible_ts
    settle(db)
    db.compact()
    assert current(db) == []
    assert rows_at(db) == {}
    assert rows_at(db, before - 1) == dict.fromkeys(range(15), 0)


def test_time_travel_before_between_and_after(db: Any) -> None:
    history = {}
    model: Rows = {}
    for number in range(40):
        model = model | {number % 13: number}
        history[put(db, {number % 13: number})] = dict(model)
        if number % 5 == 0:
            settle(db)
        if number % 9 == 0:
            db.compact()
    for ts, rows in history.items():
        assert rows_at(db, ts) == rows
    db.compact()
    for ts, rows in history.items():
        assert rows_at(db, ts) == rows


def test_m02_rows_of_bulk_objects_get_their_timestamp(db: Any) -> None:
    first = bulk_insert(db, "t", [{"id": key, "n": 1} for key in range(10)])
    second = bulk_insert(db, "t", [{"id": key + 10, "n": 2} for key in range(10)])
    ended = bulk_delete(db, "t", [0, 1, 2, 3, 10])
    for number in range(4):
        bulk_insert(db, "t", [{"id": 100 + number, "n": 3}])
    db.compact()
    data = [entry for entry in current(db) if entry.kind == "data"]
    assert all(entry.stats.committed for entry in data)
    assert min(entry.commit_ts_min for entry in data) == first
    assert rows_at(db, first) == dict.fromkeys(range(10), 1)
    assert len(rows_at(db, second)) == 20
    assert len(rows_at(db, ended)) == 15


@pytest.mark.parametrize("act", ["update", "delete", "move", "flush", "bulk delete"])
def test_k03_what_commits_while_a_group_is_rewritten_survives(db: Any, act: str) -> None:
    model = overlapping(db)
    drop(db, 50)
    del model[50]
    start = db.visible_ts

    def meanwhile() -> None:
        if act == "update":
            put(db, {11: -1, 12: -2})
        elif act == "bulk delete":
            bulk_delete(db, "t", [11, 12])
        else:
            drop(db, 11, 12)
        if act == "move":
            settle(db)
        if act == "flush":
            flush(db, "t")
            let_go(db, "t")

    Before(db, meanwhile)
    report = db.compact()
    assert report["t"].lost == 0
    assert rows_at(db, start) == model
    after = model | {11: -1, 12: -2}
    if act != "update":
        del after[11], after[12]
    assert rows_at(db) == after
    with db.begin() as txn:
        assert txn.get("t", 11) == ({"id": 11, "n": -1} if act == "update" else None)


def test_a_truncate_beside_it_wins_and_nothing_fails(db: Any) -> None:
    overlapping(db)
    before = db.visible_ts
    model = rows_at(db)
    Before(db, lambda: moving.truncate(db, "t"))
    report = db.compact()
    assert report["t"].lost == 1
    assert report["t"].done == ()
    assert current(db) == []
    assert rows_at(db) == {}
    assert rows_at(db, before) == model
    assert not db.core.engine.jobs, "the job that lost is over"


def test_a_dropped_table_beside_it_wins_too(db: Any) -> None:
    overlapping(db)
    Before(db, lambda: db.drop_table("t"))
    db.compact("t")
    assert db.tables() == []
    assert not db.core.engine.jobs


def test_two_compactions_never_take_the_same_objects(db: Any) -> None:
    model = overlapping(db)
    inner: list[Any] = []
    Before(db, lambda: inner.append(db.compact()))
    outer = db.compact()
    assert [len(table.done) for table in inner[0].tables] == [0]
    assert outer["t"].lost == 0
    assert outer.groups >= 1
    assert rows_at(db) == model


def test_one_that_was_not_claimed_loses_at_its_commit(db: Any) -> None:
    """A runner of another process knows nothing of what is claimed here."""
    model = overlapping(db)
    Before(db, lambda: moving.merge(db, "t"))
    report = db.compact()
    assert report["t"].lost == 1
    assert rows_at(db) == model


def test_groups_above_the_limit_are_left_for_spark() -> None:
    options = replace(TINY, compact_local_bytes=1000)
    with Database(FaultyFiles(), "memory", options=options) as db:
        db.create_table("t", {"id": int, "n": int}, primary_key="id")
        model = overlapping(db)
        report = db.compact()
        (left,) = report["t"].too_large
        assert left.size_bytes > 1000
        assert "compact_local_bytes" in left.why
        assert "left for Spark: overlap" in str(report)
        assert report.groups == 0
        assert report["t"].before == report["t"].after
        assert rows_at(db) == model


def test_a_store_that_refuses_is_unavailable_and_changes_nothing(db: Any) -> None:
    model = overlapping(db)

    def refuse() -> None:
        raise OSError(28, "No space left on device")

    Before(db, refuse)
    entries = current(db)
    with pytest.raises(UnavailableError) as caught:
        db.compact()
    assert caught.value.outcome == "not_committed"
    assert current(db) == entries
    assert not db.core.engine.jobs
    assert rows_at(db) == model
    assert db.compact().groups, "with room again it goes on"


def test_a_damaged_input_is_named_and_stays(db: Any) -> None:
    overlapping(db)
    entry = current(db)[2]
    objects = state_of(db, "t").shelf.objects
    whole = objects.read(entry.key)
    damaged = bytearray(whole)
    damaged[50] ^= 1
    objects.put(entry.key, damaged)
    with pytest.raises(CorruptionError) as caught:
        db.compact()
    assert caught.value.path == f"objects/{entry.key}"
    assert entry in current(db)
    assert any(entry.key in problem for problem in db.check())
    objects.put(entry.key, whole)
    assert db.compact().groups


def test_an_old_reader_reads_on(db: Any) -> None:
    model = overlapping(db)
    with db.begin() as txn:
        put(db, {0: 99})
        settle(db)
        db.compact()
        db.gc()
        found = {row["id"]: row["n"] for row in txn.scan("t").to_pylist()}
        assert found == model
    assert rows_at(db) == model | {0: 99}


def test_k03_writers_beside_compaction_never_fail(db: Any) -> None:
    """Each thread owns its keys: nothing but compaction could make one of its commits fail."""
    done = threading.Event()
    models: list[Rows] = [{} for _ in range(3)]
    errors: list[BaseException] = []

    def write(number: int) -> None:
        chance = random.Random(number)
        model = models[number]
        try:
            for _ in range(150):
                key = chance.randrange(20) * 3 + number
                if key in model and chance.random() < 0.4:
                    drop(db, key)
                    del model[key]
                else:
                    model[key] = chance.randrange(1000)
                    put(db, {key: model[key]})
        except BaseException as error:
            errors.append(error)

    def maintain() -> None:
        try:
            while not done.is_set():
                settle(db)
                db.compact()
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    keeper = threading.Thread(target=maintain)
    for thread in (*writers, keeper):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    keeper.join()
    assert not errors
    assert rows_at(db) == models[0] | models[1] | models[2]


ACTS = (
    *["put", "put", "drop", "bulk put", "bulk drop", "truncate"],
    *["flush", "settle", "move", "compact", "compact", "gc", "reopen"],
)


class Random:
    """A random history through the API, in a dict, and with all of the background's work."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files, self.clock = FaultyFiles(), ManualClock()
        self.db = self.open()
        self.db.create_table("t", {"id": int, "n": int}, primary_key="id")
        self.model: Rows = {}
        self.history: dict[int, Rows] = {self.db.visible_ts: {}}

    def open(self) -> Any:
        return Database(self.files, "memory", options=TINY, clock=self.clock, retention="1h")

    def act(self, number: int) -> None:
        chance, db, model = self.chance, self.db, self.model
        act = chance.choice(ACTS)
        self.clock.advance(300)
        if act == "put":
            model = model | {chance.randrange(60): number for _ in range(chance.choice([1, 3, 9]))}
        elif act == "bulk put":
            first = chance.choice([0, 30, 100 + 20 * number])
            model = model | {first + key: number for key in range(chance.randrange(13, 40))}
        elif act == "drop" and model:
            gone = chance.sample(sorted(model), min(len(model), chance.choice([1, 4])))
            model = {key: n for key, n in model.items() if key not in gone}
        elif act == "bulk drop":
            model = {key: n for key, n in model.items() if key % 3}
        elif act == "truncate" and chance.random() < 0.3:
            model = {}
            with db.begin() as txn:
                txn.truncate("t")
        elif act == "reopen" and chance.random() < 0.4:
            db.close()
            self.db = self.open()
        elif act in ("flush", "compact", "gc"):
            getattr(db, act)()
        elif act == "settle":
            settle(db)
        elif act == "move":
            move(db, "t")
        if act != "truncate":
            self.commit(model)
        self.model = model
        self.history[self.db.visible_ts] = model

    def commit(self, model: Rows) -> None:
        changed = {key: n for key, n in model.items() if self.model.get(key) != n}
        gone = [key for key in self.model if key not in model]
        if not changed and not gone:
            return
        with self.db.begin() as txn:
            txn.upsert("t", [{"id": key, "n": n} for key, n in changed.items()])
            if len(gone) > 4:
                txn.delete("t", where="id % 3 = 0")
            for key in gone if len(gone) <= 4 else ():
                txn.delete("t", key)


@pytest.mark.parametrize("seed", seeds(6, 150))
def test_any_history_with_moves_and_compactions_equals_a_dict(seed: int) -> None:
    life = Random(seed)
    for number in range(50):
        life.act(number)
    db = life.db
    db.compact()
    assert not db.check()
    for ts, rows in life.history.items():
        if ts >= db.floor:
            assert rows_at(db, ts) == rows, (seed, ts)
    with db.begin() as txn:
        for key in range(60):
            row = txn.get("t", key)
            assert (row and row["n"]) == life.model.get(key), (seed, key)
    db.close()


def test_calls_that_cannot_work(db: Any) -> None:
    with pytest.raises(NotFoundError):
        db.compact("nowhere")
    assert db.compact("T").groups == 0, "names are the same in any case"
    assert current(db) == []
    assert all(entry.deleted_at == NEVER for entry in current(db))


def test_compaction_belongs_to_the_owner(tmp_path: Any) -> None:
    import halocline

    with halocline.open(tmp_path / "db", options=TINY) as db:
        db.create_table("t", {"id": int}, primary_key="id")
    with halocline.open(tmp_path / "db", read_only=True) as reader, pytest.raises(UnavailableError):
        reader.compact()
    with pytest.raises(UsageError):
        db.compact()
