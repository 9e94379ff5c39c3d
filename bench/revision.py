"""One revision of the project, at work for a benchmark that compares it with another (against.py).

    PYTHONPATH=<its src>:<this tree> python <this file>      a line of JSON in, a line of JSON out

`bench` is the one of this tree, `halocline` that of the revision which PYTHONPATH names first: it
may be older than what `bench` asks of it, and then the answer is an error.

    {"do": "open", "quick": true}            -> null
    {"do": "list"}                           -> [[name, title, unit, ops, warm rounds, rounds], ...]
    {"do": "start", "name":, "directory":}   -> null                 a case begins
    {"do": "round", "number": n}             -> seconds
    {"do": "stop"}                           -> null
    {"do": "measure", "name":, "directory":} -> [[name, value, unit], ...]
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

STDOUT = sys.stdout


class Revision:
    """The cases of this revision, and the one that runs."""

    def __init__(self, *, quick: bool) -> None:
        from bench import cases, measured

        self._cases = {case.name: case for case in cases.cases(quick=quick)}
        found = measured.measurements(quick=quick)
        self._measurements = {measurement.name: measurement for measurement in found}
        self._stack = ExitStack()
        self._run: Any = None

    def list(self) -> Any:
        cases = [
            [case.name, case.title, case.unit, case.ops, case.warm_rounds, case.rounds]
            for case in self._cases.values()
        ]
        return cases + [[one.name, one.title] for one in self._measurements.values()]

    def start(self, name: str, directory: str) -> None:
        Path(directory).mkdir(parents=True)
        side = self._cases[name].ours
        self._run = self._stack.enter_context(side.start(Path(directory), **side.settings))

    def round(self, number: int) -> float:
        gc.collect()
        return float(self._run(number))

    def stop(self) -> None:
        self._run = None
        self._stack.close()

    def measure(self, name: str, directory: str) -> Any:
        Path(directory).mkdir(parents=True)
        one = self._measurements[name]
        figures = one.measure(Path(directory), **one.settings)
        return [[figure.name, figure.value, figure.unit] for figure in figures]


def main() -> None:
    """Answer until the pipe ends. What a side prints goes to stderr, not between the answers."""
    sys.stdout = sys.stderr
    revision: Revision | None = None
    for line in sys.stdin:
        request = json.loads(line)
        do = request.pop("do")
        try:
            if do == "open":
                revision, answer = Revision(quick=request["quick"]), None
            else:
                answer = getattr(revision, do)(**request)
            text = json.dumps({"answer": answer})
        except Exception:  # noqa: BLE001 - whatever a side raises belongs in the report
            text = json.dumps({"error": traceback.format_exc()})
        STDOUT.write(text + "\n")
        STDOUT.flush()


if __name__ == "__main__":
    main()
