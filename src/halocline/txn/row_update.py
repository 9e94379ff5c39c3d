"""Updates of one row, by transactions that do nothing else: written, or only added to.

    update(key, {"n": 5})         --> Single    --> commits if nobody was first
    update(key, {"n": hc.add(1)}) --> Addition  --> commits on the newest row, whoever was first

Everybody adds to a counter at once, so nearly every addition finds at its commit that others were
first. It needs neither a retry nor a round outside the lock for that: it is put onto the newest
version of the row, durable or not, and follows it in the log, so it cannot become durable before
it. All that were put onto each other while a sync was under way share the next one.

What a row cannot tell is left to the general way: somebody has written one of the columns, deleted
the row or holds its turn, objects have come, or the newest version has left memory.

Invariants
- A sum is made, and found to fit, before a timestamp is taken.

Not here: the commit (row_commit.py), additions among other changes (conflict.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from halocline.read.guard import check_rows
from halocline.read.point import find_row
from halocline.rows.nodes import Update
from halocline.rows.state import TableState
from halocline.schema.codec import encode as encode_rows
from halocline.schema.compiled import Row
from halocline.schema.schema import Schema
from halocline.txn.assignment import constants, read_terms

Single = tuple[TableState, Any, Row, int, tuple[int, ...]]
"""The only write of a transaction that writes one row, kept aside without a workspace: table, key,
row, the committed RowID that is updated (0 for an insert), the positions that changed. A plain
tuple: a NamedTuple costs 0.25 us more."""
SeenRow = tuple[TableState, Any, int, Row]
"""A row that was read: table, key, RowID, row."""


@dataclass(frozen=True, slots=True)
class Addition:
    """The only write of a transaction: amounts that are added to a row, perhaps beside values."""

    state: TableState
    key: Any
    target: int
    """The version that the transaction has seen."""
    row: Row
    """What becomes of it, if nobody was first."""
    changed: frozenset[int]
    added: Mapping[int, Any]
    """Of the positions that changed, those that are only added to, and what is added."""

    def on_newest(self) -> Update | None:
        """The node that puts it onto the newest version that is folded; None when that is more than
        a row can tell, SchemaError when a sum does not fit or breaks a check.

        Without the commit lock that may be too old a version, or one that is just being stored.
        """
        state, newest = self.state, self.target
        tombstone = state.deletes.find(newest)
        if tombstone is None:
            return self._onto(newest, self.row)
        met = met_ids(state.schema, self.changed, self.added)
        while tombstone is not None:
            if not tombstone.successor or not met.isdisjoint(tombstone.changed):
                return None
            newest = tombstone.successor
            tombstone = state.deletes.find(newest)
        row = state.row(newest)
        if row is None:
            return None
        row = summed(state.schema, row, self.row, self.changed, self.added)
        check_rows(state.schema, (row,), state.entry.name)
        return self._onto(newest, row)

    def _onto(self, target: int, row: Row) -> Update:
        state = self.state
        ids = column_ids(state.schema, self.changed, self.added)
        body = encode_rows((ids, (target,), (row,)))
        node = Update(state.table_id, (target,), ids, (row,), None, (self.key,), None, 0, body)
        node.version = state.schema.version
        return node


def row_update(
    state: TableState, key: Any, snapshot: int, seen: SeenRow | None, given: dict[str, Any]
) -> Single | Addition | None:
    """The first write of a transaction, kept aside; None when a workspace has to take it.

    `seen` is the row that was read last: table, key, RowID, row.
    """
    schema = state.schema
    old: Row | None
    if seen is not None and seen[1] == key and seen[0] is state:
        _, _, rowid, old = seen  # read, modify, write: the row is still at hand
    else:
        rowid, old = find_row(state, key, snapshot) or (0, None)
    checked = constants(schema, given)
    if checked is None and old is not None:
        return _addition(state, key, rowid, old, given)
    if old is None or checked is None or not schema.key_set.isdisjoint(checked):
        return None
    row = list(old)
    for position, value in checked.items():
        row[position] = value
    fresh = tuple(row)
    if schema.checks:
        check_rows(schema, (fresh,), state.entry.name)
    return state, key, fresh, rowid, tuple(checked)


def _addition(
    state: TableState, key: Any, target: int, old: Row, given: Mapping[str, Any]
) -> Addition | None:
    schema = state.schema
    values, amounts, exprs = read_terms(schema, given)
    if exprs or not schema.key_set.isdisjoint(values):
        return None
    changed = frozenset((*values, *amounts))
    row = list(old)
    for at in changed:
        row[at] = schema.plus(at, old[at], amounts[at]) if at in amounts else values[at]
    check_rows(schema, (tuple(row),), state.entry.name)
    return Addition(state, key, target, tuple(row), changed, amounts)


def summed(
    schema: Schema,
    newest: Row,
    row: Row,
    changed: Collection[int],
    added: Mapping[int, Any],
) -> Row:
    """The newest row of others, with the columns that we changed; SchemaError if a sum does not
    fit."""
    found = list(newest)
    for at in changed:
        found[at] = schema.plus(at, newest[at], added[at]) if at in added else row[at]
    return tuple(found)


def column_ids(schema: Schema, changed: Collection[int], added: Collection[int]) -> tuple[int, ...]:
    """How a tombstone names changed columns: those that were only added to by negatives."""
    written = schema.ids_of(at for at in changed if at not in added)
    return written + tuple(-id for id in schema.ids_of(added))


def met_ids(schema: Schema, changed: Collection[int], added: Collection[int]) -> set[int]:
    """Columns of others that ours meet, as a tombstone names them.

    An addition meets what others have written, and a plain write their additions as well. Columns
    that stand in one check meet as if they were one.
    """
    columns = schema.columns
    written = {at for at in changed if at not in added}
    if schema.checks:
        changed, written = _beside(schema, changed), _beside(schema, written)
    ids: set[int] = {columns[at].id for at in changed}
    return ids | {-columns[at].id for at in written}


def _beside(schema: Schema, positions: Collection[int]) -> set[int]:
    return {other for at in positions for other in schema.companions.get(at, (at,))}
