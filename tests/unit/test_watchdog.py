"""The watchdog: a test that hangs ends the run in good order, whatever it hangs in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
HANGS = {
    # Threads that run: their frames change while they are looked at.
    "busy": """
import threading
def spin(depth):
    while True:
        (lambda n: [spin_down(n) for _ in range(9)])(depth)
def spin_down(n):
    return n and spin_down(n - 1)
for _ in range(4):
    threading.Thread(target=spin, args=(30,), daemon=True).start()
spin(30)
""",
    "lock": """
import threading
threading.Lock().acquire() and (lock := threading.Lock()).acquire() and lock.acquire()
""",
    # C code that holds the interpreter lock: no other thread of Python runs.
    "stuck": """
import ctypes
ctypes.PyDLL(None).sleep(600)
""",
}


@pytest.mark.more
@pytest.mark.parametrize("hang", HANGS)
def test_a_test_that_hangs_ends_the_run_and_shows_where(tmp_path: Path, hang: str) -> None:
    body = "".join(f"    {line}\n" for line in HANGS[hang].strip().splitlines())
    file = tmp_path / "test_hanging.py"
    file.write_text(f"def test_hangs_here():\n{body}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0"]
    command += ["--rootdir", str(ROOT), "--confcutdir", str(tmp_path), "-p", "tests.conftest"]
    done = subprocess.run(
        [*command, str(file)],
        cwd=ROOT,
        env=os.environ | {"HALOCLINE_HANG_S": "2"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "test_hangs_here" in done.stderr
    if hang != "stuck":
        assert "has run for 2 s: it hangs" in done.stderr
