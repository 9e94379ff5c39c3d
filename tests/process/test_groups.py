"""`hc.open(path, group=...)`: users of one group share a database, others do not."""

from __future__ import annotations

import grp
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from tests.process.nursery import Nursery

ANNA, BERT, STRANGER = 61_001, 61_002, 61_003
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


@pytest.fixture
def group() -> grp.struct_group:
    """A group of this machine that this process may share with, and not its first one."""
    mine = {os.getegid()}
    known = [one for one in grp.getgrall() if one.gr_gid not in mine]
    if os.geteuid() != 0:
        known = [one for one in known if one.gr_gid in os.getgroups()]
    if not known:
        pytest.skip("this user is in no second group")
    return known[-1]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest's own is private."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    yield root
    shutil.rmtree(root)


def check_modes(path: Path, group: int, *, private: bool = False) -> None:
    """Everything there is belongs to the group, or to nobody but its user."""
    folders, files = (0o700, 0o600) if private else (0o2770, 0o660)
    for one in (path, *path.rglob("*")):
        facts = one.lstat()
        wanted = folders if one.is_dir() else files
        assert stat.S_IMODE(facts.st_mode) == wanted, (one, oct(facts.st_mode))
        assert private or facts.st_gid == group, one


def as_user(
    nursery: Nursery, path: Path, user: int, groups: list[int], number: int, *, hold: bool = False
) -> tuple[int, dict[str, Any]]:
    ours, theirs = os.pipe()
    given = {"path": str(path), "user": user, "groups": groups, "number": number, "hold": hold}
    pid = nursery.fork("work_as", given, [theirs])
    os.close(theirs)
    with os.fdopen(ours) as answer:
        said = json.loads(answer.readline())
    if not hold:
        assert nursery.wait(pid) == 0
    return pid, dict(said)


def fill(path: Path, **named: Any) -> None:
    with hc.open(path, **named) as db:
        db.create_table("t", {"id": int}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", {"id": 0})
        db.flush()
        db.checkpoint()


@pytest.mark.parametrize("later", [False, True])
def test_files_belong_to_the_group_from_the_moment_it_is_named(
    folder: Path, group: grp.struct_group, later: bool
) -> None:
    path = folder / "new" / "db"
    if later:
        fill(path)
        check_modes(path, group.gr_gid, private=True)
        hc.open(path, group=group.gr_name).close()
    else:
        fill(path, group=group.gr_name)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o2770
    check_modes(path, group.gr_gid)
    with hc.open(path) as db:  # without naming it again
        assert db.table("t").count() == 1
        with db.begin() as txn:
            txn.insert("t", {"id": 1})
        db.flush()
        check_modes(path, group.gr_gid)


def test_a_prepared_folder_alone_shares_nothing(folder: Path, group: grp.struct_group) -> None:
    path = folder / "db"
    path.mkdir()
    os.chown(path, -1, group.gr_gid)
    path.chmod(0o2770)
    for _ in range(2):
        with hc.open(path):
            pass
    assert {stat.S_IMODE(one.lstat().st_mode) & 0o77 for one in path.rglob("*")} == {0}


@pytest.mark.parametrize("bad", ["no such group", "", 7, b"users", "a\0b"])
def test_a_bad_group_is_refused_and_nothing_is_made(folder: Path, bad: Any) -> None:
    with pytest.raises(hc.UsageError, match="group"):
        hc.open(folder / "db", group=bad)
    assert not list(folder.iterdir())


def test_what_is_open_is_not_given_away(folder: Path, group: grp.struct_group) -> None:
    with hc.open(folder / "db"), pytest.raises(hc.UsageError, match="close it there"):
        hc.open(folder / "db", group=group.gr_name)
    check_modes(folder / "db", group.gr_gid, private=True)
    with pytest.raises(hc.UsageError, match="read_only"):
        hc.open(folder / "db", read_only=True, group=group.gr_name)
    with hc.open(folder / "db", group=group.gr_name):
        hc.open(folder / "db", group=group.gr_name).close()  # it is shared already


@as_root
def test_two_users_of_a_group_write_one_database_and_a_third_does_not(
    nursery: Nursery, folder: Path, group: grp.struct_group
) -> None:
    path, shared = folder / "db", [group.gr_gid]
    fill(path, group=group.gr_name)
    anna, said = as_user(nursery, path, ANNA, shared, 1, hold=True)
    assert said == {"role": "owner", "rows": 2, "problems": []}
    _, said = as_user(nursery, path, BERT, shared, 2)
    assert said == {"role": "node", "rows": 3, "problems": []}, "through the socket of the first"
    check_modes(path, group.gr_gid)
    nursery.kill(anna)
    bert, said = as_user(nursery, path, BERT, shared, 3, hold=True)
    assert said == {"role": "owner", "rows": 4, "problems": []}, "after a takeover"
    _, said = as_user(nursery, path, ANNA, shared, 4)
    assert said == {"role": "node", "rows": 5, "problems": []}
    _, said = as_user(nursery, path, STRANGER, [STRANGER], 5)
    assert said["typed"], said
    assert "ermission" in said["text"]
    nursery.kill(bert)
    check_modes(path, group.gr_gid)
    with hc.open(path) as db:
        assert db.table("t").count() == 5
        assert not db.check()


@as_root
def test_only_its_user_shares_a_database(
    nursery: Nursery, folder: Path, group: grp.struct_group
) -> None:
    path = folder / "db"
    fill(path)
    path.chmod(0o755)
    (path / "log").chmod(0o755)
    ours, theirs = os.pipe()
    given = {"path": str(path), "user": ANNA, "group": group.gr_name}
    pid = nursery.fork("try_open_as", given, [theirs])
    os.close(theirs)
    with os.fdopen(ours) as answer:
        said = json.loads(answer.read())
    assert nursery.wait(pid) == 0
    assert said["error"] == "UsageError"
    assert "not a member" in said["text"]
