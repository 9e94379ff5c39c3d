"""Every branch of insert, delete, update and query on the map of tables (C-05 to C-09)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halocline.catalog import TableEntry
from halocline.catalog.tables import Changes, TableMap
from halocline.errors import AlreadyExistsError, ConflictError, NotFoundError
from halocline.ids import NEVER, ColumnId, TableId
from tests.unit.catalog.driver import SCHEMA


def table(name: str, value: str) -> TableEntry:
    """An entry that is told from others by `value`."""
    return TableEntry(
        id=TableId(1),
        name=name,
        schema=SCHEMA,
        layout=value,
        options={},
        next_column_id=ColumnId(3),
    )


class Things:
    """A map with one table per letter; transactions are written as calls."""

    def __init__(self) -> None:
        self.table = TableMap()

    def begin(self, start_ts: int) -> Changes:
        return Changes(self.table, start_ts)

    def commit(self, txn: Changes, commit_ts: int) -> list[TableEntry]:
        txn.prepare()
        return txn.commit(commit_ts)

    def insert(self, key: str, value: str, commit_ts: int) -> None:
        txn = self.begin(commit_ts - 1)
        txn.insert(table(key, value))
        self.commit(txn, commit_ts)

    def update(self, key: str, value: str, commit_ts: int) -> None:
        txn = self.begin(commit_ts - 1)
        txn.update(table(key, value))
        self.commit(txn, commit_ts)

    def delete(self, key: str, commit_ts: int) -> None:
        txn = self.begin(commit_ts - 1)
        txn.delete(key)
        self.commit(txn, commit_ts)

    def row(self, key: str) -> Any:
        """The newest generation itself."""
        return self.table.generations(key)[-1]

    def value(self, txn: Changes, key: str) -> str:
        """What the transaction finds; it must be there."""
        found = txn.find(key)
        assert found is not None
        return found.layout

    def history(self, key: str, until: int) -> list[str | None]:
        """The committed value at 0, 1, 2, ..."""
        found = [self.table.get(key, ts) for ts in range(until + 1)]
        return [entry.layout if entry else None for entry in found]


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
    txn.delete("a")
    assert len(things.row("a").chain) == 1
    txn.rollback()
    assert things.row("a").chain is None


# -- C-05: insert --------------------------------------------------------------------------------


def test_c05_insert_makes_an_uncommitted_index_node(things: Things) -> None:
    txn = things.begin(0)
    txn.insert(table("a", "one"))
    assert things.row("a").owner is txn
    assert things.row("a").created_at == NEVER
    assert things.table.get("a", NEVER - 1) is None


def test_c05_insert_of_a_visible_key_is_a_duplicate(things: Things) -> None:
    things.insert("a", "one", 1)
    with pytest.raises(AlreadyExistsError) as caught:
        things.begin(1).insert(table("a", "two"))
    assert (caught.value.kind, caught.value.name) == ("table", "a")


def test_c05_insert_of_an_own_uncommitted_key_is_a_duplicate(things: Things) -> None:
    txn = things.begin(0)
    txn.insert(table("a", "one"))
    with pytest.raises(AlreadyExistsError):
        txn.insert(table("a", "two"))


def test_c05_insert_of_a_key_that_another_transaction_is_inserting_conflicts(
    things: Things,
) -> None:
    things.begin(0).insert(table("a", "one"))
    with pytest.raises(ConflictError, match="being created") as caught:
        things.begin(0).insert(table("a", "two"))
    assert (caught.value.table, caught.value.winner_ts) == ("a", 0)


def test_c05_insert_of_a_key_that_was_committed_since_the_start_conflicts(things: Things) -> None:
    late = things.begin(3)
    things.insert("a", "one", 5)
    with pytest.raises(ConflictError, match="was created since") as caught:
        late.insert(table("a", "two"))
    assert caught.value.winner_ts == 5


def test_c05_insert_of_a_key_that_came_and_went_since_the_start_conflicts(things: Things) -> None:
    late = things.begin(3)
    things.insert("a", "one", 5)
    things.delete("a", 6)
    with pytest.raises(ConflictError, match="created and dropped") as caught:
        late.insert(table("a", "two"))
    assert caught.value.winner_ts == 6


def test_c05_a_key_that_was_deleted_since_the_start_is_still_a_duplicate(things: Things) -> None:
    things.insert("a", "one", 1)
    late = things.begin(3)
    things.delete("a", 5)
    with pytest.raises(AlreadyExistsError):
        late.insert(table("a", "two"))


def test_c05_a_key_that_another_transaction_is_deleting_is_still_a_duplicate(
    things: Things,
) -> None:
    things.insert("a", "one", 1)
    things.begin(1).delete("a")
    with pytest.raises(AlreadyExistsError):
        things.begin(1).insert(table("a", "two"))


def test_c05_a_deleted_key_can_be_inserted_again_as_a_new_generation(things: Things) -> None:
    things.insert("a", "one", 1)
    things.delete("a", 2)
    things.insert("a", "two", 3)
    assert things.history("a", 4) == [None, "one", None, "two", "two"]


def test_c05_a_key_deleted_by_the_same_transaction_can_be_inserted_again(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    txn.delete("a")
    txn.insert(table("a", "two"))
    things.commit(txn, 2)
    assert things.history("a", 3) == [None, "one", "two", "two"]


# -- C-06: delete --------------------------------------------------------------------------------


def test_c06_delete_of_a_missing_key_is_not_found(things: Things) -> None:
    with pytest.raises(NotFoundError) as caught:
        things.begin(0).delete("a")
    assert (caught.value.kind, caught.value.name) == ("table", "a")


def test_c06_delete_of_a_committed_deleted_row_is_not_found(things: Things) -> None:
    things.insert("a", "one", 1)
    things.delete("a", 2)
    things.table.compact(2, pinned={1})
    assert things.row("a").chain is None, "only the row's own mark says that it is deleted"
    with pytest.raises(NotFoundError):
        things.begin(2).delete("a")


def test_c06_delete_without_a_chain_creates_one_with_a_delete_node(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    assert txn.delete("a").layout == "one"
    (node,) = things.row("a").chain
    assert (node.entry, node.owner, node.commit_ts) == (None, txn, NEVER)


def test_c06_delete_of_a_row_with_a_committed_delete_in_its_chain_is_not_found(
    things: Things,
) -> None:
    things.insert("a", "one", 1)
    things.delete("a", 2)
    assert things.row("a").chain[-1].commit_ts == 2
    with pytest.raises(NotFoundError):
        things.begin(2).delete("a")


def test_c06_delete_of_a_row_that_was_deleted_since_the_start_conflicts(things: Things) -> None:
    things.insert("a", "one", 1)
    late = things.begin(1)
    things.delete("a", 2)
    with pytest.raises(ConflictError, match="was dropped since") as caught:
        late.delete("a")
    assert caught.value.winner_ts == 2


def test_c06_delete_of_a_row_that_another_transaction_is_deleting_conflicts(
    things: Things,
) -> None:
    things.insert("a", "one", 1)
    things.begin(1).delete("a")
    with pytest.raises(ConflictError, match="being dropped"):
        things.begin(1).delete("a")


def test_c06_a_second_delete_by_the_same_transaction_is_not_found(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    txn.delete("a")
    with pytest.raises(NotFoundError):
        txn.delete("a")


def test_c06_delete_adds_its_node_to_a_chain_of_updates(things: Things) -> None:
    things.insert("a", "one", 1)
    things.update("a", "two", 2)
    things.delete("a", 3)
    assert [node.entry and node.entry.layout for node in things.row("a").chain] == ["two", None]
    assert things.history("a", 3) == [None, "one", "two", None]


def test_c06_delete_of_a_row_that_was_updated_since_the_start_conflicts(things: Things) -> None:
    things.insert("a", "one", 1)
    late = things.begin(1)
    things.update("a", "two", 2)
    with pytest.raises(ConflictError, match="was changed since") as caught:
        late.delete("a")
    assert caught.value.winner_ts == 2


def test_c06_delete_of_a_row_that_only_others_see_is_not_found(things: Things) -> None:
    late = things.begin(0)
    things.begin(0).insert(table("a", "uncommitted"))
    things.insert("b", "committed later", 1)
    for key in ("a", "b"):
        with pytest.raises(NotFoundError):
            late.delete(key)


@pytest.mark.parametrize("first", ["delete", "update"])
def test_c06_delete_beside_a_pending_update_adds_its_node_and_only_the_first_commits(
    things: Things, first: str
) -> None:
    things.insert("a", "one", 1)
    updating, deleting = things.begin(1), things.begin(1)
    updating.update(table("a", "two"))
    deleting.delete("a")
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
        things.begin(0).update(table("a", "two"))


def test_c07_update_of_a_committed_deleted_row_is_not_found(things: Things) -> None:
    things.insert("a", "one", 1)
    things.delete("a", 2)
    with pytest.raises(NotFoundError):
        things.begin(2).update(table("a", "two"))
    things.table.compact(2, pinned={1})
    with pytest.raises(NotFoundError):
        things.begin(2).update(table("a", "two"))


def test_c07_update_without_a_chain_creates_one_with_an_update_node(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    txn.update(table("a", "two"))
    (node,) = things.row("a").chain
    assert (node.entry, node.owner, node.commit_ts) == (table("a", "two"), txn, NEVER)


def test_c07_update_of_a_row_that_another_transaction_is_deleting_conflicts(
    things: Things,
) -> None:
    things.insert("a", "one", 1)
    things.begin(1).delete("a")
    with pytest.raises(ConflictError, match="being dropped"):
        things.begin(1).update(table("a", "two"))


def test_c07_update_after_an_own_delete_is_not_found(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    txn.delete("a")
    with pytest.raises(NotFoundError):
        txn.update(table("a", "two"))


def test_c07_update_of_a_row_that_was_deleted_since_the_start_conflicts(things: Things) -> None:
    things.insert("a", "one", 1)
    late = things.begin(1)
    things.delete("a", 2)
    with pytest.raises(ConflictError) as caught:
        late.update(table("a", "two"))
    assert caught.value.winner_ts == 2


def test_c07_d18_update_beside_an_uncommitted_update_conflicts(things: Things) -> None:
    things.insert("a", "one", 1)
    things.begin(1).update(table("a", "two"))
    with pytest.raises(ConflictError, match="being changed"):
        things.begin(1).update(table("a", "three"))


def test_c07_a_second_update_by_the_same_transaction_adds_a_node(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    txn.update(table("a", "two"))
    txn.update(table("a", "three"))
    assert things.value(txn, "a") == "three"
    things.commit(txn, 2)
    assert things.history("a", 2) == [None, "one", "three"]


def test_c07_update_of_a_row_that_was_updated_since_the_start_conflicts(things: Things) -> None:
    things.insert("a", "one", 1)
    late = things.begin(1)
    things.update("a", "two", 2)
    with pytest.raises(ConflictError) as caught:
        late.update(table("a", "three"))
    assert caught.value.winner_ts == 2


def test_c07_update_on_top_of_committed_updates_adds_its_node(things: Things) -> None:
    things.insert("a", "one", 1)
    things.update("a", "two", 2)
    things.update("a", "three", 3)
    assert things.history("a", 3) == [None, "one", "two", "three"]


# -- C-08: query ---------------------------------------------------------------------------------


def test_c08_query_of_a_missing_key_is_not_found(things: Things) -> None:
    assert things.begin(0).find("a") is None


def test_c08_query_of_a_committed_deleted_row_is_not_found(things: Things) -> None:
    things.insert("a", "one", 1)
    things.delete("a", 2)
    things.table.compact(2, pinned={1})
    assert things.begin(2).find("a") is None


def test_c08_an_uncommitted_row_is_visible_to_its_own_transaction_only(things: Things) -> None:
    txn = things.begin(0)
    txn.insert(table("a", "one"))
    assert things.value(txn, "a") == "one"
    assert things.begin(0).find("a") is None


def test_c08_a_committed_row_is_visible_from_its_commit_on(things: Things) -> None:
    early = things.begin(0)
    things.insert("a", "one", 1)
    assert things.value(things.begin(1), "a") == "one"
    assert early.find("a") is None


def test_c08_a_delete_is_seen_if_it_committed_before_the_start(things: Things) -> None:
    things.insert("a", "one", 1)
    early = things.begin(1)
    things.delete("a", 2)
    assert things.value(early, "a") == "one"
    assert things.begin(2).find("a") is None


def test_c08_an_uncommitted_delete_is_seen_by_its_own_transaction_only(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    txn.delete("a")
    assert txn.find("a") is None
    assert things.value(things.begin(1), "a") == "one"


def test_c08_t07_an_update_is_seen_if_it_committed_before_the_start(things: Things) -> None:
    things.insert("a", "one", 1)
    early = things.begin(1)
    things.update("a", "two", 2)
    assert things.value(early, "a") == "one"
    assert things.value(things.begin(2), "a") == "two"


def test_c08_an_uncommitted_update_is_seen_by_its_own_transaction_only(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    txn.update(table("a", "two"))
    assert things.value(txn, "a") == "two"
    assert things.value(things.begin(1), "a") == "one"


def test_c08_reads_are_repeatable_whatever_commits_meanwhile(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    things.update("a", "two", 2)
    things.delete("a", 3)
    things.insert("a", "three", 4)
    assert things.value(txn, "a") == "one"
    assert [entry.layout for entry in txn.scan()] == ["one"]


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
        txn.scan()
    else:
        txn.find(read)
    txn.insert(table("own", "x"))
    change(things)
    with pytest.raises(ConflictError, match="was read and has changed") as caught:
        txn.prepare()
    assert caught.value.winner_ts == 2


def test_c09_prepare_passes_if_only_other_rows_changed(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    txn.find("a")
    things.insert("z", "two", 2)
    txn.insert(table("b", "x"))
    things.commit(txn, 3)
    assert things.table.get("b", 3) is not None


def test_c09_a_read_of_something_uncommitted_elsewhere_is_no_conflict(things: Things) -> None:
    other = things.begin(0)
    other.insert(table("a", "one"))
    txn = things.begin(0)
    assert txn.find("a") is None
    txn.prepare()
    other.rollback()
    txn.prepare()


def test_c09_commit_stamps_every_node_and_returns_the_finished_values(things: Things) -> None:
    things.insert("a", "one", 1)
    txn = things.begin(1)
    txn.delete("a")
    txn.insert(table("b", "two"))
    changed = things.commit(txn, 2)
    assert changed == [
        table("a", "one").stamped(1, 2),
        table("b", "two").stamped(2, NEVER),
    ]
    assert things.table.get("a", 1) == table("a", "one").stamped(1, 2)


def test_c09_rollback_leaves_no_node_behind(things: Things) -> None:
    things.insert("a", "one", 1)
    things.insert("b", "one", 2)
    txn = things.begin(2)
    txn.delete("a")
    txn.insert(table("a", "again"))
    txn.update(table("b", "changed"))
    txn.insert(table("c", "new"))
    txn.rollback()
    txn.rollback()
    assert things.table.name_keys() == ["a", "b"]
    assert [things.row(key).chain for key in "ab"] == [None, None]
    assert things.history("a", 3) == [None, "one", "one", "one"]


def test_c09_insert_and_delete_in_one_transaction_leave_nothing(things: Things) -> None:
    txn = things.begin(0)
    txn.insert(table("a", "one"))
    txn.update(table("a", "two"))
    txn.delete("a")
    assert things.commit(txn, 1) == []
    assert things.table.name_keys() == []


# -- C-11: compaction ----------------------------------------------------------------------------


def test_c11_compaction_prunes_chains_to_what_the_floor_can_see(things: Things) -> None:
    things.insert("a", "one", 1)
    for ts in range(2, 7):
        things.update("a", f"at {ts}", ts)
    pending = things.begin(6)
    pending.update(table("a", "pending"))
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
    assert [entry.layout for entry in things.table.compact(2)] == ["one"]
    assert things.history("a", 3) == [None, None, None, "two"]
    things.delete("a", 4)
    assert [entry.layout for entry in things.table.compact(4)] == ["two"]
    assert things.table.name_keys() == []


# -- C-02, C-03: the table of tables -------------------------------------------------------------


def test_c03_a_table_is_inserted_updated_found_and_deleted(things: Things) -> None:
    acts: list[Callable[[Changes], Any]] = [
        lambda txn: txn.insert(table("M", "first")),
        lambda txn: txn.update(table("m", "second")),
        lambda txn: txn.delete("m"),
    ]
    for ts, act in enumerate(acts, start=1):
        txn = things.begin(ts - 1)
        act(txn)
        things.commit(txn, ts)
    assert [things.table.get("m", ts) for ts in range(4)] == [
        None,
        table("M", "first").stamped(1, 3),
        table("m", "second").stamped(1, 3),
        None,
    ]
    assert things.begin(2).find("M") == table("m", "second").stamped(1, 3)
