"""Lines: what a task tells the driver, one row for each thing that it has to tell.

    kind      what the line is about; each kind of job has its own
    rows      how many rows that is
    content   a file as msgpack; keys, or RowIDs, as bytes; or why the task has given up

A task never raises for what is wrong with its input: Spark would try again, three times, and the
driver could not say it in one error, whichever of the tasks found it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from halocline.errors import CorruptionError
from halocline.objects import ObjectFile

LINE: Final = pa.schema(
    [
        pa.field("kind", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("content", pa.binary()),
    ]
)
LINE_SQL: Final = "kind string, rows bigint, content binary"
DAMAGED: Final = "damaged"
_encode = msgspec.msgpack.Encoder().encode


def line(kind: str, rows: int, content: bytes) -> pa.RecordBatch:
    """One line, as a task returns it."""
    row = {"kind": kind, "rows": rows, "content": content}
    return pa.RecordBatch.from_pylist([row], schema=LINE)


def file_line(kind: str, file: ObjectFile) -> pa.RecordBatch:
    """A file that the task has written."""
    return line(kind, file.stats.rows, _encode(file.to_wire()))


def damage_line(error: CorruptionError) -> pa.RecordBatch:
    """A file that the task could not read."""
    return line(DAMAGED, 0, _encode([error.path, error.reason]))


def file_in(line: Any) -> ObjectFile:
    """The file that a line is about."""
    return ObjectFile.from_wire(msgspec.msgpack.decode(bytes(line.content), strict=False))


def check_undamaged(lines: Sequence[Any]) -> None:
    """CorruptionError if a task has found a damaged file."""
    for one in lines:
        if one.kind == DAMAGED:
            raise CorruptionError(*msgspec.msgpack.decode(bytes(one.content)))
