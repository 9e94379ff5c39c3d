"""The power goes at every operation of a life in which indexes are created, built, merged, dropped.

operation n --crash--> image --open--> rows by index = rows by scan, check() is content,
                                       gaps can be built, and GC leaves nothing that nobody knows
"""

from __future__ import annotations

from collections import Counter

import pytest

from halocline import Database
from halocline.ids import NEVER
from tests.clock import ManualClock
from tests.roles import maintenance_of
from tests.sim.history import copy_of, digest
from tests.sim.moments import watched
from tests.store.faulty import FaultyFiles, Operation
from tests.unit.read.moving import TINY

VALUES = 5


def open_on(files: FaultyFiles) -> Database:
    clock = ManualClock()
    clock.advance(1000)
    return Database(files, "db", retention=0, clock=clock, options=TINY)


def play(files: FaultyFiles) -> None:
    """Create, build, write beside moves and bulk commits, merge, checkpoint, drop."""
    db = open_on(files)
    db.create_table("t", {"id": int, "v": int}, primary_key="id")
    db.run(lambda txn: txn.insert("t", [{"id": n, "v": n % VALUES} for n in range(10)]))
    db.flush()
    db.create_index("by_v", "t", ["v"], wait=True)
    db.run(lambda txn: txn.insert("t", [{"id": 10 + n, "v": n % VALUES} for n in range(20)]))
    db.run(lambda txn: txn.delete("t", where="id % 4 = 1"))
    db.flush()
    db.create_index("both", "t", ["v", "id"])
    db.checkpoint()
    db.settle()
    db.gc()
    db.drop_index("by_v")
    db.create_index("again", "t", ["v"], wait=True)
    db.gc()
    db.checkpoint()
    db.close()


def verify(files: FaultyFiles, what: str) -> str:
    """Returns which indexes there are."""
    db = open_on(files)
    try:
        if "t" not in db.tables():
            return "no table"
        names = db.indexes().column("name").to_pylist()
        for when in ("opened", "built"):
            with db.begin() as txn:
                everything = txn.scan("t")
                for name in names:
                    for value in range(VALUES):
                        found = txn.lookup("t", name, value).column("id").to_pylist()
                        plain = txn.scan("t", where="v % 100 = ?", params=[value])
                        assert sorted(found) == sorted(plain.column("id").to_pylist()), what
                assert everything.num_rows in (0, 10, 30, 22), what
            assert not db.check(), f"{what}, {when}: {db.check()}"
            maintenance_of(db).builder.build(list(db.core.engine.tables.values()))
        assert db.indexes().column("state").to_pylist() == ["ready"] * len(names), what
        db.gc()
        engine = db.core.engine
        known = {e.key for state in engine.tables.values() for e in state.shape.tier.everything()}
        stored = set(engine.shelf.objects.list())
        assert stored - known - engine.kept_files == set(), what
        assert known <= stored, what
        for state in engine.tables.values():
            live = [e for e in state.shape.tier.index_objects.values() if e.deleted_at == NEVER]
            assert len({(e.target, e.index_id) for e in live}) == len(live), what
        return " ".join(names)
    finally:
        db.close()


@pytest.mark.more
def test_a_crash_at_any_operation_leaves_indexes_that_are_exact() -> None:
    files, ends = FaultyFiles(), list[tuple[Operation, FaultyFiles]]()

    def look(operation: Operation, partly: object) -> None:
        ends.append((operation, copy_of(files)))

    with watched(files, look):
        play(files)
    seen, verified = Counter[str](), set()
    for operation, left in ends:
        for seed in (None, 1):
            image = left.crash_image(seed=seed or 0, none=seed is None)
            if digest(image) not in verified:
                verified.add(digest(image))
                seen[verify(image, f"crash before {operation}, seed {seed}")] += 1
    assert {"", "by_v", "by_v both", "both", "both again"} <= seen.keys(), seen
