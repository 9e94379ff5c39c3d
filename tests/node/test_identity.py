"""Identity columns in several processes: each draws from blocks of its own."""

from __future__ import annotations

import pyarrow as pa
import pytest

import halocline as hc
from halocline.errors import ConflictError, SchemaError

OPTIONS = hc.Options(background=False, bulk_rows=10, object_rows_min=100)
COLUMNS = {"id": hc.Column(int, identity=True), "v": int}


def draw(db: hc.Database, table: str = "t") -> int:
    with db.begin() as txn:
        key: int = txn.insert(table, {"v": 1}, returning=True)["id"]
    return key


def keys(db: hc.Database) -> list[int]:
    with db.begin() as txn:
        found: list[int] = txn.scan("t", order="id")["id"].to_pylist()
    return found


@pytest.mark.parametrize("way", ["node", "far"])
def test_everybody_draws(owner: hc.Database, way: str, request: pytest.FixtureRequest) -> None:
    other: hc.Database = request.getfixturevalue(way)
    mine, theirs = [], []
    for step in range(30):
        mine.append(draw(owner))
        theirs.append(draw(other))
        rows = pa.table({"v": range((1, 20, 200)[step % 3])})
        for db, drawn in ((owner, mine), (other, theirs)):
            with db.begin() as txn:
                drawn += txn.insert("t", rows, returning=["id"])["id"].to_pylist()
        with other.begin() as txn:
            txn.insert("t", {"v": 2})  # begins ahead of what is folded
    assert mine == sorted(mine)
    assert theirs == sorted(theirs)
    assert len({*mine, *theirs}) == len(mine) + len(theirs) == len(keys(owner)) - 30


@pytest.mark.parametrize("way", ["node", "far"])
def test_a_key_that_is_given_is_passed_over_by_whose_block_it_is_in(
    owner: hc.Database, way: str, request: pytest.FixtureRequest
) -> None:
    other: hc.Database = request.getfixturevalue(way)
    first = draw(other)
    owner.run(lambda txn: txn.insert("t", [{"id": first + 1}, {"id": first + 2}]))
    assert draw(other) == first + 3
    other.run(lambda txn: txn.insert("t", {"id": 10_000}))
    assert draw(owner) == 10_001
    assert draw(other) > first + 3


def test_one_of_two_in_the_middle_of_it_runs_again(owner: hc.Database, node: hc.Database) -> None:
    first = draw(node)
    txn = node.begin()
    drawn = txn.insert("t", {}, returning=True)["id"]
    assert drawn == first + 1
    owner.run(lambda one: one.insert("t", {"id": drawn}))
    with pytest.raises(ConflictError):
        txn.commit()
    assert draw(node) == first + 2


def test_a_table_that_another_process_creates(owner: hc.Database, node: hc.Database) -> None:
    with node.begin() as txn:
        txn.create_table("u", COLUMNS, "id")
        assert txn.insert("u", {}, returning=True)["id"] == 1
        rows = txn.insert("u", pa.table({"v": range(200)}), returning=True)
    assert draw(owner, "u") > rows["id"].to_pylist()[-1]
    assert draw(node, "u") == 202


def test_a_table_that_is_gone_or_has_none(owner: hc.Database, node: hc.Database) -> None:
    owner.create_table("gone", COLUMNS, "id")
    txn = node.begin()
    txn.tables()
    owner.drop_table("gone")
    txn.insert("gone", [{"v": n} for n in range(3)])
    with pytest.raises(ConflictError, match="dropped"):
        txn.commit()
    owner.run(lambda txn: txn.insert("t", {"id": (1 << 63) - 1}))
    with pytest.raises(SchemaError, match="used up"):
        draw(node)
    with pytest.raises(SchemaError, match="'x'"):
        node.alter_table("t", add={"x": hc.Column(int, identity=True)})


def test_a_closed_database_draws_nothing(owner: hc.Database) -> None:
    blocks = owner.core.writing.keys
    state = owner.core.engine.tables[1]
    draw(owner)
    owner.close()
    with pytest.raises(hc.UsageError, match="closed"):
        blocks.draw(state, 1)
