"""Separate executors: nothing depends on the driver's memory or working directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 280


@pytest.mark.more
def test_reads_joins_loads_and_deletes_on_separate_executors(spark: Any, tmp_path: Path) -> None:
    """`spark` is only here for what its fixture checks: is there a Java at all?"""
    program = Path(__file__).with_name("cluster.py")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    alive = [n for n in range(1000) if n % 10 != 7]
    assert seen["scan"] == sum(alive) + 1
    towns = {f"town {n}": 0 for n in range(3)}
    for n in [*alive, 1]:
        towns[f"town {n % 10 % 3}"] += 1
    assert seen["join"] == [[town, count] for town, count in towns.items()]
    assert (seen["loaded"], seen["deleted"]) == (500, 100)
    won, lost = seen["places"]
    assert won == lost, "each task had written its files twice"
    assert len(won) >= 2
    assert seen["sql"] == [{"n": len(alive) + 1 + 400}]
    assert seen["tasks"] > 0, "no group was small enough for the driver"
    assert seen["dropped"] == 200
    assert seen["rows"] == len(alive) + 1 + 400
    assert seen["elsewhere"], "executors run in another directory"
    assert seen["held"] > 0
    assert seen["held_after_stop"] == 0, "stopping the session lets go of its snapshots"
    assert seen["problems"] == 0
