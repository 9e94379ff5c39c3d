"""Lenient inserts: rows whose key is taken, and rows that do not fit, need not stop the others.

    input --chunks--> sift: rows that fit | misfits --> `reject`
                      keys: free          | again, or taken --> refused, left out or rejected
                      free rows --> the workspace, as parts or objects

A stream is taken an object's worth at a time, so it may be larger than memory. The rows that
earlier chunks have inserted are own rows by then, so a key that comes again in a later chunk is a
taken one. Good rows are checked all at once; a misfit costs some microseconds of its own.

Not here: what an upsert does (write.py), how columns are cast (schema/convert.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from halocline.errors import CheckError, DuplicateKeyError, SchemaError, UsageError
from halocline.objects.order import key_order, same_as_before
from halocline.read.guard import broken_rows, check_rows, check_table
from halocline.schema import convert
from halocline.schema.batches import BoolArray, Int64Array
from halocline.schema.compiled import Row
from halocline.schema.convert import Misfit
from halocline.txn import bulk, identity, write
from halocline.txn.core import Core
from halocline.txn.returning import Returned
from halocline.txn.taken_keys import SortedKeys, taken_places
from halocline.txn.workspace import TableChanges

OnConflict = Literal["error", "ignore", "upsert"]
Rejects = list[Any] | None
TWICE = "the primary key comes more than once in the input"
TAKEN = "the primary key is already in the table"


class LenientInsert:
    """One call of `insert` that leaves rows out."""

    def __init__(
        self,
        core: Core,
        changes: TableChanges,
        snapshot: int,
        on_conflict: OnConflict,
        reject: Rejects,
        returned: Returned | None = None,
    ) -> None:
        if on_conflict not in ("error", "ignore", "upsert"):
            raise UsageError(f"on_conflict= is error, ignore or upsert, not {on_conflict!r}")
        if reject is not None and not isinstance(reject, list):
            raise UsageError("reject= takes a list")
        self.core, self.changes, self.snapshot = core, changes, snapshot
        self.on_conflict, self.reject = on_conflict, reject
        self.misfits: list[Misfit] | None = None if reject is None else []
        self.returned = returned
        self.taken: list[Any] = []
        self.count = 0

    def run(self, rows: Any) -> list[Any]:
        """Insert what can be inserted; returns the keys that were found in the table.

        The list of rejected rows is emptied first: a transaction that runs again leaves no doubles.
        """
        upsert = self.on_conflict == "upsert"
        if upsert:
            rows, are_new = identity.without_keys(self.changes.schema, rows)
            upsert = not are_new
        add = self._upsert if upsert else self._insert
        with self.changes.all_or_nothing():
            for chunk in self._chunks(rows, "given" if upsert else "all"):
                self.count += add(*chunk)
        if self.reject is not None:
            self.reject[:] = [misfit._asdict() for misfit in self.misfits or ()]
        return self.taken

    def _chunks(
        self, rows: Any, columns: Literal["all", "given"]
    ) -> Iterator[tuple[pa.Table, Int64Array]]:
        """Canonical tables of rows that fit, with their numbers in the input."""
        schema, done = self.changes.schema, 0
        if isinstance(rows, Mapping) or write.is_rows(rows):
            yield self._rows([rows] if isinstance(rows, Mapping) else rows, columns)
            return
        for chunk in self._tables(schema.opened(rows), whole=columns == "given"):
            wrong: dict[int, tuple[str | None, str]] = {}
            if self.misfits is None:
                table = bulk.conformed(self.changes, chunk, done, columns)
                if columns == "all":
                    check_table(schema, table, self.changes.entry.name, first=done)
            else:
                table, unfit = schema.sift(chunk, columns=columns)
                wrong |= unfit
                if columns == "all":
                    broken = broken_rows(schema, table, self.changes.entry.name)
                    wrong |= {at: (None, broken[at]) for at in broken.keys() - unfit.keys()}
            self._reject(chunk, done, wrong)
            kept = _all_but(table.num_rows, list(wrong))
            yield _where(table, kept), done + np.flatnonzero(kept)
            done += chunk.num_rows

    def _tables(self, data: Any, *, whole: bool) -> Iterator[pa.Table]:
        """The input as tables as large as an object; as one table when it is wanted whole."""
        convert.refuse_spark(data)
        if whole or not convert.is_stream(data):
            files = hasattr(data, "read_batches")
            table = self._file(data) if files else convert.read(data)
            rows_max = max(table.num_rows, 1) if whole else self.core.options.object_rows
            for start in range(0, table.num_rows, rows_max):
                yield table.slice(start, rows_max)
            return
        files = hasattr(data, "read_batches")
        batches = data.read_batches(self.misfits) if files else convert.stream(data)[1]
        yield from bulk.gathered(batches, self.core.options.object_rows)

    def _file(self, data: Any) -> pa.Table:
        batches = list(data.read_batches(self.misfits))
        return pa.Table.from_batches(batches) if batches else data.schema.empty_table()

    def _rows(self, rows: Any, columns: str) -> tuple[pa.Table, Int64Array]:
        schema = self.changes.schema
        check: Any = schema.row if columns == "all" else schema.partial
        kept, numbers = list[Any](), []
        for at, row in enumerate(rows):
            try:
                kept.append(check(row))
                numbers.append(at)
            except SchemaError as error:
                if self.misfits is None:
                    raise SchemaError(error.reason, column=error.column, row=at) from None
                self.misfits.append(Misfit(at, error.column, error.reason, dict(row)))
        found = np.array(numbers, dtype=np.int64)
        if columns == "all":
            return self._obeyed(kept, rows, found)
        return schema.table([rows[at] for at in numbers], columns="given"), found

    def _obeyed(
        self, kept: list[Row], rows: Any, numbers: Int64Array
    ) -> tuple[pa.Table, Int64Array]:
        """Those of the rows that break no check; CheckError unless they may be rejected."""
        schema, name = self.changes.schema, self.changes.entry.name
        table = schema.to_table(kept)
        if self.misfits is None:
            check_rows(schema, kept, name, numbered=True)
            return table, numbers
        broken = broken_rows(schema, table, name)
        for at, reason in sorted(broken.items()):
            number = int(numbers[at])
            self.misfits.append(Misfit(number, None, reason, dict(rows[number])))
        good = _all_but(len(kept), list(broken))
        return _where(table, good), numbers[good]

    def _insert(self, table: pa.Table, numbers: Int64Array) -> int:
        order: Int64Array | None = None
        table = identity.fill_table(self.core, self.changes, table, self.snapshot)
        if self.changes.home.sequence is not None:  # the keys that were drawn are new to the checks
            check_table(self.changes.schema, table, self.changes.entry.name)
        if self.changes.schema.primary_key and table.num_rows:
            table, numbers, order, mine = self._once(table, numbers)
            places = taken_places(self.changes, mine, self.snapshot)
            if len(places):
                taken = mine.keys_at(places)
                if self.on_conflict == "error" and self.misfits is None:
                    raise DuplicateKeyError(self.changes.entry.name, taken, total=len(taken))
                self.taken += taken
                found = np.sort(places if order is None else order[places])
                if self.on_conflict == "error":
                    self._reject_keys(table, numbers, found, TAKEN)
                table, order = _where(table, _all_but(table.num_rows, found)), None
        if table.num_rows:
            if self.returned is not None:
                self.returned.table(table)
            bulk.insert_new(self.core.writing, self.changes, table, order)
        return int(table.num_rows)

    def _upsert(self, table: pa.Table, numbers: Int64Array) -> int:
        if not table.num_rows:
            return 0
        if self.changes.schema.primary_key:
            table, numbers, *_ = self._once(table, numbers)
        while table.num_rows:
            try:
                return write.upsert(self.core, self.changes, table, self.snapshot, self.returned)
            except CheckError as error:
                if self.misfits is None:
                    raise
                if self.returned is not None:
                    self.returned.start_over()
                table, numbers = self._reject_broken(table, numbers, error)
        return 0

    def _reject_broken(
        self, table: pa.Table, numbers: Int64Array, error: CheckError
    ) -> tuple[pa.Table, Int64Array]:
        """What is left without the rows that would have broken a check.

        They are known by their keys, for what breaks a check is the row that comes of an upsert.
        """
        assert self.misfits is not None
        assert error.broken, "an upsert has keys"
        keys = self.changes.schema.keys_of(table)
        wrong = [at for at, key in enumerate(keys) if key in error.broken]
        for at, row in zip(wrong, table.take(pa.array(wrong)).to_pylist(), strict=True):
            self.misfits.append(Misfit(int(numbers[at]), None, error.broken[keys[at]], row))
        kept = _all_but(table.num_rows, wrong)
        return _where(table, kept), numbers[kept]

    def _once(
        self, table: pa.Table, numbers: Int64Array
    ) -> tuple[pa.Table, Int64Array, Int64Array | None, SortedKeys]:
        """The first row of each key, with their numbers, their key order and the sorted keys."""
        schema = self.changes.schema
        keys = table.select(list(schema.primary_key))
        order = key_order(keys, schema)
        ordered = keys if order is None else keys.take(pa.array(order))
        if not same_as_before(ordered.combine_chunks(), schema).any():
            return table, numbers, order, SortedKeys(schema, ordered)
        places = keys.append_column("_at", pa.array(np.arange(table.num_rows)))
        first = places.group_by(list(schema.primary_key)).aggregate([("_at", "min")])
        kept = np.zeros(table.num_rows, dtype=np.bool_)
        kept[first.column("_at_min").to_numpy()] = True
        again = np.flatnonzero(~kept)
        if self.misfits is None and self.on_conflict != "ignore":
            shown = schema.keys_of(keys.take(pa.array(again[:10])))
            raise DuplicateKeyError(
                self.changes.entry.name, list(dict.fromkeys(shown)), total=len(again), inside=True
            )
        if self.on_conflict != "ignore":
            self._reject_keys(table, numbers, again, TWICE)
        return self._once(_where(table, kept), numbers[kept])

    def _reject_keys(
        self, table: pa.Table, numbers: Int64Array, rows: Int64Array, reason: str
    ) -> None:
        assert self.misfits is not None
        column = self.changes.schema.primary_key[0]
        values = table.take(pa.array(rows)).to_pylist()
        pairs = zip(numbers[rows].tolist(), values, strict=True)
        self.misfits += [Misfit(number, column, reason, row) for number, row in pairs]

    def _reject(
        self, chunk: pa.Table, done: int, wrong: Mapping[int, tuple[str | None, str]]
    ) -> None:
        if not wrong:
            return
        assert self.misfits is not None
        rows = sorted(wrong)
        pairs = zip(rows, _values(chunk, rows), strict=True)
        self.misfits += [Misfit(done + at, *wrong[at], row) for at, row in pairs]


def _values(chunk: pa.Table, rows: list[int]) -> list[Any]:
    """Rows as they came."""
    try:
        found: list[Any] = chunk.take(pa.array(rows)).to_pylist()
        return found
    except pa.ArrowNotImplementedError:  # pyarrow 26 cannot take from views of texts
        return [chunk.slice(at, 1).to_pylist()[0] for at in rows]
    except (ValueError, OverflowError):  # values that Python cannot hold
        return [None] * len(rows)


def _all_but(count: int, rows: Any) -> BoolArray:
    kept = np.ones(count, dtype=np.bool_)
    kept[np.asarray(rows, dtype=np.int64)] = False
    return kept


def _where(table: pa.Table, kept: BoolArray) -> pa.Table:
    return table if kept.all() else table.filter(pa.array(kept))
