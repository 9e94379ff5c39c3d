"""The story: six chapters in a directory of its own, and the report.

    1 live     transfers by several threads while SQL audits them
    2 race     the same transfers on Halocline and on SQLite
    3 crash    kill -9 in the middle of commits, recovery, nothing lost
    4 undo     a bad DELETE, put right with at=
    5 settle   rows move into objects, are tidied up, and are drawn
    6 spark    a bulk load, compaction and a query on Spark, beside writers
    report     what was shown, with figures

The bank of chapter 1 lives on in chapters 3 and 4; chapters 5 and 6 have shops of their own. A
chapter that is asked to stop ends with what it has, and no further one begins. However the story
ends, its directory goes with it; the picture of chapter 5 stays where that was.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import halocline as hc
from bank import crash, live, race, settle, spark, undo
from bank.report import Report, show_place
from bank.screen import Screen

LIVE_SHARE, RACE_SHARE, CRASH_SHARE, SETTLE_SHARE = 0.35, 0.40, 0.08, 0.17
PICTURE = "demo.svg"
KILLS, KILLS_SHORT = 3, 1
SHORT_SECONDS = 10.0
# The code of a program that a signal has ended, as shells count it.
SIGNAL_CODE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the viewer has asked for."""

    seconds: float
    threads: int
    plain: bool
    keep: bool
    home: Path
    """Where the data directory is made."""
    spark: bool = True
    """Tell chapter 6 as well."""


def tell(settings: Settings) -> int:
    """Tell it all; returns the exit code."""
    screen = Screen(plain=settings.plain)
    screen.listen()
    place: Path | None = None
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix="demo-", dir=settings.home))
        return _tell(screen, settings, place)
    except KeyboardInterrupt:
        screen.put("Stopped.")
        return SIGNAL_CODE + screen.signal
    except BrokenPipeError:
        # Nobody reads any more, as after `| head`: say nothing, not even when Python flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (hc.HaloclineError, OSError) as error:
        screen.put(f"The demo cannot go on: {error}")
        return 1
    finally:
        if place is not None and not settings.keep:
            shutil.rmtree(place, ignore_errors=True)


def _tell(screen: Screen, settings: Settings, place: Path) -> int:
    began = perf_counter()
    screen.put()
    screen.put("[bold]Halocline[/], a table engine in Python: this is a bank that runs on it.")
    fate = "kept" if settings.keep else "removed at the end"
    screen.put(f"Data in {_short(place)} ({fate}). Ctrl-C stops it at any time.")
    report = Report()
    for chapter in _chapters(screen, report, settings, place):
        if not screen.signal:
            chapter()
    took = f"{perf_counter() - began:.0f} s"
    ended = f"stopped after {took}, this much was seen" if screen.signal else f"shown in {took}"
    report.show(screen, ended=ended)
    show_place(screen, _short(place / "bank"), kept=settings.keep)
    if screen.signal:
        return SIGNAL_CODE + screen.signal
    return 0 if report.all_held else 1


def _chapters(
    screen: Screen, report: Report, settings: Settings, place: Path
) -> Sequence[Callable[[], None]]:
    bank, threads, seconds = place / "bank", settings.threads, settings.seconds
    kills = KILLS if seconds >= SHORT_SECONDS else KILLS_SHORT
    chapters = [
        lambda: live.run(screen, report, bank, threads=threads, seconds=seconds * LIVE_SHARE),
        lambda: race.run(screen, report, place, threads=threads, seconds=seconds * RACE_SHARE),
        lambda: crash.run(
            screen, report, bank, threads=threads, seconds=seconds * CRASH_SHARE, kills=kills
        ),
        lambda: undo.run(screen, report, bank),
        lambda: settle.run(
            screen,
            report,
            place / "shop",
            _short(settings.home / PICTURE),
            threads=threads,
            seconds=seconds * SETTLE_SHARE,
        ),
    ]
    if settings.spark:
        short = seconds < SHORT_SECONDS
        chapters.append(
            lambda: spark.run(screen, report, place / "mart", threads=min(threads, 4), short=short)
        )
    return chapters


def _short(path: Path) -> Path:
    """The path as one would type it here."""
    path, here = path.resolve(), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
