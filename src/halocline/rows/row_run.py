"""Runs of single rows: entries of the log that insert rows into one table are folded together.

    entry, entry, entry --take--> RowRun --flush--> fold, as if they had been one entry
    any other entry     --------> first what was gathered, then the general way (engine.py)

Most commits of a busy database insert one row. A follower folds those of all others before it
reads, and a recovery may have a million of them. Entries whose timestamps and RowIDs follow each
other say what one entry of so many transactions would say (log/record.py), so their rows are
decoded and folded as those of one.

It is a shortcut through the decoder, not another fold. What is not plainly such an entry, and
whatever about it is damaged, is left to the general way, which knows what is wrong.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import msgspec

from halocline.log import record
from halocline.log.format import AC, COMMITS, Entry
from halocline.rows.engine import EngineState
from halocline.rows.nodes import HEAD, ROWS, VERSION, Append

_FORMATS: Final = [
    part.format.removeprefix("<")
    for part in (record.META, record.INFO, record.COUNT, record.NODE, HEAD)
]
FRONT: Final = Struct("<" + "".join(_FORMATS))
"""Everything in front of the rows, in a commit of one node without a token."""
_FRONT_BYTES: Final = FRONT.size
_AFTER_LENGTH: Final = _FRONT_BYTES - HEAD.size
_PLAIN: Final = (record.INFO.size, 0, 1, record.DML_A, VERSION, ROWS, 0)
_ROWS_MAX: Final = 1024
_ONE_ITEM: Final = b"\x91"
_unpack_front = FRONT.unpack_from


def array_head(count: int) -> bytes:
    """How an array of so many items begins in msgpack."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2) if count < 1 << 16 else b"\xdd" + count.to_bytes(4)


class RowRun:
    """Entries that were taken and are not folded yet. For one thread, which folds nothing else."""

    def __init__(self, engine: EngineState) -> None:
        self._engine = engine
        self._entries: list[Entry] = []
        self._bodies: list[bytes] = []
        self._walls: list[int] = []
        self._serials: list[record.Serial] = []
        """Of all transactions from the first on that has one."""
        self._table_id = self._ts = self._rowid = self._version = 0
        """The table, and the timestamp and RowID that come next."""

    def fold(self, entry: Entry) -> None:
        """Apply an entry, now or with the next `flush`."""
        if not self._take(entry):
            self.flush()
            if not self._take(entry):
                self._engine.fold_record(record.decode_record(entry))

    def flush(self) -> None:
        """Apply all that was taken."""
        entries, bodies, walls = self._entries, self._bodies, self._walls
        serials = tuple(self._serials)
        if not entries:
            return
        self._entries, self._bodies, self._walls, self._serials = [], [], [], []
        engine, count = self._engine, len(walls)
        state = engine.tables.get(self._table_id)
        try:
            assert state is not None
            rows = state.schema.decode_rows(array_head(count) + b"".join(bodies))
            keys = () if state.key_of is None else list(map(state.key_of, rows))
            assert len(rows) == count
        except (msgspec.MsgspecError, ValueError, TypeError, AssertionError):
            for entry in entries:  # damaged: one of them will say so
                engine.fold_record(record.decode_record(entry))
            return
        node = Append(self._table_id, rows, first_rowid=self._rowid - count, keys=keys)
        info = record.Info(self._ts - count, walls[-1], 0, count, None, serials)
        engine.fold(info, (node,), walls=walls)

    def _take(self, entry: Entry) -> bool:
        """Keep an entry if it goes on from those that were taken, or is the first."""
        group, _, kind, _, payload, _ = entry
        if group != COMMITS or kind != AC or len(payload) <= _FRONT_BYTES:
            return False
        (
            _, info, ts, wall_us, _, count, flags, nodes,
            dml, length, version, form, node_flags, table_id, schema_version, rowid, many,
        ) = _unpack_front(payload)  # fmt: skip
        end = len(payload)
        if flags == record.HAS_SERIALS:
            flags, end = 0, end - record.SERIAL.size * count
        if (info, flags, nodes, dml, version, form, node_flags) != _PLAIN:
            return False
        if many != count or length != end - _AFTER_LENGTH:
            return False
        if not self._entries:
            state = self._engine.tables.get(table_id)
            if state is None or not (
                schema_version == state.schema.version == state.shape.active.schema.version
            ):
                return False
            self._version = schema_version
        elif (
            ts != self._ts
            or rowid != self._rowid
            or table_id != self._table_id
            or schema_version != self._version
            or len(self._walls) >= _ROWS_MAX
        ):
            return False
        array = _ONE_ITEM if count == 1 else array_head(count)
        if not payload.startswith(array, _FRONT_BYTES):
            return False
        self._table_id, self._ts, self._rowid = table_id, ts + count, rowid + count
        self._entries.append(entry)
        self._bodies.append(payload[_FRONT_BYTES + len(array) : end])
        if end < len(payload):
            self._serials += ((0, 0),) * (len(self._walls) - len(self._serials))
            self._serials += record.SERIAL.iter_unpack(payload[end:])
        self._walls += (wall_us,) * count
        return True
