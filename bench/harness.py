"""Measuring: every side in a process of its own, taking turns.

    case --start--> ours | peer | others      one worker process each, in sibling directories
         --round 0--> ours, peer, others      one after the other, never at once
         --round 1--> others, peer, ours      there and back: nobody always runs behind the
         ...                                  same neighbour's dirty pages
                                              --> median, range, ratio of neighbours

Processes, because garbage collection walks the whole heap: in one process each side would pay for
the other's rows. Turns, because disks and clouds drift: a ratio is taken between two runs that are
neighbours in time, and the case reports the median of those ratios.

A side is a function that opens what it needs in a directory and yields `run`, which does the work
of one round and returns the seconds it took; what it prepares outside its own clock is not counted.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Run = Callable[[int], float]
"""Does round n and returns its seconds."""

# Workers start from a clean interpreter: a fork would share the parent's heap and its file locks.
_CONTEXT = multiprocessing.get_context("spawn")


def is_chosen(name: str, only: str) -> bool:
    """Whether `--only` means this case: its parts, between commas, are parts of names."""
    return any(part in name for part in only.split(","))


class SideFailedError(Exception):
    """A side raised: its traceback is the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One contender. `start(directory, **settings)` is a context manager that yields a `Run`."""

    name: str
    start: Callable[..., AbstractContextManager[Run]]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question: how fast are we at this, next to the peer?

    `target` is the least speed-up over the peer; `others` are shown for information. The first
    `warm_rounds` are not counted: they fill caches and bring files to their steady size.
    """

    name: str
    title: str
    ours: Side
    peer: Side
    target: float
    ops: int
    rounds: int
    warm_rounds: int = 1
    unit: str = "commit"
    others: tuple[Side, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One side's rounds, in microseconds per operation."""

    side: str
    us: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.us)

    @property
    def low(self) -> float:
        return min(self.us)

    @property
    def high(self) -> float:
        return max(self.us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a case found. A side that failed has its error instead of a timing."""

    case: Case
    ours: Timing | None
    peer: Timing | None
    others: tuple[Timing, ...]
    errors: dict[str, str]

    @property
    def ratios(self) -> tuple[float, ...]:
        """How many times faster we were, per round."""
        if self.ours is None or self.peer is None:
            return ()
        return tuple(peer / ours for ours, peer in zip(self.ours.us, self.peer.us, strict=True))

    @property
    def ratio(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def reached(self) -> bool | None:
        return None if self.ratio is None else self.ratio >= self.case.target


@contextmanager
def anew(
    directory: Path, *, start: Callable[..., AbstractContextManager[Run]], **settings: Any
) -> Iterator[Run]:
    """Side: another side's first round, in a new directory every time.

    Opening and closing stay outside the clock.
    """

    def run(number: int) -> float:
        place = directory / str(number)
        place.mkdir()
        with start(place, **settings) as run_first:
            return run_first(0)

    yield run


def run_case(case: Case, directory: Path, *, peers_only: bool = False) -> Result:
    """Run all rounds of a case, its sides taking turns."""
    sides = [case.ours, case.peer, *case.others]
    if peers_only:
        sides = sides[1:]
    workers: dict[str, Worker] = {}
    errors: dict[str, str] = {}
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    try:
        for number, side in enumerate(sides):
            workers[side.name] = Worker(side, directory / f"{case.name}-{number}")
        for number in range(case.warm_rounds + case.rounds):
            for side in reversed(sides) if number % 2 else sides:
                if side.name in errors:
                    continue
                try:
                    took = workers[side.name].run(number)
                except SideFailedError as error:
                    errors[side.name] = str(error)
                    continue
                if number >= case.warm_rounds:
                    seconds[side.name].append(took)
    finally:
        for worker in workers.values():
            worker.stop()
    return _result(case, seconds, errors)


def _result(case: Case, seconds: dict[str, list[float]], errors: dict[str, str]) -> Result:
    def timing(side: Side) -> Timing | None:
        if side.name in errors or not seconds.get(side.name):
            return None
        us = tuple(took / case.ops * 1e6 for took in seconds[side.name])
        return Timing(side=side.name, us=us)

    others = [timing(side) for side in case.others]
    return Result(
        case=case,
        ours=timing(case.ours),
        peer=timing(case.peer),
        others=tuple(other for other in others if other is not None),
        errors=errors,
    )


class Worker:
    """A side in its own process; `run` is a blocking call into it."""

    def __init__(self, side: Side, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(side, directory, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def run(self, number: int) -> float:
        """Do one round; the seconds it took."""
        try:
            self._pipe.send(number)
        except OSError:
            pass  # It has ended already; what it said last is still in the pipe.
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise SideFailedError("the worker process died") from None
        if isinstance(answer, str):
            raise SideFailedError(answer)
        return float(answer)

    def stop(self) -> None:
        """Let the side close what it has open, then end its process."""
        try:
            self._pipe.send(None)
        except OSError:
            pass
        self._process.join(timeout=60)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


def _serve(side: Side, directory: Path, pipe: Connection) -> None:
    try:
        with side.start(directory, **side.settings) as run:
            while (number := pipe.recv()) is not None:
                # Rubbish of the last round must not be swept on this round's clock.
                gc.collect()
                pipe.send(run(number))
    except EOFError:
        pass
    except Exception:  # noqa: BLE001 - whatever a side raises belongs in the report
        pipe.send(traceback.format_exc())


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured number without a peer."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""

    @property
    def reached(self) -> bool | None:
        return None if self.limit is None else self.value <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Figures from one function that runs in a process of its own."""

    name: str
    title: str
    measure: Callable[..., Iterable[Figure]]
    settings: dict[str, Any] = field(default_factory=dict)


def run_measurement(measurement: Measurement, directory: Path) -> Sequence[Figure] | str:
    """The figures, or the traceback of what went wrong."""
    directory = directory / measurement.name
    directory.mkdir(parents=True)
    pipe, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_measure, args=(measurement, directory, theirs))
    process.start()
    theirs.close()
    try:
        answer: Sequence[Figure] | str = pipe.recv()
    except EOFError:
        answer = "the worker process died"
    process.join()
    return answer


def _measure(measurement: Measurement, directory: Path, pipe: Connection) -> None:
    try:
        pipe.send(list(measurement.measure(directory, **measurement.settings)))
    except Exception:  # noqa: BLE001 - whatever it raises belongs in the report
        pipe.send(traceback.format_exc())
