"""How a change enters a workspace: checked against the snapshot, all of it or nothing.

Each function first checks everything it was given and only then changes the workspace, so a call
that raises leaves the transaction as it was. Small inputs become single rows; inputs above
`bulk_rows` become parts that are never taken apart; larger ones become objects (bulk.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from halocline.errors import DuplicateKeyError, NotFoundError, SchemaError, UsageError
from halocline.objects.order import Ordered, key_order, repeats, same_as_before
from halocline.read.guard import check_rows, check_table
from halocline.read.locate import Located, locate_many
from halocline.rows.members import is_among
from halocline.rows.nodes import key_run
from halocline.rows.state import TableState
from halocline.schema import convert
from halocline.schema.batches import Int64Array
from halocline.schema.compiled import Row
from halocline.schema.schema import Schema
from halocline.txn import bulk, bulk_ends, identity
from halocline.txn.assignment import Assignment, NewValues, work_out
from halocline.txn.core import Core
from halocline.txn.returning import Returned
from halocline.txn.taken_keys import SortedKeys, taken_keys
from halocline.txn.workspace import Part, TableChanges


def insert(
    core: Core, changes: TableChanges, rows: Any, snapshot: int, returned: Returned | None = None
) -> int:
    """Insert a dict, a list of dicts, or anything that exports Arrow."""
    schema = changes.schema
    if type(rows) is dict:
        return _insert_rows(core, changes, [schema.row(rows)], snapshot, returned)
    if is_rows(rows):
        return _insert_rows(core, changes, _checked(schema.row, rows), snapshot, returned)
    committer = core.writing
    rows = schema.opened(rows)
    if convert.is_stream(rows):
        rows, chunks = bulk.read_ahead(committer, changes, rows)
        if chunks is not None:
            chunks = (identity.fill_table(core, changes, one, snapshot) for one in chunks)
            chunks = chunks if returned is None else returned.through(chunks)
            return bulk.insert_stream(committer, changes, chunks, snapshot)
    data = identity.fill_table(core, changes, schema.table(rows), snapshot)
    if returned is not None:
        returned.table(data)
    if data.num_rows <= core.options.bulk_rows:
        return insert_rows(changes, schema.from_table(data), snapshot)
    if bulk.is_bulk(committer, changes, data.num_rows, data.nbytes):
        return bulk.insert(committer, changes, data, snapshot)
    return insert_table(changes, data, snapshot)


def _insert_rows(
    core: Core,
    changes: TableChanges,
    rows: Sequence[Row],
    snapshot: int,
    returned: Returned | None,
) -> int:
    rows = identity.fill_rows(core, changes, rows, snapshot)
    if returned is not None:
        returned.rows(rows)
    if len(rows) == 1:
        return insert_row(changes, rows[0], snapshot)
    return insert_rows(changes, rows, snapshot)


def upsert(
    core: Core, changes: TableChanges, rows: Any, snapshot: int, returned: Returned | None = None
) -> int:
    """Insert or update the same kinds of input."""
    if isinstance(rows, Mapping) or is_rows(rows):
        rows = [rows] if isinstance(rows, Mapping) else list(rows)
        _need_key(changes)
        rows = identity.complete(core, changes, rows, snapshot)
        return upsert_rows(changes, rows, snapshot, returned)
    rows, are_new = identity.without_keys(changes.schema, rows)
    if are_new:
        return insert(core, changes, rows, snapshot, returned)
    data = changes.schema.table(rows, columns="given")
    if data.num_rows <= core.options.bulk_rows:
        return upsert_rows(changes, data.to_pylist(), snapshot, returned)
    if returned is not None:
        returned.in_order_of(data)
    return upsert_table(core, changes, data, snapshot, returned)


def is_rows(rows: Any) -> bool:
    return isinstance(rows, (list, tuple)) and all(isinstance(row, Mapping) for row in rows)


def may_be_rows(data: Any) -> bool:
    """Could it be input, rather than a single value?"""
    lazy = hasattr(data, "collect_batches") or type(data).__module__ == "pyarrow._dataset"
    plain = convert.exports_arrow(data) or convert.is_rows(data)
    return lazy or plain or isinstance(data, (str, os.PathLike))


def count_rows(rows: Any) -> int:
    """How many rows an input has, when it is not going to be used."""
    if isinstance(rows, (Mapping, str)):
        return int(isinstance(rows, Mapping))
    return len(rows) if hasattr(rows, "__len__") else 0


def insert_row(changes: TableChanges, row: Row, snapshot: int) -> int:
    """Insert one row that fits the columns."""
    check_rows(changes.schema, (row,), changes.entry.name)
    key_of = changes.state.key_of
    if key_of is None:
        changes.insert(None, row)
        return 1
    key = key_of(row)
    if changes.view(snapshot).see(key)[0] is not None:
        raise DuplicateKeyError(changes.entry.name, [key])
    changes.insert(key, row)
    return 1


def insert_rows(changes: TableChanges, rows: Sequence[Row], snapshot: int) -> int:
    """Insert rows that fit the columns, one by one."""
    check_rows(changes.schema, rows, changes.entry.name, numbered=True)
    key_of = changes.state.key_of
    if key_of is None:
        for row in rows:
            changes.insert(None, row)
        return len(rows)
    keys = [key_of(row) for row in rows]
    if len(set(keys)) < len(keys):
        raise DuplicateKeyError(changes.entry.name, _repeated(keys), inside=True)
    seen = changes.view(snapshot).see_many(keys)
    taken = [key for key, (row, _) in zip(keys, seen, strict=True) if row is not None]
    if taken:
        raise DuplicateKeyError(changes.entry.name, taken)
    for key, row in zip(keys, rows, strict=True):
        changes.insert(key, row)
    return len(rows)


def insert_table(changes: TableChanges, table: pa.Table, snapshot: int) -> int:
    """Insert a canonical Arrow table as one part."""
    schema, name = changes.schema, changes.entry.name
    check_table(schema, table, name, first=0)
    if not schema.primary_key:
        changes.add_part(Part(table=table, run=None))
        return int(table.num_rows)
    if schema.first_duplicates(table):
        ordered = Ordered(table, key_order(table, schema)).take(0, table.num_rows)
        repeated = list(dict.fromkeys(schema.keys_of(repeats(ordered, schema))))
        raise DuplicateKeyError(name, repeated, inside=True)
    run = key_run(table, schema)
    assert run is not None
    keys = SortedKeys(schema, table.select(list(schema.primary_key)).take(pa.array(run.rowids)))
    taken = taken_keys(changes, keys, snapshot)
    if taken:
        raise DuplicateKeyError(name, taken, total=len(taken))
    changes.add_part(Part(table=table, run=run))
    return int(table.num_rows)


def upsert_rows(
    changes: TableChanges,
    rows: Sequence[Mapping[str, Any]],
    snapshot: int,
    returned: Returned | None = None,
) -> int:
    """Insert or update dicts one by one; columns that are absent keep their value."""
    schema = changes.schema
    _need_key(changes)
    steps: list[tuple[Any, Row, set[int] | None, int]] = []
    wanted: dict[Any, dict[int, Any]] = {}
    repeated: dict[Any, None] = {}
    absent: list[Any] = []
    failure: SchemaError | None = None
    for place, values in enumerate(rows):
        with _at_row(place, len(rows)):
            given = schema.partial(values)
            key = schema.key_of_partial(given)
            if key in wanted:
                repeated[key] = None
            wanted[key] = given
    if repeated:
        raise DuplicateKeyError(changes.entry.name, list(repeated), inside=True)
    seen = changes.view(snapshot).see_many(list(wanted))
    for place, (key, given) in enumerate(wanted.items()):
        old, row_id = seen[place]
        if old is not None:
            steps.append((key, _with(old, given), set(given) - schema.key_set, row_id))
            continue
        try:
            steps.append((key, schema.row(rows[place]), None, 0))
        except SchemaError as error:
            # As an update it would have been right, so the error tells that the row is absent.
            number = place if len(rows) > 1 else None
            failure = failure or SchemaError(error.reason, column=error.column, row=number)
            absent.append(key)
    if failure is not None:
        failure.read_keys = absent
        raise failure
    check_rows(schema, [row for _, row, _, _ in steps], changes.entry.name, numbered=True)
    for key, row, changed, row_id in steps:
        if changed is None:
            changes.insert(key, row)
        else:
            replace(changes, row_id, key, row, changed)
    if returned is not None:
        changes.show(wanted)
        returned.rows([row for _, row, _, _ in steps])
    return len(rows)


def upsert_table(
    core: Core,
    changes: TableChanges,
    table: pa.Table,
    snapshot: int,
    returned: Returned | None = None,
) -> int:
    """Upsert an Arrow table that holds some of the columns, the key among them."""
    _need_key(changes)
    table = _sorted_once(changes, table)
    mine = bulk.written_rows(changes, table)
    if mine.any():
        # Own changes of the same keys are rare in bulk work; row by row is right for them.
        with changes.all_or_nothing():
            upsert_table(core, changes, table.filter(pa.array(~mine)), snapshot, returned)
            upsert_rows(changes, table.filter(pa.array(mine)).to_pylist(), snapshot, returned)
        return int(table.num_rows)
    located, keys = _located(changes, table, snapshot)
    absent = located.rowids == 0
    fresh = table.filter(pa.array(absent))
    try:
        fresh = changes.schema.table(fresh)
    except SchemaError as error:
        error.read_keys = [keys[i] for i in np.nonzero(absent)[0]]
        raise
    check_table(changes.schema, fresh, changes.entry.name)
    with changes.all_or_nothing():
        _update_located(core, changes, table, located, returned)
        if fresh.num_rows:
            if returned is not None:
                returned.table(fresh)
            bulk.insert_new(core.writing, changes, fresh)
    return int(table.num_rows)


def update_many(core: Core, changes: TableChanges, rows: Any, snapshot: int) -> int:
    """Update the rows with the keys of some input, which holds other columns besides."""
    table = changes.schema.table(rows, columns="given")
    if table.num_columns == len(changes.schema.primary_key):
        raise UsageError("update needs other columns than those of the key")
    table = _sorted_once(changes, table)
    mine = bulk.written_rows(changes, table)
    few = table.num_rows <= core.options.bulk_rows
    singly = np.ones_like(mine) if few else mine
    located, keys = _located(changes, table.filter(pa.array(~singly)), snapshot)
    absent = [keys[i] for i in np.nonzero(located.rowids == 0)[0]]
    rows = table.filter(pa.array(singly))
    wanted = changes.schema.keys_of(rows)
    seen = changes.view(snapshot).see_many(wanted)
    absent += [key for key, (row, _) in zip(wanted, seen, strict=True) if row is None]
    if absent:
        shown = absent[0] if len(absent) == 1 else absent[:10]
        hint = f"{len(absent)} keys are not in table {changes.entry.name!r}"
        error = NotFoundError("row", shown, hint=hint)
        error.read_keys = absent
        raise error
    steps = []
    for key, (old, row_id), values in zip(wanted, seen, rows.to_pylist(), strict=True):
        assert old is not None, "absent keys were refused"
        given = _without_key(changes, changes.schema.partial(values))
        steps.append((row_id, key, _with(old, given), set(given)))
    check_rows(changes.schema, [row for _, _, row, _ in steps], changes.entry.name)
    with changes.all_or_nothing():
        _update_located(core, changes, table.filter(pa.array(~singly)), located)
        for row_id, key, row, changed in steps:
            replace(changes, row_id, key, row, changed)
    return int(table.num_rows)


def _without_key(changes: TableChanges, given: Mapping[int, Any]) -> dict[int, Any]:
    return {at: value for at, value in given.items() if at not in changes.schema.key_set}


def _sorted_once(changes: TableChanges, table: pa.Table) -> pa.Table:
    """A table in key order; DuplicateKeyError when a key comes twice."""
    order = key_order(table, changes.schema)
    # In key order all look-ups walk through memory instead of jumping about in it.
    table = table if order is None else Ordered(table, order).take(0, table.num_rows)
    repeated = repeats(table, changes.schema)
    if repeated.num_rows:
        shown = list(dict.fromkeys(changes.schema.keys_of(repeated)))
        raise DuplicateKeyError(changes.entry.name, shown, inside=True)
    return table


def _located(changes: TableChanges, table: pa.Table, snapshot: int) -> tuple[Located, Any]:
    """Where the rows with these keys are, 0 for those that are not there; and the keys."""
    schema = changes.schema
    keys = schema.int_keys(table) if schema.int_key else schema.keys_of(table)
    located = locate_many(changes.state, keys, snapshot, table=table)
    located.rowids[is_among(located.rowids, changes.ended())] = 0
    return located, keys


def _update_located(
    core: Core,
    changes: TableChanges,
    table: pa.Table,
    located: Located,
    returned: Returned | None = None,
) -> None:
    """Write the columns of a table into those of its rows that were found."""
    schema, rowids = changes.schema, located.rowids
    known = np.nonzero(rowids)[0]
    known = known[np.argsort(rowids[known], kind="stable")]
    if len(known):
        given = [at for at, name in enumerate(schema.names) if name in table.column_names]
        values = table.take(pa.array(known))
        # Whoever gives every column needs nothing of the rows that are there.
        whole = len(given) == len(schema.names)
        base = schema.table(values) if whole else located.take(known)
        add_update_part(core, changes, base, rowids[known], values, given, returned)


def add_update_part(
    core: Core,
    changes: TableChanges,
    base: pa.Table,
    targets: Int64Array,
    values: pa.Table,
    positions: Sequence[int],
    returned: Returned | None = None,
) -> None:
    """Many visible rows, ascending by RowID, get the given columns of `values`."""
    schema = changes.schema
    table = base
    for position in positions:
        name = schema.names[position]
        if position not in schema.key_positions:
            table = table.set_column(position, schema.arrow.field(position), values.column(name))
    check_table(schema, table, changes.entry.name)
    if returned is not None:
        returned.table(table)
    changed = frozenset(positions) - frozenset(schema.key_positions)
    with changes.all_or_nothing():
        bulk_ends.update(core.writing, changes, table, targets, changed)


def add_delete_part(core: Core, changes: TableChanges, rows: pa.Table, targets: Int64Array) -> None:
    """Many visible rows, ascending by RowID, end."""
    with changes.all_or_nothing():
        bulk_ends.delete(core.writing, changes, rows, targets)


def update_key(
    core: Core, changes: TableChanges, key: Any, assignment: Assignment, snapshot: int
) -> None:
    """Update one row by its key."""
    old, row_id = changes.view(snapshot).see(key)
    if old is None:
        raise NotFoundError("row", key, hint=f"no such key in table {changes.entry.name!r}")
    update_rows(core, changes, [(row_id, old)], assignment, snapshot)


def update_rows(
    core: Core,
    changes: TableChanges,
    rows: Sequence[tuple[int, Row]],
    assignment: Assignment,
    snapshot: int,
) -> None:
    """Update visible rows one by one; a change of their keys becomes delete + insert."""
    schema, key_of = changes.schema, changes.state.key_of
    if assignment.is_constant:
        results = [NewValues(assignment.values)] * len(rows)
    else:
        given = [old for _, old in rows]
        results = work_out(core.duck, schema, changes.entry.name, assignment, given)
    if key_of is not None and not schema.key_set.isdisjoint(assignment.values):
        move_rows(changes, list(zip(rows, results, strict=True)), snapshot)
        return
    fresh = [_with(old, new.values) for (_, old), new in zip(rows, results, strict=True)]
    check_rows(schema, fresh, changes.entry.name)
    for (row_id, old), row, (values, reads, added) in zip(rows, fresh, results, strict=True):
        key = None if key_of is None else key_of(old)
        replace(changes, row_id, key, row, {*values, *reads}, added)


def delete_key(changes: TableChanges, key: Any, snapshot: int) -> bool:
    """Delete one row by its key; False when there is none."""
    row, row_id = changes.view(snapshot).see(key)
    if row is None:
        return False
    remove(changes, row_id, key)
    return True


def delete_keys(core: Core, changes: TableChanges, keys: pa.Table, snapshot: int) -> int:
    """End the rows with these keys; returns how many there were."""
    if not keys.num_rows:
        return 0
    order = key_order(keys, changes.schema)
    keys = keys if order is None else Ordered(keys, order).take(0, keys.num_rows)
    keys = keys.combine_chunks()
    again = same_as_before(keys, changes.schema)
    keys = keys.filter(pa.array(~again)) if again.any() else keys
    mine = bulk.written_rows(changes, keys)
    if not mine.any():
        return _delete_unwritten(core, changes, keys, snapshot)
    with changes.all_or_nothing():
        count = _delete_unwritten(core, changes, keys.filter(pa.array(~mine)), snapshot)
        own = changes.schema.keys_of(keys.filter(pa.array(mine)))
        return count + sum(delete_key(changes, key, snapshot) for key in own)


def _delete_unwritten(core: Core, changes: TableChanges, keys: pa.Table, snapshot: int) -> int:
    """Keys that this transaction has not written itself."""
    if not keys.num_rows:
        return 0
    schema = changes.schema
    wanted = schema.int_keys(keys) if schema.int_key else schema.keys_of(keys)
    rowids = locate_many(changes.state, wanted, snapshot, table=keys).rowids
    rowids[is_among(rowids, changes.ended())] = 0
    known = np.nonzero(rowids)[0]
    known = known[np.argsort(rowids[known], kind="stable")]
    found, targets = keys.take(pa.array(known)), rowids[known]
    if len(known) > core.options.bulk_rows:
        add_delete_part(core, changes, found, targets)
    else:
        for key, rowid in zip(schema.keys_of(found), targets.tolist(), strict=True):
            remove(changes, rowid, key)
    return len(known)


def replace(
    changes: TableChanges,
    row_id: int,
    key: Any,
    row: Row,
    changed: set[int],
    added: Mapping[int, Any] | None = None,
) -> None:
    """Put a new row in the place of a visible one with the same key."""
    if row_id < 0:
        changes.take_back(row_id, key)
        changes.insert(key, row)
    elif changes.objects is not None and changes.objects.owns(row_id):
        _replace_own(changes, row_id, key, row, changed, added or {})
    else:
        written = changes.leave(row_id)
        if added and written:  # what a bulk change has written is not only added to
            added = {at: amount for at, amount in added.items() if at not in written}
        changes.update(row_id, key, row, changed | written, added)


def _replace_own(
    changes: TableChanges,
    row_id: int,
    key: Any,
    row: Row,
    changed: set[int],
    added: Mapping[int, Any],
) -> None:
    """Update of a row in an own object: it is born dead, and another takes its place."""
    assert changes.objects is not None
    origin = changes.objects.origin(row_id)
    changes.delete(row_id, key)
    if origin is None:
        changes.insert(key, row)
    else:
        changes.leave(origin.target)
        added = {at: amount for at, amount in added.items() if at not in origin.changed}
        changes.update(origin.target, key, row, changed | origin.changed, added)


def remove(changes: TableChanges, row_id: int, key: Any) -> None:
    """End a visible row."""
    if row_id < 0:
        changes.take_back(row_id, key)
    else:
        if changes.objects is not None and changes.objects.owns(row_id):
            origin = changes.objects.origin(row_id)
            if origin is not None:
                changes.leave(origin.target)
                changes.delete(origin.target, key)
        changes.leave(row_id)
        changes.delete(row_id, key)


def move_rows(
    changes: TableChanges, rows: Sequence[tuple[tuple[int, Row], NewValues]], snapshot: int
) -> None:
    """Update visible rows in their keys: judged by the final picture, then done."""
    key_of, key_set = changes.state.key_of, changes.schema.key_set
    assert key_of is not None
    steps = []
    for (row_id, old), new in rows:
        row = _with(old, new.values)
        changes.schema.check_key(key_of(row))
        steps.append((row_id, key_of(old), key_of(row), row, new))
    fresh = [step[2] for step in steps]
    repeated = _repeated(fresh)
    leaving = {step[1] for step in steps}
    view = changes.view(snapshot)
    taken = [k for k in fresh if k not in leaving and view.see(k)[0] is not None]
    if repeated or taken:
        raise DuplicateKeyError(changes.entry.name, repeated or taken)
    check_rows(changes.schema, [step[3] for step in steps], changes.entry.name)
    moving = [step for step in steps if step[1] != step[2]]
    for row_id, key, new_key, row, new in steps:
        if key == new_key:
            written = {*new.values, *new.reads} - key_set
            replace(changes, row_id, key, row, written, new.added)
    for row_id, key, *_ in moving:
        remove(changes, row_id, key)
    for _, _, new_key, row, _ in moving:
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


def keyed(state: TableState) -> TableState:
    """The table itself; UsageError when it has no primary key."""
    if state.key_of is None:
        raise UsageError(f"table {state.entry.name!r} has no primary key; use scan or where=")
    return state


def key_table(schema: Schema, keys: Any) -> pa.Table:
    """Keys, a list of them or anything that exports Arrow, as a table of the key columns."""
    if isinstance(keys, (list, tuple)):
        return schema.key_table([schema.key(key) for key in keys])
    return schema.table(keys, columns="given").select(list(schema.primary_key))


def key_list(keys: Any) -> Iterable[Any]:
    """Keys that are asked for one by one; UsageError for what is no list of keys."""
    if isinstance(keys, (pa.Array, pa.ChunkedArray)):
        listed: list[Any] = keys.to_pylist()
        return listed
    # A frame would be read as the names of its columns.
    wrong = isinstance(keys, (str, bytes, Mapping, pa.Table)) or hasattr(keys, "columns")
    if wrong or not isinstance(keys, Iterable):
        raise UsageError("get_many takes a list of keys, or an Arrow array of them")
    return keys


def _need_key(changes: TableChanges) -> None:
    if not changes.schema.primary_key:
        raise UsageError(f"table {changes.entry.name!r} has no primary key: upsert needs one")


def _repeated(keys: Sequence[Any]) -> list[Any]:
    seen: set[Any] = set()
    return [key for key in keys if key in seen or seen.add(key)]  # type: ignore[func-returns-value]
