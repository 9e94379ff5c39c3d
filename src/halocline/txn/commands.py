"""Commands of a transaction: split by table, merge, and order for the commit record. Pure.

    commands in the order given --split--> one list per table --merge--> fewer commands
                                --plan--> the order in which nodes enter the record (P1..P6)

| command          | value | merges                                              |
|------------------|-------|-----------------------------------------------------|
| CREATE_DB        | 0x01  | never                                               |
| DELETE_DB        | 0x02  | never                                               |
| CREATE_TABLE     | 0x13  | never                                               |
| UPDATE_TABLE     | 0x14  | never                                               |
| DELETE_TABLE     | 0x15  | never; wipes out what came before it on its table   |
| INSERT           | 0x30  | INSERT + INSERT, INSERT + DELETE_LOCAL => INSERT    |
| UPDATE_COMMITTED | 0x32  | with its like                                       |
| DELETE_LOCAL     | 0x33  | into the INSERT it thins                            |
| DELETE_COMMITTED | 0x34  | with its like; moves to the front                   |

A command here is a kind and a table. The rows themselves stay in the workspace, which already holds
the merged result; this file decides in which order that result is written down.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """Command types (T-08)."""

    CREATE_DB = 0x01
    DELETE_DB = 0x02
    CREATE_TABLE = 0x13
    UPDATE_TABLE = 0x14
    DELETE_TABLE = 0x15
    INSERT = 0x30
    UPDATE_COMMITTED = 0x32
    DELETE_LOCAL = 0x33
    DELETE_COMMITTED = 0x34


class Command(NamedTuple):
    """One step of a transaction."""

    kind: Kind
    table_id: int


DDL = frozenset(
    {Kind.CREATE_DB, Kind.DELETE_DB, Kind.CREATE_TABLE, Kind.UPDATE_TABLE, Kind.DELETE_TABLE}
)


def split(commands: Iterable[Command]) -> dict[int, list[Command]]:
    """Partition by table; order within a table is kept (T-09)."""
    lists: dict[int, list[Command]] = {}
    for command in commands:
        lists.setdefault(command.table_id, []).append(command)
    return lists


def merge(commands: Sequence[Command]) -> list[Command]:
    """Merge the commands of one table (T-10): at most one of each DML kind between two DDLs."""
    merged: list[Command] = []
    stretch: list[Command] = []
    for command in commands:
        if command.kind in DDL:
            merged += _merge_stretch(stretch)
            stretch = []
            if command.kind is Kind.DELETE_TABLE:
                # P6: everything on a table before its DROP is eliminated. If the table was also
                # created here, nothing of it remains.
                created = any(other.kind is Kind.CREATE_TABLE for other in merged)
                merged = [] if created else [command]
                continue
            merged.append(command)
        else:
            stretch.append(command)
    return merged + _merge_stretch(stretch)


def plan(commands: Iterable[Command]) -> list[Command]:
    """The whole record: DDL that drops, DDL that creates, then the DML of each table (T-15)."""
    lists = [merge(table) for table in split(commands).values()]
    flat = [command for table in lists for command in table]
    drops = [command for command in flat if command.kind in (Kind.DELETE_TABLE, Kind.DELETE_DB)]
    ddl = [command for command in flat if command.kind in DDL and command not in drops]
    return drops + ddl + [command for command in flat if command.kind not in DDL]


def merge_kinds(kinds: Collection[Kind]) -> list[Kind]:
    """DML of one table, merged: deletes of committed rows, then updates, then what is inserted."""
    merged = [kind for kind in (Kind.DELETE_COMMITTED, Kind.UPDATE_COMMITTED) if kind in kinds]
    if Kind.INSERT in kinds or Kind.DELETE_LOCAL in kinds:
        merged.append(Kind.INSERT)
    return merged


def _merge_stretch(commands: Sequence[Command]) -> list[Command]:
    """The commands of one table between two DDLs."""
    kinds = merge_kinds({command.kind for command in commands})
    return [Command(kind, commands[0].table_id) for kind in kinds]
