"""A bell wakes the one who waits, and an interrupt at any step of the others leaves it in order."""

from __future__ import annotations

import threading
from collections.abc import Callable

from halocline.log.bell import Bell
from halocline.log.flusher import Flusher
from halocline.mover.background import Background
from tests.clock import ManualClock
from tests.sim.interrupts import strike

WAIT_S = 30.0
ROUNDS = 20


def test_a_ring_is_heard_once_however_often_it_rang() -> None:
    bell = Bell()
    assert not bell.rung
    assert not bell.wait(0)
    bell.ring()
    bell.ring()
    assert bell.rung
    assert bell.wait(0)
    assert not bell.rung
    assert not bell.wait(0)
    bell.ring()
    bell.hush()
    bell.hush()
    assert not bell.wait(0)


def test_who_waits_is_woken() -> None:
    bell, heard = Bell(), threading.Event()

    def wait() -> None:
        bell.wait()
        heard.set()

    threading.Thread(target=wait, daemon=True).start()
    bell.ring()
    assert heard.wait(WAIT_S)


def _strike_everywhere(call: Callable[[], object]) -> int:
    """Ctrl-C at each opcode of a call, in the threading module too; returns how many there are."""
    k = 1
    while strike(k, "signal", call, beside=(threading.__file__,)).hit:
        k += 1
    return k - 1


def _ends(stop: Callable[[], object]) -> bool:
    """Does it return? In a thread of its own: if not, the test fails instead of hanging."""
    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    return not thread.is_alive()


def test_a_flusher_survives_an_interrupt_at_any_step_of_whoever_touches_it() -> None:
    """With a threading.Event it hung: its lock went with the thread that was interrupted."""
    synced = Bell()
    flusher = Flusher(0.0, synced.ring, lambda error: None)
    for _ in range(ROUNDS):
        _strike_everywhere(flusher.touch)
        synced.hush()
        flusher.touch()
        assert synced.wait(WAIT_S), "what was written is never synced"
    assert _ends(flusher.stop)


def test_a_flusher_that_is_stopped_just_before_it_syncs_ends() -> None:
    flusher = Flusher(0.0, lambda: None, lambda error: None)
    touched = flusher._touched

    class Late(Bell):
        """`stop` rings between the end of the interval and this."""

        def hush(self) -> None:
            flusher._stopping.ring()
            self.ring()
            super().hush()

    flusher._touched = Late()
    touched.ring()
    flusher._thread.join(WAIT_S)
    assert not flusher._thread.is_alive()


def test_a_background_survives_an_interrupt_at_any_step_of_whoever_wakes_it() -> None:
    ran = Bell()
    background = Background(ManualClock(), lambda: True)
    background.add("ring", ran.ring)
    background.start(ran.__class__)  # an owner that outlives the test
    for _ in range(ROUNDS):
        _strike_everywhere(background.wake)
        ran.hush()
        background.wake()
        assert ran.wait(WAIT_S)
    assert _ends(background.stop)
