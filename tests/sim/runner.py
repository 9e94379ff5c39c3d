"""`make sim`: all long seeded suites, within a stated time.

    python -m tests.sim.runner --seconds 1800 --jobs 2 --seed 7 [words for pytest, e.g. -k crash]

A suite is a file. Each has a process of its own, in which its cases come in turns (rounds.py) until
its share of the time is over: what is left, divided by the suites that are left, less what those
before it took beyond their shares (starting, and a first case that is longer than the share). So a
suite that overruns shortens the others and leaves none out, as long as there is time for one case
of each: 600 s are enough for that on two quiet cores. A suite that is done early leaves its time to
the others. When the whole time is over no suite begins any more, and a run takes as long as it says
and, at most, one case longer. A suite that did not begin says so; the seed decides the order, so
the next short run leaves out others.

Each suite is a line: cases, failures, seconds. A failure comes with the command that runs the case
again with its seed; what the process has said is in build/sim/. The seed of the run decides the
order and the seeds of all cases, so `--seed` walks the same way again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
OUTPUT = ROOT / "build" / "sim"
GRACE_S = 420
"""A suite that outlives its share by this much is ended; the watchdog of a test is quicker."""
LONG_S = 60
"""A case should take less than this."""
NOTHING_RUN = 5
"""How pytest ends when it has run no test."""


@dataclass
class Suite:
    """One file of tests, and what has become of it."""

    name: str
    cases: int
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    share: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, int]] = field(default_factory=list)
    slow: dict[str, float] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        return self.name.removeprefix("tests/").removesuffix(".py").replace("/", "-")


def main() -> int:
    """Run all suites; returns 1 when one of them has failed."""
    parser = argparse.ArgumentParser(description="Run the long seeded suites.")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--jobs", type=int, default=max(1, min(4, os.cpu_count() or 1)))
    parser.add_argument("--seed", type=int, default=None)
    known, words = parser.parse_known_args()
    seed = secrets.randbits(32) if known.seed is None else known.seed
    suites = collect(words)
    if not suites:
        print("no long test is meant by this")
        return 1
    random.Random(seed).shuffle(suites)
    # Whoever ends us ends the suites, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    cases = sum(suite.cases for suite in suites)
    print(f"{cases} cases in {len(suites)} suites, {known.seconds:.0f} s, seed {seed}", flush=True)
    try:
        run(suites, known.seconds, known.jobs, seed, words)
    finally:
        for suite in suites:
            if suite.process is not None and suite.process.poll() is None:
                _end(suite.process)
    return conclude(suites)


def collect(words: list[str]) -> list[Suite]:
    """The files that hold long tests, and how many cases each."""
    command = [*_pytest(), "--collect-only", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=_env(), capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, NOTHING_RUN):
        raise SystemExit(done.stdout + done.stderr)
    named = [line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line]
    return [Suite(name, count) for name, count in Counter(named).items()]


def run(suites: list[Suite], seconds: float, jobs: int, seed: int, words: list[str]) -> None:
    """Start suites, some at a time, and wait for all of them."""
    deadline = time.monotonic() + seconds
    waiting, running, beyond = list(suites), list[Suite](), list[float]()
    while waiting or running:
        while waiting and len(running) < jobs:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            # The suites that wait share what `jobs` of them can have at the same time.
            share = left * min(1.0, jobs / (len(waiting) + len(running)))
            overrun = max(0.0, sum(beyond) / len(beyond)) if beyond else 0.0
            suite = waiting.pop(0)
            start(suite, max(0.0, share - overrun), seed, words)
            running.append(suite)
        if not running:
            break
        time.sleep(0.2)
        for suite in [one for one in running if is_over(one)]:
            running.remove(suite)
            beyond.append(time.monotonic() - suite.started - suite.share)
            settle(suite)
            print(f"[{len(beyond):>2}/{len(suites)}] {line_of(suite)}", flush=True)
    for suite in waiting:
        print(f"        {suite.name:<46}     no time left", flush=True)


def start(suite: Suite, share: float, seed: int, words: list[str]) -> None:
    """Begin a suite in a process of its own."""
    notes = OUTPUT / f"{suite.stem}.notes"
    notes.unlink(missing_ok=True)
    env = _env() | {
        "HALOCLINE_SIM_SECONDS": str(share),
        "HALOCLINE_SIM_SEED": f"{seed} {suite.name}",
        "HALOCLINE_SIM_NOTES": str(notes),
    }
    options = [word for word in words if not Path(word.partition("::")[0]).exists()]
    command = [*_pytest(), "-p", "tests.sim.rounds", "--tb=short", *options, suite.name]
    with (OUTPUT / f"{suite.stem}.log").open("wb") as log:
        suite.process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True
        )
    suite.started, suite.share = time.monotonic(), share


def is_over(suite: Suite) -> bool:
    """Has its process ended? One that is far too late is ended here."""
    assert suite.process is not None
    if suite.process.poll() is None and time.monotonic() > suite.started + suite.share + GRACE_S:
        _end(suite.process)
    return suite.process.poll() is not None


def settle(suite: Suite) -> None:
    """Read what the process has noted about its cases."""
    assert suite.process is not None
    notes = OUTPUT / f"{suite.stem}.notes"
    lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    running: tuple[str, int] | None = None
    for words in map(json.loads, lines):
        if "began" in words:
            running = (words["began"], words["seed"])
            suite.counts["began"] += 1
        else:
            _take(suite, words, running)
            if words["outcome"] != "failed":
                running = None
    code = suite.process.returncode
    if code not in (0, 1, NOTHING_RUN) or (code == 1 and not suite.failures):
        suite.failures.append(running or (suite.name, 0))
        suite.counts["died"] += 1


def _take(suite: Suite, words: dict[str, Any], running: tuple[str, int] | None) -> None:
    suite.counts[words["outcome"]] += 1
    if words["seconds"] > LONG_S:
        suite.slow[words["ended"]] = words["seconds"]
    if words["outcome"] == "failed" and running is not None and running not in suite.failures:
        suite.failures.append(running)


def line_of(suite: Suite) -> str:
    """A suite in one line."""
    counts, seconds = suite.counts, time.monotonic() - suite.started
    parts = [f"{counts['began']:>5} cases of {suite.cases:<4}", f"{len(suite.failures)} failed"]
    parts += [f"{counts[word]} {word}" for word in ("skipped", "died") if counts[word]]
    return f"{suite.name:<46} {', '.join(parts)}, {seconds:.0f} s"


def conclude(suites: list[Suite]) -> int:
    """Say what has failed and how to see it again."""
    for suite in suites:
        for name, seconds in suite.slow.items():
            print(f"slow: {name} took {seconds:.0f} s")
    failures = [(suite, *failure) for suite in suites for failure in suite.failures]
    for suite, name, seed in failures:
        print(f"FAILED {name}; see build/sim/{suite.stem}.log; again:")
        print(f"  HALOCLINE_SIM=1 HALOCLINE_SEED={seed} {sys.executable} -m pytest -m sim '{name}'")
    began = sum(suite.counts["began"] for suite in suites)
    left_out = sum(suite.process is None for suite in suites)
    more = f", {left_out} of {len(suites)} suites had no time: give it more SECONDS"
    print(f"{began} cases, {len(failures)} failed{more if left_out else ''}")
    return 1 if failures else 0


def _pytest() -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-m", "sim", "-p", "no:cacheprovider"]


def _env() -> dict[str, str]:
    return os.environ | {"HALOCLINE_SIM": "1", "PYTHONUNBUFFERED": "1"}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that we have started, with all that it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
