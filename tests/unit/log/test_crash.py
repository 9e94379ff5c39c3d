"""A crash at every operation: acknowledged entries survive, the rest is whole or absent, in order.

The workload appends, rolls over files of all sizes, truncates, closes and opens again. It is run
once to count its operations and then once per operation, which is where the machine stops. What
the disk may hold then is drawn from a seed, several times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from halocline.log import Log
from halocline.log.format import AC, CKP, Entry
from halocline.log.recover import read_log
from halocline.options import Durability
from tests.store.faulty import FaultyFiles, SimulatedCrash
from tests.unit.log.rig import TINY, commit, payload, recovered, start

SIZES = (30, 200, 600, 30, 0, 5000, 100, 1500, 60, 60, 700, 40)
SEEDS = range(5)


class Run:
    """The workload, and what it was told."""

    def __init__(self, files: FaultyFiles, durability: Durability = "sync") -> None:
        self.files = files
        self.durability: Durability = durability
        self.sent: list[bytes] = []
        self.acknowledged = 0
        self.removed = 0
        """Entries that truncation may have taken from the front."""

    def go(self) -> None:
        with self._opened() as log:
            for size in SIZES[:7]:
                self._commit(log, size)
        with self._opened() as log:
            self._group(log)
            for size in SIZES[7:]:
                self._commit(log, size)
            self.sent.append(b"checkpoint")
            commit(log, self.sent[-1], group=3, type=CKP)
            self.acknowledged = len(self.sent)
            self.removed = self.acknowledged
            log.truncate_before(3)
            self._commit(log, 50)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Log]:
        log, recovery = start(self.files, TINY, self.durability)
        assert recovery.next_order == len(self.sent) + 1
        try:
            yield log
            log.close()
        finally:
            # Ends the flusher's thread, also of a machine that has stopped.
            with contextlib.suppress(SimulatedCrash):
                log.poison(RuntimeError("over"))
                log.close()

    def _commit(self, log: Log, size: int) -> None:
        content = payload(len(self.sent), size)
        self.sent.append(content)
        commit(log, content, len(self.sent))
        self.acknowledged = len(self.sent)

    def _group(self, log: Log) -> None:
        """Three entries, one sync."""
        log.reserve(2000)
        for size in (500, 20, 700):
            self.sent.append(payload(len(self.sent), size))
            order = log.append(1, AC, self.sent[-1], len(self.sent))
        log.wait(order)
        self.acknowledged = len(self.sent)


def _crash_points(durability: Durability) -> list[int]:
    files = FaultyFiles()
    Run(files, durability).go()
    return files.crash_points()


def _stopped(point: int, moment: str, durability: Durability = "sync") -> Run:
    """The workload on a machine that stops at this operation."""
    run = Run(FaultyFiles(), durability)
    run.files.crash(point, moment)  # type: ignore[arg-type]
    with pytest.raises(SimulatedCrash):
        run.go()
    return run


def _check(run: Run, found: list[Entry], at_least: int) -> None:
    """Orders without a gap, every payload as it was sent, nothing acknowledged missing."""
    first = found[0].order if found else 1
    assert first - 1 <= run.removed
    assert [one.order for one in found] == list(range(first, first + len(found)))
    assert [one.payload for one in found] == run.sent[first - 1 : first - 1 + len(found)]
    assert first - 1 + len(found) >= at_least


@pytest.mark.parametrize("moment", ["before", "inside", "after"])
def test_crash_at_every_operation(moment: str) -> None:
    points = _crash_points("sync")
    assert len(points) > 60
    for point in points:
        run = _stopped(point, moment)
        for seed in SEEDS:
            image = run.files.crash_image(seed)
            looked = list(read_log(image, TINY).entries())
            found = list(recovered(image).entries())
            _check(run, found, run.acknowledged)
            assert looked == found, (point, seed)
            assert list(recovered(image).entries()) == found, (point, seed)
            # What recovery has told is durable from now on.
            assert list(recovered(image.crash_image(none=True)).entries()) == found, (point, seed)


def test_a_killed_process_loses_nothing_it_gave_away() -> None:
    for point in _crash_points("async"):
        run = _stopped(point, "before", "async")
        image = run.files.crash_image(all=True)
        found = list(recovered(image).entries())
        _check(run, found, run.acknowledged)
        # A file that was being deleted may come back; nothing else changes.
        later = list(recovered(image.crash_image(none=True)).entries())
        assert later[len(later) - len(found) :] == found


def test_async_loses_only_a_tail_in_a_power_loss_and_is_never_refused() -> None:
    lost = 0
    for point in _crash_points("async"):
        run = _stopped(point, "inside", "async")
        for seed in SEEDS:
            image = run.files.crash_image(seed)
            found = list(recovered(image).entries())
            _check(run, found, 0)
            assert list(recovered(image).entries()) == found, (point, seed)
            lost += run.acknowledged > (found[-1].order if found else 0)
    assert lost > 20


def test_crash_at_every_operation_of_the_recovery_and_of_the_next_start() -> None:
    for point in _crash_points("sync"):
        run = _stopped(point, "inside")
        base = run.files.crash_image(point % 7)
        expected = list(read_log(base, TINY).entries())
        again = base.crash_image(none=True)
        start(again)[0].close()
        for second in again.crash_points():
            broken = base.crash_image(none=True)
            broken.crash(second, "inside")
            with pytest.raises(SimulatedCrash):
                start(broken)[0].close()
            for seed in (second, second + 100):
                image = broken.crash_image(seed)
                assert list(recovered(image).entries()) == expected, (point, second, seed)


@pytest.mark.parametrize("seed", range(40))
def test_crashes_upon_crashes_and_life_goes_on(seed: int) -> None:
    """Recover, write, crash, several times over: nothing that was acknowledged is ever lost."""
    points = _crash_points("sync")
    run = Run(FaultyFiles())
    sent: list[bytes] = []
    for depth in range(6):
        run.files.crash(points[(seed * 37 + depth * 11) % len(points)], "inside")
        acknowledged = len(sent)
        try:
            log, recovery = start(run.files)
            found = [one.payload for one in recovery.entries()]
            assert found == sent[: len(found)]
            assert len(found) >= acknowledged
            sent = found
            while True:
                content = payload(len(sent), SIZES[len(sent) % len(SIZES)])
                sent.append(content)
                commit(log, content)
                acknowledged = len(sent)
        except SimulatedCrash:
            image = run.files.crash_image(seed * 100 + depth)
        found = [one.payload for one in recovered(image.crash_image(none=True)).entries()]
        assert found == sent[: len(found)], (seed, depth)
        assert len(found) >= acknowledged, (seed, depth)
        sent = found
        run.files = image
    assert len(sent) > 5
