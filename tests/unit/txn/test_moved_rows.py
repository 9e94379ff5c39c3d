"""Conflicts with rows that have left memory: found as if they had not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from halocline import ConflictError, Database
from tests.store.faulty import FaultyFiles
from tests.unit.read import moving

PLACES = ["in pages", "in objects", "moved meanwhile"]


@pytest.fixture
def db() -> Iterator[Any]:
    with Database(FaultyFiles(), "moved", options=moving.TINY) as db:
        db.create_table("t", {"id": int, "a": int, "b": int}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", [{"id": key, "a": 0, "b": 0} for key in range(6)])
        yield db
        assert not db.check()


def before(db: Any, place: str) -> None:
    if place != "in pages":
        db.flush("t")
        assert not moving.state_of(db, "t").tree.recent, "memory knows none of the keys"


def meanwhile(db: Any, place: str) -> None:
    if place == "moved meanwhile":
        db.flush("t")
        assert not moving.state_of(db, "t").shape.counted()


@pytest.mark.parametrize("place", PLACES)
def test_t03_an_update_is_rebased_onto_a_version_that_has_moved(db: Any, place: str) -> None:
    before(db, place)
    ours, theirs = db.begin(), db.begin()
    ours.update("t", 3, {"a": 1})
    theirs.update("t", 3, {"b": 2})
    theirs.commit()
    meanwhile(db, place)
    ours.commit()
    with db.begin() as txn:
        assert txn.get("t", 3) == {"id": 3, "a": 1, "b": 2}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("theirs_first", [False, True])
def test_an_update_against_a_delete_conflicts_in_both_orders(
    db: Any, place: str, theirs_first: bool
) -> None:
    before(db, place)
    ours, theirs = db.begin(), db.begin()
    ours.update("t", 3, {"a": 1})
    theirs.delete("t", 3)
    first, second = (theirs, ours) if theirs_first else (ours, theirs)
    first.commit()
    meanwhile(db, place)
    with pytest.raises(ConflictError):
        second.commit()


@pytest.mark.parametrize("place", PLACES)
def test_two_inserts_of_one_key_conflict(db: Any, place: str) -> None:
    before(db, place)
    ours, theirs = db.begin(), db.begin()
    row = {"id": 9, "a": 1, "b": 1}
    ours.insert("t", row)
    theirs.insert("t", row)
    theirs.commit()
    meanwhile(db, place)
    with pytest.raises(ConflictError):
        ours.commit()


READS: dict[str, Callable[[Any], object]] = {
    "get": lambda txn: txn.get("t", 3),
    "get_many": lambda txn: txn.get_many("t", [1, 3, 7]),
    "range": lambda txn: txn.range("t", 2, 5),
    "absent": lambda txn: txn.get("t", 7),
    "absent range": lambda txn: txn.range("t", 7, 9),
}
WRITES: dict[str, Callable[[Any], object]] = {
    "update": lambda txn: txn.update("t", 3, {"a": 5}),
    "delete": lambda txn: txn.delete("t", 3),
    "insert": lambda txn: txn.insert("t", {"id": 7, "a": 5, "b": 5}),
    "elsewhere": lambda txn: txn.update("t", 0, {"a": 5}),
}
MEET = {
    ("get", "update"),
    ("get", "delete"),
    ("get_many", "update"),
    ("get_many", "delete"),
    ("get_many", "insert"),
    ("range", "update"),
    ("range", "delete"),
    ("absent", "insert"),
    ("absent range", "insert"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("read", sorted(READS))
@pytest.mark.parametrize("write", sorted(WRITES))
def test_serializable_what_was_read_must_not_change(
    db: Any, place: str, read: str, write: str
) -> None:
    before(db, place)
    ours = db.begin(isolation="serializable")
    READS[read](ours)
    ours.insert("t", {"id": 100, "a": 0, "b": 0})
    with db.begin() as theirs:
        WRITES[write](theirs)
    meanwhile(db, place)
    if (read, write) in MEET:
        with pytest.raises(ConflictError):
            ours.commit()
    else:
        ours.commit()
