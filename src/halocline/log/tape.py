"""The file that is being written, and the bytes on their way into it.

    put --> pending --write--> operating system --sync--> disk --> published
            (memory)   written                   synced

`pending` is one list that is only appended to at its end (under the commit lock) and only cut at
its front (by the leader). Both are single steps of the interpreter, so the two sides need no lock
between them. Every item knows its own place in the file.

Both halves can be broken off at any point and begun again. `write` changes nothing until the bytes
have been given to the operating system, and then leaves in one step (`del pending[:count]`); before
that step anybody can do it again: the same bytes to the same place. A sync can be repeated anyway,
unless it *failed*: then nobody may (see writer.py).

Invariants
- Only the leader calls `write` and `move_to`. `sync` may run beside `write`: it covers what was
  written when it began.
- Everything pending belongs to the active file, and is contiguous.
- What is published has been synced, into a file that its name still leads to.
"""

from __future__ import annotations

from _thread import RLock
from typing import NamedTuple

from halocline.log.allocate import Fresh
from halocline.log.format import SECTOR
from halocline.log.published import Publisher


class Mark(NamedTuple):
    """A place in the log, and what holds once everything before it is written, or synced."""

    order: int
    end: int
    visible_ts: int


Item = tuple[bytes, int, Mark]
"""Bytes, their offset in the file, and what holds behind them."""


class Tape:
    """The way of an entry from memory to the disk."""

    def __init__(
        self, active: Fresh, header: bytes, *, publisher: Publisher, order: int, visible_ts: int
    ) -> None:
        mark = Mark(order, SECTOR, visible_ts)
        self._publisher = publisher
        self.syncing = RLock()
        self.active = active
        self.pending: list[Item] = [(header, 0, mark)]
        self.written = self.synced = Mark(order, 0, visible_ts)
        self.durable = order
        """The highest order that a crash cannot take back."""
        self.failure: OSError | None = None
        """The first write or sync that failed. Nothing is written or synced after it: a second
        sync may succeed without having written, and what it then calls durable is not."""

    def move_to(self, active: Fresh, header: bytes) -> None:
        """Go on in another file. All of the old one has been synced."""
        order, _, visible_ts = self.synced
        # The flusher may be syncing the old file, which must stay open until it is done.
        with self.syncing:
            self._check()
            self.active = active
            self.written = self.synced = Mark(order, 0, visible_ts)
            self.pending.append((header, 0, Mark(order, SECTOR, visible_ts)))

    def write(self) -> None:
        """Leader: give all that is pending to the operating system."""
        pending = self.pending
        count = len(pending)
        if not count:
            return
        data, offset, mark = pending[0]
        if count > 1:
            data = b"".join([item[0] for item in pending[:count]])
            mark = pending[count - 1][2]
        self.put(data, offset, mark)
        del pending[:count]

    def put(self, data: bytes, offset: int, mark: Mark) -> None:
        """Give bytes to the operating system."""
        if self.failure is not None:
            raise self.failure
        try:
            self.active.file.pwrite(data, offset)
        except OSError as error:
            self.failure = error
            raise
        self.written = mark

    def sync(self) -> None:
        """Make durable what is written, then publish it."""
        with self.syncing:
            # Identity, not order: the header of a file has the order of the entry before it.
            mark = self.written
            if mark is not self.synced:
                self._check()
                active = self.active
                try:
                    active.file.sync()
                    # Who opens this log again must find what is acknowledged from here on.
                    active.check()
                except OSError as error:
                    self.failure = error
                    raise
                order, end, visible_ts = mark
                self._publisher.publish(active.number, end, visible_ts)
                self.durable = order
                # Last: after an interrupt before this step, all of it is done again.
                self.synced = mark

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def publish_ts(self, visible_ts: int) -> None:
        """Say again how far the log is durable, with a newer timestamp."""
        with self.syncing:
            self._publisher.publish_ts(visible_ts)

    def mend_page(self) -> None:
        """See to it that other processes find the published position."""
        with self.syncing:
            self._publisher.mend()

    def header_is_durable(self) -> bool:
        return self.synced.end > 0

    def close(self) -> None:
        self.active.file.close()
        self._publisher.close()
