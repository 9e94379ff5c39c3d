"""Which kinds of indexes there are, by name and by number.

    kind of ours, one line here --.
    entry point of a package -----+--> KINDS

A kind is one class without state (`IndexKind`). Its number is what the log holds, and is never used
again. A package of somebody else's brings one through the entry-point group `halocline.index`: the
entry point loads the class. An index of a kind that is not installed is kept and not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, Protocol

import pyarrow as pa

from halocline.errors import UsageError
from halocline.index.condition import Condition
from halocline.index.sorted import KeyRange, Sorted

GROUP: Final = "halocline.index"


class IndexKind(Protocol):
    """One kind of index."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def in_order(self) -> bool:
        """Are its keys those of index/keys.py, so that rows can be had in their order?"""

    def why_not(self, types: Sequence[Any]) -> str:
        """Why columns of these types cannot be indexed; empty when they can."""

    def build(self, columns: Sequence[Any]) -> pa.Table:
        """The content of an index object: `_key` and `_position`, sorted by key.

        `columns` are those of its data object, whole arrays in the order of the file.
        """

    def ranges(
        self, columns: Sequence[tuple[int, Any]], conditions: Mapping[int, Condition]
    ) -> list[KeyRange] | None:
        """Where the keys of all rows lie that satisfy the conditions; None: it cannot say."""


@cache
def kinds() -> dict[int, IndexKind]:
    """All kinds, by number."""
    from importlib.metadata import entry_points  # 10 ms, and most programs have no index

    ours: list[IndexKind] = [Sorted()]
    found = {kind.number: kind for kind in ours}
    for point in entry_points(group=GROUP):
        kind: IndexKind = point.load()()
        found.setdefault(kind.number, kind)
    return found


def kind_of(number: int) -> IndexKind | None:
    """The kind of a number; None when it is not installed."""
    return kinds().get(number)


def kind_named(name: str) -> IndexKind:
    """The kind of a name; UsageError when there is none."""
    for kind in kinds().values():
        if kind.name == name:
            return kind
    known = ", ".join(sorted(kind.name for kind in kinds().values()))
    raise UsageError(f"kind must be one of {known}, not {name!r}")
