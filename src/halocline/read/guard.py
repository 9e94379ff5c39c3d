"""Guard: asks rows whether they obey the checks of their table.

    rows (tuples)  --row_test.py, one call for all checks--> obeyed | CheckError
                    '-- a check that Python cannot tell: DuckDB, over these rows
    Arrow tables   --DuckDB, only the columns concerned----> obeyed | CheckError | which rows not

A guard belongs to a schema and is kept with it. Wherever rows become final one of the functions
below is called; tables without checks pay for a look at an empty tuple:

    a call that writes                 txn/write.py, bulk.py, lenient.py, row_update.py
    a row put together at the commit   txn/conflict.py, blind.py, row_update.py
    what another process sends         node/workspace_wire.py, row_commits.py
    files that others have written     txn/task_objects.py

Measured: an insert of one row with a check that Python can tell, 1.02 of one without, without
waiting for the disk; a check that is left to DuckDB, 1.4 ms. A million rows at once, 1.05 to 1.2.

DuckDB is an engine of its own here, one for the process, which opens no files: rows that are built
at a commit have no database at hand. It is started by the first bulk write, or never.

Invariants
- Both ways of asking give the same answer for every row (tests/unit/read/test_guard.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from halocline.errors import CheckError, SchemaError, UsageError
from halocline.options import MIB
from halocline.read.duck import Duck
from halocline.schema.checks import RowCheck
from halocline.schema.compiled import Row
from halocline.schema.schema import Schema

ENGINE_BYTES: Final = 256 * MIB
_ENGINE: Final = Duck(ENGINE_BYTES)
_PLACE: Final = "_place"


class Broken(NamedTuple):
    """A row of a table that breaks a check."""

    place: int
    check: RowCheck


class Guard:
    """The checks of one schema, ready to be asked."""

    def __init__(self, schema: Schema) -> None:
        from halocline.read.row_test import RowTest, broken_by  # with it comes the parser of SQL
        from halocline.read.statement import bind_check

        self._schema = schema
        self._texts: list[str] = []
        self._tests: list[tuple[RowCheck, RowTest]] = []
        self._slow: list[int] = []
        """Checks that Python cannot tell."""
        for number, check in enumerate(schema.checks):
            tree = bind_check(schema.check_text(check, quoted=True), schema)
            self._texts.append(f"({tree.sql(dialect='duckdb', identify=True)})")
            test = broken_by(tree, schema)
            if test is None:
                self._slow.append(number)
            else:
                self._tests.append((check, test))
        ids = {id for check in schema.checks for id in check.ids}
        self._names = [column.name for column in schema.columns if column.id in ids]

    def validate(self) -> None:
        """UsageError or SchemaError for a check that DuckDB cannot work out."""
        row = {field.name: pa.nulls(1, field.type) for field in self._schema.arrow}
        # Over a row of nulls: over no rows at all, constants would not be looked at.
        for text in self._texts:
            query = f"select {text} as c from _view where not {text} or true"
            kind = _ENGINE.query(query, (), {"_view": pa.table(row)}).schema.field(0).type
            if not pa.types.is_boolean(kind):
                raise SchemaError(f"a check is true or false, and {text} is {kind}")

    def check_rows(self, rows: Sequence[Row], table: str, *, numbered: bool) -> None:
        """CheckError for the first of these rows that breaks a check."""
        found = [
            Broken(place, check)
            for check, test in self._tests
            for place, row in enumerate(rows)
            if test(row)
        ]
        if self._slow and rows:
            found += self._ask(self._schema.to_table(rows), self._slow, table)
        if found:
            first = 0 if numbered and len(rows) > 1 else None
            raise self.error(self._schema.to_table(rows), table, found, first=first)

    def broken(self, data: pa.Table, table: str) -> list[Broken]:
        """Rows of a canonical table that break a check, by place."""
        if not data.num_rows:
            return []
        return self._ask(data, range(len(self._texts)), table)

    def error(
        self,
        data: pa.Table,
        table: str,
        found: Sequence[Broken],
        *,
        first: int | None = None,
    ) -> CheckError:
        """The error about broken rows; `first` is the number of the first row of the table."""
        schema = self._schema
        place, check = min(found, key=lambda hit: hit.place)
        checks = {hit.place: hit.check for hit in reversed(found)}
        places = sorted(checks)
        keys: list[Any] = [None] * len(places)
        if schema.primary_key:
            keys = schema.keys_of(data.select(list(schema.primary_key)).take(pa.array(places)))
        (values,) = data.select(schema.columns_of(check)).slice(place, 1).to_pylist()
        error = CheckError(
            table,
            check.name,
            schema.check_text(check),
            key=keys[0],
            values=values,
            row=None if first is None else first + place,
            total=len(places),
        )
        pairs = zip(keys, places, strict=True)
        error.broken = {key: self.reason(checks[at]) for key, at in pairs if key is not None}
        return error

    def reason(self, check: RowCheck) -> str:
        """Why a row is refused that breaks it."""
        return f"check {check.name!r} ({self._schema.check_text(check)}) is broken"

    def _ask(self, data: pa.Table, numbers: Iterable[int], table: str) -> list[Broken]:
        numbers, data = list(numbers), data.select(self._names)
        view = data.append_column(_PLACE, pa.array(np.arange(data.num_rows, dtype=np.int64)))
        broken = [f"coalesce(not {self._texts[number]}, false)" for number in numbers]
        shown = ", ".join([_PLACE, *(f"{text} as c{at}" for at, text in enumerate(broken))])
        query = f"select {shown} from _view where {' or '.join(broken)}"
        try:
            found = _ENGINE.query(query, (), {"_view": view})
        except UsageError as error:
            first = str(error).partition("\n")[0]
            raise SchemaError(
                f"a check of table {table!r} cannot be worked out: {first}"
            ) from error
        hits: list[Broken] = []
        for at, number in enumerate(numbers):
            places = found.column(_PLACE).filter(found.column(f"c{at}")).to_pylist()
            hits += [Broken(place, self._schema.checks[number]) for place in places]
        return sorted(hits, key=lambda hit: hit.place)


def guard_of(schema: Schema) -> Guard:
    """The guard of a schema with checks."""
    guard = schema.made.get("guard")
    if guard is None:
        guard = schema.made["guard"] = Guard(schema)
    assert isinstance(guard, Guard)
    return guard


def check_rows(schema: Schema, rows: Sequence[Row], table: str, *, numbered: bool = False) -> None:
    """CheckError for the first of these rows that breaks a check of the table.

    `numbered`: they stand as in the input, so the error tells the number of the row.
    """
    if schema.checks:
        guard_of(schema).check_rows(rows, table, numbered=numbered)


def check_table(schema: Schema, data: pa.Table, table: str, *, first: int | None = None) -> None:
    """CheckError for the first row of a canonical table that breaks a check.

    `first` is the number of its first row in the input, if it stands as it came.
    """
    if schema.checks and (found := guard_of(schema).broken(data, table)):
        raise guard_of(schema).error(data, table, found, first=first)


def broken_rows(schema: Schema, data: pa.Table, table: str) -> dict[int, str]:
    """Places of rows of a canonical table that break a check of it, and the reason for each."""
    if not schema.checks:
        return {}
    guard = guard_of(schema)
    return {place: guard.reason(check) for place, check in reversed(guard.broken(data, table))}
