"""Paths that are no database: a clear typed error each, and nothing created, changed or removed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import halocline
from halocline import (
    CorruptionError,
    Database,
    HaloclineError,
    NotFoundError,
    UsageError,
)
from tests.process.children import SMALL
from tests.process.nursery import Nursery
from tests.store.faulty import FaultyFiles, SimulatedCrash

NOBODY = 65534


def _tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every name below the root with its mode and content."""
    return {
        str(entry.relative_to(root)): (
            entry.lstat().st_mode,
            entry.read_bytes() if entry.is_file() else b"",
        )
        for entry in sorted(root.rglob("*"))
    }


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_instead_of_a_directory(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "shop").write_text("not a database")
    before = _tree(tmp_path)
    with pytest.raises(UsageError, match="is a file"):
        halocline.open(tmp_path / "shop", read_only=read_only)
    assert _tree(tmp_path) == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_path_below_a_file(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "shop").write_text("not a database")
    before = _tree(tmp_path)
    with pytest.raises(HaloclineError):
        halocline.open(tmp_path / "shop" / "db", read_only=read_only)
    assert _tree(tmp_path) == before


@pytest.mark.parametrize(
    "names",
    [
        ["notes.txt"],
        ["LOCK", "notes.txt"],
        ["src/main.py", "README"],
        ["log/access.log"],
        ["log/access.log", "etc/app.conf"],
        ["log/00000001.log.gz"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_directory_of_somebody_else(tmp_path: Path, names: list[str], read_only: bool) -> None:
    """Not even one that has a `log` folder of its own."""
    for name in names:
        (tmp_path / "home" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / name).write_text("mine")
    before = _tree(tmp_path)
    with pytest.raises((UsageError, NotFoundError)):
        halocline.open(tmp_path / "home", read_only=read_only)
    assert _tree(tmp_path) == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_log_file_that_is_none(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "db" / "log").mkdir(parents=True)
    (tmp_path / "db" / "log" / "00000001.log").write_text("GET / 200\n" * 400)
    before = _tree(tmp_path / "db" / "log")
    with pytest.raises((CorruptionError, UsageError)):
        halocline.open(tmp_path / "db", read_only=read_only)
    assert _tree(tmp_path / "db" / "log") == before


def test_an_empty_directory_becomes_a_database(tmp_path: Path) -> None:
    """Whoever made it keeps the mode they gave it; what we make is private."""
    (tmp_path / "db").mkdir(mode=0o755)
    with halocline.open(tmp_path / "db") as db:
        db.create_table("t", {"id": int})
        assert not db.check()
    assert stat.S_IMODE((tmp_path / "db").stat().st_mode) == 0o755
    with halocline.open(tmp_path / "deep" / "er" / "db") as db:
        assert db.tables() == []
        assert not db.check()
    for entry in (tmp_path / "deep").rglob("*"):
        expected = 0o700 if entry.is_dir() else 0o600
        assert stat.S_IMODE(entry.stat().st_mode) == expected, entry


def test_whatever_a_crash_leaves_of_a_first_opening_can_be_opened(tmp_path: Path) -> None:
    """Some of the names are there, some are empty: still our own directory."""
    options = replace(SMALL, background=False)
    probe = FaultyFiles()
    Database(probe, "probe", options=options).close()
    for number in probe.crash_points():
        files = FaultyFiles()
        files.crash(number)
        with pytest.raises(SimulatedCrash):
            Database(files, "crashed", options=options).close()
        images = {"all": files.crash_image(all=True), "none": files.crash_image(none=True)}
        images |= {str(seed): files.crash_image(seed) for seed in range(2)}
        for name, image in images.items():
            root = tmp_path / f"{number}-{name}"
            image.materialise(root)
            with halocline.open(root, options=SMALL) as db:
                assert db.tables() == [], f"operation {number}, seed {name}"
                assert not db.check(), f"operation {number}, seed {name}"


def test_a_symbolic_link_to_a_database(tmp_path: Path) -> None:
    with halocline.open(tmp_path / "real") as db:
        db.create_table("t", {"id": int})
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with halocline.open(tmp_path / "link") as db:
        assert db.tables() == ["t"]
        with halocline.open(tmp_path / "real") as other:
            assert other.role == "node"
            assert other.tables() == ["t"]


def test_a_log_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """A link in place of a log file could lead anywhere."""
    with halocline.open(tmp_path / "db") as db:
        db.create_table("t", {"id": int})
    (tmp_path / "victim").write_text("precious")
    log = tmp_path / "db" / "log" / "00000001.log"
    log.unlink()
    log.symlink_to(tmp_path / "victim")
    with pytest.raises(HaloclineError):
        halocline.open(tmp_path / "db")
    assert (tmp_path / "victim").read_text() == "precious"
    assert log.is_symlink()


@pytest.mark.parametrize("path", ["\0", "a\0b"])
def test_a_path_that_is_none(path: str) -> None:
    before = set(os.listdir())
    with pytest.raises(HaloclineError):
        halocline.open(path)
    assert set(os.listdir()) == before


@pytest.mark.parametrize("path", [None, 7, object()])
def test_a_path_of_the_wrong_type(path: Any) -> None:
    with pytest.raises((UsageError, TypeError)):
        halocline.open(path)


# -- permissions ---------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A directory that another user may enter; pytest's own is private."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    yield root
    for entry in root.rglob("*"):
        if entry.is_dir():
            entry.chmod(0o700)
    shutil.rmtree(root)


def _open_as_nobody(nursery: Nursery, path: Path, **arguments: Any) -> dict[str, Any]:
    ours, theirs = os.pipe()
    pid = nursery.fork("try_open_as", {"path": str(path), "user": NOBODY, **arguments}, [theirs])
    os.close(theirs)
    with os.fdopen(ours) as answer:
        said = json.loads(answer.read())
    assert nursery.wait(pid) == 0
    return dict(said)


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@root_only
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("closed", ["root", "log", "files", "above"])
def test_no_permission(nursery: Nursery, shared: Path, closed: str, read_only: bool) -> None:
    path = shared / "above" / "db"
    with halocline.open(path) as db:
        db.create_table("t", {"id": int})
    modes = {path.parent: 0o755, path: 0o755, path / "log": 0o755}
    at = {"root": path, "log": path / "log", "above": path.parent}.get(closed)
    if at is not None:
        modes[at] = 0o700
    for directory, mode in modes.items():
        directory.chmod(mode)
    before = _tree(shared)
    said = _open_as_nobody(nursery, path, read_only=read_only)
    assert said.get("typed"), said
    assert said["error"] in ("UnavailableError", "UsageError", "NotFoundError"), said
    assert "ermission" in said["text"], said
    assert _tree(shared) == before
    with halocline.open(path) as db:
        assert db.tables() == ["t"]
        assert not db.check()


@root_only
def test_no_permission_to_create(nursery: Nursery, shared: Path) -> None:
    said = _open_as_nobody(nursery, shared / "db")
    assert said.get("typed"), said
    assert "ermission" in said["text"], said
    assert not list(shared.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_no_permission_as_a_plain_user(tmp_path: Path) -> None:
    halocline.open(tmp_path / "db").close()
    (tmp_path / "db").chmod(0o000)
    try:
        for read_only in (False, True):
            with pytest.raises(HaloclineError, match="ermission"):
                halocline.open(tmp_path / "db", read_only=read_only)
    finally:
        (tmp_path / "db").chmod(0o700)
    halocline.open(tmp_path / "db").close()
