"""`python -m bench`: run the cases, print the table, save it.

The databases live under build/bench/ while a case runs: on the disk that holds the project, not in
a temporary directory that may be memory.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from bench import against, cases, machine, measured, report
from bench.harness import is_chosen, run_case, run_measurement

OUTPUT = Path(__file__).resolve().parent.parent / "build" / "bench"


def main() -> int:
    """Run what was asked for; 1 when something failed, 0 otherwise, targets missed or not."""
    arguments = _arguments()
    console = Console()
    console.width = max(console.width, 122)
    parent = Path(arguments.dir or OUTPUT)
    for folder in (OUTPUT, parent):
        folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    try:
        if arguments.against:
            chosen = {"only": arguments.only, "quick": arguments.quick}
            return against.compare(console, arguments.against, place / "db", OUTPUT, **chosen)
        facts = machine.facts(place)
        lines = _run(console, place, arguments)
    except KeyboardInterrupt:
        console.print("interrupted; nothing was saved")
        return 130
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if not lines:
        console.print(f"no case is named like {arguments.only!r}")
        return 2
    report.print_lines(console, facts, lines)
    if arguments.quick or arguments.only or arguments.peers_only:
        console.print("partial run: not saved")
    else:
        for path in report.save(OUTPUT, facts, lines):
            console.print(f"saved {path.relative_to(OUTPUT.parent.parent)}")
    return 1 if any(line["error"] for line in lines) else 0


def _run(console: Console, place: Path, arguments: argparse.Namespace) -> list[report.Line]:
    lines: list[report.Line] = []
    for case in cases.cases(quick=arguments.quick):
        if is_chosen(case.name, arguments.only):
            with console.status(f"{case.name}: {case.title}"):
                result = run_case(case, place, peers_only=arguments.peers_only)
            lines += report.case_lines(result)
            shutil.rmtree(place, ignore_errors=True)
    for measurement in measured.measurements(quick=arguments.quick):
        if is_chosen(measurement.name, arguments.only) and not arguments.peers_only:
            with console.status(f"{measurement.name}: {measurement.title}"):
                figures = run_measurement(measurement, place)
            lines += report.figure_lines(measurement.name, measurement.title, figures)
            shutil.rmtree(place, ignore_errors=True)
    return lines


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Halocline.")
    only = "cases whose name contains NAME; several parts of names stand between commas"
    parser.add_argument("--only", default="", metavar="NAME", help=only)
    parser.add_argument("--quick", action="store_true", help="few and short rounds: a hint only")
    parser.add_argument("--peers-only", action="store_true", help="leave our own side out")
    parser.add_argument("--against", metavar="REV", help="compare with another revision, in turns")
    parser.add_argument("--dir", type=Path, help="where the databases live (default: build/bench)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
