"""The numbers that name things, and their limits.

Every id is an int at run time; `NewType` keeps a TableId out of a place that wants a ColumnId.
All of them start at 1, so 0 can mean "none" in fixed-width fields.
"""

from __future__ import annotations

from typing import Final, NewType

TableId = NewType("TableId", int)
ColumnId = NewType("ColumnId", int)
ObjectId = NewType("ObjectId", int)
Timestamp = NewType("Timestamp", int)

NEVER: Final = Timestamp((1 << 63) - 1)
"""A timestamp later than all others: 'not ended yet'. Fits int64, as every column on disk is."""
