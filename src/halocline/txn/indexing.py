"""What a transaction does with indexes: their definitions, and looking up through them.

    txn.create_index --kind, columns--> TableDdl (catalog/ddl.py, or at the owner)
    txn.lookup --the index, as this transaction sees it--> read/lookup.py

An index that a commit brings is built afterwards (compaction/indexes.py). What this transaction
writes into objects gets its index objects before the commit (`index_objects`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from halocline.catalog import TableEntry
from halocline.catalog.indexes import column_ids, find_index, index_of
from halocline.errors import NotFoundError, UnavailableError, UsageError
from halocline.index import kind_named, write_beside
from halocline.read.lookup import look_up

if TYPE_CHECKING:
    from halocline.catalog import IndexEntry
    from halocline.rows.state import TableState
    from halocline.txn.transaction import Transaction
    from halocline.txn.workspace import TableChanges

_MISSING: Final[Any] = object()


def create_index(
    self: Transaction, name: str, table: str, columns: Sequence[str], kind: str = "sorted"
) -> None:
    """Give a table an index, which is built when this transaction has committed."""
    ddl = self.definitions()
    if ddl is None:
        return
    entry = ddl.table(table)
    if entry is None:
        raise NotFoundError("table", table)
    chosen = kind_named(kind)
    types = {int(column.id): column.type for column in entry.schema.columns}
    why = chosen.why_not([types[id] for id in column_ids(entry.schema, columns)])
    if why:
        raise UsageError(f"columns {', '.join(columns)} cannot have an index of {kind!r}: {why}")
    ddl.create_index(name, entry.name, chosen.number, columns)


def drop_index(self: Transaction, name: str) -> None:
    """Drop an index. NotFoundError when there is none of that name."""
    ddl = self.definitions()
    if ddl is not None:
        ddl.drop_index(name)


def lookup(
    self: Transaction,
    table: str,
    index: str,
    key: Any = _MISSING,
    *,
    low: Any = None,
    high: Any = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Rows by an index, in its order: of one key, or with low <= key < high.

    A key of several columns is a tuple; its first parts are enough. None is the key of NULL. What
    the index has not been built for yet, and memory, is searched all the same.
    """
    view = self.view_of(table)
    found = index_seen(self.entry_of(table), view.state, index)
    given = () if key is _MISSING else (key,)
    return look_up(view, found, given, low, high, columns, limit)


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
    reader, schema = changes.home.shelf.reader, changes.home.newest.schema
    try:
        parts.indexes += write_beside(reader, schema, parts.writer, indexes, fresh)
    except OSError as error:
        raise UnavailableError(f"an index object cannot be written: {error}") from error
