"""The other role of a log (W-18): entries that an external log has already made durable.

    holder   Log         gives out ids and order, writes the files, syncs
    broker   BrokerLog   is given entries with their ids and order, and writes nothing

The commit pipeline is the same in both roles: reserve, append, fold, wait. A broker delivers an
entry first; the append of it then finds its order there instead of making one up.
"""

from __future__ import annotations

from collections import deque

from halocline.errors import UsageError
from halocline.log.format import Entry


class BrokerLog:
    """Same interface as `Log`, no files."""

    def __init__(self, *, order: int = 0, epoch: int = 0, uuid: bytes = bytes(16)) -> None:
        """`order` is the last one that has been applied already."""
        self.uuid = uuid
        self.epoch = epoch
        self.visible_ts = 0
        self.failed: BaseException | None = None
        self._order = order
        self._delivered: deque[Entry] = deque()

    def deliver(self, entry: Entry) -> None:
        """An entry arrives from outside. CorruptionError is not ours to raise: a gap is misuse."""
        expected = self._order + len(self._delivered) + 1
        if entry.order != expected:
            raise UsageError(f"entry {entry.order} was delivered where {expected} is next")
        self._delivered.append(entry)

    def reserve(self, payload_bytes: int) -> None:
        """Somebody else has found the room."""

    def append(
        self, group: int, type: int, payload: bytes | bytearray | memoryview, visible_ts: int = 0
    ) -> int:
        """The order that the delivered entry has; it must be the one that is applied."""
        entry = self._delivered[0] if self._delivered else None
        if entry is None or (entry.group, entry.type, entry.payload) != (group, type, payload):
            raise UsageError("a broker's log takes only the entry that was delivered to it")
        self._delivered.popleft()
        self._order = entry.order
        self.epoch = max(self.epoch, entry.epoch)
        self.visible_ts = max(self.visible_ts, visible_ts)
        return entry.order

    def wait(self, order: int) -> None:
        """It was durable before it came here."""
        if order > self._order:
            raise UsageError(f"entry {order} has not been applied")

    def close(self) -> None:
        """There is nothing to write."""
