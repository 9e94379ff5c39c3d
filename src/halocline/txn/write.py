"""How a change enters a workspace: checked against the snapshot, all of it or nothing.

Each function first checks everything it was given and only then changes the workspace, so a call
that raises leaves the transaction as it was. Small inputs become single rows; inputs above
`bulk_rows` become parts that are never taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from halocline.errors import DuplicateKeyError, NotFoundError, SchemaError, UsageError
from halocline.read.point import find
from halocline.rows.lookup import locate_many, take
from halocline.rows.nodes import key_run
from halocline.rows.page import Int64Array, Row
from halocline.txn.view import in_part, part_of, see
from halocline.txn.workspace import Part, TableChanges


def insert(changes: TableChanges, rows: Any, snapshot: int, bulk_rows: int) -> int:
    """Insert a dict, a list of dicts, or anything that exports Arrow."""
    schema = changes.schema
    if type(rows) is dict:
        return insert_row(changes, schema.row(rows), snapshot)
    if is_rows(rows):
        return insert_rows(changes, _checked(schema.row, rows), snapshot)
    data = schema.table(rows)
    if data.num_rows <= bulk_rows:
        return insert_rows(changes, schema.from_table(data), snapshot)
    return insert_table(changes, data, snapshot)


def upsert(changes: TableChanges, rows: Any, snapshot: int, bulk_rows: int) -> int:
    """Insert or update the same kinds of input."""
    if isinstance(rows, Mapping):
        return upsert_rows(changes, [rows], snapshot)
    if is_rows(rows):
        return upsert_rows(changes, list(rows), snapshot)
    data = changes.schema.table(rows, columns="given")
    if data.num_rows <= bulk_rows:
        return upsert_rows(changes, data.to_pylist(), snapshot)
    return upsert_table(changes, data, snapshot)


def is_rows(rows: Any) -> bool:
    return isinstance(rows, (list, tuple)) and all(isinstance(row, Mapping) for row in rows)


def count_rows(rows: Any) -> int:
    """How many rows an input has, when it is not going to be used."""
    return 1 if isinstance(rows, Mapping) else len(rows) if hasattr(rows, "__len__") else 0


def insert_row(changes: TableChanges, row: Row, snapshot: int) -> int:
    """Insert one checked row: the hot path of single-row commits."""
    key_of = changes.state.key_of
    if key_of is None:
        changes.insert(None, row)
        return 1
    key = key_of(row)
    own = changes.own
    if own or changes.parts:
        taken = see(changes, key, snapshot)[0] is not None
    else:
        taken = find(changes.state, key, snapshot) != 0
    if taken:
        raise DuplicateKeyError(changes.entry.name, [key])
    changes.insert(key, row)
    return 1


def insert_rows(changes: TableChanges, rows: Sequence[Row], snapshot: int) -> int:
    """Insert checked rows one by one."""
    key_of = changes.state.key_of
    if key_of is None:
        for row in rows:
            changes.insert(None, row)
        return len(rows)
    keys = [key_of(row) for row in rows]
    if len(set(keys)) < len(keys):
        raise DuplicateKeyError(changes.entry.name, _repeated(keys), inside=True)
    taken = [key for key in keys if see(changes, key, snapshot)[0] is not None]
    if taken:
        raise DuplicateKeyError(changes.entry.name, taken)
    for key, row in zip(keys, rows, strict=True):
        changes.insert(key, row)
    return len(rows)


def insert_table(changes: TableChanges, table: pa.Table, snapshot: int) -> int:
    """Insert a checked Arrow table as one part (T-20)."""
    schema, name = changes.schema, changes.entry.name
    if not schema.primary_key:
        changes.add_part(Part(table=table, run=None))
        return int(table.num_rows)
    repeated = schema.first_duplicates(table)
    if repeated:
        raise DuplicateKeyError(name, repeated, inside=True)
    run = key_run(table, schema)
    assert run is not None
    keys = schema.int_keys(table) if schema.int_key else schema.keys_of(table)
    rowids = locate_many(changes.state, keys, snapshot)
    rowids[np.isin(rowids, changes.ended())] = 0
    taken = [keys[i] for i in np.nonzero(rowids)[0]]
    taken += [key for key, (row, _) in changes.own.items() if row is not None and run.find(key)]
    for part in changes.parts:
        if part.table is not None and part.run is not None:
            taken += [key for key in _meet(part, run) if part.find(key) >= 0]
    if taken:
        plain = [key.item() if isinstance(key, np.integer) else key for key in taken]
        raise DuplicateKeyError(name, plain, total=len(plain))
    for key in [key for key in changes.own if run.find(key)]:
        del changes.own[key]  # ended before and inserted again: the part speaks for it now
    changes.add_part(Part(table=table, run=run))
    return int(table.num_rows)


def upsert_rows(changes: TableChanges, rows: Sequence[Mapping[str, Any]], snapshot: int) -> int:
    """Insert or update dicts one by one; columns that are absent keep their value."""
    schema = changes.schema
    _need_key(changes)
    steps: list[tuple[Any, Row, set[int] | None, int]] = []
    keys = set()
    absent: list[Any] = []
    failure: SchemaError | None = None
    for place, values in enumerate(rows):
        with _at_row(place, len(rows)):
            given = schema.partial(values)
            key = schema.key_of_partial(given)
            if key in keys:
                raise DuplicateKeyError(changes.entry.name, [key], inside=True)
            keys.add(key)
            old, row_id = see(changes, key, snapshot)
            if old is not None:
                steps.append((key, _with(old, given), set(given) - schema.key_set, row_id))
                continue
            try:
                steps.append((key, schema.row(values), None, 0))
            except SchemaError as error:
                # As an update it would have been right, so the error tells that the row is absent.
                number = place if len(rows) > 1 else None
                failure = failure or SchemaError(error.reason, column=error.column, row=number)
                absent.append(key)
    if failure is not None:
        failure.read_keys = absent
        raise failure
    for key, row, changed, row_id in steps:
        if changed is None:
            changes.insert(key, row)
        else:
            replace(changes, row_id, key, row, changed)
    return len(rows)


def upsert_table(changes: TableChanges, table: pa.Table, snapshot: int) -> int:
    """Upsert an Arrow table that holds some of the columns, the key among them."""
    schema, name = changes.schema, changes.entry.name
    _need_key(changes)
    if changes.own or changes.parts:
        # Own changes of the same keys are rare in bulk work; row by row is right for them.
        return upsert_rows(changes, table.to_pylist(), snapshot)
    repeated = schema.first_duplicates(table)
    if repeated:
        raise DuplicateKeyError(name, repeated, inside=True)
    keys = schema.int_keys(table) if schema.int_key else schema.keys_of(table)
    rowids = locate_many(changes.state, keys, snapshot)
    fresh = table.filter(pa.array(rowids == 0))
    try:
        fresh = schema.table(fresh)
    except SchemaError as error:
        error.read_keys = [keys[i] for i in np.nonzero(rowids == 0)[0]]
        raise
    known = np.nonzero(rowids)[0]
    known = known[np.argsort(rowids[known], kind="stable")]
    if len(known):
        given = [
            position for position, name in enumerate(schema.names) if name in table.column_names
        ]
        base = take(changes.state, rowids[known])
        add_update_part(changes, base, rowids[known], table.take(known), given)
    if fresh.num_rows:
        changes.add_part(Part(table=fresh, run=key_run(fresh, schema)))
    return int(table.num_rows)


def add_update_part(
    changes: TableChanges,
    base: pa.Table,
    targets: Int64Array,
    values: pa.Table,
    positions: Sequence[int],
) -> None:
    """Many committed rows, ascending by RowID, get the given columns of `values`."""
    schema = changes.schema
    table = base
    for position in positions:
        name = schema.names[position]
        if position not in schema.key_positions:
            table = table.set_column(position, schema.arrow.field(position), values.column(name))
    changes.add_part(
        Part(
            table=table,
            run=key_run(table, schema),
            keys=_keys(changes, table),
            targets=targets,
            changed=frozenset(positions) - frozenset(schema.key_positions),
        )
    )


def add_delete_part(changes: TableChanges, rows: pa.Table, targets: Int64Array) -> None:
    """Many committed rows, ascending by RowID, end (T-22)."""
    run = key_run(rows, changes.schema)
    keys = _keys(changes, rows)
    changes.add_part(Part(table=None, run=run, keys=keys, targets=targets))


def update_key(changes: TableChanges, key: Any, values: dict[int, Any], snapshot: int) -> None:
    """Update one row by its key; values are checked and by position."""
    old, row_id = see(changes, key, snapshot)
    if old is None:
        raise NotFoundError("row", key, hint=f"no such key in table {changes.entry.name!r}")
    update_row(changes, row_id, key, old, values, snapshot)


def update_row(
    changes: TableChanges, row_id: int, key: Any, old: Row, values: dict[int, Any], snapshot: int
) -> None:
    """Update a visible row; a change of its key becomes delete + insert."""
    if changes.state.key_of is not None and not changes.schema.key_set.isdisjoint(values):
        move_rows(changes, [(row_id, old)], values, snapshot)
        return
    replace(changes, row_id, key, _with(old, values), set(values))


def delete_key(changes: TableChanges, key: Any, snapshot: int) -> bool:
    """Delete one row by its key; False when there is none."""
    row, row_id = see(changes, key, snapshot)
    if row is None:
        return False
    remove(changes, row_id, key)
    return True


def replace(changes: TableChanges, row_id: int, key: Any, row: Row, changed: set[int]) -> None:
    """Put a new row in the place of a visible one with the same key."""
    if in_part(row_id):
        part, offset = part_of(changes, row_id)
        part.dropped.add(offset)
        changes.insert(key, row)
    elif row_id < 0:
        changes.replace_local(-row_id - 1, key, row)
    else:
        changes.update(row_id, key, row, changed | _leave_part(changes, row_id))


def remove(changes: TableChanges, row_id: int, key: Any) -> None:
    """End a visible row."""
    if in_part(row_id):
        part, offset = part_of(changes, row_id)
        part.dropped.add(offset)
        if key is not None:
            changes.own[key] = (None, 0)
    elif row_id < 0:
        changes.remove_local(-row_id - 1, key)
    else:
        _leave_part(changes, row_id)
        changes.delete(row_id, key)


def move_rows(
    changes: TableChanges, rows: Sequence[tuple[int, Row]], values: Mapping[int, Any], snapshot: int
) -> None:
    """Update visible rows in their key columns: judged by the final picture, then applied."""
    key_of = changes.state.key_of
    assert key_of is not None
    steps = []
    for row_id, old in rows:
        row = _with(old, values)
        changes.schema.check_key(key_of(row))
        steps.append((row_id, key_of(old), key_of(row), row))
    fresh = [step[2] for step in steps]
    repeated = _repeated(fresh)
    leaving = {step[1] for step in steps}
    taken = [k for k in fresh if k not in leaving and see(changes, k, snapshot)[0] is not None]
    if repeated or taken:
        raise DuplicateKeyError(changes.entry.name, repeated or taken)
    moving = [step for step in steps if step[1] != step[2]]
    changed = set(values) - changes.schema.key_set
    for row_id, key, new_key, row in steps:
        if key == new_key:
            replace(changes, row_id, key, row, changed)
    for row_id, key, _, _ in moving:
        remove(changes, row_id, key)
    for _, _, new_key, row in moving:
        changes.insert(new_key, row)


def _with(old: Row, values: Mapping[int, Any]) -> Row:
    """The row with some of its values replaced."""
    row = list(old)
    for position, value in values.items():
        row[position] = value
    return tuple(row)


def _checked(make: Callable[[Any], Row], rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    checked = []
    for place, row in enumerate(rows):
        with _at_row(place, len(rows)):
            checked.append(make(row))
    return checked


@contextmanager
def _at_row(place: int, count: int) -> Iterator[None]:
    """A SchemaError inside names the row, if there are several."""
    try:
        yield
    except SchemaError as error:
        row = place if count > 1 else error.row
        raise SchemaError(error.reason, column=error.column, row=row) from None


def _need_key(changes: TableChanges) -> None:
    if not changes.schema.primary_key:
        raise UsageError(f"table {changes.entry.name!r} has no primary key: upsert needs one")


def _leave_part(changes: TableChanges, rowid: int) -> set[int]:
    """Take a target out of the bulk part that updates it; returns what that part changed."""
    for part in changes.parts:
        if part.targets is not None:
            place = int(part.targets.searchsorted(rowid))
            hit = place < len(part.targets) and part.targets[place] == rowid
            if hit and place not in part.dropped:
                part.dropped.add(place)
                return set(part.changed)
    return set()


def _keys(changes: TableChanges, table: pa.Table) -> Sequence[Any]:
    if not changes.schema.primary_key:
        return [None] * table.num_rows
    return changes.schema.keys_of(table)


def _meet(part: Part, run: Any) -> list[Any]:
    """Keys that stand in both."""
    assert part.run is not None
    if isinstance(run.keys, np.ndarray):
        return list(np.intersect1d(part.run.keys, run.keys).tolist())
    return list(set(part.run.keys).intersection(run.keys))


def _repeated(keys: Sequence[Any]) -> list[Any]:
    seen: set[Any] = set()
    return [key for key in keys if key in seen or seen.add(key)]  # type: ignore[func-returns-value]
