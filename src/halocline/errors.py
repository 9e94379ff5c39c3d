"""Every error a caller can meet, filed under what the caller does next.

    HaloclineError
      ConflictError          run the transaction again (`db.run` does)
      DuplicateKeyError      the key is taken: change the data, or upsert
      AlreadyExistsError     pick another name, or pass if_not_exists
      NotFoundError          the table or row is not there
      UsageError             the call is wrong: fix the program
        SchemaError          the data does not fit the table: fix the data
          CheckError         a row breaks a check of the table
      SnapshotExpiredError   that point in time is gone: read a newer one
      UnavailableError       try later; `outcome` says whether the commit may have happened
      CorruptionError        stop and restore: bytes on disk are not what was written

Facts are fields and the message is built here, so that programs never parse text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

Outcome = Literal["not_committed", "unknown"]


class HaloclineError(Exception):
    """Root of all errors raised on purpose."""


class ConflictError(HaloclineError):
    """Another transaction won. Run this one again on a newer snapshot."""

    def __init__(
        self, reason: str, *, table: str | None = None, key: Any = None, winner_ts: int = 0
    ) -> None:
        self.reason = reason
        self.table = table
        self.key = key
        self.winner_ts = winner_ts
        where = "" if key is None else f" over key {_short(key)}"
        where += f" in table {table!r}" if table else ""
        at = f" (committed at {winner_ts})" if winner_ts else ""
        super().__init__(f"conflict{where}: {reason}{at}; run the transaction again")


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 80 else text[:77] + "..."


class DuplicateKeyError(HaloclineError):
    """A primary key exists already, in the table or twice in the input."""

    def __init__(self, table: str, keys: Sequence[Any], *, total: int = 0, inside: bool = False):
        self.table = table
        self.all_keys = keys
        self.keys = list(keys[:10])
        self.total = max(total, len(keys))
        self.inside_input = inside
        shown = ", ".join(repr(key) for key in self.keys)
        more = f" and {self.total - len(self.keys)} more" if self.total > len(self.keys) else ""
        where = "more than once in the input for" if inside else "already in"
        super().__init__(f"primary key {shown}{more} is {where} table {table!r}")


class AlreadyExistsError(HaloclineError):
    """A table, snapshot or database of that name exists."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"{kind} {name!r} already exists")


class NotFoundError(HaloclineError):
    """A table, row, snapshot or database that was named does not exist."""

    read_keys: Sequence[Any] = ()
    """All keys that were found absent: what a serializable transaction has read."""

    def __init__(self, kind: str, name: Any, *, hint: str = "") -> None:
        self.kind = kind
        self.name = name
        tail = f"; {hint}" if hint else ""
        super().__init__(f"{kind} {name!r} does not exist{tail}")


class UsageError(HaloclineError):
    """The call cannot work as written."""


class SchemaError(UsageError):
    """Data or a definition that does not fit the schema; names column and row where known."""

    read_keys: Sequence[Any] = ()
    """Keys that were found absent on the way: what a serializable transaction has read."""

    def __init__(self, reason: str, *, column: str | None = None, row: int | None = None) -> None:
        self.reason = reason
        self.column = column
        self.row = row
        places = [f"column {column!r}"] if column is not None else []
        places += [f"row {row}"] if row is not None else []
        prefix = ", ".join(places)
        super().__init__(f"{prefix}: {reason}" if prefix else reason)


class CheckError(SchemaError):
    """A row breaks a check of its table. `values` are those of the columns that the check reads."""

    def __init__(
        self,
        table: str,
        check: str,
        expression: str,
        *,
        key: Any = None,
        values: Mapping[str, Any] | None = None,
        row: int | None = None,
        total: int = 1,
    ) -> None:
        self.table = table
        self.check = check
        self.expression = expression
        self.key = key
        self.values = dict(values or {})
        self.total = total
        shown = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        who = "a row" if key is None else f"the row with key {key!r}"
        more = f", and {total - 1} more rows" if total > 1 else ""
        reason = f"check {check!r} ({expression}) of table {table!r} is broken by {who}: {shown}"
        super().__init__(reason + more, row=row)
        self.read_keys = () if key is None else (key,)

    broken: Mapping[Any, str] = MappingProxyType({})
    """Every row that breaks a check, as far as they were looked for: key -> reason."""


class SnapshotExpiredError(HaloclineError):
    """The snapshot lies below the floor: its rows may already be gone."""

    def __init__(self, ts: int, floor: int, *, hint: str = "") -> None:
        self.ts = ts
        self.floor = floor
        self.hint = hint
        text = f"snapshot {ts} has expired: the oldest readable timestamp is {floor}"
        super().__init__(f"{text}; {hint}" if hint else text)


class UnavailableError(HaloclineError):
    """Not now: locked by another process, disk full, or stopped after an I/O error."""

    def __init__(self, reason: str, *, outcome: Outcome = "not_committed") -> None:
        self.reason = reason
        self.outcome = outcome
        tail = " (the commit may or may not have happened)" if outcome == "unknown" else ""
        super().__init__(reason + tail)

    def with_cause(self, cause: BaseException | None) -> UnavailableError:
        """This error, with what led to it in its text."""
        self.__cause__ = cause
        return self


class CorruptionError(HaloclineError):
    """Bytes on disk are not what was written. Never answered by a shorter history."""

    def __init__(self, path: str, reason: str, *, offset: int | None = None) -> None:
        self.path = path
        self.reason = reason
        self.offset = offset
        at = f" at byte {offset}" if offset is not None else ""
        super().__init__(f"{path}{at}: {reason}")
