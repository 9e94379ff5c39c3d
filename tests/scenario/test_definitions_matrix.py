"""Every change of a definition beside every write, in both orders, as docs/isolation.md decides it.

Two transactions begin on one snapshot. One writes rows of a table, the other changes what the table
is; then they commit, in one order or the other. What the loser did must have left nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.errors import ConflictError
from tests.scenario.document import tables

Write = Callable[[hc.Transaction], Any]

CHANGES: dict[str, dict[str, Any]] = {
    "add": {"add": {"note": hc.Column(str, nullable=False, default="-")}},
    "drop": {"drop": ["b"]},
    "rename": {"rename": {"a": "amount"}},
    "change": {"change": {"a": "int64"}},
    "set_default": {"set_default": {"a": 5}},
    "drop_checks": {"drop_checks": ["small"]},
    "comment": {"comment": "things"},
    "add_checks": {"add_checks": {"positive": "a >= 0"}},
    "set_required": {"set_required": ["a"]},
    "rename_table": {},
    "drop_table": {},
}
ALONE = ("add_checks", "set_required")
"""Changes that have transactions of their own."""
WRITES: dict[str, Write] = {
    "insert": lambda txn: txn.insert("t", {"id": 3, "a": 3}),
    "update": lambda txn: txn.update("t", 1, {"a": 9}),
    "delete": lambda txn: txn.delete("t", 1),
    "upsert": lambda txn: txn.upsert("t", [{"id": 1, "a": 7}, {"id": 4, "a": 4}]),
    "truncate": lambda txn: txn.truncate("t"),
}
AFTER = {
    "insert": {1: 1, 2: 2, 3: 3},
    "update": {1: 9, 2: 2},
    "delete": {2: 2},
    "upsert": {1: 7, 2: 2, 4: 4},
    "truncate": {},
}
BEFORE = {1: 1, 2: 2}


def read(first: str) -> dict[tuple[str, str], str]:
    """(change, write) -> the cell of one of the two tables."""
    header, *rows = tables()[f"Tables: {first}"]
    return {
        (row[0], write): cell
        for row in rows
        for write, cell in zip(header[1:], row[1:], strict=True)
    }


CHANGE_FIRST = read("change first, then")
WRITE_FIRST = read("write first: change")
CELLS = [(change, write) for change in CHANGES for write in WRITES]


@pytest.fixture(params=["memory", "objects"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hc.Database]:
    path = tmp_path / "db"
    with hc.open(path, options=hc.Options(background=False)) as found:
        columns = {"id": int, "a": "int32", "b": int}
        found.create_table("t", columns, primary_key="id", checks={"small": "a < 100"})
        with found.begin() as txn:
            txn.insert("t", [{"id": key, "a": a} for key, a in BEFORE.items()])
        if request.param == "objects":
            found.flush()
        yield found
        assert found.check() == []
        names = found.tables()
    with hc.open(path) as again:
        assert again.tables() == names
        assert again.check() == []


def define(owner: hc.Database | hc.Transaction, change: str) -> None:
    if change == "rename_table":
        owner.rename_table("t", "u")
    elif change == "drop_table":
        owner.drop_table("t")
    else:
        owner.alter_table("t", **CHANGES[change])


def compare(db: hc.Database, change: str, expected: dict[int, int], since: int) -> None:
    """The rows of the table as the change has left it; before it they are as they were."""
    if change == "drop_table":
        assert db.tables() == []
    else:
        name = "u" if change == "rename_table" else "t"
        rows = db.table(name).to_arrow().to_pylist()
        column = "amount" if change == "rename" else "a"
        assert {row["id"]: row[column] for row in rows} == expected
    with db.begin(at=since) as past:
        assert {row["id"]: row["a"] for row in past.scan("t").to_pylist()} == BEFORE


def test_the_document_decides_every_cell() -> None:
    assert set(CHANGE_FIRST) == set(WRITE_FIRST) == set(CELLS)
    assert set(CHANGE_FIRST.values()) == {"conflict"}
    for (change, _), cell in WRITE_FIRST.items():
        assert cell == ("-" if change in ALONE else "both")


@pytest.mark.parametrize("change", CHANGES)
def test_the_change_commits_first(db: hc.Database, change: str) -> None:
    since = db.visible_ts
    writers = [db.begin() for _ in WRITES]
    for txn, write in zip(writers, WRITES.values(), strict=True):
        write(txn)
    define(db, change)
    for txn, name in zip(writers, WRITES, strict=True):
        assert CHANGE_FIRST[change, name] == "conflict"
        with pytest.raises(ConflictError):
            txn.commit()
    compare(db, change, BEFORE, since)


@pytest.mark.parametrize(("change", "write"), [cell for cell in CELLS if cell[0] not in ALONE])
def test_the_write_commits_first(db: hc.Database, change: str, write: str) -> None:
    assert WRITE_FIRST[change, write] == "both"
    since = db.visible_ts
    definer, writer = db.begin(), db.begin()
    define(definer, change)
    WRITES[write](writer)
    assert writer.commit() is not None
    assert definer.commit() is not None
    compare(db, change, AFTER[write], since)
