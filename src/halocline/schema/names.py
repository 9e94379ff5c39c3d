"""Column names: the rules for them, and finding columns by name without regard to case.

    "Amount" --position--> 2        "amuont" --> SchemaError: did you mean 'amount'?

A name has 1 to 255 bytes, can be printed, does not start with an underscore (kept for hidden
columns such as `_rowid`) and is unique without regard to case, because DuckDB and Spark see it so.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from halocline.errors import SchemaError

COLUMNS_MAX: Final = 10_000
NAME_BYTES_MAX: Final = 255
LISTED_MAX: Final = 10


def check_names(names: Sequence[Any]) -> None:
    """Checks names by the rules above, and how many there are."""
    if not names:
        raise SchemaError("a table needs at least one column")
    if len(names) > COLUMNS_MAX:
        raise SchemaError(f"a table has at most {COLUMNS_MAX} columns, not {len(names)}")
    seen: dict[str, str] = {}
    for name in names:
        _check_name(name)
        if name.casefold() in seen:
            other = seen[name.casefold()]
            reason = f"is there twice ({other!r}): names are unique without regard to case"
            raise SchemaError(reason, column=name)
        seen[name.casefold()] = name


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise SchemaError(f"a column name is a string, not {type(name).__name__}")
    if not name or not name.isprintable():
        raise SchemaError(f"column name {name!r} is empty or cannot be printed")
    if name.startswith("_"):
        raise SchemaError("names that start with an underscore are reserved", column=name)
    if len(name.encode()) > NAME_BYTES_MAX:
        raise SchemaError(f"a column name has at most {NAME_BYTES_MAX} bytes", column=name)


class ColumnNames:
    """The names of one table's columns, in order."""

    __slots__ = ("_folded", "exact", "names")

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.exact = {name: at for at, name in enumerate(names)}
        """Name -> position, for the hot paths; a name in other letters goes through `position`."""
        self._folded = {name.casefold(): at for at, name in enumerate(names)}

    def __contains__(self, name: str) -> bool:
        return name.casefold() in self._folded

    def position(self, name: Any) -> int:
        """The position of a column; else an error that says what the caller may mean."""
        if not isinstance(name, str):
            raise SchemaError(f"a column name is a string, not {type(name).__name__}")
        at = self.exact.get(name)
        if at is None:
            at = self._folded.get(name.casefold())
        if at is None:
            raise SchemaError(f"there is no such column; {self._hint(name)}", column=name)
        return at

    def spelled(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values under the names as the table spells them."""
        if self.exact.keys() >= values.keys():
            return values
        return {self.names[at]: value for at, value in self.by_position(values).items()}

    def by_position(self, values: Mapping[str, Any]) -> dict[int, Any]:
        """The values by the positions of their columns; no column may be named twice."""
        placed: dict[int, Any] = {}
        for name, value in values.items():
            at = self.position(name)
            if at in placed:
                raise SchemaError("is named twice", column=self.names[at])
            placed[at] = value
        return placed

    def _hint(self, name: str) -> str:
        near = difflib.get_close_matches(name.casefold(), self._folded, n=1)
        if near:
            return f"did you mean {self.names[self._folded[near[0]]]!r}?"
        more = ", ..." if len(self.names) > LISTED_MAX else ""
        return f"the columns are {', '.join(self.names[:LISTED_MAX])}{more}"
