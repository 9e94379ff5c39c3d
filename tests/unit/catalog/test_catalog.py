"""The catalog as the engine uses it: DDL transactions, time, conflicts, compaction."""

from __future__ import annotations

import gc
from dataclasses import FrozenInstanceError

import msgspec
import pytest

from halocline.catalog import Catalog
from halocline.catalog.nodes import CreateTableNode, decode, encode
from halocline.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    NotFoundError,
    SnapshotExpiredError,
    UsageError,
)
from halocline.ids import NEVER, TableId
from halocline.log.record import DDL_CT, DDL_DT
from tests.unit.catalog.driver import SCHEMA, Driver, make, names


@pytest.fixture
def driver() -> Driver:
    return Driver()


def ids_by_ts(catalog: Catalog, name: str, until: int) -> list[int | None]:
    """The id behind a name at 0, 1, 2, ..."""
    found = [catalog.table(name, ts) for ts in range(until + 1)]
    return [entry.id if entry else None for entry in found]


# -- C-12: five tables, one name -----------------------------------------------------------------


def five_tables(driver: Driver) -> None:
    """T1, T3, T5, T6 and T7, all named m. Ids 2 and 4 belong to transactions that gave up."""

    def give_up() -> None:
        sub = driver.begin()
        make(sub, "gap")
        sub.rollback()

    assert driver.create("m").id == 1  # 1
    driver.drop("m")  # 2
    give_up()
    assert driver.create("m").id == 3  # 3
    driver.drop("m")  # 4
    give_up()
    driver.now = 5
    assert driver.create("m").id == 5  # 6
    driver.drop("m")  # 7
    driver.now = 9
    assert driver.create("m").id == 6  # 10
    sub = driver.begin()
    sub.drop_table("m")
    assert make(sub, "m").id == 7
    assert driver.commit(sub) == 11


C12 = [None, 1, None, 3, None, None, 5, None, None, None, 6, 7, 7, 7]


def test_c12_five_tables_named_m_are_found_by_timestamp(driver: Driver) -> None:
    five_tables(driver)
    assert ids_by_ts(driver.catalog, "m", 13) == C12
    assert [[entry.id for entry in driver.catalog.tables(ts)] for ts in range(14)] == [
        [found] if found else [] for found in C12
    ]
    lives = [driver.catalog.table_by_id(TableId(number)) for number in (1, 3, 5, 6, 7)]
    assert [(entry.created_at, entry.dropped_at) for entry in lives if entry] == [
        (1, 2),
        (3, 4),
        (6, 7),
        (10, 11),
        (11, NEVER),
    ]
    driver.check()


def test_c12_hard_deletes_come_one_by_one_and_only_t7_stays(driver: Driver) -> None:
    # T1 ends first but is hard-deleted late: somebody still refers to it.
    five_tables(driver)
    catalog = driver.catalog
    t1 = TableId(1)
    hard = {
        5: catalog.compact(4, pinned={t1}),
        8: catalog.compact(7, pinned={t1}),
        9: catalog.compact(8),
        12: catalog.compact(11),
    }
    assert {ts: [entry.id for entry in gone] for ts, gone in hard.items()} == {
        5: [3],
        8: [5],
        9: [1],
        12: [6],
    }
    assert ids_by_ts(catalog, "m", 13) == [None] * 11 + [7, 7, 7]
    assert [catalog.table_by_id(TableId(number)) for number in range(1, 7)] == [None] * 6
    assert catalog.versions.name_keys() == ["m"]
    assert len(catalog.versions.generations("m")) == 1, "hard-deleted entries leave memory"


def test_c12_the_hard_deletes_as_they_happen_in_time() -> None:
    driver = Driver()
    catalog, t1 = driver.catalog, TableId(1)
    five = Driver()
    five_tables(five)
    for commit_ts, nodes in five.log:
        for node_type, payload in nodes:
            catalog.apply(node_type, payload, commit_ts)
        # The compactions at 5, 8, 9 and 12 fall between these commits.
        gone = {
            4: lambda: catalog.compact(4, pinned={t1}),
            7: lambda: catalog.compact(7, pinned={t1}) + catalog.compact(7),
            11: lambda: catalog.compact(11),
        }.get(commit_ts, list)()
        expected = {4: [3], 7: [5, 1], 11: [6]}.get(commit_ts, [])
        assert [entry.id for entry in gone] == expected
        assert ids_by_ts(catalog, "m", commit_ts)[commit_ts] == C12[commit_ts]


def test_c12_the_replace_at_11_is_atomic(driver: Driver) -> None:
    five_tables(driver)
    node_types = [node_type for node_type, _ in driver.log[-1][1]]
    assert node_types == [DDL_DT, DDL_CT]
    before, after = driver.catalog.table("m", 10), driver.catalog.table("m", 11)
    assert before is not None
    assert after is not None
    assert (before.id, before.dropped_at, after.id, after.created_at) == (6, 11, 7, 11)


def test_c13_old_generations_stay_until_nobody_refers_to_them(driver: Driver) -> None:
    driver.create("m")
    driver.drop("m")
    pinned = TableId(1)
    assert driver.catalog.compact(2, pinned={pinned}) == []
    assert ids_by_ts(driver.catalog, "m", 2) == [None, 1, None]
    assert [entry.id for entry in driver.catalog.compact(2)] == [1]
    assert ids_by_ts(driver.catalog, "m", 2) == [None, None, None]


# -- T-16: DDL in a transaction ------------------------------------------------------------------


def test_t16_ddl_is_seen_by_its_own_transaction_and_by_others_after_commit(driver: Driver) -> None:
    driver.create("old")
    sub = driver.begin()
    entry = make(sub, "new")
    sub.drop_table("old")
    assert (entry.created_at, entry.dropped_at) == (NEVER, NEVER)
    assert names(sub.tables()) == ["new"]
    assert sub.table("new") == entry
    assert sub.table("old") is None
    assert names(driver.catalog.tables(driver.now)) == ["old"]
    assert names(driver.begin().tables()) == ["old"]
    assert driver.catalog.table_by_id(entry.id) is None
    commit_ts = driver.commit(sub)
    assert names(driver.catalog.tables(commit_ts - 1)) == ["old"]
    assert names(driver.catalog.tables(commit_ts)) == ["new"]
    assert driver.catalog.table("new", commit_ts) == entry.stamped(commit_ts, NEVER)
    driver.check()


def test_t16_rollback_undoes_all_ddl_of_the_transaction(driver: Driver) -> None:
    driver.create("old")
    sub = driver.begin()
    make(sub, "new")
    sub.drop_table("old")
    make(sub, "old")
    sub.rollback()
    sub.rollback()
    assert names(driver.catalog.tables(driver.now)) == ["old"]
    assert driver.catalog.last_ddl_ts == 1
    driver.create("new")
    driver.drop("old")
    driver.check()


def test_c10_a_transaction_hands_its_sub_commands_to_the_log_or_none_at_all(
    driver: Driver,
) -> None:
    sub = driver.begin()
    make(sub, "a")
    make(sub, "b")
    assert [node_type for node_type, _ in sub.nodes()] == [DDL_CT, DDL_CT]
    sub.rollback()
    assert sub.nodes() == []
    driver.check()


def test_create_and_drop_in_one_transaction_leave_nothing(driver: Driver) -> None:
    sub = driver.begin()
    make(sub, "m")
    sub.drop_table("m")
    assert sub.nodes() == []
    driver.commit(sub)
    assert driver.catalog.last_ddl_ts == 0
    assert driver.catalog.versions.name_keys() == []
    driver.check()


def test_create_drop_create_in_one_transaction_leaves_the_last(driver: Driver) -> None:
    sub = driver.begin()
    first = make(sub, "m")
    sub.drop_table("m")
    second = make(sub, "M")
    driver.commit(sub)
    assert first.id < second.id
    assert names(driver.catalog.tables(1)) == ["M"]
    assert driver.catalog.table_by_id(first.id) is None
    driver.check()


def test_replace_twice_in_one_transaction_drops_the_old_and_keeps_the_last(
    driver: Driver,
) -> None:
    driver.create("m")
    sub = driver.begin()
    for _ in range(2):
        sub.drop_table("m")
        last = make(sub, "m")
    assert [node_type for node_type, _ in sub.nodes()] == [DDL_DT, DDL_CT]
    driver.commit(sub)
    assert ids_by_ts(driver.catalog, "m", 2) == [None, 1, last.id]
    driver.check()


def test_a_command_that_fails_leaves_the_transaction_as_it_was(driver: Driver) -> None:
    driver.create("a")
    sub = driver.begin()
    make(sub, "b")
    with pytest.raises(AlreadyExistsError, match="table 'A' already exists"):
        make(sub, "A")
    with pytest.raises(NotFoundError, match="table 'zzz' does not exist"):
        sub.drop_table("zzz")
    driver.commit(sub)
    assert names(driver.catalog.tables(2)) == ["a", "b"]
    driver.check()


def test_a_finished_transaction_refuses_further_work(driver: Driver) -> None:
    committed, rolled_back = driver.begin(), driver.begin()
    driver.commit(committed)
    rolled_back.rollback()
    for sub in (committed, rolled_back):
        with pytest.raises(UsageError, match="is over"):
            make(sub, "m")
        with pytest.raises(UsageError, match="is over"):
            sub.tables()
        with pytest.raises(UsageError, match="is over"):
            sub.prepare()
        with pytest.raises(UsageError, match="is over"):
            sub.commit(99)


def test_a_transaction_that_is_forgotten_gives_its_names_back(driver: Driver) -> None:
    sub = driver.begin()
    make(sub, "m")
    with pytest.raises(ConflictError):
        driver.create("m")
    del sub
    gc.collect()
    driver.create("m")
    driver.check()


# -- conflicts -----------------------------------------------------------------------------------


def test_two_transactions_that_create_one_name_conflict_at_once(driver: Driver) -> None:
    first, second = driver.begin(), driver.begin()
    make(first, "m")
    with pytest.raises(ConflictError) as caught:
        make(second, "M")
    assert (caught.value.table, caught.value.winner_ts) == ("M", 0)
    first.rollback()
    make(second, "M")
    driver.commit(second)
    driver.check()


def test_a_name_that_was_created_since_the_start_conflicts_with_its_winner(
    driver: Driver,
) -> None:
    late = driver.begin()
    driver.create("m")
    with pytest.raises(ConflictError) as caught:
        make(late, "m")
    assert (caught.value.table, caught.value.winner_ts) == ("m", 1)


def test_a_name_that_was_visible_at_the_start_already_exists(driver: Driver) -> None:
    driver.create("m")
    late = driver.begin()
    driver.drop("m")
    with pytest.raises(AlreadyExistsError):
        make(late, "m")


def test_two_transactions_that_drop_one_table_conflict(driver: Driver) -> None:
    driver.create("m")
    first, second, third = driver.begin(), driver.begin(), driver.begin()
    first.drop_table("m")
    with pytest.raises(ConflictError) as caught:
        second.drop_table("m")
    assert caught.value.winner_ts == 0
    driver.commit(first)
    with pytest.raises(ConflictError) as caught:
        third.drop_table("m")
    assert caught.value.winner_ts == 2
    with pytest.raises(NotFoundError):
        driver.begin().drop_table("m")


def test_c09_a_table_that_was_read_and_dropped_since_fails_prepare(driver: Driver) -> None:
    driver.create("m")
    sub = driver.begin()
    assert sub.table("M") is not None
    make(sub, "copy")
    driver.drop("m")
    with pytest.raises(ConflictError) as caught:
        sub.prepare()
    assert (caught.value.table, caught.value.winner_ts) == ("M", 2)
    driver.create("copy")
    with pytest.raises(UsageError, match="is over"):
        sub.prepare()


def test_c09_a_name_that_was_missing_and_created_since_fails_prepare(driver: Driver) -> None:
    sub = driver.begin()
    assert sub.table("m") is None
    make(sub, "other")
    driver.create("m")
    with pytest.raises(ConflictError) as caught:
        sub.prepare()
    assert caught.value.winner_ts == 1


def test_c09_a_list_of_tables_that_has_changed_since_fails_prepare(driver: Driver) -> None:
    sub = driver.begin()
    assert sub.tables() == []
    make(sub, "other")
    driver.create("m")
    with pytest.raises(ConflictError) as caught:
        sub.prepare()
    assert (caught.value.table, caught.value.winner_ts) == ("m", 1)


def test_c09_ddl_on_different_names_does_not_conflict(driver: Driver) -> None:
    first, second = driver.begin(), driver.begin()
    make(first, "a")
    make(second, "b")
    driver.commit(second)
    driver.commit(first)
    assert names(driver.catalog.tables(2)) == ["a", "b"]
    driver.check()


def test_prepare_may_be_repeated(driver: Driver) -> None:
    sub = driver.begin()
    make(sub, "m")
    sub.prepare()
    driver.create("other")
    sub.prepare()
    driver.commit(sub)
    driver.check()


def test_a_transaction_below_the_floor_cannot_commit(driver: Driver) -> None:
    sub = driver.begin()
    assert sub.table("m") is None
    driver.create("m")
    driver.drop("m")
    driver.catalog.compact(2)
    with pytest.raises(SnapshotExpiredError) as caught:
        sub.prepare()
    assert (caught.value.ts, caught.value.floor) == (0, 2)
    driver.catalog.compact(1)
    assert driver.catalog.floor == 2, "the floor never falls"


# -- entries and ids -----------------------------------------------------------------------------


def test_entries_are_frozen_and_keep_what_was_given(driver: Driver) -> None:
    sub = driver.begin()
    sub.create_table("M", SCHEMA, layout="heap", options={"object_rows": 4})
    driver.commit(sub)
    entry = driver.catalog.table("m", 1)
    assert entry is not None
    assert (entry.name, entry.layout, entry.options) == ("M", "heap", {"object_rows": 4})
    assert entry.schema == SCHEMA
    assert hash(entry) == hash(entry.stamped(1, NEVER))
    with pytest.raises(FrozenInstanceError):
        entry.name = "n"  # type: ignore[misc]
    with pytest.raises(TypeError):
        entry.options["object_rows"] = 5  # type: ignore[index]


def test_column_ids_have_a_sequence_per_table(driver: Driver) -> None:
    entry = driver.create("m")
    assert [column.id for column in entry.schema.columns] == [1, 2]
    assert entry.next_column_id == 3
    replayed = driver.replayed().table("m", 1)
    assert replayed is not None
    assert replayed.next_column_id == 3


def test_table_ids_are_never_reused_not_even_after_replay(driver: Driver) -> None:
    assert driver.create("a").id == 1
    sub = driver.begin()
    make(sub, "b")
    sub.rollback()
    assert driver.create("c").id == 3
    driver.drop("c")
    driver.catalog.compact(driver.now)
    assert driver.create("d").id == 4
    replayed = driver.replayed()
    assert make(replayed.begin(99), "e").id == 5


def test_table_by_id_knows_the_newest_state_of_every_generation(driver: Driver) -> None:
    entry = driver.create("m")
    assert driver.catalog.table_by_id(entry.id) == entry
    driver.drop("m")
    assert driver.catalog.table_by_id(entry.id) == entry.stamped(1, 2)
    assert driver.catalog.table_by_id(TableId(99)) is None


def test_tables_are_sorted_by_name(driver: Driver) -> None:
    for name in ("pear", "apple", "Quince", "fig"):
        driver.create(name)
    for ts in (3, 4, 99):
        assert names(driver.catalog.tables(ts)) == sorted(names(driver.catalog.tables(ts)))
    assert names(driver.catalog.tables(4)) == ["Quince", "apple", "fig", "pear"]


def test_last_ddl_ts_follows_the_commits_that_change_something(driver: Driver) -> None:
    assert driver.catalog.last_ddl_ts == 0
    driver.now = 10
    driver.create("m")
    assert driver.catalog.last_ddl_ts == 11
    driver.commit(driver.begin())
    assert driver.catalog.last_ddl_ts == 11


def test_c02_users_may_have_a_table_called_tables(driver: Driver) -> None:
    with pytest.raises(NotFoundError):
        driver.begin().drop_table("tables")
    driver.create("tables")
    driver.create("indexes")
    driver.drop("tables")
    assert driver.catalog.versions.name_keys() == ["tables", "indexes"]
    driver.check()


def test_a_reader_that_holds_the_names_of_a_moment_keeps_them(driver: Driver) -> None:
    driver.create("a")
    last_ddl_ts, held = driver.catalog._view
    before = dict(held)
    driver.create("b")
    driver.drop("a")
    assert (last_ddl_ts, held) == (1, before), "a commit makes a new dict"


# -- replay of a log that does not fit -----------------------------------------------------------


def _nodes(driver: Driver, name: str) -> tuple[int, bytes]:
    sub = driver.begin()
    make(sub, name)
    (node,) = sub.nodes()
    sub.rollback()
    return node


def test_replay_refuses_an_id_or_a_name_that_is_taken(driver: Driver) -> None:
    first, second = _nodes(driver, "m"), _nodes(driver, "M")
    catalog = Catalog()
    catalog.apply(*first, 5)
    with pytest.raises(CorruptionError, match="a second time"):
        catalog.apply(*first, 6)
    with pytest.raises(CorruptionError, match="already exists"):
        catalog.apply(*second, 6)
    assert ids_by_ts(catalog, "m", 6)[5:] == [1, 1]


def test_replay_refuses_drops_that_do_not_fit(driver: Driver) -> None:
    driver.create("m")
    driver.drop("m")
    driver.create("m")
    create, drop, again = (nodes[0] for _, nodes in driver.log)
    catalog = Catalog()
    with pytest.raises(CorruptionError, match="does not exist"):
        catalog.apply(*drop, 1)
    catalog.apply(*again, 1)
    with pytest.raises(CorruptionError, match="the log drops id 1"):
        catalog.apply(*drop, 2)
    assert ids_by_ts(catalog, "m", 2) == [None, 2, 2]
    sub = catalog.begin(2)
    assert sub.drop_table("m").id == 2, "a node that was refused holds nothing"
    other = Catalog()
    other.apply(*create, 1)
    with pytest.raises(CorruptionError, match="by the commit that created it"):
        other.apply(*drop, 1)


def test_replay_refuses_timestamps_that_run_backwards(driver: Driver) -> None:
    first, second = _nodes(driver, "a"), _nodes(driver, "b")
    catalog = Catalog()
    catalog.apply(*first, 5)
    with pytest.raises(CorruptionError, match="DDL at 4 follows DDL at 5"):
        catalog.apply(*second, 4)
    catalog.apply(*second, 5)
    assert names(catalog.tables(5)) == ["a", "b"]


def test_replay_refuses_column_ids_that_pass_their_sequence(driver: Driver) -> None:
    node_type, payload = _nodes(driver, "m")
    node = decode(node_type, payload)
    assert isinstance(node, CreateTableNode)
    worse = encode(msgspec.structs.replace(node, next_column_id=2))
    with pytest.raises(CorruptionError, match="pass their sequence"):
        Catalog().apply(*worse, 1)


def test_replay_refuses_a_schema_that_cannot_be_read(driver: Driver) -> None:
    node_type, payload = _nodes(driver, "m")
    node = decode(node_type, payload)
    assert isinstance(node, CreateTableNode)
    for schema in ({}, {"columns": 5}, {**node.schema, "columns": [[1]]}):
        worse = encode(msgspec.structs.replace(node, schema=schema))
        with pytest.raises(CorruptionError, match="schema of table 'm'"):
            Catalog().apply(*worse, 1)


def test_replay_accepts_ids_in_another_order_than_they_were_taken(driver: Driver) -> None:
    first, second = driver.begin(), driver.begin()
    make(first, "a")
    make(second, "b")
    driver.commit(second)
    driver.commit(first)
    driver.check()
    assert make(driver.replayed().begin(9), "c").id == 3
