"""Bell: one thread waits, any other rings. Ctrl-C may strike at any moment.

    ring() --> [ rung ] --wait()--> the thread goes on, and the bell is silent again

It is a lock that is held while the bell is silent. So ringing, waiting and asking are one step of
the interpreter each, and an interrupt comes before or after it. `threading.Event` will not do: it
has a lock of its own, taken in Python, and a thread that is interrupted just behind that takes it
along; then whoever rings or waits next waits for ever.
"""

from __future__ import annotations

from _thread import allocate_lock

from halocline.log.line import wake


class Bell:
    """Silent until somebody rings it."""

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        self._silence = allocate_lock()
        self._silence.acquire()

    @property
    def rung(self) -> bool:
        """Has it been rung since somebody last waited?"""
        return not self._silence.locked()

    def ring(self) -> None:
        """Wake who waits, or who will. Ringing twice is ringing once."""
        if self._silence.locked():  # 0.05 us when it has been rung already
            wake(self._silence)

    def wait(self, seconds: float = -1) -> bool:
        """Until it rings, or for so long; True if it did. It is silent afterwards."""
        return self._silence.acquire(timeout=seconds)

    def hush(self) -> None:
        """Forget that it was rung."""
        self._silence.acquire(blocking=False)
