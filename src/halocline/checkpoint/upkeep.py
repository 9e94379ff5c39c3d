"""Upkeep: look at a database, do what is owed, look again; once, or until it is stopped.

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
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from halocline.clock import SystemClock
from halocline.errors import HaloclineError, UnavailableError
from halocline.show import report_html

if TYPE_CHECKING:
    from halocline.database.health import Health

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


class Maintained(Protocol):
    """A database that is open for writing."""

    def health(self) -> Health: ...

    def flush(self, table: str | None = None) -> Any: ...

    def checkpoint(self) -> Any: ...

    def gc(self) -> Any: ...


class Compact(Protocol):
    """Brings a table, or all, into shape; `go_on` raises to break it off."""

    def __call__(
        self,
        table: str | None,
        *,
        go_on: Callable[[], None],
        tasks: Callable[[int, int], None],
    ) -> Any: ...


@dataclass(slots=True)
class UpkeepReport:
    """What was done, what failed, and what is still owed."""

    rounds: int = 0
    done: list[tuple[Chore, Any]] = field(default_factory=list)
    """Each step with the report of its own; of a long run the newest thousand."""
    troubles: dict[str, str] = field(default_factory=dict)
    """Steps that failed the last time they ran, and why."""
    left: tuple[str, ...] = ()
    """What the last look found owed, in words."""
    stopped: bool = False
    """Somebody broke it off."""

    def __str__(self) -> str:
        lines = [f"{chore}: {report}" for chore, report in self.done] or ["nothing to do"]
        lines += [f"failed: {name}: {why}" for name, why in self.troubles.items()]
        lines += [f"still owed: {text}" for text in self.left]
        return "\n".join(lines)

    __repr__ = __str__
    _repr_html_ = report_html


class StoppedError(UnavailableError):
    """The work was broken off on request."""


def keep_up(
    db: Maintained,
    compact: Compact,
    *,
    interval_s: float,
    once: bool = False,
    watch: OnNews | None = None,
    stop: Stop | None = None,
    everywhere: bool = False,
) -> UpkeepReport:
    """Do what is owed; unless `once`, again and again until `stop` is set or Ctrl-C is pressed.

    `everywhere`: ask for compaction of all tables in each round, owed or not. Ctrl-C ends a loop
    as it should; with `once` it is raised, after what ran has been broken off.
    """
    keeper = _Keeper(db, compact, watch or (lambda news: None), stop, everywhere)
    thread = Thread(target=keeper.run, args=(interval_s, once), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(WAIT_S)
    except BaseException as error:
        keeper.broken = True
        thread.join()
        keeper.report.stopped = True
        if once or not isinstance(error, KeyboardInterrupt):
            raise
    if keeper.error is not None:
        raise keeper.error
    return keeper.report


class _Keeper:
    """One call of `keep_up`."""

    def __init__(
        self, db: Maintained, compact: Compact, watch: OnNews, stop: Stop | None, everywhere: bool
    ) -> None:
        self._db, self._compact, self._watch = db, compact, watch
        self._everywhere = everywhere
        self._stop = stop
        self.broken = False
        """The thread that waits for us was interrupted."""
        self.report = UpkeepReport()
        self.error: BaseException | None = None

    def run(self, interval_s: float, once: bool) -> None:
        try:
            while not self._is_over():
                self._round()
                if once:
                    return
                self._watch(News(kind="rest", seconds=interval_s))
                self._rest(interval_s)
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
            health = self._db.health()
            report.left = tuple(map(str, health.owed))
            words = sorted(report.left)
            if not extra and (not words or words == seen):
                return  # nothing to do, or nothing that helps
            for chore in _ordered(health, extra):
                if self._is_over():
                    report.stopped = True
                    return
                self._do(chore)
            seen, extra = words, []
        report.left = tuple(map(str, self._db.health().owed))

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
        db = self._db
        if chore.work == "flush":
            return db.flush(chore.table)
        if chore.work == "checkpoint":
            return db.checkpoint()
        if chore.work == "gc":
            return db.gc()

        def tasks(done: int, total: int) -> None:
            self._watch(News(kind="tasks", chore=chore, done=done, total=total))

        return self._compact(chore.table, go_on=self._go_on, tasks=tasks)

    def _is_over(self) -> bool:
        return self.broken or (self._stop is not None and self._stop.is_set())

    def _rest(self, seconds: float) -> None:
        clock = SystemClock()
        until = clock.monotonic() + seconds
        while not self._is_over() and (left := until - clock.monotonic()) > 0:
            clock.sleep(min(left, WAIT_S))

    def _go_on(self) -> None:
        if self._is_over():
            raise StoppedError("the work was broken off")


def _ordered(health: Health, extra: list[Chore]) -> Iterator[Chore]:
    """What is owed, each chore once, in the order of the work; all tables include each."""
    owed = [Chore(_WORK[one.work], one.table or None) for one in health.owed]
    chores = list(dict.fromkeys([*owed, *extra]))
    for work in ORDER:
        same = [chore for chore in chores if chore.work == work]
        whole = [chore for chore in same if chore.table is None]
        yield from whole or same
