"""Where rows lie while others use them: what is done to a database between two steps of a test.

    Still      nothing: rows stay in L0, and so do tombstones
    Flushed    all rows and tombstones are in objects; now and then compaction, a checkpoint, GC
    Moved      rows are in objects, tombstones in memory
    HalfMoved  a move has read its rows and not yet written its object

`after(db)` is called after every step, `settle()` before the database is closed.
"""

from __future__ import annotations

import threading
from queue import Queue
from typing import Any

import halocline as hc
from tests.store.faulty import FaultyFiles
from tests.unit.read.moving import move

WAIT_S = 60.0


class Still:
    """Rows stay where they were written."""

    def __init__(self, files: FaultyFiles) -> None:
        self.files = files

    def after(self, db: hc.Database) -> None:
        pass

    def settle(self) -> None:
        pass


class Flushed(Still):
    """Everything leaves memory at once."""

    def __init__(self, files: FaultyFiles) -> None:
        super().__init__(files)
        self._steps = 0

    def after(self, db: hc.Database) -> None:
        db.flush()
        self._steps += 1
        if self._steps % 3 == 0:
            db.compact()
        if self._steps % 7 == 0:
            db.checkpoint()
            db.gc()


class Moved(Still):
    """Rows leave memory, tombstones do not."""

    def after(self, db: hc.Database) -> None:
        for name in db.tables():
            move(db, name)


class HalfMoved(Still):
    """Each step happens in the middle of a move; the next one begins when that has ended."""

    def __init__(self, files: FaultyFiles) -> None:
        super().__init__(files)
        self._told: Queue[Any] = Queue()
        self._go = threading.Event()
        self._thread: threading.Thread | None = None

    def after(self, db: hc.Database) -> None:
        self.settle()
        self.start(db)

    def start(self, db: hc.Database, table: str | None = None) -> None:
        """Begin a move; returns when it is about to write its object, or has nothing to write."""
        self._go.clear()
        self.files.delay(1, self._hold, kind="put")
        self._thread = threading.Thread(target=self._flush, args=(db, table))
        self._thread.start()
        self._listen()

    def settle(self) -> None:
        """Let the move that is under way come to its end."""
        self.files.clear()
        self._go.set()
        if self._thread is not None:
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive(), "a move hangs"
            self._thread = None
            while not self._told.empty():
                self._listen()

    def _flush(self, db: hc.Database, table: str | None) -> None:
        try:
            db.flush(table)
        except BaseException as error:
            self._told.put(error)
        else:
            self._told.put(None)

    def _hold(self) -> None:
        self._told.put(None)
        assert self._go.wait(WAIT_S), "nobody lets the move go on"

    def _listen(self) -> None:
        error = self._told.get(timeout=WAIT_S)
        if error is not None:
            raise error
