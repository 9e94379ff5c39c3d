"""What a transaction asks of the catalog when it creates or alters a table.

    txn.create_table --new_schema----> Schema
    txn.alter_table  --alter_table---> next Schema --> TableDdl (catalog/ddl.py, or at the owner)
    txn.rename_table --rename_table--> another name --'

A table that a transaction alters or renames is out of its reach until it commits: its rows have the
old shape up to there. So a table is altered in one transaction, and written in another. A job that
adds the columns that it brings is the exception: it sees the table through a view in the new shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypedDict

from halocline.catalog import TableDdl, TableEntry
from halocline.catalog.names import check_layout
from halocline.errors import NotFoundError, SchemaError, UsageError
from halocline.options import Options
from halocline.read.guard import guard_of
from halocline.rows.state import next_state
from halocline.schema.checks import CHECK_CHARS_MAX, RowCheck, check_names
from halocline.schema.compression import Codec
from halocline.schema.evolve import KINDS, alter
from halocline.schema.schema import Schema
from halocline.txn.workspace import TableChanges, Workspace

if TYPE_CHECKING:
    from halocline.txn.transaction import Transaction

TWO_COMMITS: Final = ("add_checks", "set_required")
"""What db.alter_table does in two commits (database/constraints.py)."""


class NewTable(TypedDict, total=False):
    """What can be said of a new table besides its columns and its key."""

    layout: str
    if_not_exists: bool
    comment: str
    codec: Codec
    checks: Mapping[str, str] | None


LAYOUT: Final = "clustered"


def new_schema(
    name: str,
    schema: Any,
    primary_key: str | Sequence[str] | None,
    how: NewTable,
    options: Options,
) -> Schema:
    """The schema of a new table; of another table it takes columns whole, and the checks."""
    if unknown := [one for one in how if one not in NewTable.__annotations__]:
        known = ", ".join(NewTable.__annotations__)
        raise UsageError(f"create_table takes {known}, not {unknown[0]}")
    check_layout(how.get("layout", LAYOUT))
    whole = getattr(type(schema), "__halocline_schema__", None)
    source = None if whole is None else whole(schema)
    codec, checks = how.get("codec"), how.get("checks")
    if source is not None:
        codec = source.compression if codec is None else codec
        if checks is None:
            checks = {check.name: source.check_text(check) for check in source.checks if check.name}
    found = Schema.define(
        schema if source is None else source,
        primary_key,
        comment=how.get("comment", ""),
        codec=codec,
        key_bytes_max=options.key_bytes_max,
    )
    return with_checks(found, name, checks)


def with_checks(
    schema: Schema, table: str, checks: Mapping[str, Any] | None, *, valid: bool = True
) -> Schema:
    """The schema with further checks, each read and tried out; SchemaError names the one."""
    if checks is not None and not isinstance(checks, Mapping):
        raise UsageError(f"checks are a dict of name -> expression, not {type(checks).__name__}")
    if not checks:
        return schema
    check_names([*(check.name for check in schema.checks if check.name), *checks])
    added = tuple(_read_check(schema, table, *pair, valid) for pair in checks.items())
    return validated(replace(schema, checks=(*schema.checks, *added)))


def _read_check(schema: Schema, table: str, name: str, text: Any, valid: bool) -> RowCheck:
    from halocline.read.statement import cut_check  # with it comes the parser of SQL

    if isinstance(text, str) and len(text) > CHECK_CHARS_MAX:
        raise SchemaError(f"check {name!r} has more than {CHECK_CHARS_MAX} characters")
    try:
        return RowCheck(name, *cut_check(text, schema, table), valid)
    except UsageError as error:
        column = error.column if isinstance(error, SchemaError) else None
        raise SchemaError(f"check {name!r}: {error}", column=column) from None


def validated(schema: Schema) -> Schema:
    """The schema itself, once its checks have been tried out over its columns."""
    for check in schema.checks:
        try:
            guard_of(replace(schema, checks=(check,))).validate()
        except UsageError as error:
            raise SchemaError(f"check {check.name!r}: {str(error).partition(chr(10))[0]}") from None
    return schema


def begin_evolved(txn: Transaction, name: str, add: Mapping[str, Any]) -> TableChanges:
    """Add columns to a table and begin to load it, all in one commit: a job's way to both."""
    state, work = txn.state_of(name), txn.workspace
    txn.alter_table(name, add=add)
    entry = None if work.ddl is None else work.ddl.table(name)
    assert entry is not None, "it has been altered just now"
    changes = TableChanges(next_state(state, entry))
    work.changes[entry.id] = work.by_name[name] = changes
    return changes


def alter_table(work: Workspace, ddl: TableDdl, name: str, changes: Mapping[str, Any]) -> None:
    """Give a table its next schema; it is there for others when the transaction commits."""
    if unknown := [one for one in changes if one not in KINDS]:
        raise UsageError(f"alter_table takes {', '.join(KINDS)}, not {unknown[0]}")
    entry = ddl.table(name)
    if entry is None:
        raise NotFoundError("table", name)
    for kind in TWO_COMMITS:
        if changes.get(kind):
            reason = "takes two commits, with a look at all rows between: use db.alter_table"
            raise UsageError(f"{kind}= {reason}")
    plain = {kind: value for kind, value in changes.items() if kind not in TWO_COMMITS}
    change_schema(work, ddl, entry, validated(alter(entry.schema, **plain)))


def rename_table(work: Workspace, ddl: TableDdl, name: str, new_name: str) -> None:
    """Give a table another name; others find it there when the transaction commits."""
    entry = ddl.table(name)
    if entry is None:
        raise NotFoundError("table", name)
    if new_name == entry.name:
        raise UsageError(f"table {new_name!r} has that name already")
    work.check_untouched(entry)
    ddl.rename_table(entry, new_name)
    work.by_name.clear()


def drop_table(work: Workspace, ddl: TableDdl, name: str, *, if_exists: bool) -> list[TableChanges]:
    """Drop a table. Returns what had been done to it, which is for nothing now."""
    if if_exists and ddl.table(name) is None:
        return []
    entry = ddl.drop_table(name)
    given_up = [one for key, one in work.changes.items() if key == entry.id]
    work.drop(entry.id)
    return given_up


def change_schema(work: Workspace, ddl: TableDdl, entry: TableEntry, schema: Schema) -> None:
    """Give a table another schema in a transaction that has not touched it."""
    work.check_untouched(entry)
    ddl.alter_table(entry, schema)
    work.by_name.clear()
