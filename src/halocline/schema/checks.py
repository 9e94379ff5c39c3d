"""Checks: what must hold for every row of a table, as the catalog keeps it.

    "amount > 0" --cut at its columns--> parts ("", " > 0"), ids (2,) --text--> "total > 0" of today

A check is an SQL expression over one row. A row that makes it false is refused; NULL passes. Its
columns are kept by their permanent ids, so it follows a column that is renamed, and the text in
between stays as it was written.

A check that is not `valid` yet is obeyed by every commit, but rows from before it was there have
not been looked at (database/constraints.py).

Not here: reading an expression (read/statement.py), asking it of rows (read/guard.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from halocline.errors import SchemaError

CHECKS_MAX: Final = 100
CHECK_CHARS_MAX: Final = 10_000
NAME_CHARS_MAX: Final = 100
REQUIRED: Final = "required: "
_PLAIN: Final = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class RowCheck:
    """One check of a table."""

    name: str
    parts: tuple[str, ...]
    """The text around the columns: one more than there are columns."""
    ids: tuple[int, ...]
    """The columns, in the order of the text; one may come again."""
    valid: bool = True
    """Do all rows obey it? Otherwise only those that were written since it was there."""

    def text(self, names: Mapping[int, str], *, quoted: bool = False) -> str:
        """The expression with the columns' names of today; quoted for those that parse it."""
        shown = [_shown(names[id], quoted) for id in self.ids]
        return "".join(part + name for part, name in zip_longest(self.parts, shown, fillvalue=""))

    @property
    def rule(self) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
        """What it demands, whether valid or not."""
        return self.name, self.parts, self.ids

    def to_wire(self) -> list[Any]:
        """Plain values, for the catalog."""
        return [self.name, list(self.parts), list(self.ids), self.valid]


def _shown(name: str, quoted: bool) -> str:
    plain = not quoted and _PLAIN.fullmatch(name)
    return name if plain else '"' + name.replace('"', '""') + '"'


def stored_checks(wires: Iterable[tuple[str, list[str], list[int], bool]]) -> tuple[RowCheck, ...]:
    """What `to_wire` wrote; SchemaError for anything else."""
    found = tuple(
        RowCheck(name, tuple(parts), tuple(ids), valid) for name, parts, ids, valid in wires
    )
    check_names(one.name for one in found)
    for one in found:
        if len(one.parts) != len(one.ids) + 1:
            raise SchemaError(f"the stored check {one.name!r} makes no sense")
    return found


def check_names(names: Iterable[Any]) -> None:
    """Names of checks are short texts, unique without regard to case."""
    seen: set[str] = set()
    for count, name in enumerate(names):
        if not isinstance(name, str):
            raise SchemaError(f"the name of a check is a string, not {type(name).__name__}")
        if not name or not name.isprintable() or len(name) > NAME_CHARS_MAX:
            reason = f"is empty, cannot be printed, or has more than {NAME_CHARS_MAX} characters"
            raise SchemaError(f"the name {name!r} of a check {reason}")
        if name.casefold() in seen:
            reason = "is there already: names of checks are unique without regard to case"
            raise SchemaError(f"check {name!r} {reason}")
        if count >= CHECKS_MAX:
            raise SchemaError(f"a table has at most {CHECKS_MAX} checks")
        seen.add(name.casefold())


def required(schema: Any, column: str) -> RowCheck:
    """The check that stands for `not null` until no row has NULL there."""
    one = schema.columns[schema.position(column)]
    if not one.nullable:
        raise SchemaError("is not null already", column=one.name)
    return RowCheck(f"{REQUIRED}{one.name}", ("", " is not null"), (one.id,), valid=False)
