"""Group commit: leaders and followers, failures, interrupts at every step. Nobody ever hangs."""

from __future__ import annotations

import errno
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import halocline.log
from halocline.errors import UnavailableError
from halocline.log import Log
from halocline.log.format import AC
from halocline.log.published import read_published
from halocline.options import Options
from halocline.store import LocalFiles
from tests.store.faulty import FaultyFiles
from tests.unit.log.rig import ROOMY, TINY, commit, payload, payloads, recovered, start

LOG_ROOM = str(Path(halocline.log.__file__).parent)
PATIENCE = 20.0


class Committers:
    """Threads that commit one entry each and note what became of it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.lock = threading.Lock()
        self.outcomes: dict[int, str] = {}
        self._threads: list[threading.Thread] = []

    def begin(self, number: int) -> None:
        thread = threading.Thread(target=self._commit, args=(number,))
        self._threads.append(thread)
        thread.start()

    def begin_and_park(self, number: int) -> None:
        """Return when the thread waits for somebody else's work."""
        before = len(self.log._line._waiting)
        self.begin(number)
        while len(self.log._line._waiting) == before:
            assert self._threads[-1].is_alive()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a committer hangs"
        self._threads.clear()

    def _commit(self, number: int) -> None:
        try:
            with self.lock:
                self.log.reserve(100)
                order = self.log.append(1, AC, payload(number), number)
            self.log.wait(order)
        except UnavailableError as error:
            self.outcomes[number] = error.outcome
        else:
            self.outcomes[number] = "committed"


class Strike:
    """Raises KeyboardInterrupt at one step (bytecode) of this thread inside the log room."""

    def __init__(self, step: int) -> None:
        self._left = step
        self.struck = False

    def during(self, work: Callable[[], object]) -> bool:
        """Run it; True if it was interrupted."""
        sys.settrace(self._enter)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    def from_here(self, work: Callable[[], None]) -> Callable[[], None]:
        """The same function; from its first call on this thread is watched (again).

        Python stops tracing when a trace function raises, hence a second one.
        """

        def watched() -> None:
            sys.settrace(self._enter)
            work()

        return watched

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(LOG_ROOM):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._watch

    def _watch(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self._left -= 1
            if self._left == 0:
                self.struck = True
                raise KeyboardInterrupt
        return self._watch


def test_eight_threads_share_syncs_and_every_order_is_durable(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    options = Options(log_file_bytes_first=16384, log_file_bytes=16384)
    log, _ = start(files, options)
    lock = threading.Lock()
    each, count = 100, 8
    seen: list[tuple[int, bytes]] = []
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for number in range(each):
                content = payload(thread * each + number, 150)
                with lock:
                    log.reserve(len(content))
                    order = log.append(1, AC, content, log._next.order)
                log.wait(order)
                assert log.visible_ts >= order
                seen.append((order, content))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert failures == []
    published = read_published(files)
    assert published is not None
    log.close()
    assert payloads(recovered(files, options)) == [content for _, content in sorted(seen)]
    assert len(seen) == each * count
    # One publication per sync; there are fewer of them than commits.
    assert published.sequence % (1 << 32) < each * count * 0.8


def test_followers_that_came_during_a_sync_share_the_next_one() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    others = Committers(log)

    def arrive() -> None:
        for number in range(1, 8):
            others.begin_and_park(number)

    files.delay(1, arrive, kind="sync")
    before = len(files.operations)
    commit(log, payload(0))
    others.join()
    assert set(others.outcomes.values()) == {"committed"}
    kinds = [one.kind for one in files.operations[before:]]
    assert kinds == ["write", "sync", "write", "sync"]
    assert payloads(recovered(files.crash_image(none=True), ROOMY)) == [
        payload(number) for number in range(8)
    ]


def test_a_failed_sync_tells_every_waiter_unknown_and_stops_the_log() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    commit(log, payload(0), 1)
    others = Committers(log)
    files.delay(1, lambda: [others.begin_and_park(n) for n in (2, 3, 4)], kind="sync")
    files.fail(1, errno.EIO, kind="sync")
    log.reserve(100)
    order = log.append(1, AC, payload(1), 2)
    with pytest.raises(UnavailableError) as caught:
        log.wait(order)
    others.join()
    assert caught.value.outcome == "unknown"
    assert others.outcomes == {2: "unknown", 3: "unknown", 4: "unknown"}
    assert isinstance(log.failed, OSError)
    assert log.visible_ts == 1
    for attempt in (lambda: log.reserve(1), lambda: log.append(1, AC, b"x")):
        with pytest.raises(UnavailableError) as caught:
            attempt()
        assert caught.value.outcome == "not_committed"
    with pytest.raises(UnavailableError):
        log.wait_visible(5, 0.0)
    log.close()  # all who waited have been told
    log.close()
    for seed in range(20):
        found = payloads(recovered(files.crash_image(seed), ROOMY))
        assert found == [payload(number) for number in range(len(found))]
        assert len(found) >= 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_inside_reserved_space_is_like_a_failed_sync(code: int) -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    commit(log, payload(0))
    log.reserve(100)
    order = log.append(1, AC, payload(1))
    files.tear(1, 60, code)
    with pytest.raises(UnavailableError) as caught:
        log.wait(order)
    assert caught.value.outcome == "unknown"
    assert payloads(recovered(files.crash_image(all=True), ROOMY)) == [payload(0)]


def test_a_failed_sync_while_sealing_a_file_leaves_nothing_committed() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    log.reserve(500)
    order = log.append(1, AC, payload(0, 500))
    files.fail(1, errno.EIO, kind="sync", path="log/00000001")
    with pytest.raises(UnavailableError) as caught:
        log.reserve(1200)
    assert caught.value.outcome == "not_committed"
    with pytest.raises(UnavailableError) as caught:
        log.wait(order)
    assert caught.value.outcome == "unknown"


def test_a_flusher_that_fails_stops_the_log_and_close_says_so() -> None:
    files = FaultyFiles()
    log, _ = start(files, Options(async_sync_ms=1), "async")
    files.fail(1, errno.EIO, kind="sync")
    commit(log, b"x", 1)
    while log.failed is None:
        assert log._flusher is not None
    with pytest.raises(UnavailableError) as caught:
        log.reserve(1)
    assert caught.value.outcome == "not_committed"
    with pytest.raises(UnavailableError) as caught:
        log.close()
    assert caught.value.outcome == "unknown"


def test_poison_wakes_everybody() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    others = Committers(log)

    def meanwhile() -> None:
        others.begin_and_park(2)
        others.begin_and_park(3)
        other = threading.Thread(target=log.poison, args=(RuntimeError("half a fold"),))
        other.start()
        other.join()
        others.join()

    files.delay(1, meanwhile, kind="sync")
    order = commit(log, payload(1), 1)
    # The leader's own entry was durable all the same.
    assert others.outcomes == {2: "unknown", 3: "unknown"}
    assert order == 1
    assert str(log.failed) == "half a fold"


def test_wait_visible_returns_when_it_is_and_gives_up_in_time() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    assert not log.wait_visible(1, 0.001)
    answers: list[bool] = []
    watcher = threading.Thread(target=lambda: answers.append(log.wait_visible(3, PATIENCE)))
    watcher.start()
    for ts in (1, 2, 3):
        while not log.watchers.watching and ts < 3:
            assert watcher.is_alive()
        commit(log, payload(ts), ts)
    watcher.join(PATIENCE)
    assert answers == [True]
    assert log.wait_visible(3, 0.0)
    assert log.watchers.watching == []


def test_an_interrupt_at_any_step_of_a_lone_wait_is_harmless() -> None:
    files = FaultyFiles()
    options = Options(log_file_bytes_first=1 << 20)
    log, _ = start(files, options)
    others = Committers(log)
    step, sent, before_it_began = 1, 0, 0
    while True:
        log.reserve(100)
        sent += 1
        order = log.append(1, AC, payload(sent), sent)
        interrupted = Strike(step).during(lambda order=order: log.wait(order))
        assert log.failed is None
        if log._tape.durable < order:
            before_it_began += 1
            assert before_it_began == step
        else:
            assert log.visible_ts >= sent, step
        sent += 1
        others.begin(sent)
        others.join()
        assert others.outcomes.pop(sent) == "committed", step
        assert log._tape.durable >= order, step
        if not interrupted:
            break
        step += 1
    assert step > 150
    assert before_it_began < 10
    log.close()
    assert payloads(recovered(files, options)) == [payload(number + 1) for number in range(sent)]


def test_an_interrupt_at_any_step_of_a_leader_wakes_its_followers() -> None:
    step = 1
    while True:
        files = FaultyFiles()
        log, _ = start(files, ROOMY)
        others = Committers(log)
        files.delay(1, lambda others=others: others.begin_and_park(2), kind="sync")
        log.reserve(100)
        order = log.append(1, AC, payload(1), 1)
        interrupted = Strike(step).during(lambda log=log, order=order: log.wait(order))
        others.join()
        assert others.outcomes == ({2: "committed"} if others.outcomes else {}), step
        others.begin(3)
        others.join()
        assert others.outcomes[3] == "committed", step
        assert log.failed is None
        assert log._tape.durable == log._next.order - 1, step
        if not interrupted:
            break
        step += 1
    assert step > 150


def test_a_second_interrupt_never_hangs_anybody() -> None:
    draw = random.Random(3)
    poisoned = twice = 0
    for _ in range(300):
        first, second = draw.randrange(1, 320), draw.randrange(1, 200)
        files = FaultyFiles()
        log, _ = start(files, ROOMY)
        others = Committers(log)
        files.delay(1, lambda others=others: others.begin_and_park(2), kind="sync")
        log.reserve(100)
        order = log.append(1, AC, payload(1), 1)
        again = Strike(second)
        log._resume = again.from_here(log._resume)
        strike = Strike(first)
        assert strike.during(lambda log=log, order=order: log.wait(order)) == strike.struck
        twice += again.struck
        others.begin(3)
        others.join()
        if log.failed is None:
            assert others.outcomes[3] == "committed", (first, second)
        else:
            poisoned += 1
            assert others.outcomes[3] in {"not_committed", "unknown"}, (first, second)
    assert twice > 100
    assert 20 < poisoned <= twice


def test_an_interrupt_at_any_step_of_append_or_a_roll_poisons_or_leaves_nothing() -> None:
    for step in range(1, 3000):
        files = FaultyFiles()
        log, _ = start(files, TINY)
        commit(log, payload(0, 500))

        def work(log: Log = log) -> None:
            log.reserve(1200)
            log.append(1, AC, payload(1, 1200))

        interrupted = Strike(step).during(work)
        if log.failed is None:
            # Nobody holds the lead, and the log goes on as if nothing had happened.
            commit(log, payload(2, 1200))
        found = payloads(recovered(files.crash_image(none=True)))
        assert found[0] == payload(0, 500), step
        assert found[1:] in ([], [payload(2, 1200)], [payload(1, 1200), payload(2, 1200)]), step
        assert (found[-1] == payload(2, 1200)) == (log.failed is None), step
        if not interrupted:
            break
    else:
        pytest.fail("never got through")
    assert step > 200


@pytest.mark.slow
def test_ctrl_c_while_parked_is_raised_after_the_commit_is_durable() -> None:
    """A real signal, in the main thread, while another thread leads."""
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    others = Committers(log)
    parked, struck, over = threading.Event(), threading.Event(), threading.Event()
    files.delay(1, lambda: (parked.set(), struck.wait(PATIENCE)), kind="sync")
    others.begin(1)
    assert parked.wait(PATIENCE)

    def interrupt() -> None:
        first = None
        while not (first := ticket()):
            over.wait(0.001)
        # It wakes up, remembers, and parks again with another ticket. A signal that comes just
        # before a thread blocks does not wake it (Python looks for signals first): strike again.
        while ticket() in (None, first) and not over.is_set():
            signal.pthread_kill(main.ident or 0, signal.SIGINT)
            patience = time.monotonic() + 0.5
            while ticket() in (None, first) and time.monotonic() < patience:
                over.wait(0.001)
        struck.set()

    def ticket() -> object:
        """What the main thread is parked on."""
        return next((waiting[2] for waiting in list(log._line._waiting)), None)

    main = threading.main_thread()
    assert threading.current_thread() is main
    killer = threading.Thread(target=interrupt)
    with others.lock:
        log.reserve(100)
        order = log.append(1, AC, payload(2), 2)
    killer.start()
    with pytest.raises(KeyboardInterrupt):
        log.wait(order)
    over.set()
    killer.join(PATIENCE)
    others.join()
    assert log.failed is None
    assert log.visible_ts == 2
    assert len(payloads(recovered(files.crash_image(none=True), ROOMY))) == 2
