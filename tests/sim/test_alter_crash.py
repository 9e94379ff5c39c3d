"""The power goes at every operation of a life that alters, moves, compacts and checkpoints.

Whatever the crash hits: what is left opens with every acknowledged alter and commit, in the shape
that the table had then, and with the one that was under way or without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import halocline as hc
from tests.sim.history import copy_of, open_on
from tests.sim.moments import watched
from tests.store.faulty import FaultyFiles

Step = Callable[[Any], object]


def write(*rows: dict[str, Any]) -> Step:
    return lambda db: db.run(lambda txn: txn.upsert("t", list(rows)))


def alter(**changes: Any) -> Step:
    return lambda db: db.alter_table("t", **changes)


def bulk(first: int, **more: Any) -> Step:
    return write(*({"id": n, **more} for n in range(first, first + 12)))


STEPS: list[Step] = [
    lambda db: db.create_table("t", {"id": int, "a": "int32", "b": str}, primary_key="id"),
    bulk(0, a=1, b="old"),
    alter(add={"c": hc.Column(str, nullable=False, default="absent")}, drop=["b"]),
    write({"id": 3, "a": 2}, {"id": 40, "c": "written"}),
    lambda db: db.flush("t"),
    alter(rename={"a": "n", "c": "b"}, change={"a": "int64"}, set_default={"c": "later"}),
    bulk(8, n=1 << 40),
    lambda db: db.flush("t"),
    lambda db: db.compact("t"),
    lambda db: db.checkpoint(),
    alter(add={"d": "date"}, comment="altered"),
    write({"id": 41}),
    alter(drop=["n"]),
    alter(add={"n": hc.Column("int8", default=5)}),
    bulk(10, n=6),
    lambda db: db.flush("t"),
    lambda db: db.compact("t"),
    lambda db: db.checkpoint(),
    write({"id": 42}),
]


def content(db: Any) -> Any:
    if "t" not in db.tables():
        return None
    found = db.table("t").to_arrow().sort_by("id")
    return found.schema.names, [str(type) for type in found.schema.types], found.to_pylist()


@pytest.mark.more
def test_a_crash_at_every_operation_of_a_life_with_alters() -> None:
    files = FaultyFiles()
    states: list[Any] = []
    images: list[tuple[int, str, FaultyFiles]] = []

    def look(operation: Any, partly: Callable[[int], object] | None) -> None:
        where = len(states), str(operation)
        images.append((*where, files.crash_image(operation.number)))
        images.append((*where, copy_of(files)))

    with watched(files, look):
        db = open_on(files)
        states.append(content(db))
        for step in STEPS:
            step(db)
            states.append(content(db))
        db.close()
    states.append(states[-1])
    assert len(images) > 200
    for acknowledged, where, image in images:
        db = open_on(image)
        wanted = states[max(0, acknowledged - 1) : acknowledged + 1]
        assert content(db) in wanted, where
        if states[-1] == content(db):
            assert db.check() == [], where
        db.close()
