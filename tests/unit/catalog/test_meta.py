"""Every branch of insert, delete, update and query on a built-in table (C-05 to C-09)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from halocline.catalog.builtin import Builtin
from halocline.catalog.entries import (
    DatabaseEntry,
    DatabaseId,
    IndexEntry,
    ObjectEntry,
    TableEntry,
)
from halocline.catalog.meta import MetaTable, MetaTxn
from halocline.errors import AlreadyExistsError, ConflictError, NotFoundError
from halocline.ids import NEVER, ColumnId, IndexId, ObjectId, TableId
from tests.unit.catalog.driver import SCHEMA


@dataclass(frozen=True)
class Thing:
    """The least that a built-in table can hold."""

    value: str
    created_at: int = NEVER
    ended_at: int = NEVER

    def stamped(self, created_at: int, ended_at: int) -> Thing:
        return replace(self, created_at=created_at, ended_at=ended_at)


class Things:
    """A built-in table with one row per letter; transactions are written as calls."""

    def __init__(self) -> None:
        self.table: MetaTable[str, Thing] = MetaTable("thing")

    def begin(self, start_ts: int) -> MetaTxn:
        return MetaTxn(txn_id=start_ts, start_ts=start_ts)

    def commit(self, txn: MetaTxn, commit_ts: int) -> list[Any]:
        txn.prepare()
        return txn.commit(commit_ts)

    def insert(self, key: str, value: str, commit_ts: int) -> None:
        txn = self.begin(commit_ts - 1)
        self.table.insert(txn, key, Thing(value))
        self.commit(txn, commit_ts)

    def update(self, key: str, value: str, commit_ts: int) -> None:
        txn = self.begin(commit_ts - 1)
        self.table.update(txn, key, Thing(value))
        self.commit(txn, commit_ts)

    def delete(self, key: str, commit_ts: int) -> None:
        txn = self.begin(commit_ts - 1)
        self.table.delete(txn, key)
        self.commit(txn, commit_ts)

    def row(self, key: str) -> Any:
        """The newest index node itself."""
        return self.table._index[key][-1]

    def history(self, key: str, until: int) -> list[str | None]:
        """The committed value at 0, 1, 2, ..."""
        found = [self.table.get(key, ts) for ts in range(until + 1)]
        return [thing.value if thing else None for thing in found]


@pytest.fixture
def things() -> Things:
    return Things()


# -- C-04: index nodes and chains ----------------------------------------------------------------


def test_c04_the_first_change_of_a_row_creates_its_version_chain(things: Things) -> None:
    things.insert("a", "one", 1)
    assert things.row("a").chain is None
    things.update("a", "two", 2)
    assert len(things.row("a").chain) == 1


def test_c04_a_rolled_back_change_takes_the_chain_with_it(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    things.table.delete(txn, "a")
    assert len(things.row("a").chain) == 1
    txn.rollback()
    assert things.row("a").chain is None


# -- C-05: insert --------------------------------------------------------------------------------


def test_c05_insert_makes_an_uncommitted_index_node(things: Things) -> None:
    txn = things.begin(0)
    things.table.insert(txn, "a", Thing("one"))
    assert things.row("a").owner is txn
    assert things.row("a").created_at == NEVER
    assert things.table.get("a", NEVER - 1) is None


def test_c05_insert_of_a_visible_key_is_a_duplicate(things: Things) -> None:
    things.insert("a", "one", 1)
    with pytest.raises(AlreadyExistsError) as caught:
        things.table.insert(things.begin(1), "a", Thing("two"))
    assert (caught.value.kind, caught.value.name) == ("thing", "a")


def test_c05_insert_of_an_own_uncommitted_key_is_a_duplicate(things: Things) -> None:
    txn = things.begin(0)
    things.table.insert(txn, "a", Thing("one"))
    with pytest.raises(AlreadyExistsError):
        things.table.insert(txn, "a", Thing("two"))


def test_c05_insert_of_a_key_that_another_transaction_is_inserting_conflicts(
    things: Things,
) -> None:
    things.table.insert(things.begin(0), "a", Thing("one"))
    with pytest.raises(ConflictError, match="being created") as caught:
        things.table.insert(things.begin(0), "a", Thing("two"))
    assert (caught.value.key, caught.value.winner_ts) == ("a", 0)


def test_c05_insert_of_a_key_that_was_committed_since_the_start_conflicts(things: Things) -> None:
    late = things.begin(3)
    things.insert("a", "one", 5)
    with pytest.raises(ConflictError, match="was created since") as caught:
        things.table.insert(late, "a", Thing("two"))
    assert caught.value.winner_ts == 5


def test_c05_insert_of_a_key_that_came_and_went_since_the_start_conflicts(things: Things) -> None:
    late = things.begin(3)
    things.insert("a", "one", 5)
    things.delete("a", 6)
    with pytest.raises(ConflictError, match="created and dropped") as caught:
        things.table.insert(late, "a", Thing("two"))
    assert caught.value.winner_ts == 6


def test_c05_a_key_that_was_deleted_since_the_start_is_still_a_duplicate(things: Things) -> None:
    things.insert("a", "one", 1)
    late = things.begin(3)
    things.delete("a", 5)
    with pytest.raises(AlreadyExistsError):
        things.table.insert(late, "a", Thing("two"))


def test_c05_a_key_that_another_transaction_is_deleting_is_still_a_duplicate(
    things: Things,
) -> None:
    things.insert("a", "one", 1)
    things.table.delete(things.begin(1), "a")
    with pytest.raises(AlreadyExistsError):
        things.table.insert(things.begin(1), "a", Thing("two"))


def test_c05_a_deleted_key_can_be_inserted_again_as_a_new_generation(things: Things) -> None:
    things.insert("a", "one", 1)
    things.delete("a", 2)
    things.insert("a", "two", 3)
    assert things.history("a", 4) == [None, "one", None, "two", "two"]


def test_c05_a_key_deleted_by_the_same_transaction_can_be_inserted_again(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    things.table.delete(txn, "a")
    things.table.insert(txn, "a", Thing("two"))
    things.commit(txn, 2)
    assert things.history("a", 3) == [None, "one", "two", "two"]


# -- C-06: delete --------------------------------------------------------------------------------


def test_c06_delete_of_a_missing_key_is_not_found(things: Things) -> None:
    with pytest.raises(NotFoundError) as caught:
        things.table.delete(things.begin(0), "a")
    assert (caught.value.kind, caught.value.name) == ("thing", "a")


def test_c06_delete_of_a_committed_deleted_row_is_not_found(things: Things) -> None:
    things.insert("a", "one", 1)
    things.delete("a", 2)
    things.table.compact(2, keep=lambda thing: True)
    assert things.row("a").chain is None, "only the row's own mark says that it is deleted"
    with pytest.raises(NotFoundError):
        things.table.delete(things.begin(2), "a")


def test_c06_delete_without_a_chain_creates_one_with_a_delete_node(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    assert things.table.delete(txn, "a").value == "one"
    (node,) = things.row("a").chain
    assert (node.value, node.owner, node.commit_ts) == (None, txn, NEVER)


def test_c06_delete_of_a_row_with_a_committed_delete_in_its_chain_is_not_found(
    things: Things,
) -> None:
    things.insert("a", "one", 1)
    things.delete("a", 2)
    assert things.row("a").chain[-1].commit_ts == 2
    with pytest.raises(NotFoundError):
        things.table.delete(things.begin(2), "a")


def test_c06_delete_of_a_row_that_was_deleted_since_the_start_conflicts(things: Things) -> None:
    things.insert("a", "one", 1)
    late = things.begin(1)
    things.delete("a", 2)
    with pytest.raises(ConflictError, match="was dropped since") as caught:
        things.table.delete(late, "a")
    assert caught.value.winner_ts == 2


def test_c06_delete_of_a_row_that_another_transaction_is_deleting_conflicts(
    things: Things,
) -> None:
    things.insert("a", "one", 1)
    things.table.delete(things.begin(1), "a")
    with pytest.raises(ConflictError, match="being dropped"):
        things.table.delete(things.begin(1), "a")


def test_c06_a_second_delete_by_the_same_transaction_is_not_found(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    things.table.delete(txn, "a")
    with pytest.raises(NotFoundError):
        things.table.delete(txn, "a")


def test_c06_delete_adds_its_node_to_a_chain_of_updates(things: Things) -> None:
    things.insert("a", "one", 1)
    things.update("a", "two", 2)
    things.delete("a", 3)
    assert [node.value and node.value.value for node in things.row("a").chain] == ["two", None]
    assert things.history("a", 3) == [None, "one", "two", None]


def test_c06_delete_of_a_row_that_was_updated_since_the_start_conflicts(things: Things) -> None:
    things.insert("a", "one", 1)
    late = things.begin(1)
    things.update("a", "two", 2)
    with pytest.raises(ConflictError, match="was changed since") as caught:
        things.table.delete(late, "a")
    assert caught.value.winner_ts == 2


def test_c06_delete_of_a_row_that_only_others_see_is_not_found(things: Things) -> None:
    late = things.begin(0)
    things.table.insert(things.begin(0), "a", Thing("uncommitted"))
    things.insert("b", "committed later", 1)
    for key in ("a", "b"):
        with pytest.raises(NotFoundError):
            things.table.delete(late, key)


@pytest.mark.parametrize("first", ["delete", "update"])
def test_c06_delete_beside_a_pending_update_adds_its_node_and_only_the_first_commits(
    things: Things, first: str
) -> None:
    things.insert("a", "one", 1)
    updating, deleting = things.begin(1), things.begin(1)
    things.table.update(updating, "a", Thing("two"))
    things.table.delete(deleting, "a")
    winner, loser = (deleting, updating) if first == "delete" else (updating, deleting)
    things.commit(winner, 2)
    with pytest.raises(ConflictError) as caught:
        loser.prepare()
    assert caught.value.winner_ts == 2
    loser.rollback()
    assert things.history("a", 3)[2:] == ([None, None] if first == "delete" else ["two", "two"])


# -- C-07: update --------------------------------------------------------------------------------


def test_c07_update_of_a_missing_key_is_not_found(things: Things) -> None:
    with pytest.raises(NotFoundError):
        things.table.update(things.begin(0), "a", Thing("two"))


def test_c07_update_of_a_committed_deleted_row_is_not_found(things: Things) -> None:
    things.insert("a", "one", 1)
    things.delete("a", 2)
    with pytest.raises(NotFoundError):
        things.table.update(things.begin(2), "a", Thing("two"))
    things.table.compact(2, keep=lambda thing: True)
    with pytest.raises(NotFoundError):
        things.table.update(things.begin(2), "a", Thing("two"))


def test_c07_update_without_a_chain_creates_one_with_an_update_node(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    things.table.update(txn, "a", Thing("two"))
    (node,) = things.row("a").chain
    assert (node.value, node.owner, node.commit_ts) == (Thing("two"), txn, NEVER)


def test_c07_update_of_a_row_that_another_transaction_is_deleting_conflicts(
    things: Things,
) -> None:
    things.insert("a", "one", 1)
    things.table.delete(things.begin(1), "a")
    with pytest.raises(ConflictError, match="being dropped"):
        things.table.update(things.begin(1), "a", Thing("two"))


def test_c07_update_after_an_own_delete_is_not_found(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    things.table.delete(txn, "a")
    with pytest.raises(NotFoundError):
        things.table.update(txn, "a", Thing("two"))


def test_c07_update_of_a_row_that_was_deleted_since_the_start_conflicts(things: Things) -> None:
    things.insert("a", "one", 1)
    late = things.begin(1)
    things.delete("a", 2)
    with pytest.raises(ConflictError) as caught:
        things.table.update(late, "a", Thing("two"))
    assert caught.value.winner_ts == 2


def test_c07_d18_update_beside_an_uncommitted_update_conflicts(things: Things) -> None:
    things.insert("a", "one", 1)
    things.table.update(things.begin(1), "a", Thing("two"))
    with pytest.raises(ConflictError, match="being changed"):
        things.table.update(things.begin(1), "a", Thing("three"))


def test_c07_a_second_update_by_the_same_transaction_adds_a_node(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    things.table.update(txn, "a", Thing("two"))
    things.table.update(txn, "a", Thing("three"))
    assert things.table.query(txn, "a").value == "three"
    things.commit(txn, 2)
    assert things.history("a", 2) == [None, "one", "three"]


def test_c07_update_of_a_row_that_was_updated_since_the_start_conflicts(things: Things) -> None:
    things.insert("a", "one", 1)
    late = things.begin(1)
    things.update("a", "two", 2)
    with pytest.raises(ConflictError) as caught:
        things.table.update(late, "a", Thing("three"))
    assert caught.value.winner_ts == 2


def test_c07_update_on_top_of_committed_updates_adds_its_node(things: Things) -> None:
    things.insert("a", "one", 1)
    things.update("a", "two", 2)
    things.update("a", "three", 3)
    assert things.history("a", 3) == [None, "one", "two", "three"]


# -- C-08: query ---------------------------------------------------------------------------------


def test_c08_query_of_a_missing_key_is_not_found(things: Things) -> None:
    with pytest.raises(NotFoundError):
        things.table.query(things.begin(0), "a")


def test_c08_query_of_a_committed_deleted_row_is_not_found(things: Things) -> None:
    things.insert("a", "one", 1)
    things.delete("a", 2)
    things.table.compact(2, keep=lambda thing: True)
    with pytest.raises(NotFoundError):
        things.table.query(things.begin(2), "a")


def test_c08_an_uncommitted_row_is_visible_to_its_own_transaction_only(things: Things) -> None:
    txn = things.begin(0)
    things.table.insert(txn, "a", Thing("one"))
    assert things.table.query(txn, "a").value == "one"
    with pytest.raises(NotFoundError):
        things.table.query(things.begin(0), "a")


def test_c08_a_committed_row_is_visible_from_its_commit_on(things: Things) -> None:
    early = things.begin(0)
    things.insert("a", "one", 1)
    assert things.table.query(things.begin(1), "a").value == "one"
    with pytest.raises(NotFoundError):
        things.table.query(early, "a")


def test_c08_a_delete_is_seen_if_it_committed_before_the_start(things: Things) -> None:
    things.insert("a", "one", 1)
    early = things.begin(1)
    things.delete("a", 2)
    assert things.table.query(early, "a").value == "one"
    with pytest.raises(NotFoundError):
        things.table.query(things.begin(2), "a")


def test_c08_an_uncommitted_delete_is_seen_by_its_own_transaction_only(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    things.table.delete(txn, "a")
    with pytest.raises(NotFoundError):
        things.table.query(txn, "a")
    assert things.table.query(things.begin(1), "a").value == "one"


def test_c08_t07_an_update_is_seen_if_it_committed_before_the_start(things: Things) -> None:
    things.insert("a", "one", 1)
    early = things.begin(1)
    things.update("a", "two", 2)
    assert things.table.query(early, "a").value == "one"
    assert things.table.query(things.begin(2), "a").value == "two"


def test_c08_an_uncommitted_update_is_seen_by_its_own_transaction_only(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    things.table.update(txn, "a", Thing("two"))
    assert things.table.query(txn, "a").value == "two"
    assert things.table.query(things.begin(1), "a").value == "one"


def test_c08_reads_are_repeatable_whatever_commits_meanwhile(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    things.update("a", "two", 2)
    things.delete("a", 3)
    things.insert("a", "three", 4)
    assert things.table.query(txn, "a").value == "one"
    assert [thing.value for thing in things.table.scan(txn)] == ["one"]


# -- C-09: prepare, commit, rollback -------------------------------------------------------------


def _update(things: Things) -> None:
    things.update("a", "two", 2)


def _delete(things: Things) -> None:
    things.delete("a", 2)


def _insert(things: Things) -> None:
    things.insert("new", "two", 2)


@pytest.mark.parametrize(
    ("read", "change"),
    [("a", _update), ("a", _delete), ("new", _insert), (None, _update), (None, _insert)],
    ids=["update", "delete", "insert of a missing key", "scan, update", "scan, phantom"],
)
def test_c09_prepare_fails_if_something_read_was_changed_by_a_later_commit(
    things: Things, read: str | None, change: Callable[[Things], None]
) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    if read is None:
        things.table.scan(txn)
    else:
        things.table.find(txn, read)
    things.table.insert(txn, "own", Thing("x"))
    change(things)
    with pytest.raises(ConflictError, match="was read and has changed") as caught:
        txn.prepare()
    assert caught.value.winner_ts == 2


def test_c09_prepare_passes_if_only_other_rows_changed(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    things.table.query(txn, "a")
    things.table.scan(txn, lambda key: key < "m")
    things.insert("z", "two", 2)
    things.table.insert(txn, "b", Thing("x"))
    things.commit(txn, 3)
    assert things.table.get("b", 3) is not None


def test_c09_a_read_of_something_uncommitted_elsewhere_is_no_conflict(things: Things) -> None:
    other = things.begin(0)
    things.table.insert(other, "a", Thing("one"))
    txn = things.begin(0)
    assert things.table.find(txn, "a") is None
    txn.prepare()
    other.rollback()
    txn.prepare()


def test_c09_commit_stamps_every_node_and_returns_the_finished_values(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    things.table.delete(txn, "a")
    things.table.insert(txn, "b", Thing("two"))
    changed = things.commit(txn, 2)
    assert changed == [Thing("one", 1, 2), Thing("two", 2, NEVER)]
    assert things.table.get("a", 1) == Thing("one", 1, 2)


def test_c09_rollback_leaves_no_node_behind(things: Things) -> None:
    things.insert("a", "one", 1)
    things.insert("b", "one", 2)
    txn = things.begin(2)
    things.table.delete(txn, "a")
    things.table.insert(txn, "a", Thing("again"))
    things.table.update(txn, "b", Thing("changed"))
    things.table.insert(txn, "c", Thing("new"))
    txn.rollback()
    txn.rollback()
    assert things.table.keys() == ["a", "b"]
    assert [things.row(key).chain for key in "ab"] == [None, None]
    assert things.history("a", 3) == [None, "one", "one", "one"]


def test_c09_insert_and_delete_in_one_transaction_leave_nothing(things: Things) -> None:
    txn = things.begin(0)
    things.table.insert(txn, "a", Thing("one"))
    things.table.update(txn, "a", Thing("two"))
    things.table.delete(txn, "a")
    assert things.commit(txn, 1) == []
    assert things.table.keys() == []


# -- C-11: compaction ----------------------------------------------------------------------------


def test_c11_compaction_prunes_chains_to_what_the_floor_can_see(things: Things) -> None:
    things.insert("a", "one", 1)
    for ts in range(2, 7):
        things.update("a", f"at {ts}", ts)
    pending = things.begin(6)
    things.table.update(pending, "a", Thing("pending"))
    assert things.table.compact(4) == []
    assert [node.commit_ts for node in things.row("a").chain] == [5, 6, NEVER]
    assert things.history("a", 6)[4:] == ["at 4", "at 5", "at 6"]
    things.commit(pending, 7)
    assert things.history("a", 7)[6:] == ["at 6", "pending"]


def test_c11_compaction_hard_deletes_what_ended_at_or_before_the_floor(things: Things) -> None:
    things.insert("a", "one", 1)
    things.delete("a", 2)
    things.insert("a", "two", 3)
    assert things.table.compact(1) == []
    assert [thing.value for thing in things.table.compact(2)] == ["one"]
    assert things.history("a", 3) == [None, None, None, "two"]
    things.delete("a", 4)
    assert [thing.value for thing in things.table.compact(4)] == ["two"]
    assert things.table.keys() == []


# -- C-02, C-03: the built-in tables -------------------------------------------------------------

TABLE = TableEntry(
    id=TableId(1),
    name="m",
    schema=SCHEMA,
    layout="clustered",
    options={},
    next_column_id=ColumnId(3),
)
INDEX = IndexEntry(id=IndexId(1), table_id=TableId(1), index_type=0, columns=(ColumnId(1),))
OBJECT = ObjectEntry(id=ObjectId(1), table_id=TableId(1), commit_ts_min=1, commit_ts_max=1)
SAMPLES: dict[str, tuple[Any, Any, Any]] = {
    "databases": (
        "shop",
        DatabaseEntry(id=DatabaseId(1), name="shop"),
        DatabaseEntry(id=DatabaseId(1), name="Shop"),
    ),
    "tables": ("m", TABLE, replace(TABLE, layout="heap")),
    "objects": ((1, 1), OBJECT, replace(OBJECT, level=2)),
    "indexes": ((1, 1), INDEX, replace(INDEX, desc="by id")),
}


def test_c02_the_built_in_tables_are_four_and_fixed() -> None:
    builtin = Builtin()
    assert set(Builtin.__slots__) == set(SAMPLES)
    for name in SAMPLES:
        with pytest.raises((AttributeError, TypeError)):
            setattr(builtin, name, MetaTable("other"))
        with pytest.raises((AttributeError, TypeError)):
            delattr(builtin, name)
    with pytest.raises((AttributeError, TypeError)):
        builtin.users = MetaTable("user")  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", SAMPLES)
def test_c03_each_built_in_table_can_insert_update_query_and_delete(name: str) -> None:
    table: MetaTable[Any, Any] = getattr(Builtin(), name)
    key, first, second = SAMPLES[name]
    acts: list[Callable[[MetaTxn], Any]] = [
        lambda txn: table.insert(txn, key, first),
        lambda txn: table.update(txn, key, second),
        lambda txn: table.delete(txn, key),
    ]
    for ts, act in enumerate(acts, start=1):
        txn = MetaTxn(ts, ts - 1)
        act(txn)
        txn.prepare()
        txn.commit(ts)
    assert [table.get(key, ts) for ts in range(4)] == [
        None,
        first.stamped(1, 3),
        second.stamped(1, 3),
        None,
    ]
    assert table.query(MetaTxn(9, 2), key) == second.stamped(1, 3)
