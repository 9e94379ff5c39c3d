"""A move changes where rows are and nothing else: every snapshot sees what it saw."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline import Database, NotFoundError, UnavailableError, UsageError
from halocline.mover import run
from halocline.rows.undo import collect
from tests.roles import maintenance_of
from tests.store.faulty import FaultyFiles, SimulatedCrash
from tests.unit.mover.rig import KEYS, TINY, Shop, data_rows, l0_rowids, tombstones

Open = Callable[..., Any]


@pytest.fixture
def shop(open_db: Open) -> Shop:
    return Shop(open_db(options=TINY))


def test_k05_flush_turns_rows_and_tombstones_into_objects(shop: Shop) -> None:
    shop.insert(5, 3, 9, 1)
    shop.update(3)
    shop.delete(9)
    moved = shop.db.flush("t")
    state = shop.state
    assert (moved.rows, moved.tombstones, moved.objects) == (5, 2, 2)
    assert moved.size_bytes == sum(entry.stats.size_bytes for entry in state.shape.tier.current())
    assert l0_rowids(state) == []
    assert [(row[0], row[3]) for row in data_rows(state)[0]] == [
        (1, 4),
        (3, 2),
        (3, 5),
        (5, 1),
        (9, 3),
    ]
    assert [(rowid, successor) for rowid, _, successor in tombstones(state)] == [(2, 5), (3, None)]
    assert len(state.deletes) == 0
    assert not state.tree.recent, "trimmed: nobody is about to write from an older snapshot"
    shop.look()


def test_a_second_flush_finds_nothing(shop: Shop) -> None:
    shop.insert(1, 2, 3)
    shop.delete(2)
    shop.db.flush()
    before = shop.db.visible_ts
    assert shop.db.flush() == run.Moved()
    assert shop.db.visible_ts == before, "nothing was committed"


def test_l10_l11_each_object_is_sorted_by_key_and_key_ranges_may_overlap(shop: Shop) -> None:
    shop.insert(*range(38, -1, -2))
    shop.insert(*range(1, 40, 2))
    shop.db.flush()
    objects = data_rows(shop.state)
    assert [len(rows) for rows in objects] == [16, 16, 8]
    for rows in objects:
        assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert all(entry.level == 1 for entry in shop.state.shape.tier.data)
    shop.look()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("seed", range(2))
def test_every_snapshot_sees_the_same_before_and_after(open_db: Open, key: str, seed: int) -> None:
    shop = Shop(open_db(options=TINY), key, seed)
    for _ in range(4):
        shop.work(12)
        shop.db.flush()
        shop.look()
    assert not shop.db.check()
    path = shop.db.path
    shop.db.close()
    shop.db = hc.open(path, options=TINY)
    shop.look()
    assert not shop.db.check()
    state = shop.state
    assert (l0_rowids(state), len(state.deletes), len(state.tree.recent)) == ([], 0, 0)
    shop.work(5)
    shop.look()
    shop.db.close()


def test_h01_rows_below_the_pivot_are_never_in_l0(shop: Shop) -> None:
    for number in range(5):
        shop.insert(*range(number * 10, number * 10 + 7))
        shop.db.flush()
        state = shop.state
        pivot = state.moved_rowid
        assert all(entry.stats.rowid_max < pivot for entry in state.shape.tier.data)
        shop.insert(number * 10 + 8)
        assert min(l0_rowids(state)) >= pivot
        assert state.next_rowid > pivot


def test_w22_replay_cuts_pages_elsewhere_and_still_moves_the_same_rows(open_db: Open) -> None:
    shop = Shop(open_db(options=TINY))
    shop.insert(1, 2, 3)
    shop.db.flush()
    shop.insert(4, 5)
    shop.db.flush()
    shop.insert(6)
    path = shop.db.path
    shop.db.close()
    shop.db = hc.open(path, options=hc.Options(page_rows=1000, background=False))
    assert l0_rowids(shop.state) == [6]
    shop.look()
    shop.db.close()


def test_an_open_snapshot_never_delays_a_move_and_sees_its_rows_in_the_objects(shop: Shop) -> None:
    shop.insert(1, 2, 3)
    with shop.db.begin(at=shop.db.visible_ts) as old:
        shop.update(1)
        shop.delete(2)
        moved = shop.db.flush()
        assert (moved.rows, moved.tombstones) == (4, 2)
        assert sorted(old.scan("t").column("id").to_pylist()) == [1, 2, 3]
        assert old.get("t", 1)["n"] == 0
    shop.look()


def test_a_writer_from_before_the_move_still_conflicts(shop: Shop) -> None:
    shop.insert(1, 2)
    txn = shop.db.begin()
    txn.update("t", 1, {"n": 77})
    shop.update(1)
    shop.db.flush()
    assert shop.state.ghosts, "the key stays in memory for the writer's sake"
    with pytest.raises(hc.ConflictError):
        txn.commit()
    other = shop.db.begin()
    with pytest.raises(hc.DuplicateKeyError):
        other.insert("t", {"id": 1, "name": "x", "n": 0})
    other.rollback()
    maintenance_of(shop.db).mover.step()
    assert not shop.state.ghosts, "let go of when the writer has ended"
    assert not shop.state.tree.recent
    shop.look()


def test_a_reader_does_not_hold_back_trimming(shop: Shop) -> None:
    shop.insert(1, 2)
    with shop.db.begin(at=shop.db.visible_ts) as reader:
        shop.update(1)
        shop.db.flush()
        assert not shop.state.ghosts
        assert not shop.state.tree.recent
        assert reader.get("t", 1)["n"] == 0


def test_rows_that_ended_below_the_floor_are_left_behind(open_db: Open) -> None:
    shop = Shop(open_db(options=TINY, retention=0))
    shop.insert(*range(8))
    shop.update(1)
    shop.delete(2)
    shop.db.gc()
    floor = shop.db.floor
    moved = shop.db.flush()
    assert (moved.rows, moved.tombstones) == (7, 0), "neither the rows nor their tombstones"
    shop.look(since=floor)
    assert not shop.db.check()


def test_a_move_of_dead_rows_only_writes_no_file(open_db: Open) -> None:
    shop = Shop(open_db(options=TINY, retention=0))
    shop.insert(1, 2, 3)
    shop.delete(1, 2, 3)
    shop.db.gc()
    moved = shop.db.flush()
    assert (moved.rows, moved.objects) == (0, 0)
    assert not shop.state.shape.tier
    assert l0_rowids(shop.state) == []
    assert shop.db.flush() == run.Moved()
    shop.look(since=shop.db.floor)


def test_tombstones_of_rows_in_objects_are_flushed_alone(shop: Shop) -> None:
    shop.insert(*range(6))
    shop.db.flush()
    shop.delete(1, 4)
    assert len(shop.state.deletes) == 2
    moved = shop.db.flush()
    assert (moved.rows, moved.tombstones, moved.objects) == (0, 2, 1)
    assert shop.state.flushed_ts == shop.db.visible_ts - 1
    assert len(shop.state.deletes) == 0
    shop.look()


def test_flushed_ts_says_that_all_tombstones_up_to_it_are_in_objects(shop: Shop) -> None:
    for seed in range(5):
        shop.random.seed(seed)
        shop.work(10)
        shop.db.flush()
        state = shop.state
        in_objects = {rowid for rowid, _, _ in tombstones(state)}
        ended = {rowid for rowid, one in state.deletes.ended.items() if one[0] <= state.flushed_ts}
        assert ended <= in_objects


def _while_writing(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Run `act` once, when the rows of a move have been gathered and no file is written yet."""
    gather = run.gather_rows  # type: ignore[attr-defined]
    done: list[Any] = []

    def gathering(*arguments: Any) -> Any:
        table = gather(*arguments)
        if not done:
            done.append(True)
            act()
        return table

    monkeypatch.setattr(run, "gather_rows", gathering)


def test_a_delete_an_update_and_an_insert_beside_a_move(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.insert(*range(6))

    def act() -> None:
        shop.delete(1)
        shop.update(2)
        shop.insert(50)
        shop.delete(3)
        shop.insert(3)

    _while_writing(monkeypatch, act)
    assert shop.db.flush().rows == 6
    shop.look()
    assert sorted(shop.rows) == [0, 2, 3, 4, 5, 50]
    assert not shop.db.check()
    shop.db.flush()
    shop.look()


def test_a_page_that_is_closed_just_before_a_move_stays(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are tuples until whoever closed it has frozen it."""
    shop.insert(*range(6))

    def collecting(*arguments: Any) -> int:
        shop.insert(50)
        with shop.db.core.committer.lock:
            shop.state.close_page()
        return 0

    monkeypatch.setattr(run, "collect", collecting)
    assert shop.db.flush().rows == 6
    assert l0_rowids(shop.state) == [7]
    shop.look()
    assert not shop.db.check()


def test_undo_gc_cannot_forget_a_tombstone_whose_row_is_being_moved(
    open_db: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(open_db(options=TINY, retention=0))
    shop.insert(*range(8))
    state, lock = shop.state, shop.db.core.committer.lock
    waiting = threading.Thread(target=lambda: collect(state, shop.db.visible_ts, lock))

    def act() -> None:
        shop.delete(1)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive(), "undo GC waits for the move"

    _while_writing(monkeypatch, act)
    assert shop.db.flush().rows == 8
    waiting.join(10)
    assert sorted(shop.db.table("t").to_arrow().column("id").to_pylist()) == [0, 2, 3, 4, 5, 6, 7]


def test_a_page_that_was_thinned_meanwhile_makes_the_move_start_again(
    open_db: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes around the upkeep is found out under the commit lock."""
    shop = Shop(open_db(options=TINY, retention=0))
    shop.insert(*range(8))
    state = shop.state

    def act() -> None:  # the same thread may enter the upkeep again
        shop.delete(1)
        assert collect(state, shop.db.visible_ts, shop.db.core.committer.lock) == 1

    _while_writing(monkeypatch, act)
    assert shop.db.flush().rows == 7
    assert len(shop.db.core.engine.jobs) == 0
    assert sorted(row[0] for row in data_rows(state)[0]) == [0, 2, 3, 4, 5, 6, 7]
    assert not shop.db.check()


def test_a_table_dropped_meanwhile_is_left_alone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.insert(*range(8))
    state = shop.state
    _while_writing(monkeypatch, lambda: shop.db.drop_table("t"))
    assert shop.db.flush() == run.Moved()
    assert not state.shape.tier
    assert len(shop.db.core.engine.jobs) == 0
    with pytest.raises(NotFoundError):
        shop.db.flush("t")


def test_a_full_disk_gives_the_move_up_and_the_database_goes_on(tmp_path: Path) -> None:
    files = FaultyFiles()
    shop = Shop(Database(files, "shop", options=TINY))
    shop.insert(*range(8))
    files.fail(1, errno.ENOSPC, kind="put")
    with pytest.raises(UnavailableError, match="cannot be flushed"):
        shop.db.flush()
    assert len(shop.db.core.engine.jobs) == 0, "the job was given up"
    shop.update(3)
    shop.look()
    assert shop.db.flush().rows == 9
    shop.look()
    assert not shop.db.check()
    shop.db.close()


@pytest.mark.parametrize("moment", ["before", "inside", "after"])
def test_every_crash_of_a_move_leaves_all_rows_once(moment: Any, sim: bool) -> None:
    steps = 1
    while _crash_in_a_move(steps, moment, seed=steps if sim else 0):
        steps += 1
    assert steps > 5


def _crash_in_a_move(nth: int, moment: Any, seed: int) -> bool:
    """Crash at the n-th operation of a flush, open what is left; False when there is none."""
    files = FaultyFiles()
    shop = Shop(Database(files, "shop", options=TINY), seed=1)
    shop.work(8)
    files.crash(nth, moment)
    try:
        shop.db.flush()
    except (SimulatedCrash, UnavailableError):
        shop.db = Database(files.crash_image(seed), "shop", options=TINY)
        shop.look()
        assert not shop.db.check(), f"operation {nth}"
        shop.db.flush()
        shop.look()
        assert not shop.db.check(), f"operation {nth}"
        shop.db.close()
        return True
    return False


def test_an_interrupted_commit_of_a_move_loses_and_doubles_nothing(
    open_db: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the record is in the log, before anybody was told."""
    shop = Shop(open_db(options=TINY))
    shop.work(12)
    commit = run.commit_reshapes  # type: ignore[attr-defined]

    def interrupted(*arguments: Any, **named: Any) -> int:
        commit(*arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "commit_reshapes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shop.db.flush()
    shop.look()
    assert not shop.db.check()
    shop.work(5)
    monkeypatch.setattr(run, "commit_reshapes", commit)
    shop.db.flush()
    shop.look()


def test_flush_of_what_is_no_table(shop: Shop) -> None:
    with pytest.raises(NotFoundError):
        shop.db.flush("nothing")
    with pytest.raises(UsageError):
        shop.db.flush(7)
    reader = hc.open(shop.db.path, read_only=True)
    with reader, pytest.raises(UnavailableError, match="read-only"):
        reader.flush()
    shop.db.close()
    with pytest.raises(UsageError):
        shop.db.flush()


def test_a_follower_lets_go_of_what_has_moved(shop: Shop) -> None:
    shop.insert(*range(10))
    with hc.open(shop.db.path, read_only=True) as reader:
        assert reader.table("t").count() == 10
        shop.update(2)
        shop.delete(3)
        shop.db.flush()
        assert reader.table("t").count() == 9
        state = reader.core.state_of("t", reader.visible_ts)
        assert (len(state.tree.recent), len(state.deletes), state.ghosts) == (0, 0, ())
        assert not reader.check()


def test_l08_l09_rows_leave_by_count_and_the_rest_stays(open_db: Open) -> None:
    options = hc.Options(page_rows=4, object_rows=16, move_rows=16, background=False)
    shop = Shop(open_db(options=options))
    for number in range(15):
        shop.insert(number)
    maintenance_of(shop.db).mover.step()
    assert not shop.state.shape.tier
    shop.insert(15)
    shop.insert(16)
    maintenance_of(shop.db).mover.step()
    (entry,) = shop.state.shape.tier.data
    assert entry.stats.rows == 16
    assert l0_rowids(shop.state) == [17]
    shop.look()


def test_l13_pressure_moves_the_largest_table_first(open_db: Open) -> None:
    db = open_db(options=TINY, memory="16MB")
    for name, rows in (("small", 50), ("large", 3000)):
        db.create_table(name, {"id": int, "text": str}, primary_key="id")
        with db.begin() as txn:
            txn.insert(name, [{"id": n, "text": "x" * 2000} for n in range(rows)])
    maintenance_of(db).mover.step()
    sizes = {
        name: len(db.core.state_of(name, db.visible_ts).shape.tier) for name in ("small", "large")
    }
    assert sizes["large"] > 0
    assert sizes["small"] == 0
    assert maintenance_of(db).mover.pressure.over_bytes == 0


@pytest.mark.parametrize("name", [".x", "a.b", "a[0]"])
def test_a_key_column_that_is_called_like_a_path_moves_and_is_merged(
    tmp_path: Path, name: str
) -> None:
    with hc.open(tmp_path / "db", options=hc.Options(background=False)) as db:
        db.create_table("t", {name: str}, primary_key=name)
        for part in range(6):
            with db.begin() as txn:
                txn.insert("t", [{name: str(n * 7 % 90 * 6 + part)} for n in range(90)])
            db.flush()
        assert db.compact().groups
        assert db.table("t").count() == 540
        assert db.check() == []
