"""The numbers that name things, and their limits.

Every id is an int at run time; `NewType` keeps a RowId out of a place that wants a Timestamp.
All of them start at 1, so 0 can mean "none" in fixed-width fields.
"""

from __future__ import annotations

from typing import Final, NewType

TableId = NewType("TableId", int)
ColumnId = NewType("ColumnId", int)
IndexId = NewType("IndexId", int)
ObjectId = NewType("ObjectId", int)
JobId = NewType("JobId", int)
RowId = NewType("RowId", int)
Timestamp = NewType("Timestamp", int)
Epoch = NewType("Epoch", int)

NO_ROW: Final = RowId(0)
NEVER: Final = Timestamp((1 << 63) - 1)
"""A timestamp later than all others: 'not ended yet'. Fits int64, as every column on disk is."""
