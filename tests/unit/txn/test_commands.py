"""Commands: values, split, merge and the commit patterns P1..P6."""

from halocline.txn.commands import Command, Kind, merge, plan, split

CREATE, DROP = Kind.CREATE_TABLE, Kind.DELETE_TABLE
INSERT, UPDATE = Kind.INSERT, Kind.UPDATE_COMMITTED
LOCAL, DELETE = Kind.DELETE_LOCAL, Kind.DELETE_COMMITTED


def on(table: int, *kinds: Kind) -> list[Command]:
    return [Command(kind, table) for kind in kinds]


def kinds(commands: list[Command]) -> list[Kind]:
    return [command.kind for command in commands]


def test_t08_command_values():
    assert [int(kind) for kind in Kind] == [0x01, 0x02, 0x13, 0x14, 0x15, 0x30, 0x32, 0x33, 0x34]


def test_t09_split_partitions_by_table_and_keeps_order():
    commands = [*on(1, INSERT), *on(2, DELETE), *on(1, DELETE), *on(2, INSERT)]
    assert split(commands) == {1: on(1, INSERT, DELETE), 2: on(2, DELETE, INSERT)}


def test_t10_insert_and_insert_merge():
    assert kinds(merge(on(1, INSERT, INSERT))) == [INSERT]


def test_t10_insert_and_delete_local_merge():
    assert kinds(merge(on(1, INSERT, LOCAL))) == [INSERT]


def test_t10_deletes_of_committed_rows_move_to_the_front():
    assert kinds(merge(on(1, INSERT, INSERT, DELETE, INSERT))) == [DELETE, INSERT]


def test_t10_merging_never_lengthens_and_ddl_never_merges():
    commands = on(1, CREATE, INSERT, INSERT, Kind.UPDATE_TABLE, INSERT, Kind.UPDATE_TABLE)
    merged = merge(commands)
    assert kinds(merged) == [CREATE, INSERT, Kind.UPDATE_TABLE, INSERT, Kind.UPDATE_TABLE]
    assert len(merged) < len(commands)


def test_t15_p1_only_inserts():
    assert kinds(plan(on(1, INSERT, INSERT))) == [INSERT]


def test_t15_p2_only_changes_of_committed_rows():
    assert kinds(plan(on(1, UPDATE, DELETE, UPDATE))) == [DELETE, UPDATE]


def test_t15_p3_changes_of_inserted_rows_fold_into_the_insert():
    assert kinds(plan(on(1, INSERT, LOCAL, INSERT))) == [INSERT]


def test_t15_p4_changes_of_committed_rows_come_before_inserts():
    assert kinds(plan(on(1, INSERT, UPDATE, DELETE))) == [DELETE, UPDATE, INSERT]


def test_t15_p5_only_ddl():
    assert kinds(plan([*on(1, CREATE), *on(2, DROP)])) == [DROP, CREATE]


def test_t15_p6_everything_before_a_drop_is_eliminated():
    assert plan(on(1, INSERT, DELETE, UPDATE, DROP)) == on(1, DROP)


def test_t15_p6_create_table_comes_first():
    commands = [*on(2, INSERT), *on(1, CREATE, INSERT)]
    assert plan(commands) == [*on(1, CREATE), *on(2, INSERT), *on(1, INSERT)]


def test_t15_p6_create_and_drop_leave_nothing():
    assert plan(on(1, CREATE, INSERT, DROP)) == []
