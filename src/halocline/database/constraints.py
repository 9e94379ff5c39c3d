"""Constraints on a table that has rows already: enforced first, then verified, then valid.

    alter_table(add_checks=, set_required=)
      '-> commit: the check is there, not valid     whoever began before it and writes the table
            |                                       conflicts; all later writes obey it
            '-> look for rows that break it         only its columns are read; nobody waits
                  '-> none: commit, it is valid     a required column is not null from here on
                   -> some: commit, it is gone      CheckError names rows

A row that breaks the check can only have been committed before the first commit, so the snapshot
that is looked at, which is newer, has all of them.

A crash in between leaves a check that is obeyed and not valid: `db.health()` says so, and the same
call once more verifies it. Nothing else is different about such a check.

Before a column becomes not null, all rows in memory move into objects: older versions of rows may
be NULL, and from then on they are in files that say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from halocline.errors import AlreadyExistsError, CheckError, NotFoundError, UsageError
from halocline.schema.checks import RowCheck, required
from halocline.schema.evolve import Alteration, names_of, with_rules
from halocline.schema.schema import Schema
from halocline.txn.definitions import TWO_COMMITS, change_schema, with_checks

if TYPE_CHECKING:
    from halocline.database.database import Database
    from halocline.txn import Transaction

SHOWN = 10
"""Rows that an error names."""


def add_constraints(db: Database, name: str, changes: Alteration) -> None:
    """Add checks and require columns; CheckError when rows of the table break one."""
    if others := [kind for kind, value in changes.items() if value and kind not in TWO_COMMITS]:
        raise UsageError(f"add_checks= and set_required= take a call of their own: not {others[0]}")
    checks, columns = changes.get("add_checks"), changes.get("set_required") or ()
    rules = _enforce(db, name, checks, names_of("set_required", columns))
    try:
        error = _broken(db, name, rules)
    except BaseException:
        _alter(db, name, lambda schema: with_rules(schema, drop=rules))
        raise
    if error is not None:
        _alter(db, name, lambda schema: with_rules(schema, drop=rules))
        raise error
    if columns:
        db.flush(name)
    _alter(db, name, lambda schema: with_rules(schema, valid=rules))


def _enforce(
    db: Database, name: str, checks: Mapping[str, Any] | None, columns: Sequence[str]
) -> list[RowCheck]:
    """The first commit; the checks that are to be verified."""
    wanted: list[RowCheck] = []

    def enforced(schema: Schema) -> Schema | None:
        waiting = {check.rule: check for check in schema.checks if not check.valid}
        fresh = with_checks(_without(schema), name, checks, valid=False).checks
        fresh += tuple(required(schema, column) for column in columns)
        wanted[:] = fresh
        new = [check for check in fresh if check.rule not in waiting]
        taken = {check.name.casefold() for check in schema.checks}
        for check in new:
            if check.name.casefold() in taken:
                raise AlreadyExistsError("check", check.name)
        return with_rules(schema, add=new) if new else None

    _alter(db, name, enforced)
    return wanted


def _without(schema: Schema) -> Schema:
    return with_rules(schema, drop=schema.checks)


def _broken(db: Database, name: str, checks: Sequence[RowCheck]) -> CheckError | None:
    """The error about the first check that rows break; None when all hold."""
    with db.begin() as txn:
        schema = txn.state_of(name).schema
        for check in checks:
            found = _rows(txn, name, schema, check, limit=SHOWN)
            if found:
                total = len(found) if len(found) < SHOWN else _count(txn, name, schema, check)
                return _error(name, schema, check, found, total)
    return None


def _where(schema: Schema, check: RowCheck) -> str:
    return f"not ({schema.check_text(check, quoted=True)}\n)"


def _rows(
    txn: Transaction, name: str, schema: Schema, check: RowCheck, *, limit: int
) -> list[dict[str, Any]]:
    wanted = [*schema.primary_key, *schema.columns_of(check)]
    columns = list(dict.fromkeys(wanted))
    found = txn.scan(name, columns=columns, where=_where(schema, check), limit=limit)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def _count(txn: Transaction, name: str, schema: Schema, check: RowCheck) -> int:
    columns = schema.columns_of(check)[:1]
    return int(txn.scan(name, columns=columns, where=_where(schema, check)).num_rows)


def _error(
    name: str, schema: Schema, check: RowCheck, rows: Sequence[dict[str, Any]], total: int
) -> CheckError:
    keys = [tuple(row[part] for part in schema.primary_key) for row in rows]
    plain = [key if len(key) > 1 else key[0] for key in keys if key]
    shown = {column: rows[0][column] for column in schema.columns_of(check)}
    text = schema.check_text(check)
    first = plain[0] if plain else None
    error = CheckError(name, check.name, text, key=first, values=shown, total=total)
    error.broken = dict.fromkeys(plain, f"check {check.name!r} ({text}) is broken")
    return error


def _alter(db: Database, name: str, make: Callable[[Schema], Schema | None]) -> None:
    """Commit another schema of the table, as often as others alter it meanwhile."""

    def attempt(txn: Transaction) -> None:
        entry = txn.state_of(name).entry
        work = txn.workspace
        if work.ddl is None:
            work.ddl = txn.core.begin_ddl(txn.snapshot)
        found = work.ddl.table(entry.name)
        if found is None:
            raise NotFoundError("table", name)
        schema = make(found.schema)
        if schema is not None:
            change_schema(work, work.ddl, found, schema)

    db.run(attempt)
