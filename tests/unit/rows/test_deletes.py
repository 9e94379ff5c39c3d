"""Deletion buffer: tombstones one by one and in runs, by RowID and by time."""

from __future__ import annotations

import random

import numpy as np
import pytest

from halocline.rows.deletes import DeletionBuffer, Tombstone, TombstoneRun, merge_tombstones


def run(rowids: list[int], ts: int, successors: list[int] | None = None) -> TombstoneRun:
    return TombstoneRun.of_commit(
        np.array(rowids, dtype=np.int64),
        ts,
        keys=[f"k{rowid}" for rowid in rowids],
        successors=None if successors is None else np.array(successors, dtype=np.int64),
        changed=() if successors is None else (2, 5),
    )


def test_a_run_finds_its_row_ids_and_no_others() -> None:
    one = run([3, 7, 9], 50, [30, 31, 32])
    assert len(one) == 3
    assert one.find(7) == Tombstone(50, 31, (2, 5), "k7")
    for rowid in (0, 1, 4, 8, 10, 2**62):
        assert one.find(rowid) is None
    assert one.within(3, 9, 10**9).tolist() == [3, 7]
    assert one.within(4, 100, 10**9).tolist() == [7, 9]
    assert one.within(10, 100, 10**9).tolist() == []
    assert one.at(2) == Tombstone(50, 32, (2, 5), "k9")


def test_a_run_of_deletes_has_no_successors() -> None:
    assert run([3], 50).find(3) == Tombstone(50, 0, (), "k3")
    empty = run([], 50)
    assert (len(empty), empty.find(1)) == (0, None)


def test_h03_the_buffer_asks_singles_and_runs() -> None:
    buffer = DeletionBuffer()
    assert (len(buffer), buffer.find(1), list(buffer.since(0))) == (0, None, [])
    buffer.ended[1] = (10, 0, (), "k1")
    buffer.link(run([2, 4], 20))
    buffer.ended[3] = (30, 8, (2,), "k3")
    assert len(buffer) == 4
    assert buffer.find(1) == Tombstone(10, 0, (), "k1")
    assert buffer.find(4) == Tombstone(20, 0, (), "k4")
    assert buffer.find(3) == Tombstone(30, 8, (2,), "k3")
    assert buffer.find(5) is None


def test_the_earliest_tombstone_of_a_row_id_counts() -> None:
    early, late = run([2, 4], 20, [12, 14]), run([1, 2, 4], 30, [21, 22, 24])
    for runs in ((early, late), (late, early)):
        buffer = DeletionBuffer()
        for one in runs:
            buffer.link(one)
        merged = merge_tombstones(runs)
        for rowid, successor in ((2, 12), (4, 14)):
            expected = Tombstone(20, successor, (2, 5), f"k{rowid}")
            assert buffer.find(rowid) == merged.find(rowid) == expected
        assert merged.find(1) == Tombstone(30, 21, (2, 5), "k1")
        assert sorted(set(merged.within(0, 9, 25).tolist())) == [2, 4]
    buffer.ended[1] = (10, 0, (), "k1")
    assert buffer.find(1) == Tombstone(10, 0, (), "k1")


@pytest.mark.parametrize("seed", range(5))
def test_since_and_between_tell_the_same_as_a_list(seed: int) -> None:
    rng = random.Random(seed)
    buffer = DeletionBuffer()
    told: dict[int, tuple[int, int]] = {}
    rowids = list(range(1, 80))
    rng.shuffle(rowids)
    ts = 0
    while rowids:
        ts += rng.choice([0, 1, 2])
        if rng.random() < 0.3:
            some = sorted(rowids.pop() for _ in range(min(len(rowids), rng.randrange(1, 9))))
            successors = [rowid + 1000 for rowid in some] if rng.random() < 0.5 else None
            ts += 1
            buffer.link(run(some, ts, successors))
            told.update({r: (ts, r + 1000 if successors else 0) for r in some})
        else:
            rowid = rowids.pop()
            successor = rng.choice([0, rowid + 1000])
            buffer.ended[rowid] = (ts, successor, (), None)
            told[rowid] = (ts, successor)
    for since in range(ts + 2):
        newer = {rowid for rowid, (at, _) in told.items() if at > since}
        assert {rowid for rowid, _ in buffer.since(since)} == newer, seed
        until = rng.randrange(since, ts + 3)
        *columns, keys = buffer.between(since, until)
        found = sorted(zip(*(column.tolist() for column in columns), strict=True))
        wanted = sorted((r, at, s) for r, (at, s) in told.items() if since < at <= until)
        assert found == wanted, seed
        assert len(keys) == len(found)
        assert all(column.dtype == np.int64 for column in columns)
