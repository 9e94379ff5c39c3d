"""`python -m bench --against REV`: this revision and another one, in turns, in one run.

    git archive REV --> build/bench/revision-<hash>/ --> this benchmark over its engine
    this tree ----------------------------------------> this benchmark over ours
                          round 0: old, new    round 1: new, old    ...  --> median of new / old

One benchmark measures both engines, so the same code asks the same of each. A row that the other
revision cannot do, because it has not got the function yet, is named and left out. Of a case our
own side is run, without its peers. A measurement is run as a whole, in turns too.

A ratio above 1 is worse: more time, more memory, fewer commits in a second. The limits are 1.1,
and 1.15 for single rows whose commits do not wait for the disk. A figure that is a ratio already
(unit x) is shown without a verdict: it has a limit of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.harness import is_chosen

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 1.1
LIMIT_ASYNC = 1.15
MEASURED_ROUNDS = 3


class RevisionError(Exception):
    """A revision could not do what it was asked to; its traceback is the message."""


class OldRevisionError(RevisionError):
    """The other revision could not do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of both revisions."""

    name: str
    unit: str
    old: float
    new: float
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def limit(self) -> float:
        if self.unit == "x":
            return inf
        return LIMIT_ASYNC if "async" in self.name else LIMIT


class Process:
    """A revision at work: revision.py over the engine of that revision."""

    def __init__(self, root: Path, *, quick: bool) -> None:
        paths = os.pathsep.join([str(root / "src"), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "bench" / "revision.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": paths},
        )
        self._error = RevisionError if root == ROOT else OldRevisionError
        self.ask("open", quick=quick)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have something done; what it said."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        stdin.flush()
        line = stdout.readline()
        answer = json.loads(line) if line else {"error": "the process died"}
        if "error" in answer:
            raise self._error(answer["error"])
        return answer["answer"]

    def close(self) -> None:
        """End it in good order, or by force when it does not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def compare(
    console: Console, revision: str, place: Path, output: Path, *, only: str, quick: bool
) -> int:
    """Compare, print and save; 1 when a row could not be measured."""
    commit = _git("rev-parse", "--short=12", f"{revision}^{{commit}}").decode().strip()
    roots = (check_out(commit, output / f"revision-{commit}"), ROOT)
    rows: list[Row] = []
    errors: dict[str, str] = {}
    for facts in _listed(quick):
        name, title = facts[:2]
        if not is_chosen(name, only):
            continue
        with console.status(f"{name}: {title}"):
            try:
                rows += _compare_one(roots, name, facts, place, quick)
            except OldRevisionError as error:
                reason = str(error).rstrip().rsplit("\n", 1)[-1]
                console.print(f"{name}: {commit} cannot do it, left out: {reason}", markup=False)
            except RevisionError as error:
                errors[name] = str(error)
        shutil.rmtree(place, ignore_errors=True)
    print_rows(console, commit, rows)
    for name, text in errors.items():
        console.print(f"\n{name} failed:", style="red")
        console.print(text.rstrip(), markup=False, highlight=False)
    save(output, commit, rows)
    return 1 if errors or not rows else 0


def check_out(commit: str, folder: Path) -> Path:
    """The files of a revision, in a folder of its own."""
    if not folder.exists():
        packed = _git("archive", "--format=tar", commit, "src")
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
    return folder


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.decode().strip())
    return done.stdout


def _listed(quick: bool) -> list[list[Any]]:
    """What can be measured: name and title, and how often if it is a case."""
    process = Process(ROOT, quick=quick)
    try:
        return list(process.ask("list"))
    finally:
        process.close()


def _compare_one(
    roots: tuple[Path, Path], name: str, facts: list[Any], place: Path, quick: bool
) -> list[Row]:
    """The rows of one case or measurement. Each has processes of its own: heaps grow."""
    processes = [Process(root, quick=quick) for root in roots]
    try:
        if len(facts) > 2:
            return [_case_row(processes, facts, place)]
        return list(_measured_rows(processes, name, place))
    finally:
        for process in processes:
            process.close()


def _case_row(processes: list[Process], facts: list[Any], place: Path) -> Row:
    name, _, unit, ops, warm_rounds, rounds = facts
    seconds: list[list[float]] = [[], []]
    for which, process in enumerate(processes):
        process.ask("start", name=name, directory=str(place / f"{name}-{which}"))
    for number in range(warm_rounds + rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            took = processes[which].ask("round", number=number)
            if number >= warm_rounds:
                seconds[which].append(took)
    for process in processes:
        process.ask("stop")
    old, new = seconds
    ratios = tuple(b / a for a, b in zip(old, new, strict=True))
    us = [median(times) / ops * 1e6 for times in seconds]
    return Row(name=name, unit=f"us/{unit}", old=us[0], new=us[1], ratios=ratios)


def _measured_rows(processes: list[Process], name: str, place: Path) -> Iterator[Row]:
    found: list[dict[str, list[tuple[float, str]]]] = [{}, {}]
    for number in range(MEASURED_ROUNDS):
        for which in (0, 1) if number % 2 else (1, 0):
            folder = place / f"{name}-{number}-{which}"
            for figure, value, unit in processes[which].ask(
                "measure", name=name, directory=str(folder)
            ):
                found[which].setdefault(figure, []).append((value, unit))
            shutil.rmtree(folder, ignore_errors=True)
    old, new = found
    for figure in new:
        if figure in old and len(old[figure]) == len(new[figure]):
            unit = new[figure][0][1]
            pairs = zip(old[figure], new[figure], strict=True)
            ratios = tuple(_worse(a[0], b[0], unit) for a, b in pairs)
            values = [median(value for value, _ in side[figure]) for side in found]
            yield Row(
                name=f"{name}: {figure}", unit=unit, old=values[0], new=values[1], ratios=ratios
            )


def _worse(old: float, new: float, unit: str) -> float:
    """new / old where little is good, old / new where much is."""
    if not old or not new:
        return 1.0
    return old / new if unit.endswith("/s") else new / old


def print_rows(console: Console, commit: str, rows: list[Row]) -> None:
    """One line per row, the worst ratios in red."""
    table = Table("what", commit, "here", "new / old", "range", "", box=None, header_style="bold")
    for row in rows:
        missed = row.ratio > row.limit
        table.add_row(
            row.name,
            f"{row.old:,.2f} {row.unit}",
            f"{row.new:,.2f} {row.unit}",
            f"{row.ratio:.2f}",
            f"{min(row.ratios):.2f} to {max(row.ratios):.2f}",
            f"MISSED {row.limit:g}" if missed else "",
            style="red" if missed else "",
        )
    console.print(table)


def save(output: Path, commit: str, rows: list[Row]) -> None:
    """Keep what was found in build/bench/against.json."""
    lines = [
        {"row": row.name, "unit": row.unit, "old": row.old, "new": row.new, "ratio": row.ratio}
        for row in rows
    ]
    text = json.dumps({"against": commit, "rows": lines}, indent=1)
    (output / "against.json").write_text(text + "\n", encoding="utf-8")
