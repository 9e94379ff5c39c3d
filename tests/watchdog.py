"""A test that hangs ends the run and shows where every thread stands.

    test begins --> deadline --300 s--> all stacks, then the process ends      by a Python thread
                             --310 s--> the same                              by faulthandler

Two stages, because each is blind where the other sees. A Python thread needs the interpreter lock,
so it cannot speak while C code sits on it. faulthandler reads the frames of the other threads
without that lock: where they run, the frames change under it, and the interpreter crashes in the
middle of the dump. So it has its turn only when the first stage did not come to it: then nothing
runs that could change a frame.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import traceback

HANG_S = float(os.environ.get("HALOCLINE_HANG_S", "300"))
STUCK_S = HANG_S + 10
"""When the interpreter itself is stuck."""


class Watchdog:
    """One for the process. It watches one test at a time."""

    def __init__(self, stderr: int) -> None:
        self._stderr = stderr
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._what = ""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin(self, what: str) -> None:
        """A test begins."""
        with self._changed:
            self._deadline, self._what = time.monotonic() + HANG_S, what
            self._changed.notify()
        faulthandler.dump_traceback_later(STUCK_S, file=self._stderr, exit=True)

    def end(self) -> None:
        """It has ended."""
        faulthandler.cancel_dump_traceback_later()
        with self._changed:
            self._deadline = None

    def _watch(self) -> None:
        with self._changed:
            while True:
                left = None if self._deadline is None else self._deadline - time.monotonic()
                if left is not None and left <= 0:
                    self._bark()
                self._changed.wait(left)

    def _bark(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        lines = [f"\n{self._what} has run for {HANG_S:.0f} s: it hangs.\n"]
        for ident, frame in sys._current_frames().items():
            lines.append(f"\nThread {names.get(ident, ident)}:\n")
            lines += traceback.format_stack(frame)
        os.write(self._stderr, "".join(lines).encode())
        os._exit(1)
