"""Folders and files that are moved, replaced, cut or deleted while a database is open.

Nothing is acknowledged that whoever opens the folder again, where it is now, does not find.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline import UnavailableError
from halocline.clock import SystemClock

Harm = Callable[[Path], Path | None]
"""Does it; returns where the data is afterwards, if it still is."""


def _rename(root: Path) -> Path:
    return root.rename(root.with_name("elsewhere"))


def _rename_above(root: Path) -> Path:
    return root.parent.rename(root.parent.with_name("other")) / root.name


def _replace_by_copy(root: Path) -> Path:
    elsewhere = root.with_name("elsewhere")
    root.rename(elsewhere)
    shutil.copytree(elsewhere, root)
    return elsewhere


def _delete(root: Path) -> None:
    shutil.rmtree(root)


def _unlink_log(root: Path) -> None:
    for file in (root / "log").glob("*.log"):
        file.unlink()


def _copy_over_log(root: Path) -> Path:
    for file in sorted((root / "log").glob("*.log")):
        shutil.copy(file, root / "copy")
        (root / "copy").rename(file)
    return root


def _move_log_folder(root: Path) -> None:
    (root / "log").rename(root / "log-of-yesterday")


HARMS = [
    _rename,
    _rename_above,
    _replace_by_copy,
    _delete,
    _unlink_log,
    _copy_over_log,
    _move_log_folder,
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "above").mkdir()
    return tmp_path / "above" / "db"


def _ids(path: Path) -> list[int]:
    with hc.open(path) as db:
        assert not db.check()
        return [row["id"] for row in db.sql("SELECT id FROM t ORDER BY id").to_pylist()]


def _insert(db: hc.Database, number: int) -> None:
    with db.begin() as txn:
        txn.insert("t", {"id": number})


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__[1:])
def test_maintenance_and_serving_do_not_begin(root: Path, harm: Harm) -> None:
    """Whether there is something to do or not, and whether anybody has noticed or not."""
    db = hc.open(root, options=hc.Options(background=False))
    db.create_table("t", {"id": int}, primary_key="id")
    _insert(db, 1)
    harm(root)
    asked: list[Callable[[], object]] = [db.compact, db.serve, db.checkpoint, db.gc, db.flush]
    for ask in (*asked, lambda: _insert(db, 2), *asked):
        with pytest.raises(UnavailableError):
            ask()
    db.close()


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__[1:])
def test_the_next_commit_is_refused(root: Path, harm: Harm) -> None:
    db = hc.open(root)
    db.create_table("t", {"id": int})
    _insert(db, 1)
    db.flush()
    place = harm(root)
    assert isinstance(str(db.health()), str)  # before anybody has noticed
    for number in (2, 3):
        with pytest.raises(UnavailableError, match=r"moved|deleted|removed or replaced|closed"):
            _insert(db, number)
    found = db.health()
    assert not found.is_well
    assert "close the database" in found.troubles["log"]
    db.close()
    assert not root.exists() or harm is not _rename
    if place is not None:
        assert _ids(place)[:1] == [1]


def test_async_commits_are_refused_soon(root: Path) -> None:
    db = hc.open(root, durability="async")
    db.create_table("t", {"id": int})
    elsewhere = _rename(root)
    clock, number = SystemClock(), 0
    deadline = clock.monotonic() + 20

    def until_refused() -> None:
        nonlocal number
        while clock.monotonic() < deadline:
            _insert(db, number)
            number += 1
            clock.sleep(0.001)

    with pytest.raises(UnavailableError, match="moved to"):
        until_refused()
    with pytest.raises(UnavailableError):
        db.close()
    assert _ids(elsewhere)[:number] == list(range(number))


WRITER = """
import sys
import halocline as hc
db = hc.open(sys.argv[1])
number = int(sys.argv[2])
try:
    while True:
        with db.begin() as txn:
            txn.insert("t", {"id": number})
        print(number, flush=True)
        number += 1
except hc.UnavailableError as error:
    print("refused:", error, flush=True)
"""


@pytest.mark.parametrize("harm", [_rename, _replace_by_copy], ids=["renamed", "replaced"])
def test_whatever_was_acknowledged_under_load_is_found(root: Path, harm: Harm) -> None:
    """The owner writes in a process of its own while its folder is taken away."""
    with hc.open(root) as db:
        db.create_table("t", {"id": int})
    with _start(WRITER, str(root), "0") as writer:
        acknowledged = [int(_line(writer)) for _ in range(50)]
        place = harm(root)
        assert writer.stdout is not None
        said = writer.stdout.read().splitlines()  # communicate() would drop what it has read ahead
    assert said[-1].startswith("refused:"), said[-1]
    acknowledged += [int(line) for line in said[:-1]]
    assert place is not None
    assert _ids(place)[: len(acknowledged)] == acknowledged


def _start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the process has ended"
    return line.strip()


def _remove(page: Path) -> None:
    page.unlink()


def _cut(page: Path) -> None:
    os.truncate(page, 0)


def _copied(page: Path) -> None:
    shutil.copy(page, page.with_name("copy"))
    page.with_name("copy").rename(page)


def _linked(page: Path) -> None:
    page.unlink()
    page.symlink_to("/etc/hostname")


READER = """
import sys
import halocline as hc
db = hc.open(sys.argv[1], read_only=sys.argv[2] == "reader")
print("open", flush=True)
for line in sys.stdin:
    print(db.sql("SELECT count(*) AS n FROM t").to_pylist()[0]["n"], flush=True)
"""


@pytest.mark.parametrize("role", ["reader", pytest.param("node", marks=pytest.mark.more)])
@pytest.mark.parametrize("harm", [_remove, _cut, _copied, _linked], ids=lambda one: one.__name__)
def test_published_is_said_again(root: Path, harm: Callable[[Path], None], role: str) -> None:
    """The owner goes on, a process that was there and one that comes later see every commit."""
    with hc.open(root) as db:
        db.create_table("t", {"id": int})
        _insert(db, 0)
        with _ask(root, role) as before:
            assert _count(before) == 1
            harm(root / "published")
            with _ask(root, role) as after:
                assert _count(after) == 1
                for number in range(1, 4):
                    _insert(db, number)
                    assert _count(before) == number + 1
                    assert _count(after) == number + 1
        assert db.health().is_well
        assert not (root / "published").is_symlink()
    assert _ids(root) == [0, 1, 2, 3]


def test_published_is_cut_under_load(root: Path) -> None:
    with hc.open(root) as db:
        db.create_table("t", {"id": int})
        with _ask(root, "reader") as reader:
            for number in range(300):
                _insert(db, number)
                os.truncate(root / "published", 0)
                if number % 100 == 0:
                    assert _count(reader) == number + 1
        assert db.health().is_well
    assert _ids(root) == list(range(300))


def _ask(root: Path, role: str) -> Any:
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(root), role],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert _line(process) == "open"
    return process


def _count(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return int(_line(process))


def _open_in(root: Path) -> list[str]:
    """What this process has open of a database."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists them
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(str(root))]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("read_only", [False, True])
def test_a_closed_database_has_nothing_open(root: Path, read_only: bool) -> None:
    hc.open(root).close()
    db = hc.open(root)
    db.create_table("t", {"id": int}, primary_key="id")
    _insert(db, 1)
    db.flush()
    if read_only:
        db.close()
        db = hc.open(root, read_only=True)
    else:
        next(db.subscribe("t", since=0))  # dropped at once
    assert db.sql("select id from t").num_rows == 1
    rest = db.sql("select id from t", stream=True)
    assert _open_in(root)
    db.close()
    assert rest.read_all().num_rows == 1
    del rest
    assert not _open_in(root)
    assert "closed" in repr(db)
    db.close()
