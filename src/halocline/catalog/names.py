"""Which names a table may have, and when two names are the same.

    "Orders", "orders", "ORDERS"  --name_key-->  "orders"    one table

Names are kept as the user wrote them and compared without regard to case. Files are named by ids,
so a name never becomes a path and the rules here can be generous: they only keep out what a person
could not read back from a message (nothing, control characters) and the engine's own `_` names.
"""

from __future__ import annotations

from typing import Final

from halocline.errors import UsageError

NAME_BYTES_MAX: Final = 255


def check_name(kind: str, name: object) -> str:
    """The name, if a new table or database may have it; else UsageError with the reason."""
    if not isinstance(name, str):
        raise UsageError(f"a {kind} name must be a string, not {type(name).__name__}")
    if not name:
        raise UsageError(f"a {kind} name must not be empty")
    # Lone surrogates are not printable either, so what passes here can be encoded below.
    if not name.isprintable():
        raise UsageError(f"{kind} name {name!r} contains characters that cannot be printed")
    if name.startswith("_"):
        raise UsageError(f"{kind} name {name!r} is reserved: names must not start with '_'")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise UsageError(f"{kind} name {name[:20]!r}... is longer than {NAME_BYTES_MAX} bytes")
    return name


def name_key(name: str) -> str:
    """What all spellings of one name have in common. A key is its own key."""
    if not isinstance(name, str):
        raise UsageError(f"a name must be a string, not {type(name).__name__}")
    return name.casefold()


def check_layout(layout: object) -> None:
    """UsageError unless tables can have this layout."""
    if layout not in ("clustered", "heap"):
        raise UsageError(f"layout must be 'clustered' or 'heap', not {layout!r}")
    if layout == "heap":
        raise UsageError("layout 'heap' is not available in this version")
