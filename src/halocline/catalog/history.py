"""The catalog written down: the DDL nodes that make it again, and its sequences.

    Catalog --capture--> History --definitions--> (ts, node type, payload), by ts --> checkpoint
                                                                  |
    Catalog <------------------------restore----------------------'

A catalog is what replaying its DDL gives, so that is how a checkpoint keeps it: a table is the node
that created it, one for each later version of its schema and, if it was dropped, the node that
dropped it. What `compact` has hard-deleted is
gone for good; of the rest every timestamp at or above the floor sees what it saw before.

Nodes of one commit are put into an order in which each finds what it needs: what ends comes before
what begins under the same name, and tables are renamed in the order of the commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from halocline.catalog.catalog import Catalog
from halocline.catalog.entries import TableEntry
from halocline.catalog.indexes import IndexEntry
from halocline.catalog.nodes import (
    AlterTableNode,
    CreateIndexNode,
    CreateTableNode,
    DropTableNode,
    encode,
)
from halocline.ids import NEVER

Definition = tuple[int, int, bytes]
"""commit_ts, node type, payload."""


class History(NamedTuple):
    """A catalog at one moment; nothing in it changes any more."""

    tables: list[TableEntry]
    next_table_id: int
    last_ddl_ts: int
    floor: int


def capture(catalog: Catalog) -> History:
    """Everything that has committed. Caller holds the commit lock; takes 0.4 us for a table."""
    with catalog.lock:
        return History(
            catalog.all_tables(),
            catalog.next_table_id,
            catalog.last_ddl_ts,
            catalog.floor,
        )


def definitions(history: History) -> list[Definition]:
    """The nodes that make this catalog again, in the order to apply them."""
    found: list[tuple[int, int, int, int, tuple[int, bytes]]] = []
    for table in history.tables:
        first, *later = table.versions()
        created = CreateTableNode(
            table_id=table.id,
            name=first.name,
            schema=first.schema.to_wire(),
            layout=table.layout,
            options=dict(table.options),
            next_column_id=first.schema.last_id + 1 if later else table.next_column_id,
        )
        found.append((table.created_at, 2, 0, table.id, encode(created)))
        name = first.name
        for one in later:
            if one.commit_ts == table.dropped_at:
                break  # altered and dropped by one commit: nobody has seen it
            altered = AlterTableNode(
                table_id=table.id,
                name=name,
                schema=one.schema.to_wire(),
                change=one.change,
                new_name=one.name if one.name != name else "",
            )
            found.append((one.commit_ts, 1, one.place, table.id, encode(altered)))
            name = one.name
        if table.dropped_at != NEVER:
            dropped = DropTableNode(table_id=table.id, name=name)
            found.append((table.dropped_at, 0, 0, table.id, encode(dropped)))
        else:
            found += [
                (one.created_at, 3, one.id, table.id, _index(table, one)) for one in table.indexes
            ]
    return [(ts, *node) for ts, _, _, _, node in sorted(found)]


def _index(table: TableEntry, index: IndexEntry) -> tuple[int, bytes]:
    """The node of an index; one that was dropped has none, as no snapshot needs its definition.

    It names the table as it was called then.
    """
    names = [one.name for one in table.versions() if one.commit_ts <= index.created_at]
    return encode(
        CreateIndexNode(
            table_id=table.id,
            name=names[-1],
            index_id=index.id,
            index_type=index.kind,
            columns=list(index.columns),
            desc=index.name,
        )
    )


def restore(
    catalog: Catalog,
    nodes: Iterable[Definition],
    next_table_id: int,
    last_ddl_ts: int,
    floor: int,
) -> None:
    """Make an empty catalog what it was; CorruptionError for nodes that do not fit."""
    for ts, kind, payload in nodes:
        catalog.apply(kind, payload, ts)
    catalog.resume(next_table_id, last_ddl_ts, floor)
