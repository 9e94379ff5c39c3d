"""Ctrl-C while DuckDB works.

    SIGINT --the interpreter's own handler, in C--> a byte --> our thread --> cursor.interrupt()

Python code reacts to a signal only when C code returns, and a query may take minutes. But the
interpreter writes a byte to its wakeup descriptor at once, in the middle of anything. A thread
reads it and stops the query; when that returns, the interpreter raises KeyboardInterrupt.

Only the main thread gets signals, so queries of other threads are left alone, and so is a program
that handles SIGINT in its own way or uses the wakeup descriptor itself (an event loop may).
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from select import POLLIN, poll
from typing import TYPE_CHECKING, Final

from halocline.clock import SystemClock

if TYPE_CHECKING:
    import duckdb

AGAIN_S: Final = 0.02


class Watch:
    """The thread, and the query that it stops. One for the process, made when first needed."""

    def __init__(self) -> None:
        self.cursor: duckdb.DuckDBPyConnection | None = None
        self.blocks = 0
        self.pid = os.getpid()
        self._ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.sink = theirs
        threading.Thread(target=self._run, name="halocline-ctrl-c", daemon=True).start()

    def take(self) -> bytes:
        """Signals that have come since the last call."""
        try:
            return self._ours.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""

    def _run(self) -> None:
        clock, waiting = SystemClock(), poll()
        waiting.register(self._ours, POLLIN)
        while waiting.poll():
            # Which block first, then the signals: a block begins by taking those that are older.
            block = self.blocks
            if signal.SIGINT in self.take():
                # Once may be too early: DuckDB forgets it when the query really starts. When it
                # has helped, Python raises KeyboardInterrupt, and that ends the block.
                while block == self.blocks and _interrupt(self.cursor):
                    clock.sleep(AGAIN_S)


def _interrupt(cursor: duckdb.DuckDBPyConnection | None) -> bool:
    """Interrupts what the cursor runs; False when nothing runs."""
    if cursor is not None:
        import duckdb

        with suppress(duckdb.Error):
            cursor.interrupt()
    return cursor is not None


def _raises() -> bool:
    """Does Ctrl-C raise KeyboardInterrupt? Python's own handler does, and that of PySpark, which
    ends Spark's jobs first. What any other does is its own affair."""
    handler = signal.getsignal(signal.SIGINT)
    of_spark = str(getattr(handler, "__module__", "")).startswith("pyspark.")
    return handler is signal.default_int_handler or of_spark


_watches: Final[list[Watch]] = []


@contextmanager
def stoppable(cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Ctrl-C stops what this cursor does inside the block. 10 us, of a query of hundreds."""
    if threading.current_thread() is not threading.main_thread() or not _raises():
        yield
        return
    watch = _watches[-1] if _watches else None
    if watch is None or watch.pid != os.getpid():  # a forked child has no thread
        watch = Watch()
        _watches[:] = [watch]
    before = signal.set_wakeup_fd(watch.sink.fileno(), warn_on_full_buffer=False)
    try:
        if before in (-1, watch.sink.fileno()):
            watch.take()
            watch.blocks += 1
            watch.cursor = cursor
        else:
            signal.set_wakeup_fd(before)
        yield
    finally:
        if watch.cursor is cursor:
            watch.cursor = None
            signal.set_wakeup_fd(-1)
