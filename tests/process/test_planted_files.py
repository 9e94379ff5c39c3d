"""What stands in a database's folder and is not its own: links, pipes, copies, files of any size.

Nothing of it may hang an opening, be followed out of the folder, fill memory or be believed.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

import halocline as hc
from halocline.checkpoint.pointer import POINTER_PATH
from halocline.node.endpoint import read_endpoint

QUIET = hc.Options(background=False)
PATIENCE_S = 60.0


def _make(path: Path, *, rows: int = 3) -> None:
    with hc.open(path, options=QUIET) as db:
        db.create_table("t", {"id": int}, "id")
        db.run(lambda txn: txn.insert("t", [{"id": n} for n in range(rows)]))
        db.checkpoint()


def _in_time(work: Callable[[], object]) -> object:
    """The result of the work, or the error that it raised; a test that hangs fails."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for ever"
    return outcome[0]


def _count(path: Path, *, read_only: bool = False) -> int:
    with hc.open(path, read_only=read_only, options=QUIET) as db:
        return db.table("t").count()


# Copies.


def test_a_copy_of_a_live_database_does_not_cut_it_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live, copy = tmp_path / "live", tmp_path / "copy"
    with hc.open(live, options=QUIET) as db:
        db.create_table("t", {"id": int}, "id")
        endpoint = read_endpoint(str(live))
        assert endpoint is not None
        shutil.copytree(live, copy)
        assert (copy / "endpoint").exists()
        assert read_endpoint(str(copy)) is None  # it belongs to another folder
        with caplog.at_level(logging.WARNING, "halocline"), hc.open(copy, options=QUIET) as other:
            assert other.role == "owner"
            other.run(lambda txn: txn.insert("t", {"id": 1}))
            with hc.open(copy, options=QUIET) as node:
                assert node.role == "node"
                assert node.table("t").count() == 1
        assert [str(copy) in line and "is a copy" in line for line in caplog.messages] == [True]
        caplog.clear()
        assert _count(copy) == 1
        assert not caplog.messages  # it has said so once
        assert Path(endpoint.socket).exists()
        assert read_endpoint(str(live)) == endpoint
        with hc.open(live, options=QUIET) as node:
            assert node.role == "node"
            node.run(lambda txn: txn.insert("t", {"id": 2}))
        assert db.table("t").count() == 1


def test_a_folder_that_was_only_moved_is_no_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _make(tmp_path / "db")
    (tmp_path / "db").rename(tmp_path / "moved")
    assert _count(tmp_path / "moved") == 3
    assert not caplog.messages


def test_a_socket_on_which_somebody_listens_is_not_removed(tmp_path: Path) -> None:
    """Not even if the endpoint of another database stands here and claims to be of this one."""
    live, mine = tmp_path / "live", tmp_path / "mine"
    _make(mine)
    with hc.open(live, options=QUIET) as db:
        endpoint = read_endpoint(str(live))
        assert endpoint is not None
        facts, there = mine.stat(), live.stat()
        text = (live / "endpoint").read_text()
        planted = text.replace(
            f"[{there.st_dev},{there.st_ino}]", f"[{facts.st_dev},{facts.st_ino}]"
        )
        assert planted != text
        (mine / "endpoint").write_text(planted)
        assert _count(mine) == 3
        assert Path(endpoint.socket).exists()
        with hc.open(live, options=QUIET) as node:
            assert node.role == "node"
        assert db.role == "owner"


# Links.


def test_gc_does_not_follow_a_link_into_another_database(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "db"
    _make(victim)
    _make(path)
    before = {str(file): file.read_bytes() for file in victim.rglob("*.parquet")}
    assert before
    for name in ("9", "10"):
        (path / "objects" / name).symlink_to(next((victim / "objects").iterdir()))
    with hc.open(path, options=QUIET) as db:
        db.gc()
        db.checkpoint()
        db.gc()
    assert {str(file): file.read_bytes() for file in victim.rglob("*.parquet")} == before
    assert _count(victim) == 3


@pytest.mark.parametrize("folder", ["objects", "log", "pins", "spill"])
def test_a_folder_that_became_a_link_is_refused(tmp_path: Path, folder: str) -> None:
    _make(tmp_path / "db")
    inside, outside = tmp_path / "db" / folder, tmp_path / "outside"
    if inside.exists():
        inside.rename(outside)
    else:
        outside.mkdir()
    inside.symlink_to(outside)
    before = sorted(os.listdir(outside))

    def use() -> None:
        with hc.open(tmp_path / "db", options=QUIET) as db:
            db.run(lambda txn: txn.insert("t", {"id": 9}))
            db.flush()
            db.gc()
            db.sql("select sum(id) from t")

    error = _in_time(use)
    assert isinstance(error, hc.HaloclineError) or folder == "pins", error
    assert sorted(os.listdir(outside)) == before


# Pipes.


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("name", "opens"),
    [
        ("endpoint", True),
        (POINTER_PATH, True),
        ("log/00000001.log", False),
        ("published", None),
        ("LOCK", False),
        ("pins/00.pin", True),
        ("pins/1-1.lease", True),
        ("pins/x.named", True),
    ],
)
def test_a_pipe_does_not_hang_anybody(
    tmp_path: Path, name: str, opens: bool | None, read_only: bool
) -> None:
    path = tmp_path / "db"
    with hc.open(path, options=QUIET) as db:
        db.create_table("t", {"id": int}, "id")
        db.run(lambda txn: txn.insert("t", {"id": 1}))
    (path / name).unlink(missing_ok=True)
    (path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(path / name)

    def use() -> int:
        with hc.open(path, read_only=read_only, options=QUIET) as db:
            if not read_only:
                db.gc()
            return db.table("t").count()

    found = _in_time(use)
    if opens is None:
        opens = read_only  # a reader of a database that nobody writes need not know the position
    if opens:
        assert found == 1
    else:
        assert isinstance(found, hc.UnavailableError), found
        assert "no regular file" in str(found)


def test_an_object_that_became_a_pipe_is_an_error(tmp_path: Path) -> None:
    _make(tmp_path / "db")
    for file in (tmp_path / "db" / "objects").glob("[1-9]*/*.parquet"):
        file.unlink()
        os.mkfifo(file)
    found = _in_time(lambda: _count(tmp_path / "db"))
    if found == 3:  # statistics were enough
        found = _in_time(lambda: hc.open(tmp_path / "db", read_only=True).sql("select id from t"))
    assert isinstance(found, hc.HaloclineError), found


# Size.


@pytest.mark.parametrize("name", [POINTER_PATH, "pins/1-99999999999999999.lease", "endpoint"])
def test_a_huge_file_is_not_read_into_memory(tmp_path: Path, name: str) -> None:
    _make(tmp_path / "db")
    file = tmp_path / "db" / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    try:
        os.truncate(file, 20 << 30)
    except OSError as error:
        pytest.skip(f"this file system has no sparse files: {error}")
    assert _count(tmp_path / "db") == 3
    with hc.open(tmp_path / "db", options=QUIET) as db:
        db.gc()
        db.run(lambda txn: txn.insert("t", {"id": 9}))


def test_a_log_file_that_was_lengthened_is_not_read_into_memory(tmp_path: Path) -> None:
    _make(tmp_path / "db")
    newest = max((tmp_path / "db" / "log").glob("*.log"))
    try:
        os.truncate(newest, 20 << 30)
    except OSError as error:
        pytest.skip(f"this file system has no sparse files: {error}")
    assert _count(tmp_path / "db", read_only=True) == 3
    assert _count(tmp_path / "db") == 3


@pytest.mark.parametrize("beside", [True, False], ids=["beside the log", "in its place"])
@pytest.mark.parametrize("read_only", [True, False])
def test_an_empty_log_file_of_any_size_is_not_read_into_memory(
    tmp_path: Path, beside: bool, read_only: bool
) -> None:
    _make(tmp_path / "db")
    newest = max((tmp_path / "db" / "log").glob("*.log"))
    planted = newest.with_name(f"{int(newest.stem) + beside:08d}.log")
    planted.unlink(missing_ok=True)
    planted.touch()
    try:
        os.truncate(planted, 20 << 30)
    except OSError as error:
        pytest.skip(f"this file system has no sparse files: {error}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = _in_time(lambda: _count(tmp_path / "db", read_only=read_only))
    assert isinstance(found, hc.CorruptionError), found
    assert (planted.name in str(found)) or not beside
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024  # KiB
    assert planted.exists()  # whoever planted it may have had a reason
    if beside:
        planted.unlink()
        assert _count(tmp_path / "db") == 3


def test_an_empty_log_file_behind_the_last_is_a_leftover(tmp_path: Path) -> None:
    """A spare that a crash has left, of a size that the log makes, also under other options."""
    _make(tmp_path / "db")
    newest = max((tmp_path / "db" / "log").glob("*.log"))
    spare = newest.with_name(f"{int(newest.stem) + 1:08d}.log")
    spare.write_bytes(bytes(100 << 20))
    assert _count(tmp_path / "db") == 3
