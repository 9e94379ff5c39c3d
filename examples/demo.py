"""The demo: a bank that works, is queried, raced, killed, repaired and drawn, then meets Spark.

    python examples/demo.py [--seconds N] [--threads N] [--plain] [--keep] [--no-spark] [--dir DIR]

It takes about two minutes; half of that without Spark.

Every figure is measured in this run. Ctrl-C ends it early with a report of what was seen until
then and exit code 130; exit code 1 means that something claimed did not hold. The story itself is
in bank/story.py, a file for each chapter beside it.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

# On the disk that holds the project: a system's temporary directory may be memory, where a durable
# commit costs nothing and proves nothing.
BUILD = Path(__file__).resolve().parent.parent / "build"
SECONDS = 36.0
THREADS = 8


def main() -> int:
    """Read the arguments and tell the story."""
    arguments = _arguments()
    # The engine takes a moment to import; who presses Ctrl-C meanwhile gets no traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bank.story import Settings, tell

    settings = Settings(
        seconds=arguments.seconds,
        threads=arguments.threads,
        plain=arguments.plain,
        keep=arguments.keep,
        home=arguments.dir,
        spark=not arguments.no_spark,
    )
    return tell(settings)


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
        "--threads",
        type=_positive(int),
        default=THREADS,
        metavar="N",
        help=f"writer threads (default {THREADS})",
    )
    parser.add_argument("--plain", action="store_true", help="plain lines, also on a terminal")
    parser.add_argument("--keep", action="store_true", help="leave the data where it is")
    parser.add_argument("--no-spark", action="store_true", help="leave out what needs Java")
    parser.add_argument(
        "--dir",
        type=_directory,
        default=BUILD,
        metavar="DIRECTORY",
        help="make the data directory in here (default: build)",
    )
    return parser.parse_args()


def _positive(kind: type[int] | type[float]) -> Callable[[str], int | float]:
    def parse(text: str) -> int | float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be more than 0, not {text}")
        return value

    parse.__name__ = "number"  # What argparse calls it when it complains.
    return parse


def _directory(text: str) -> Path:
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a directory")
    return path


if __name__ == "__main__":
    sys.exit(main())
