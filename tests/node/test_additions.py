"""`hc.add` and `hc.expr` from other processes and other machines: amounts travel, sums are made by
the owner."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

import halocline as hc
from halocline.errors import CorruptionError
from halocline.log.record import DML_A, DML_U
from halocline.rows.nodes import Append, Update, decode_node, encode_node
from halocline.schema.schema import Schema
from tests.concurrency.threads import together

COLUMNS = {"id": int, "v": int, "d": "decimal(8,2)", "f": float, "note": str}
ROWS = 5
OPTIONS = hc.Options(background=False, bulk_rows=10, page_rows=16)


@pytest.fixture(params=["near", "afar"])
def other(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("node" if request.param == "near" else "far")


def row(db: hc.Database, key: int = 1) -> dict[str, Any]:
    with db.begin() as txn:
        return txn.get("t", key) or {}


@pytest.mark.parametrize("moved", [False, True])
def test_additions_of_several_processes_all_commit(
    owner: hc.Database, other: hc.Database, moved: bool
) -> None:
    with owner.begin() as txn:
        txn.update("t", 1, {"d": Decimal(1), "f": 0.5})
    if moved:
        owner.flush()
    several = [db.begin() for db in (owner, other, other, owner)]
    for txn in several:
        txn.update("t", 1, {"v": hc.add(10), "d": hc.add(Decimal("0.10")), "f": hc.add(0.25)})
    plain = other.begin()
    plain.update("t", 1, {"v": 7})
    for txn in several:
        txn.commit()
        if moved:
            owner.flush()
    with pytest.raises(hc.ConflictError, match="the same column"):
        plain.commit()
    wanted = {"id": 1, "v": 41, "d": Decimal("1.40"), "f": 1.5, "note": None}
    assert row(other) == row(owner) == wanted


def test_an_addition_beside_other_columns_and_nulls(owner: hc.Database, other: hc.Database) -> None:
    ours, theirs = other.begin(), owner.begin()
    ours.update("t", 1, {"v": hc.add(1), "d": hc.add(1), "note": "x"})
    ours.update("t", 2, {"v": hc.expr("v * 10")})
    theirs.update("t", 1, {"f": 2.0})
    theirs.update("t", 1, {"v": hc.add(5)})
    theirs.commit()
    ours.commit()
    assert row(other) == {"id": 1, "v": 7, "d": None, "f": 2.0, "note": "x"}
    assert row(owner, 2)["v"] == 20


def test_a_sum_that_does_not_fit_fails_at_the_commit(
    owner: hc.Database, other: hc.Database
) -> None:
    with owner.begin() as txn:
        txn.update("t", 1, {"v": 2**63 - 2})
    ours, theirs = other.begin(), owner.begin()
    for txn in (ours, theirs):
        txn.update("t", 1, {"v": hc.add(1)})
    theirs.commit()
    with pytest.raises(hc.SchemaError, match="out of range"):
        ours.commit()
    assert row(other)["v"] == 2**63 - 1


def test_many_rows_with_amounts_travel_as_arrow(owner: hc.Database, other: hc.Database) -> None:
    with other.begin() as txn:
        txn.insert("t", [{"id": key, "v": 0} for key in range(100, 120)])
    ours, theirs = other.begin(), owner.begin()
    for key in range(100, 120):
        ours.update("t", key, {"v": hc.add(1)})
    theirs.update("t", 105, {"v": hc.add(10)})
    theirs.commit()
    ours.commit()
    found = [row(owner, key)["v"] for key in range(100, 120)]
    assert found == [11 if key == 105 else 1 for key in range(100, 120)]


def test_threads_of_two_handles_add_without_a_retry(owner: hc.Database, other: hc.Database) -> None:
    runs: list[int] = []

    def work(db: hc.Database) -> None:
        def add(txn: hc.Transaction) -> None:
            runs.append(1)
            txn.update("t", 1, {"v": hc.add(1)})

        for _ in range(25):
            db.run(add)

    together(*[lambda db=db: work(db) for db in (owner, other) * 3])
    assert (row(owner)["v"], len(runs)) == (151, 150)


def test_only_a_workspace_may_hold_amounts_and_only_in_updates() -> None:
    schema = Schema.define(COLUMNS, "id")
    update = Update(1, [7], (-2,), [(1, 5, None, None, None)], amounts=True)
    kind, payload = encode_node(update, schema)
    assert kind == DML_U
    found = decode_node(kind, payload, schema, amounts=True)
    assert isinstance(found, Update)
    assert (found.amounts, found.changed) == (True, (-2,))
    with pytest.raises(CorruptionError, match="flags"):
        decode_node(kind, payload, schema)
    _, rows = encode_node(Append(1, [(1, 5, None, None, None)]), schema)
    flagged = bytearray(rows)
    flagged[2] = 1
    with pytest.raises(CorruptionError, match="flags"):
        decode_node(DML_A, bytes(flagged), schema, amounts=True)


def test_a_request_that_adds_null_is_refused(owner: hc.Database, other: hc.Database) -> None:
    """No client of ours sends one."""
    txn = other.begin()
    txn.update("t", 1, {"v": hc.add(1)})
    (changes,) = txn.workspace.changes.values()
    (intent,) = changes.updates.values()
    intent.added[1] = None
    with pytest.raises(CorruptionError, match="adds nothing"):
        txn.commit()
    assert (row(owner)["v"], row(other)["v"]) == (1, 1)
    with other.begin() as txn:
        txn.update("t", 1, {"v": hc.add(1)})
    assert row(owner)["v"] == 2
