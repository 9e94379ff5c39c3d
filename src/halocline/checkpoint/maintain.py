"""Maintenance in rounds: look at a database, do what is owed, look again; once, or until stopped.

    health() --owed--> flush --> compact --> checkpoint --> gc --> health() --> rest --> ...

What is done is what `health()` says, in an order in which each step helps the next: rows that leave
memory can be merged, merged objects shorten a checkpoint, and what has ended can go. Who rewrites
objects is the caller's business: this process, or Spark, which is also asked when nothing is owed
here, because it may fold what is too large for this process.

A step that fails is told and does not keep the others from their work. Stopping breaks off what
runs, between two commits at the latest: the work is done in a thread of its own, so that Ctrl-C
never falls into the middle of one.

Not here: what is owed and why (database/health.py), what each step does (its room).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, Final, Literal, Protocol

from halocline.clock import SystemClock
from halocline.compaction import Runner
from halocline.errors import HaloclineError, UnavailableError
from halocline.show import report_html

ChoreKind = Literal["flush", "compact", "checkpoint", "gc"]
ORDER: Final[tuple[ChoreKind, ...]] = ("flush", "compact", "checkpoint", "gc")
_WORK: Final[dict[str, ChoreKind]] = {"move": "flush", **{work: work for work in ORDER}}
"""What health() calls it -> what is done about it."""
PASSES_MAX: Final = 8
"""Looks of one round: writers may go on making work for ever."""
WAIT_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Chore:
    """One piece of work; for one table, or for all."""

    work: ChoreKind
    table: str | None = None

    def __str__(self) -> str:
        return f"{self.work} {self.table}" if self.table else self.work


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """A piece of news for the one who watches."""

    kind: Literal["began", "tasks", "done", "failed", "rest"]
    chore: Chore | None = None
    report: Any = None
    """What the step returned, or the error it raised."""
    done: int = 0
    total: int = 0
    """Tasks of a Spark job."""
    seconds: float = 0.0
    """Until the next round."""


OnNews = Callable[[News], None]
RunnerOf = Callable[[Callable[[], None], Callable[[int, int], None]], Runner]
"""Who rewrites objects: told how to ask whether to go on, which raises, and how to count tasks."""


class Stop(Protocol):
    """Says when to stop: a `threading.Event`, or a Flag. It is asked, never waited for."""

    def is_set(self) -> bool: ...


class Flag:
    """What a signal handler may set at any moment: an Event has a lock, and may be in it."""

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True


@dataclass(slots=True)
class MaintenanceReport:
    """What was done, what failed, and what is still owed."""

    rounds: int = 0
    done: list[tuple[Chore, Any]] = field(default_factory=list)
    """Each step with the report of its own; of a long run the newest thousand."""
    troubles: dict[str, str] = field(default_factory=dict)
    """Steps that failed the last time they ran, and why."""
    left: tuple[str, ...] = ()
    """What the last look found owed, in words."""
    stopped: bool = False
    """It was broken off."""

    def __str__(self) -> str:
        lines = [f"{chore}: {report}" for chore, report in self.done] or ["nothing to do"]
        lines += [f"failed: {name}: {why}" for name, why in self.troubles.items()]
        lines += [f"still owed: {text}" for text in self.left]
        return "\n".join(lines)

    __repr__ = __str__
    _repr_html_ = report_html


class StoppedError(UnavailableError):
    """The work was broken off on request."""


def maintain(
    db: Any,
    runner_of: RunnerOf,
    *,
    interval_s: float,
    once: bool = False,
    watch: OnNews | None = None,
    stop: Stop | None = None,
    everywhere: bool = False,
) -> MaintenanceReport:
    """Do what is owed; unless `once`, again and again until `stop` is set or Ctrl-C is pressed.

    `everywhere`: ask for compaction of all tables in each round, owed or not. Ctrl-C ends a loop
    as it should; with `once` it is raised, after what ran has been broken off.
    """
    rounds = _Rounds(db, runner_of, watch or (lambda news: None), stop, everywhere)
    thread = Thread(target=rounds.run, args=(interval_s, once), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(WAIT_S)
    except BaseException as error:
        rounds.broken = True
        thread.join()
        rounds.report.stopped = True
        if once or not isinstance(error, KeyboardInterrupt):
            raise
    if rounds.error is not None:
        raise rounds.error
    return rounds.report


class _Rounds:
    """One call of `maintain`."""

    def __init__(
        self, db: Any, runner_of: RunnerOf, watch: OnNews, stop: Stop | None, everywhere: bool
    ) -> None:
        self._db, self._runner_of, self._watch = db, runner_of, watch
        self._everywhere = everywhere
        self._stop = stop
        self.broken = False
        """The thread that waits for us was interrupted."""
        self.report = MaintenanceReport()
        self.error: BaseException | None = None

    def run(self, interval_s: float, once: bool) -> None:
        clock = SystemClock()
        try:
            while not self._is_over():
                self._round()
                if once:
                    return
                self._watch(News(kind="rest", seconds=interval_s))
                until = clock.monotonic() + interval_s
                while not self._is_over() and (left := until - clock.monotonic()) > 0:
                    clock.sleep(min(left, WAIT_S))
            self.report.stopped = True
        except BaseException as error:  # noqa: BLE001 the caller's thread raises it
            self.error = error

    def _round(self) -> None:
        report = self.report
        # The first round also sweeps up what jobs of a crashed process have left.
        extra = [Chore("gc")] if not report.rounds else []
        extra += [Chore("compact")] if self._everywhere else []
        report.rounds += 1
        seen: list[str] = []
        for _ in range(PASSES_MAX):
            owed = self._look()
            words = sorted(report.left)
            if not extra and (not words or words == seen):
                return  # nothing to do, or nothing that helps
            for chore in _ordered([*owed, *extra]):
                if self._is_over():
                    report.stopped = True
                    return
                self._do(chore)
            seen, extra = words, []
        self._look()

    def _look(self) -> list[Chore]:
        owed = self._db.health().owed
        self.report.left = tuple(map(str, owed))
        return [Chore(_WORK[one.work], one.table or None) for one in owed]

    def _do(self, chore: Chore) -> None:
        self._watch(News(kind="began", chore=chore))
        try:
            result = self._call(chore)
        except StoppedError:
            self.report.stopped = True
        except HaloclineError as error:
            self.report.troubles[str(chore)] = f"{type(error).__name__}: {error}"
            self._watch(News(kind="failed", chore=chore, report=error))
        else:
            self.report.troubles.pop(str(chore), None)
            self.report.done = [*self.report.done[-999:], (chore, result)]
            self._watch(News(kind="done", chore=chore, report=result))

    def _call(self, chore: Chore) -> Any:
        def tasks(done: int, total: int) -> None:
            self._watch(News(kind="tasks", chore=chore, done=done, total=total))

        if chore.work == "flush":
            return self._db.flush(chore.table)
        if chore.work == "compact":
            return self._db.compact(chore.table, runner=self._runner_of(self._go_on, tasks))
        return self._db.checkpoint() if chore.work == "checkpoint" else self._db.gc()

    def _is_over(self) -> bool:
        return self.broken or (self._stop is not None and self._stop.is_set())

    def _go_on(self) -> None:
        if self._is_over():
            raise StoppedError("the work was broken off")


def _ordered(chores: list[Chore]) -> Iterator[Chore]:
    """Each chore once, in the order of the work; one for all tables includes each."""
    for work in ORDER:
        same = [chore for chore in dict.fromkeys(chores) if chore.work == work]
        whole = [chore for chore in same if chore.table is None]
        yield from whole or same
