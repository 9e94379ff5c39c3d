"""Load, delete, update or merge a table from a DataFrame, all or nothing.

| call                       | rows with a key of the table | others                | policy     |
|----------------------------|------------------------------|-----------------------|------------|
| load                       | an error                     | inserted              | first wins |
| load(on_conflict="ignore") | ignored                      | inserted              | blind      |
| load(on_conflict="upsert") | updated                      | inserted              | blind      |
| delete                     | deleted                      | ignored               | blind      |
| update                     | updated                      | an error              | first wins |
| merge                      | by `when_matched`            | by `when_not_matched` | as above   |

A blind job never fails for what others do to rows meanwhile. Any other one conflicts with those who
change one of its rows: also merges that are not in this table, and those with a condition, which
update or delete only rows that match and fulfil it.

Rows match by primary key. The cost follows the rows of the input: of the table, key blocks are read
where filters let a key through, and whole rows only where the condition or a column that is not in
the input needs them.

Not here: how a job runs (job.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

import pyarrow as pa
from pyspark.sql import DataFrame

from halocline.errors import SchemaError, UsageError
from halocline.schema.schema import Schema
from halocline.spark.condition import check_condition
from halocline.spark.job import LoadReport, write
from halocline.spark.task import Matched, Spec
from halocline.spark.types import arrow_schema
from halocline.txn.lenient import OnConflict

WhenMatched = Literal["update", "delete", "ignore"]
WhenNotMatched = Literal["insert", "ignore"]
_MATCHED: Final[dict[str, Matched]] = {"error": "error", "ignore": "ignore", "upsert": "update"}


def load(
    df: DataFrame,
    db: Any,
    table: str,
    on_conflict: OnConflict = "error",
    token: Any = None,
    create: bool = False,
    primary_key: str | Sequence[str] | None = None,
    evolve: bool = False,
) -> LoadReport:
    """Insert the rows of a DataFrame; a key that exists is an error, is ignored or is updated.

    Rows of a DataFrame without the table's identity column are new, and get keys.
    With `create` a table that is missing is made in the same commit, with the DataFrame's columns
    and `primary_key`; into one that is there, with that key, rows are loaded as ever. With `evolve`
    columns that the table has not are added to it, nullable and at its end, in the same commit.
    """
    if on_conflict not in get_args(OnConflict):
        raise UsageError(f"on_conflict is error, ignore or upsert, not {on_conflict!r}")
    if create != (primary_key is not None):
        raise UsageError("create=True and primary_key= go together: a new table needs a key")
    key = [primary_key] if isinstance(primary_key, str) else primary_key

    def spec_for(schema: Schema) -> Spec:
        if schema.identity is not None:
            if schema.primary_key[0].lower() not in [name.lower() for name in df.columns]:
                return Spec(matched="error", absent="insert", draws=True)
        return Spec(matched=_MATCHED[on_conflict], absent="insert")

    return write(df, db, table, spec_for, token, key, evolve)


def delete(df: DataFrame, db: Any, table: str, token: Any = None) -> LoadReport:
    """Delete the rows whose keys the DataFrame holds, as `DELETE ... WHERE key IN (...)` does.

    Keys that do not exist are fine, and so are keys that come more than once.
    """
    return write(df, db, table, lambda _: Spec(matched="delete", absent="ignore"), token)


def update(df: DataFrame, db: Any, table: str, token: Any = None) -> LoadReport:
    """Write the DataFrame's columns into the rows with its keys; NotFoundError if one is absent."""
    return write(df, db, table, lambda _: Spec(matched="update", absent="error"), token)


def merge(
    df: DataFrame,
    db: Any,
    table: str,
    on: str | Sequence[str] | None = None,
    when_matched: WhenMatched = "update",
    when_not_matched: WhenNotMatched = "insert",
    condition: str | None = None,
    token: Any = None,
) -> LoadReport:
    """Update, delete or leave the rows whose key the DataFrame has too; insert or skip its others.

    `condition` is an SQL predicate over `source` and `target` columns; rows that match and do not
    fulfil it stay as they are.
    """
    _check_actions(when_matched, when_not_matched, condition)

    def spec_for(schema: Schema) -> Spec:
        _check_on(on, schema)
        bound, extra = _bind(df, schema, condition) if condition is not None else ("", ())
        return Spec(matched=when_matched, absent=when_not_matched, condition=bound, extra=extra)

    return write(df, db, table, spec_for, token)


def _check_actions(matched: str, absent: str, condition: str | None) -> None:
    if matched not in get_args(WhenMatched):
        raise UsageError(f"when_matched is update, delete or ignore, not {matched!r}")
    if absent not in get_args(WhenNotMatched):
        raise UsageError(f"when_not_matched is insert or ignore, not {absent!r}")
    if (matched, absent) == ("ignore", "ignore"):
        raise UsageError("a merge that ignores rows that match and rows that do not does nothing")
    if matched == "ignore" and condition is not None:
        raise UsageError(
            'condition= is about rows that match: with when_matched="ignore" it is idle'
        )


def _check_on(on: str | Sequence[str] | None, schema: Schema) -> None:
    if on is None:
        return
    names = [on] if isinstance(on, str) else list(on)
    given = [schema.names[schema.position(name)] for name in names]
    if len(given) != len(set(given)) or set(given) != set(schema.primary_key):
        key = ", ".join(schema.primary_key)
        raise UsageError(f"rows are merged by the primary key ({key}), not by {', '.join(names)}")


def _bind(df: DataFrame, schema: Schema, condition: str) -> tuple[str, tuple[str, ...]]:
    """The condition, checked; and the columns of the input that it needs and the table lacks."""
    source = arrow_schema(df.schema)
    known = {name.lower(): name for name in schema.names}
    names = [known.get(name.lower(), name) for name in source.names]
    fields = [
        schema.arrow.field(name) if name.lower() in known else field.with_name(name)
        for name, field in zip(names, source, strict=True)
    ]
    bound, used = check_condition(condition, pa.schema(fields), schema.arrow)
    extra = [name for name in df.columns if name.lower() not in known]
    for name in extra:
        if name not in used:
            raise SchemaError("neither the table nor the condition has it", column=name)
    return bound, tuple(extra)
