"""How a schema changes, and how rows of one version are shown in the shape of another.

    Schema v3 --alter--> Schema v4            names, types and ids: no row is touched
    rows of v1 --carry--> v4                  by permanent id: renamed, cast, filled in, left out
    rows of v3 --carry--> widened(v4, [v3])   v4 and what v3 still shows of dropped columns

A column is its id. A renamed one keeps it, an added one gets an id that no column ever had, so a
name that was dropped and is used again shows nothing of the old values. What a row lacks, because
it was written before the column was added, is the column's *value for absent*: the constant that
was its default when it was added, else NULL. It stays what it is when the default changes, and is
written into no old file: whoever reads a file that is older than the column fills it in.

A type only ever widens, so every old value has exactly one new form, and the way back is exact for
the rows that an older snapshot can see. For others it may not be; nobody sees what comes of them.

Not here: when a version was in force (catalog/entries.py), files (objects/read.py).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypedDict

import pyarrow as pa

from halocline.errors import SchemaError, UsageError
from halocline.ids import ColumnId
from halocline.schema.checks import REQUIRED, RowCheck
from halocline.schema.column import check_comment, read_default
from halocline.schema.define import read_definition
from halocline.schema.names import check_names
from halocline.schema.schema import Schema, TableColumn
from halocline.schema.types import INT_BITS, TIMESTAMP, kind

_DATE: Final = pa.date32()
KEPT: Final = "_c"
"""A dropped column that a file still holds is called this and its id there."""


class Alteration(TypedDict, total=False):
    """What can change about the columns of a table."""

    add: Mapping[str, Any] | None
    drop: Sequence[str]
    rename: Mapping[str, str] | None
    change: Mapping[str, Any] | None
    set_default: Mapping[str, Any] | None
    comment: str | None
    add_checks: Mapping[str, str] | None
    drop_checks: Sequence[str]
    set_required: Sequence[str]


KINDS: Final = tuple(Alteration.__annotations__)
"""The arguments of alter_table."""


def alter(
    schema: Schema,
    *,
    add: Mapping[str, Any] | None = None,
    drop: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    change: Mapping[str, Any] | None = None,
    set_default: Mapping[str, Any] | None = None,
    comment: str | None = None,
    drop_checks: Sequence[str] = (),
) -> Schema:
    """The next version of a schema; SchemaError names the column that cannot be so.

    All names but those of added columns, and new ones, are those of the version before.
    """
    columns = dict(enumerate(schema.columns))
    checks = _kept_checks(schema, names_of("drop_checks", drop_checks))
    for name, given in _pairs("change", change):
        at = schema.position(name)
        columns[at] = _changed(schema, at, given)
    for name, given in _pairs("set_default", set_default):
        at = schema.position(name)
        columns[at] = _with_default(columns[at], given)
    for name, fresh in _pairs("rename", rename):
        at = schema.position(name)
        if not isinstance(fresh, str):
            raise SchemaError("a new name is a string", column=name)
        columns[at] = replace(columns[at], name=fresh)
    for name in names_of("drop", drop):
        at = schema.position(name)
        if at in schema.key_set:
            reason = "is part of the primary key and cannot be dropped: copy into another table"
            raise SchemaError(reason, column=name)
        if (gone := columns.pop(at, None)) is None:
            raise SchemaError("is named twice", column=name)
        for check in checks:
            if gone.id in check.ids:
                reason = f"is used by check {check.name!r}: drop that first, with drop_checks="
                raise SchemaError(reason, column=name)
    last_id = schema.last_id
    kept = [columns[at] for at in sorted(columns)]
    for name, given in _pairs("add", add):
        last_id += 1
        kept.append(_added(name, given, ColumnId(last_id), schema.version + 1))
    check_names([column.name for column in kept])
    told_of = schema.comment if comment is None else check_comment(comment)
    same = told_of == schema.comment and checks == schema.checks
    if tuple(kept) == schema.columns and same:
        raise UsageError(f"alter_table changes nothing: say {'=, '.join(KINDS)}=")
    ids = {column.id: at for at, column in enumerate(kept)}
    return replace(
        schema,
        columns=tuple(kept),
        key_positions=tuple(ids[schema.columns[at].id] for at in schema.key_positions),
        last_id=last_id,
        comment=told_of,
        version=schema.version + 1,
        checks=checks,
    )


def with_rules(
    schema: Schema,
    *,
    add: Sequence[RowCheck] = (),
    drop: Sequence[RowCheck] = (),
    valid: Sequence[RowCheck] = (),
) -> Schema:
    """The next version of a schema, with checks that come, go or have been verified.

    A column that was required by a check is not null when that is valid.
    """
    gone, verified = {check.rule for check in drop}, {check.rule for check in valid}
    kept = [check for check in (*schema.checks, *add) if check.rule not in gone]
    needed = {
        check.ids[0] for check in kept if check.rule in verified and check.name.startswith(REQUIRED)
    }
    checks = tuple(
        replace(check, valid=check.valid or check.rule in verified)
        for check in kept
        if not (check.rule in verified and check.name.startswith(REQUIRED))
    )
    columns = tuple(
        replace(column, nullable=False) if column.id in needed else column
        for column in schema.columns
    )
    return replace(schema, columns=columns, checks=checks, version=schema.version + 1)


def follows(old: Schema, new: Schema) -> bool:
    """Can one be the next version of the other? Asked of schemas that come from outside."""
    key = [old.columns[at].id for at in old.key_positions]
    same = key == [new.columns[at].id for at in new.key_positions]
    return same and new.version == old.version + 1 and new.last_id >= old.last_id


def in_the_way(old: Schema, new: Schema, written: Container[int]) -> str:
    """Why rows that were written in the old version, with values for some columns, may be no rows
    of the new one, which dropped or changed something; empty when they are."""
    after = {column.id: column for column in new.columns}
    for was in old.columns:
        now = after.get(was.id)
        is_other = now is None or now.type != was.type or now.domain != was.domain
        if (was.id in written and is_other) or (now and was.nullable and not now.nullable):
            return f"dropped or changed column {was.name!r}"
    rules = {check.rule for check in old.checks}
    added = [check for check in new.checks if check.rule not in rules]
    return f"demands more of its rows: {added[0].name or 'not null'}" if added else ""


def told(old: Schema, new: Schema) -> str:
    """What changed from one version to the next, for people."""
    before = {column.id: column for column in old.columns}
    after = {column.id: column for column in new.columns}
    said = [f"drop {one.name}" for id, one in before.items() if id not in after]
    for id, column in after.items():
        was = before.get(id)
        if was is None:
            null = "" if column.nullable else " not null"
            default = "" if column.default is None else f" default {column.default}"
            said.append(f"add {column.name} {column.type_name}{null}{default}")
            continue
        if was.name != column.name:
            said.append(f"rename {was.name} to {column.name}")
        if (was.type, was.nullable) != (column.type, column.nullable):
            null = "" if was.nullable == column.nullable else " nullable"
            said.append(f"change {column.name} to {column.type_name}{null}")
        if str(was.default) != str(column.default):
            said.append(f"default of {column.name} is {column.default or 'NULL'}")
    if new.comment != old.comment:
        said.append("comment")
    return ", ".join([*said, *_told_checks(old, new)])


def _told_checks(old: Schema, new: Schema) -> list[str]:
    """What became of checks, for people."""
    before = {check.rule: check for check in old.checks}
    after = {check.rule: check for check in new.checks}
    said = [f"drop check {one.name}" for rule, one in before.items() if rule not in after]
    for rule, check in after.items():
        if rule not in before:
            said.append(f"add check {check.name} ({new.check_text(check)})")
        elif check.valid and not before[rule].valid:
            said.append(f"check {check.name} is valid")
    return said


def _kept_checks(schema: Schema, dropped: Sequence[Any]) -> tuple[RowCheck, ...]:
    known = {check.name.casefold(): check for check in schema.checks}
    for name in dropped:
        if not isinstance(name, str) or known.pop(name.casefold(), None) is None:
            there = ", ".join(check.name for check in schema.checks) or "none"
            raise SchemaError(f"there is no check {name!r} to drop: the table has {there}")
    return tuple(check for check in schema.checks if check.name.casefold() in known)


def widened(schema: Schema, others: Iterable[Schema]) -> Schema:
    """A schema with the columns, besides its own, that other versions show."""
    have = {column.id for column in schema.columns}
    further: dict[int, TableColumn] = {}
    for other in others:  # oldest first: the last type that a column had is its widest
        further |= {one.id: one for one in other.columns if one.id not in have}
    if not further:
        return schema
    kept = [replace(one, name=f"{KEPT}{id}", nullable=True) for id, one in further.items()]
    return replace(schema, columns=(*schema.columns, *kept))


def extra_ids(schema: Schema) -> list[int]:
    """The dropped columns that `widened` has put into a schema."""
    return [column.id for column in schema.columns if column.name.startswith(KEPT)]


def carry(batch: Any, old: Schema, new: Schema) -> Any:
    """A batch of one version in the shape of another."""
    places = {column.id: at for at, column in enumerate(old.columns)}
    arrays = [
        cast(batch.column(places[column.id]), column.type)
        if column.id in places
        else column.filled(batch.num_rows).combine_chunks()
        for column in new.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=new.arrow)


def cast(values: Any, type: Any) -> Any:
    """Values of a column in the type that it has in another version.

    Unsafe, because the way back to a narrower type meets values that its snapshot cannot see.
    """
    return values if values.type == type else values.cast(type, safe=False)


def _pairs(what: str, given: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"{what}= is a dict by column name, not {type(given).__name__}")
    return list((given or {}).items())


def names_of(what: str, given: Sequence[str]) -> list[str]:
    """A list of names that a caller gave; UsageError for anything else."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise UsageError(f"{what}= is a list of column names, not {type(given).__name__}")
    return list(given)


def _added(name: Any, given: Any, id: ColumnId, version: int) -> TableColumn:
    check_names([name])
    (new,) = read_definition({name: given})
    if new.identity:
        raise SchemaError("an identity column comes with its table", column=name)
    constant = None if new.default is None or new.default.is_function else new.default
    if not new.nullable and constant is None:
        reason = "rows that are there have no value for it: give it a constant default, or add it"
        raise SchemaError(f"{reason} nullable and fill it in", column=name)
    return TableColumn(
        id=id,
        name=name,
        type=new.type,
        nullable=new.nullable,
        domain=new.domain,
        default=new.default,
        comment=new.comment,
        since=version,
        absent=constant,
    )


def _with_default(column: TableColumn, given: Any) -> TableColumn:
    """Another default for rows that are still to come; None: none."""
    name, type, domain = column.name, column.type, column.domain
    if column.identity:
        raise SchemaError("draws its keys from a sequence: it has no default", column=name)
    return replace(column, default=read_default(given, name, type, domain, nullable=True))


def _changed(schema: Schema, at: int, given: Any) -> TableColumn:
    column = schema.columns[at]
    (new,) = read_definition({column.name: given})
    type, nullable, domain = new.type, new.nullable, new.domain
    if new.default is not None or new.comment or new.identity:
        raise SchemaError("change= takes a type, and nothing else", column=column.name)
    if at in schema.key_set:
        reason = "is part of the primary key, which keeps its type: copy into another table"
        raise SchemaError(reason, column=column.name)
    if column.nullable and not nullable:
        raise SchemaError("may hold NULL: it stays nullable", column=column.name)
    if (domain, column.domain) != (None, None) and domain != column.domain:
        raise SchemaError("keeps the texts that it takes: add another column", column=column.name)
    if type != column.type and not is_wider(column.type, type):
        wide = TableColumn(id=column.id, name=column.name, type=type, nullable=nullable).type_name
        reason = (
            f"{column.type_name} cannot become {wide}: integers, float32, the digits of a decimal "
            "and dates widen; for all else add another column and copy"
        )
        raise SchemaError(reason, column=column.name)
    default, absent = (
        None if one is None else one.widened(type) for one in (column.default, column.absent)
    )
    return replace(column, type=type, nullable=nullable, default=default, absent=absent)


def is_wider(old: Any, new: Any) -> bool:
    """Has every value of the old type exactly one form in the new one?"""
    if old in INT_BITS and new in INT_BITS:
        return INT_BITS[old] < INT_BITS[new]
    if kind(old) == "decimal" and kind(new) == "decimal":
        return bool(old.scale == new.scale and old.precision < new.precision)
    return (old, new) in ((pa.float32(), pa.float64()), (_DATE, TIMESTAMP))
