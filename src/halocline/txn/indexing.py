"""What a transaction does with indexes: their definitions, and looking up through them.

    txn.create_index --kind, columns--> TableDdl (catalog/ddl.py, or at the owner)
    txn.lookup --the index, as this transaction sees it--> read/lookup.py

An index that a commit brings is built afterwards (compaction/indexes.py). What this transaction
writes into objects gets its index objects before the commit (`index_objects`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from halocline.catalog import TableDdl, TableEntry
from halocline.catalog.indexes import column_ids, find_index, index_of
from halocline.errors import NotFoundError, UnavailableError, UsageError
from halocline.index import kind_named, write_beside

if TYPE_CHECKING:
    from halocline.catalog import IndexEntry
    from halocline.rows.state import TableState
    from halocline.txn.workspace import TableChanges


def create_index(ddl: TableDdl, name: str, table: str, columns: Sequence[str], kind: str) -> None:
    """Define an index; UsageError for columns that its kind cannot take."""
    entry = ddl.table(table)
    if entry is None:
        raise NotFoundError("table", table)
    chosen = kind_named(kind)
    types = {column.id: column.type for column in entry.schema.columns}
    ids = column_ids(entry.schema, columns)
    why = chosen.why_not([types[id] for id in ids])  # type: ignore[index]
    if why:
        raise UsageError(f"columns {', '.join(columns)} cannot have an index of {kind!r}: {why}")
    ddl.create_index(name, entry.name, chosen.number, columns)


def index_seen(entry: TableEntry | None, state: TableState, name: str) -> IndexEntry:
    """The index of a table by its name: that of the snapshot, or one that came since.

    Index objects hold for every snapshot, so an older one may use a newer index.
    """
    if not isinstance(name, str):
        raise UsageError(f"an index is named by a string, not {type(name).__name__}")
    found = None if entry is None else find_index([entry], name)
    return found[1] if found is not None else index_of(state.newest.entry, name)


def index_objects(changes: TableChanges) -> None:
    """Write the index objects of all data objects that a transaction has written itself."""
    parts = changes.objects
    indexes = changes.home.newest.entry.indexes
    if parts is None or parts.writer is None or not indexes:
        return
    done = {one.target for one in parts.indexes}
    fresh = [entry for entry in parts.data if entry.id not in done]
    reader = changes.home.shelf.reader
    try:
        parts.indexes += write_beside(reader, changes.schema, parts.writer, indexes, fresh)
    except OSError as error:
        raise UnavailableError(f"an index object cannot be written: {error}") from error
