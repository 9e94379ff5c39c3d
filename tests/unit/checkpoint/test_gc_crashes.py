"""The power goes at every operation of a life that moves, merges, gives up jobs and collects.

    operation n --crash--> images --open--> every referenced file is there and whole, rows are right
                                    '--gc--> nothing unreferenced is left in the store

A crash inside GC may leave a file that nobody refers to, or have removed a file whose entry the log
still ends below the floor; never the reverse.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest

from halocline import Database, HaloclineError
from tests.clock import ManualClock
from tests.sim.history import copy_of, digest
from tests.sim.moments import watched
from tests.store.faulty import FaultyFiles, Operation
from tests.unit.checkpoint.rig import World, seen
from tests.unit.read.moving import TINY, bulk_insert, flush, let_go, merge, move, truncate

ROUNDS = 3
KEYS = range(12)


class Life:
    """A scripted life, and what it was told so far."""

    def __init__(self, files: FaultyFiles, durability: str) -> None:
        self.world = World.__new__(World)
        self.world.files = files
        self.world.clock = ManualClock()
        self.world.retention = 0
        self.world.durability = durability
        self.expected: list[dict[int, int]] = [{}]
        """The table after each commit that was begun; the last may not have happened."""
        self.acknowledged = 0
        self.snapshots: dict[str, dict[int, int]] = {}

    def play(self) -> None:
        world = self.world
        world.db = world.open()
        world.db.create_table("t", {"id": int, "v": int}, primary_key="id")
        world.db.create_table("u", {"id": int, "v": int}, primary_key="id")
        bulk_insert(world.db, "u", [{"id": key, "v": 1} for key in KEYS])
        for value in range(1, ROUNDS + 1):
            self._put({key: value for key in KEYS if (key + value) % 3})
            move(world.db, "t")
            self._put({value: None})
            flush(world.db, "t")
            merge(world.db, "t")
            let_go(world.db, "t")
            world.job(files=2)
            world.job(files=1, lease_us=world.clock.now_us + 1)
            world.clock.advance(1)
            if value == 2:
                world.db.snapshot("two")
                self.snapshots["two"] = self.expected[-1]
                world.db.drop_table("u")
                world.db.checkpoint()
            world.db.gc()
        world.db.checkpoint()
        world.db.drop_snapshot("two")
        del self.snapshots["two"]
        move(world.db, "t")
        truncate(world.db, "t")
        self.expected.append({})
        self.acknowledged = len(self.expected) - 1
        world.clock.advance(1)
        world.db.gc()
        world.db.close()

    def _put(self, values: dict[int, int | None]) -> None:
        after = dict(self.expected[-1])
        for key, value in values.items():
            if value is None:
                after.pop(key, None)
            else:
                after[key] = value
        self.expected.append(after)
        self.world.put(values)
        self.acknowledged = len(self.expected) - 1


class End(NamedTuple):
    """A moment at which the life could have ended, and what it had been promised by then."""

    operation: Operation
    life: Life
    files: FaultyFiles


def _ends(durability: str) -> tuple[Life, list[End]]:
    """The whole life, and every end that it could have come to."""
    life = Life(FaultyFiles(), durability)
    files, ends = life.world.files, []

    def look(operation: Operation, partly: object) -> None:
        then = copy.copy(life)
        then.expected = list(life.expected)
        then.snapshots = dict(life.snapshots)
        ends.append(End(operation, then, copy_of(files)))

    with watched(files, look):
        life.play()
    return life, ends


def _verify(life: Life, files: FaultyFiles, what: str) -> None:
    clock = ManualClock()
    clock.advance(1000)
    db = Database(files, "db", retention=0, clock=clock, options=TINY)
    try:
        _check_files(db, what)
        _check_rows(life, db, what)
        report = db.gc()
        _check_files(db, what)
        _check_rows(life, db, what)
        world = World.__new__(World)
        world.files, world.db = files, db
        assert world.stored() == world.referenced(), f"{what}: {report}"
        assert db.gc().files == 0
        assert not db.check(), what
    finally:
        db.close()


def _check_files(db: Database, what: str) -> None:
    """Whatever a reader may be sent to is there, byte for byte."""
    engine = db.core.engine
    for state in engine.tables.values():
        for entry in state.shape.tier.by_id.values():
            if entry.deleted_at > engine.bound and state.dropped_at > engine.bound:
                try:
                    engine.shelf.reader.verify(entry.file, again=True)  # type: ignore[arg-type]
                except HaloclineError as error:
                    raise AssertionError(f"{what}: {entry} is referenced: {error}") from error


def _check_rows(life: Life, db: Database, what: str) -> None:
    if "t" not in db.tables():
        assert life.acknowledged == 0, what
        return
    found = seen(db)
    if life.world.durability == "sync":
        allowed = life.expected[life.acknowledged :]
        if len(life.expected) == life.acknowledged + 1:
            allowed = [*allowed, {}] if life.acknowledged >= 2 * ROUNDS else allowed
    else:
        allowed = [*life.expected, {}]
    assert found in allowed, f"{what}: {found}"
    for name in (one.name for one in db.snapshots()):
        if name in life.snapshots:
            assert seen(db, name) == life.snapshots[name], what


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["sync", pytest.param("async", marks=pytest.mark.sim)])
def test_a_crash_at_any_operation_neither_loses_nor_leaks_a_file(durability: str) -> None:
    """At every one of them, with all that was not synced lost, and with some of it."""
    life, ends = _ends(durability)
    assert sum(end.operation.kind == "delete" for end in ends) > 10, "the script collects"
    _verify(life, life.world.files.crash_image(none=True), "at the end")
    verified = set()
    for end in ends:
        for image in (None, 1):
            files = end.files.crash_image(seed=image or 0, none=image is None)
            # After a sync there is nothing to lose: many images are equal.
            promised = (end.life.acknowledged, len(end.life.expected))
            same = (digest(files), *files.objects.list(), *promised)
            if same not in verified:
                verified.add(same)
                _verify(end.life, files, f"before {end.operation}, image {image}")
    assert len(ends) > 120
    assert len(verified) > 60
