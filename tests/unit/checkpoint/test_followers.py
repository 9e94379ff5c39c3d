"""Read-only openers begin with the newest checkpoint, and begin again when the log has gone on."""

from __future__ import annotations

import pytest

from halocline import CorruptionError, Database, UsageError
from halocline.checkpoint.pointer import POINTER_PATH
from halocline.log.names import log_numbers
from tests.store.faulty import FaultyFiles
from tests.unit.checkpoint.history import TINY
from tests.unit.checkpoint.test_restore import flip, nodes
from tests.unit.checkpoint.test_run import fill, shop


def follow(files: FaultyFiles) -> Database:
    return Database(files, "simulated", read_only=True, options=TINY)


def advance(db: Database, files: FaultyFiles, first: int) -> None:
    """Commit and checkpoint until the log has gone on beyond what a follower has open now."""
    there = log_numbers(files)[-1]
    while log_numbers(files)[0] <= there + 1:
        fill(db, "t", first, 30)
        first += 30
        db.checkpoint()


def test_n05_a_follower_begins_with_the_newest_checkpoint() -> None:
    db, files = shop()
    advance(db, files, 0)
    fill(db, "t", 10_000, 3)
    rows = db.table("t").count()
    done = len(files.operations)
    reader = follow(files)
    assert reader.table("t").count() == rows
    reads = {op.path for op in files.operations[done:] if op.kind == "read"}
    assert nodes(files)[0].key in reads
    state = next(iter(reader.core.engine.tables.values()))
    assert sum(count for _, count in state.shape.counted()) < 40, "the rest it found in objects"
    fill(db, "t", 20_000, 3)
    assert reader.table("t").count() == rows + 3
    assert not reader.check()
    reader.close()
    db.close()


def test_n02_a_follower_that_was_left_behind_begins_again() -> None:
    db, files = shop()
    fill(db, "t", 0, 5)
    reader = follow(files)
    assert reader.table("t").count() == 5
    first = reader.core.engine
    advance(db, files, 100)
    rows = db.table("t").count()
    assert reader.table("t").count() == rows
    assert reader.core.engine is not first
    fill(db, "t", 50_000, 2)
    assert reader.table("t").count() == rows + 2
    assert reader.visible_ts == db.visible_ts
    assert not reader.check()
    reader.close()
    db.close()


def test_open_transactions_of_a_follower_keep_what_they_see() -> None:
    db, files = shop()
    fill(db, "t", 0, 5)
    reader = follow(files)
    old = reader.begin()
    ts = old.snapshot
    assert old.scan("t").num_rows == 5
    advance(db, files, 100)
    new = reader.begin()
    assert new.scan("t").num_rows == db.table("t").count()
    assert old.scan("t").num_rows == 5
    assert old.get("t", 3) == {"id": 3, "text": "row 3" * 5}
    assert old.get("t", 100) is None
    assert reader.begin(at=ts).scan("t").num_rows == 5, "the new state knows the past as well"
    reader.close()
    for txn in (old, new):
        with pytest.raises(UsageError, match="closed"):
            txn.scan("t")
    db.close()


def test_n06_a_pin_of_a_follower_outlives_its_reload() -> None:
    """GC of the owner goes by the pin, also of a transaction on the state before."""
    db, files = shop()
    fill(db, "t", 0, 5)
    reader = follow(files)
    old = reader.begin()
    db.keep_for(0)
    advance(db, files, 100)
    new = reader.begin()
    with db.begin() as txn:
        txn.delete("t", where="id >= 0")
    db.flush()
    db.gc()
    assert db.floor <= old.snapshot
    assert old.scan("t").num_rows == 5
    assert new.scan("t").num_rows > 5
    old.rollback()
    new.rollback()
    db.gc()
    assert db.floor > old.snapshot
    reader.close()
    db.close()


def test_a_follower_of_a_closed_database_begins_with_the_checkpoint() -> None:
    db, files = shop()
    advance(db, files, 0)
    rows = db.table("t").count()
    db.close()
    reader = follow(files)
    assert reader.table("t").count() == rows
    owner = Database(files, "simulated", options=TINY)
    fill(owner, "t", 90_000, 2)
    assert reader.table("t").count() == rows + 2
    advance(owner, files, 100_000)
    assert reader.table("t").count() == owner.table("t").count()
    reader.close()
    owner.close()


def test_a_follower_takes_the_one_before_when_the_newest_is_damaged() -> None:
    db, files = shop()
    advance(db, files, 0)
    rows = db.table("t").count()
    flip(files, nodes(files)[0].key)
    reader = follow(files)
    assert reader.table("t").count() == rows
    reader.close()
    db.close()


def test_a_follower_finds_the_checkpoint_without_a_pointer() -> None:
    db, files = shop()
    advance(db, files, 0)
    rows = db.table("t").count()
    files.remove(POINTER_PATH)
    reader = follow(files)
    assert reader.table("t").count() == rows
    reader.close()
    db.close()


def test_a_follower_that_finds_no_way_says_so() -> None:
    db, files = shop()
    advance(db, files, 0)
    newest, before = nodes(files)
    flip(files, newest.key)
    flip(files, before.key)
    with pytest.raises(CorruptionError) as caught:
        follow(files)
    assert caught.value.path == f"objects/{newest.key}"
    db.close()
