"""The demo: a bank that works, is queried, raced, killed and repaired, in under a minute.

    python examples/demo.py [--seconds N] [--threads N] [--plain] [--keep] [--dir DIRECTORY]

      1 live     transfers by several threads while SQL audits them
      2 race     the same transfers on Halocline and on SQLite
      3 crash    kill -9 in the middle of commits, recovery, nothing lost
      4 undo     a bad DELETE, put right with at=
      report     what was shown, with figures

Every figure is measured in this run. Ctrl-C ends it early with a report of what was seen until
then and exit code 130; exit code 1 means that something claimed did not hold.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from bank import crash, live, race, undo
from bank.report import Report, show_place
from bank.screen import Screen

import halocline as hc

# On the disk that holds the project: a system's temporary directory may be memory, where a durable
# commit costs nothing and proves nothing.
BUILD = Path(__file__).resolve().parent.parent / "build"

SECONDS = 30.0
LIVE_SHARE, RACE_SHARE, CRASH_SHARE = 0.42, 0.48, 0.10
KILLS, KILLS_SHORT = 3, 1
SHORT_SECONDS = 10.0
# The code of a program that a signal has ended, as shells count it.
SIGNAL_CODE = 128


def main() -> int:
    """Run the chapters in a directory that is gone afterwards."""
    arguments = _arguments()
    screen = Screen(plain=arguments.plain)
    screen.listen()
    place: Path | None = None
    try:
        arguments.dir.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix="demo-", dir=arguments.dir))
        return _tell(screen, arguments, place)
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
        if place is not None and not arguments.keep:
            shutil.rmtree(place, ignore_errors=True)


def _tell(screen: Screen, arguments: argparse.Namespace, place: Path) -> int:
    began = perf_counter()
    _introduce(screen, place, arguments)
    report = Report()
    for chapter in _chapters(screen, report, arguments, place):
        chapter()
        if screen.signal:
            break
    took = f"{perf_counter() - began:.0f} s"
    stopped = f"stopped after {took}, this much was seen"
    report.show(screen, ended=stopped if screen.signal else f"what was shown in {took}")
    show_place(screen, _relative(place / "bank"), kept=arguments.keep)
    if screen.signal:
        return SIGNAL_CODE + screen.signal
    return 0 if report.all_held else 1


def _introduce(screen: Screen, place: Path, arguments: argparse.Namespace) -> None:
    screen.put()
    screen.put("[bold]Halocline[/], a table engine in Python: this is a bank that runs on it.")
    fate = "kept" if arguments.keep else "removed at the end"
    screen.put(f"Data in {_relative(place)} ({fate}). Ctrl-C stops it at any time.")


def _chapters(
    screen: Screen, report: Report, arguments: argparse.Namespace, place: Path
) -> Sequence[Callable[[], None]]:
    bank, threads, seconds = place / "bank", arguments.threads, arguments.seconds
    kills = KILLS if seconds >= SHORT_SECONDS else KILLS_SHORT
    return (
        lambda: live.run(screen, report, bank, threads=threads, seconds=seconds * LIVE_SHARE),
        lambda: race.run(screen, report, place, threads=threads, seconds=seconds * RACE_SHARE),
        lambda: crash.run(
            screen, report, bank, threads=threads, seconds=seconds * CRASH_SHARE, kills=kills
        ),
        lambda: undo.run(screen, report, bank),
    )


def _relative(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.py", description="See Halocline work.")
    parser.add_argument(
        "--seconds",
        type=_positive(float),
        default=SECONDS,
        metavar="N",
        help=f"length of the measured parts together, in seconds (default {SECONDS:.0f})",
    )
    parser.add_argument(
        "--threads", type=_positive(int), default=8, metavar="N", help="writer threads (default 8)"
    )
    parser.add_argument("--plain", action="store_true", help="plain lines, also on a terminal")
    parser.add_argument("--keep", action="store_true", help="leave the data where it is")
    parser.add_argument(
        "--dir",
        type=Path,
        default=BUILD,
        metavar="DIRECTORY",
        help="make the data directory in here (default: build)",
    )
    return parser.parse_args()


def _positive(kind: type[int] | type[float]) -> Callable[[str], int | float]:
    def parse(text: str) -> int | float:
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"must be more than 0, not {text}")
        return value

    parse.__name__ = "number"  # What argparse calls it when it complains.
    return parse


if __name__ == "__main__":
    sys.exit(main())
