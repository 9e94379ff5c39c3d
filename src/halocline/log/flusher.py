"""The thread that syncs in async mode: one sync for all that was written in the last 50 ms.

    touch() --wakes--> [ wait for the interval ] --> sync() --> sleep until the next touch

It sleeps on bells: an idle database costs nothing. It is a daemon, so a program that forgets to
close its database can still end; what it had written is in the hands of the operating system.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from halocline.log.bell import Bell


class Flusher:
    """Calls `sync` soon after `touch`, from a thread of its own; `fail` if that raises."""

    def __init__(
        self, interval: float, sync: Callable[[], None], fail: Callable[[BaseException], None]
    ) -> None:
        self._interval = interval
        self._sync = sync
        self._fail = fail
        self._touched = Bell()
        self._stopping = Bell()
        self._thread = threading.Thread(target=self._run, name="halocline-flusher", daemon=True)
        self._thread.start()

    def touch(self) -> None:
        """Something was written."""
        self._touched.ring()

    def stop(self) -> None:
        """End the thread; a sync that runs is finished first. Whoever stops it syncs the rest."""
        self._stopping.ring()
        self._touched.ring()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.rung:
            self._touched.wait()
            if self._stopping.wait(self._interval):
                return
            # Before the sync: what is written during it must be noticed again. `stop` rings
            # _stopping first, so a touch of its that is hushed here is seen by the loop.
            self._touched.hush()
            try:
                self._sync()
            except BaseException as error:  # noqa: BLE001 a thread has nobody else to tell
                self._fail(error)
                return
