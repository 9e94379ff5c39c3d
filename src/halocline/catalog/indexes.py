"""Definitions of indexes: what the catalog says of an index, and how they come and go.

    CatalogTxn.create_index --CREATE node--> entry.with_index    (TableEntry.indexes)
    CatalogTxn.drop_index ----DROP node----> entry.without_index

A definition belongs to the entry of its table, so creating and dropping one is a change of that
entry like any other: transactional, seen by its own transaction at once, a conflict with whoever
else changes the table's definition, none with who changes its rows.

Invariants
- Ids come from the sequence of table ids and are never issued twice: an index object that names one
  is never taken for one of a later index.
- Names are unique in the database without regard to case, across tables; a second transaction that
  takes a name meanwhile loses at its commit (`check_names`).
- A column that an index has cannot be dropped; widening one leaves index objects as they are.

Not here: what a kind is (index/), objects of an index (rows/tier.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from halocline.catalog.names import name_key
from halocline.errors import AlreadyExistsError, ConflictError, NotFoundError, UsageError
from halocline.ids import NEVER

if TYPE_CHECKING:
    from halocline.catalog.entries import TableEntry
    from halocline.schema.schema import Schema

COLUMNS_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One index, from its creation on."""

    id: int
    name: str
    kind: int
    """The number of its kind (index/registry.py)."""
    columns: tuple[int, ...]
    """Ids of its columns, the first one first."""
    created_at: int = NEVER


def with_index(entry: TableEntry, index: IndexEntry) -> TableEntry:
    """The entry of a table that has one more index, not yet committed."""
    return replace(entry, indexes=(*entry.indexes, index))


def without_index(entry: TableEntry, index_id: int) -> TableEntry:
    """The entry of a table without one of its indexes."""
    return replace(entry, indexes=tuple(one for one in entry.indexes if one.id != index_id))


def stamped_indexes(indexes: Iterable[IndexEntry], created_at: int) -> tuple[IndexEntry, ...]:
    """The definitions, those that had not committed with the commit that made them."""
    return tuple(
        replace(one, created_at=created_at) if one.created_at == NEVER else one for one in indexes
    )


def find_index(entries: Iterable[TableEntry], name: str) -> tuple[TableEntry, IndexEntry] | None:
    """The table and the index of a name, whatever its case."""
    key = name_key(name)
    for entry in entries:
        for index in entry.indexes:
            if name_key(index.name) == key:
                return entry, index
    return None


def index_of(entry: TableEntry, name: str) -> IndexEntry:
    """The index of a table by its name; NotFoundError when it has none of that name."""
    found = find_index([entry], name)
    if found is None:
        names = [one.name for one in entry.indexes]
        hint = f"indexes of {entry.name!r}: {', '.join(names)}" if names else ""
        raise NotFoundError("index", name, hint=hint)
    return found[1]


def columns_of(schema: Schema, index: IndexEntry) -> list[str]:
    """Names of the columns of an index in a schema of its table; of one without them fewer."""
    names = {column.id: column.name for column in schema.columns}
    return [names[id] for id in index.columns if id in names]  # type: ignore[index]


def column_ids(schema: Schema, columns: Sequence[str]) -> tuple[int, ...]:
    """The columns that an index is to have; UsageError for none, too many or one twice."""
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        raise UsageError("columns= must be a list of the names of columns")
    ids = tuple(int(schema.columns[schema.position(name)].id) for name in columns)
    if len(set(ids)) < len(ids):
        raise UsageError("an index has each column once")
    if len(ids) > COLUMNS_MAX:
        raise UsageError(f"an index has at most {COLUMNS_MAX} columns, not {len(ids)}")
    return ids


def check_kept(entry: TableEntry, schema: Schema) -> None:
    """UsageError if the next schema of a table drops a column of an index."""
    kept = {int(column.id) for column in schema.columns}
    for index in entry.indexes:
        lost = [one for one in index.columns if one not in kept]
        if lost:
            (column, *_) = [c.name for c in entry.schema.columns if c.id in lost]
            raise UsageError(
                f"column {column!r} is part of index {index.name!r}: drop the index first"
            )


def check_names(made: Iterable[IndexEntry], committed: Iterable[TableEntry], start_ts: int) -> None:
    """ConflictError if another commit has taken the name of one of these new indexes."""
    others = list(committed)
    for index in made:
        found = find_index(others, index.name)
        if found is not None and found[1].id != index.id and found[1].created_at > start_ts:
            raise ConflictError(
                f"an index {index.name!r} was created by another transaction",
                table=found[0].name,
                winner_ts=found[1].created_at,
            )


def check_free(entries: Iterable[TableEntry], name: str) -> None:
    """AlreadyExistsError if any of these tables has an index of that name."""
    if find_index(entries, name) is not None:
        raise AlreadyExistsError("index", name)
