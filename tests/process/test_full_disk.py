"""Faults of the real operating system: files that may not grow, and system calls that fail.

`make test` limits the size of files (the kernel then writes short and refuses the rest), which is a
full disk as far as a log is concerned. `make sim` lets strace fail the n-th system call of a child.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import halocline
from tests.process.children import SMALL
from tests.process.nursery import ROOT, Child, Nursery

ROWS = 25


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


def _keys(path: Path) -> list[int]:
    with halocline.open(path, options=SMALL) as db:
        assert not db.check()
        with db.begin() as txn:
            if "t" not in txn.tables():
                return []
            return txn.range("t").column("id").to_pylist()  # type: ignore[no-any-return]


def test_files_that_may_not_grow(nursery: Nursery, path: Path) -> None:
    """Refused while there is no room, accepted as soon as there is, without opening again."""
    child = Child(nursery, "owner", path=str(path))
    child.ask("create")
    key = 0
    for _ in range(3):
        # Room that has been allocated stays usable; every new file would be larger.
        largest = max(file.stat().st_size for file in (path / "log").iterdir())
        child.ask("limit", bytes=largest)
        while "value" in (said := child.ask("insert", first=key, size=700)):
            key += 1
            assert key < 5000
        assert said["error"] == "UnavailableError"
        assert said["outcome"] == "not_committed", said
        assert "too large" in said["text"], said
        assert child.ask("insert", first=key, size=700)["error"] == "UnavailableError"
        assert child.ask("count") == {"value": key}
        child.ask("limit", bytes=None)
        assert "value" in child.ask("insert", first=key, size=700)
        key += 1
    assert child.ask("check") == {"value": []}
    child.kill()
    assert _keys(path) == list(range(key))


# -- strace --------------------------------------------------------------------------------------


def _strace(inject: str, path: Path, count: int = ROWS) -> list[tuple[str, str]]:
    """What the child says when its system calls are tampered with."""
    arguments = f"1, {str(path)!r}, {count}"
    program = f"from tests.process.children import insert_rows; insert_rows({arguments})"
    call = inject.split(":", maxsplit=1)[0]
    result = subprocess.run(
        [
            "strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}",
            "-e", f"inject={inject}", sys.executable, "-c", program,
        ],
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, f"{inject}: {result.stderr}"
    lines = [line.split() for line in result.stdout.splitlines()]
    return [(what, value) for what, value in lines]


@pytest.fixture(scope="module")
def strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    command = ["strace", "-qq", "-o", "/dev/null", "-e", "inject=getpid:retval=1", "true"]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("strace is not permitted here")


def _check(path: Path, said: list[tuple[str, str]], label: str) -> None:
    acked = [int(key) for what, key in said if what == "acked"]
    unknown = [int(key) for what, key in said if what == "unknown"]
    refused = [int(key) for what, key in said if what == "not_committed"]
    found = _keys(path)
    assert set(found) >= set(acked), f"acknowledged and gone: {label}"
    # One writer, so that commit order is the order of keys: the unknown one is there or it is not.
    assert set(found) <= {*acked, *unknown}, f"from nowhere: {label}"
    assert not set(found) & set(refused), f"not_committed, yet there: {label}"
    assert len(unknown) <= 1, f"the database went on after a failure: {label}"
    if unknown:
        assert not [key for key in acked if key > unknown[0]], f"acknowledged later: {label}"
        reads = [int(count) for what, count in said if what == "read"]
        assert reads == [len(acked)], f"reading has stopped too: {label}"


@pytest.mark.sim
@pytest.mark.parametrize(
    ("call", "fault", "step", "harmless"),
    [
        ("fdatasync", "error=EIO", 1, False),
        ("fsync", "error=EIO", 1, False),
        ("pwrite64", "error=EIO", 1, False),
        # Nothing was written this time: the rest is everything, and goes out with the next call.
        ("pwrite64", "retval=0", 3, True),
        ("pwrite64", "retval=0+", 4, False),
        ("pwrite64", "error=ENOSPC+", 2, False),
        ("fdatasync", "error=EIO+", 3, False),
    ],
)
def test_a_system_call_that_fails(
    strace: None, tmp_path: Path, call: str, fault: str, step: int, harmless: bool
) -> None:
    """The n-th one (or, with a plus, all from the n-th on), for n up to the end of the program."""
    effect, forever, _ = fault.partition("+")
    struck = 0
    for n in range(1, 200, step):
        path = tmp_path / str(n)
        inject = f"{call}:{effect}:when={n}{forever}"
        said = _strace(inject, path)
        _check(path, said, f"{inject}, {said}")
        whats = {what for what, _ in said}
        if not whats & {"unknown", "not_committed", "closed", "table", "close"}:
            assert len([what for what, _ in said if what == "acked"]) == ROWS, inject
            if n > ROWS:
                break
        else:
            struck += 1
    assert bool(struck) != harmless
