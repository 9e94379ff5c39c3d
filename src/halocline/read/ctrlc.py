"""Ctrl-C while DuckDB works.

    SIGINT --the interpreter's own handler, in C--> a byte --> our thread --> cursor.interrupt()

Python code reacts to a signal only when C code returns, and a query may take minutes. But the
interpreter writes a byte to its wakeup descriptor at once, in the middle of anything. A thread
reads it and stops the query; when that returns, the interpreter raises KeyboardInterrupt.

Only the main thread gets signals, so queries of other threads are left alone, and so is a program
that handles SIGINT or uses the wakeup descriptor itself (an event loop may).
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import duckdb


class Watch:
    """The thread, and the query that it stops. One for the process, made when first needed."""

    def __init__(self) -> None:
        self.cursor: duckdb.DuckDBPyConnection | None = None
        self.pid = os.getpid()
        self._ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.sink = theirs
        threading.Thread(target=self._run, name="halocline-ctrl-c", daemon=True).start()

    def _run(self) -> None:
        while signals := self._ours.recv(64):
            if signal.SIGINT in signals:
                _interrupt(self.cursor)


def _interrupt(cursor: duckdb.DuckDBPyConnection | None) -> None:
    """It may have ended meanwhile: then there is nothing to stop, and nothing is."""
    if cursor is not None:
        with suppress(duckdb.Error):
            cursor.interrupt()


_watches: Final[list[Watch]] = []


@contextmanager
def stoppable(cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Ctrl-C stops what this cursor does inside the block. 4 us."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    watch = _watches[-1] if _watches else None
    if watch is None or watch.pid != os.getpid():  # a forked child has no thread
        watch = Watch()
        _watches[:] = [watch]
    before = signal.set_wakeup_fd(watch.sink.fileno(), warn_on_full_buffer=False)
    try:
        if before in (-1, watch.sink.fileno()):
            watch.cursor = cursor
        else:
            signal.set_wakeup_fd(before)
        yield
    finally:
        if watch.cursor is cursor:
            watch.cursor = None
            signal.set_wakeup_fd(-1)
