"""Two transactions, each with one row or with many as objects: who wins, wherever the rows are.

    40 rows in objects --> mine begins --> theirs commits --> rows and tombstones move --> mine

The rules are those of docs/isolation.md. Whether a change is one row in memory or an object that
was written before its commit, and what background work has done to the winner's rows since, must
make no difference (T-21, T-23).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import halocline as hc
from halocline import Database
from tests.store.faulty import FaultyFiles
from tests.unit.read import moving

KEYS = range(40)
FREE = range(100, 140)
ONE, FREE_ONE = 7, 107


class Change(NamedTuple):
    """One kind of change to the table."""

    run: Callable[[Any], object]
    kind: str
    column: str = ""


def rows(ids: Any) -> Any:
    ids = list(ids)
    return pa.table({"id": ids, "a": [0] * len(ids), "b": [0] * len(ids)})


def _updates(column: str) -> dict[str, Change]:
    return {
        f"update-{column}-one": Change(
            lambda txn: txn.update("t", ONE, {column: 1}), "update", column
        ),
        f"update-{column}-many": Change(
            lambda txn: txn.update("t", where="id < 40", set={column: 1}), "update", column
        ),
        f"upsert-{column}-many": Change(
            lambda txn: txn.upsert("t", pa.table({"id": KEYS, column: [1] * 40})), "update", column
        ),
    }


CHANGES = {
    "insert-one": Change(lambda txn: txn.insert("t", {"id": FREE_ONE, "a": 0, "b": 0}), "insert"),
    "insert-part": Change(lambda txn: txn.insert("t", rows(range(105, 115))), "insert"),
    "insert-many": Change(lambda txn: txn.insert("t", rows(FREE)), "insert"),
    "delete-one": Change(lambda txn: txn.delete("t", ONE), "delete"),
    "delete-many": Change(lambda txn: txn.delete("t", where="id < 40"), "delete"),
    "truncate": Change(lambda txn: txn.truncate("t"), "truncate"),
    **_updates("a"),
    "update-b-one": _updates("b")["update-b-one"],
    "update-b-many": _updates("b")["update-b-many"],
}


def wins(mine: Change, theirs: Change) -> bool:
    """May mine commit after theirs?"""
    if mine.kind == "truncate":
        return True
    if mine.kind == "insert":
        return theirs.kind != "insert"
    if theirs.kind == "insert":
        return True
    return mine.kind == theirs.kind == "update" and mine.column != theirs.column


def effect(before: dict[int, tuple[int, int]], change: Change, name: str) -> None:
    """What the change does to a plain dict."""
    if change.kind == "truncate":
        before.clear()
    elif change.kind == "insert":
        keys = {"one": [FREE_ONE], "part": range(105, 115), "many": FREE}[name.split("-")[1]]
        before.update(dict.fromkeys(keys, (0, 0)))
    else:
        for key in [ONE] if name.endswith("one") else KEYS:
            if key not in before:
                continue
            if change.kind == "delete":
                del before[key]
            else:
                a, b = before[key]
                before[key] = (1, b) if change.column == "a" else (a, 1)


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """One database for all tests of this file; at the end all their tables are checked."""
    db = Database(FaultyFiles(), "bulk", options=moving.TINY)
    db.create_table("other", {"id": int}, primary_key="id")
    yield db
    assert not db.check()
    db.close()


@pytest.fixture
def db(shared: Any) -> Any:
    """A new table of 40 rows, all of them in objects."""
    shared.drop_table("t", if_exists=True)
    with shared.begin() as txn:
        txn.create_table("t", {"id": int, "a": int, "b": int}, primary_key="id")
        txn.insert("t", rows(KEYS))
    return shared


def move_on(db: Any, how: str, bound: int) -> None:
    """What background work does between the two commits."""
    if how in ("moved", "merged"):
        moving.move(db, "t")
        moving.flush(db, "t")
        moving.let_go(db, "t", bound)
    if how == "merged":
        moving.merge(db, "t")


def seen(txn: Any) -> dict[int, tuple[int, int]]:
    return {row["id"]: (row["a"], row["b"]) for row in txn.scan("t").to_pylist()}


@pytest.mark.parametrize("how", ["still", "merged"])
@pytest.mark.parametrize("theirs", CHANGES)
@pytest.mark.parametrize("mine", CHANGES)
def test_t21_t23_who_wins_does_not_depend_on_form_or_place(
    db: Any, mine: str, theirs: str, how: str
) -> None:
    expected = dict.fromkeys(KEYS, (0, 0))
    txn = db.begin()
    CHANGES[mine].run(txn)
    with db.begin() as other:
        CHANGES[theirs].run(other)
    effect(expected, CHANGES[theirs], theirs)
    move_on(db, how, txn.snapshot)
    if wins(CHANGES[mine], CHANGES[theirs]):
        txn.commit()
        effect(expected, CHANGES[mine], mine)
    else:
        with pytest.raises(hc.ConflictError) as caught:
            txn.commit()
        assert caught.value.winner_ts == other.commit_ts
    with db.begin() as after:
        assert seen(after) == expected
        for key in (ONE, 39, FREE_ONE, 139):
            assert (after.get("t", key) is not None) == (key in expected)


@pytest.mark.parametrize("how", ["still", "moved"])
@pytest.mark.parametrize("theirs", ["insert-many", "delete-many", "update-a-many", "truncate"])
@pytest.mark.parametrize(
    ("read", "met"),
    [
        (lambda txn: txn.get("t", ONE), {"delete-many", "update-a-many", "truncate"}),
        (lambda txn: txn.get("t", FREE_ONE), {"insert-many"}),
        (lambda txn: txn.get("t", 5000), set()),
        (lambda txn: txn.range("t", 3, 5), {"delete-many", "update-a-many", "truncate"}),
        (lambda txn: txn.range("t", 200), set()),
        (lambda txn: txn.range("t", 90, 101), {"insert-many"}),
    ],
)
def test_t21_t23_what_a_serializable_transaction_read_is_checked_against_objects(
    db: Any, read: Any, met: set[str], theirs: str, how: str
) -> None:
    txn = db.begin(isolation="serializable")
    read(txn)
    txn.insert("other", {"id": txn.snapshot})
    with db.begin() as winner:
        CHANGES[theirs].run(winner)
    move_on(db, how, txn.snapshot)
    if theirs in met:
        with pytest.raises(hc.ConflictError):
            txn.commit()
    else:
        txn.commit()


def test_a_row_that_went_through_memory_and_objects_is_followed_to_its_end(db: Any) -> None:
    txn = db.begin()
    txn.update("t", ONE, {"b": 5})
    with db.begin() as other:
        other.update("t", ONE, {"a": 1})
    with db.begin() as other:
        other.update("t", where="id < 40", set={"a": 2})
    with db.begin() as other:
        other.update("t", ONE, {"a": 3})
    txn.commit()
    with db.begin() as after:
        assert after.get("t", ONE) == {"id": ONE, "a": 3, "b": 5}
        assert seen(after) == dict.fromkeys(KEYS, (2, 0)) | {ONE: (3, 5)}
    kinds = db.changes("t", txn.snapshot).column("_change").to_pylist()
    assert kinds.count("update_before") == kinds.count("update_after") == 43


def test_a_bulk_update_is_rebased_row_by_row_and_written_again(db: Any) -> None:
    txn = db.begin()
    assert txn.update("t", where="id < 40", set={"a": 1}) == 40
    for key in (3, 20, 39):
        with db.begin() as other:
            other.update("t", key, {"b": key})
    txn.commit()
    expected = {key: (1, key if key in (3, 20, 39) else 0) for key in KEYS}
    with db.begin() as after:
        assert seen(after) == expected
    changes = db.changes("t", txn.commit_ts - 1)
    kinds = changes.column("_change").to_pylist()
    assert kinds.count("update_before") == kinds.count("update_after") == 40
    assert len(kinds) == 80


def test_keys_that_were_bulk_loaded_and_deleted_since_are_free(db: Any) -> None:
    txn = db.begin()
    txn.insert("t", {"id": FREE_ONE, "a": 9, "b": 9})
    large = db.begin()
    large.insert("t", rows(FREE))
    with db.begin() as other:
        other.insert("t", rows(FREE))
    with db.begin() as other:
        other.delete("t", where="id >= 100")
    txn.commit()
    with pytest.raises(hc.ConflictError):
        large.commit()
    with db.begin() as after:
        assert seen(after) == dict.fromkeys(KEYS, (0, 0)) | {FREE_ONE: (9, 9)}


def test_a_large_insert_beside_many_small_commits(db: Any) -> None:
    txn = db.begin()
    txn.insert("t", rows(range(1000, 1400)))
    for key in range(2000, 2040):
        with db.begin() as other:
            other.insert("t", {"id": key, "a": 0, "b": 0})
        if key % 10 == 0:
            move_on(db, "moved", txn.snapshot)
    txn.commit()
    with db.begin() as after:
        assert len(seen(after)) == 40 + 400 + 40
