"""The sequence of a table with an identity column: which keys must not be drawn again.

    KeyBlocks (txn/identity.py) --draws from--> a block --was reserved by--> SEQUENCE in the log
                                                                                   |
         ceiling: up to here keys were promised to somebody        <--fold---------'
         top: the highest key that a commit has brought, drawn or given by its caller

The next block begins above both. `top` follows from the rows themselves: the fold looks at every
key that comes, so an explicit one moves the sequence up in recovery and in other processes just as
it does here. Rows that have ended count like others: a key is never drawn twice.
"""

from __future__ import annotations

from typing import Any, Final

from halocline.rows.nodes import Append

KEY_MAX: Final = (1 << 63) - 1


class KeySequence:
    """What is known of the keys of one table. It changes under the commit lock."""

    __slots__ = ("ceiling", "top")

    def __init__(self, ceiling: int = 0, top: int = 0) -> None:
        self.ceiling = ceiling
        self.top = top

    def see(self, key: int) -> None:
        """A key that is committed, or a higher one that was."""
        if key > self.top:
            self.top = key

    def see_rows(self, node: Append, key_of: Any) -> None:
        """The rows of a commit."""
        if node.run is not None and len(node.run):
            self.see(int(node.run.last))
        elif node.table is None and node.rows:
            self.see(max(node.keys or map(key_of, node.rows)))

    def see_object(self, key_max: bytes) -> None:
        """The highest key of an object, in key bytes."""
        self.see(int.from_bytes(key_max, "big") - (1 << 63))
