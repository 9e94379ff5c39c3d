"""Errors on their way from the owner to a caller in another process: the same class and fields.

    ConflictError(reason, table, key, winner_ts) --to_wire--> Failed --from_wire--> ConflictError

Messages are built from fields by the errors themselves, so they read the same on both sides. Keys
are encoded by the schema of their table: a decimal comes back as a decimal. What is no error of
ours is a bug of the owner: it is told as UnavailableError, and the commit may have happened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from halocline import errors
from halocline.errors import (
    CheckError,
    ConflictError,
    HaloclineError,
    UnavailableError,
    UsageError,
)
from halocline.node.wire import CallCatalog, Command, Failed, Request
from halocline.schema import codec
from halocline.schema.schema import Schema

SchemaOf = Callable[[str], Schema | None]
"""The schema of a table by name, as far as one knows it."""

_logger = logging.getLogger("halocline")
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "ConflictError": ("reason", "table", "winner_ts"),
    "DuplicateKeyError": ("table", "total", "inside_input"),
    "AlreadyExistsError": ("kind", "name"),
    "NotFoundError": ("kind", "name"),
    "CheckError": ("table", "check", "expression", "row", "total"),
    "SchemaError": ("reason", "column", "row"),
    "SnapshotExpiredError": ("ts", "floor", "hint"),
    "UnavailableError": ("reason", "outcome"),
    "CorruptionError": ("path", "reason", "offset"),
    "UsageError": (),
}


def to_wire(error: Exception, schema_of: SchemaOf) -> Failed:
    """The error as plain values."""
    kind = next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _FIELDS), "")
    if not kind:
        reason = f"the owner met an error of its own: {type(error).__name__}: {error}"
        return Failed("UnavailableError", {"reason": reason, "outcome": "unknown"})
    fields = {name: getattr(error, name) for name in _FIELDS[kind]}
    if not all(isinstance(value, (str, int, type(None))) for value in fields.values()):
        fields = {name: _plain(value) for name, value in fields.items()}
    keys = getattr(error, "keys", None) or [getattr(error, "key", None)]
    if isinstance(error, CheckError):
        fields |= _pack_values(error, schema_of)
    return Failed(kind, fields | {"text": str(error)}, _encode(keys, fields, schema_of))


def fault_of(error: Exception, schema_of: SchemaOf) -> Failed:
    """Whatever went wrong while a request was read or answered; a bug of ours is logged."""
    if isinstance(error, HaloclineError):
        return to_wire(error, schema_of)
    if isinstance(error, (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)):
        return to_wire(UsageError(f"the request makes no sense: {error}"), schema_of)
    _logger.error("a request of another process failed", exc_info=error)
    return to_wire(error, schema_of)


def from_wire(failed: Failed, schema_of: SchemaOf) -> HaloclineError:
    """The error that was sent."""
    known = {name: failed.fields.get(name) for name in _FIELDS.get(failed.kind, ())}
    if failed.kind == "CheckError":
        known["values"] = _read_values(failed.fields, schema_of)
    text = str(failed.fields.get("text", "without a word"))
    try:
        return _make(failed.kind, known, _decode(failed.keys, known, schema_of), text)
    except (TypeError, ValueError, KeyError):
        return UnavailableError(f"the owner failed: {text}", outcome="unknown")


_DEFINING: Final = ("create_table", "rename_table", "drop_table", "create_index", "drop_index")


def lost_answer(request: Request) -> HaloclineError | None:
    """The error when nobody knows whether a request was heard, and it must not be sent twice.

    A second time it would meet itself: a name that is taken, or gone. None: send it again. A Commit
    is for the link to decide.
    """
    if isinstance(request, CallCatalog) and request.call in _DEFINING:
        return ConflictError("the owner was lost while the transaction defined a table")
    if isinstance(request, Command) and request.name in ("snapshot", "drop_snapshot"):
        reason = f"the owner was lost while it worked: {request.name} {request.argument!r}"
        return UnavailableError(reason, outcome="unknown")
    return None


def _make(kind: str, known: dict[str, Any], keys: list[Any], text: str) -> HaloclineError:
    """An error from its fields, which its constructor may name otherwise."""
    match kind:
        case "ConflictError":
            return errors.ConflictError(key=keys[0] if keys else None, **known)
        case "CheckError":
            return errors.CheckError(key=keys[0] if keys else None, **known)
        case "DuplicateKeyError":
            inside = bool(known.pop("inside_input"))
            return errors.DuplicateKeyError(keys=keys, inside=inside, **known)
        case "UsageError":
            return errors.UsageError(text)
        case "SnapshotExpiredError":
            return errors.SnapshotExpiredError(**(known | {"hint": known["hint"] or ""}))
        case "UnavailableError":
            return UnavailableError(**known)
    made: HaloclineError = getattr(errors, kind if kind in _FIELDS else "HaloclineError")(**known)
    return made


def _encode(keys: list[Any], fields: dict[str, Any], schema_of: SchemaOf) -> bytes | None:
    schema = schema_of(fields["table"]) if fields.get("table") else None
    if schema is None or not schema.primary_key or keys[0] is None:
        return None
    try:
        return schema.encode_keys(keys)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return None


def _decode(data: bytes | None, fields: dict[str, Any], schema_of: SchemaOf) -> list[Any]:
    schema = schema_of(str(fields["table"])) if fields.get("table") else None
    if schema is None or data is None:
        return []
    try:
        return schema.decode_keys(data)
    except (msgspec.MsgspecError, ValueError, TypeError):
        return []


def _pack_values(error: CheckError, schema_of: SchemaOf) -> dict[str, Any]:
    """The values of a row that breaks a check, as rows of the log have them."""
    if schema_of(error.table) is None:
        return {}
    return {"names": list(error.values), "values": codec.encode([tuple(error.values.values())])}


def _read_values(fields: dict[str, Any], schema_of: SchemaOf) -> dict[str, Any]:
    schema, names = schema_of(str(fields.get("table"))), fields.get("names")
    if schema is None or not isinstance(names, list):
        return {}
    try:
        columns = [schema.arrow.field(name) for name in names]
        ((row),) = codec.compile_decode(columns)(fields["values"])
        return dict(zip(names, row, strict=True))
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError):
        return {}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, type(None))) else repr(value)
