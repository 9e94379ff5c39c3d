"""A folder that was taken away from an open database: every call says so, and none hangs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import halocline as hc
from halocline.errors import CorruptionError, UnavailableError

OPTIONS = hc.Options(background=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "db"


@pytest.fixture
def db(root: Path) -> Iterator[hc.Database]:
    db = hc.open(root, options=OPTIONS)
    db.create_table("t", {"id": int}, primary_key="id")
    db.run(lambda txn: txn.insert("t", [{"id": n} for n in range(10)]))
    db.flush()
    db.run(lambda txn: txn.insert("t", {"id": 10}))
    yield db
    db.close()


def _lines(db: hc.Database) -> str:
    health = db.health()
    assert not health.is_well
    return str(health)


def test_a_folder_that_was_moved_is_a_trouble_and_close_is_quiet(
    db: hc.Database, root: Path
) -> None:
    assert db.health().is_well
    elsewhere = root.rename(root.with_name("elsewhere"))
    assert "trouble: folder" in _lines(db)
    assert "was moved to" in _lines(db)
    db.close()
    with hc.open(elsewhere) as again:
        assert again.table("t").count() == 11
        assert again.check() == []


def test_a_log_that_was_unlinked_is_a_trouble(db: hc.Database, root: Path) -> None:
    for file in (root / "log").glob("*.log"):
        file.unlink()
    assert "trouble: log" in _lines(db)
    assert "was removed or replaced" in _lines(db)


def test_objects_that_were_taken_away_are_a_trouble(db: hc.Database, root: Path) -> None:
    (root / "objects").rename(root / "aside")
    assert "table t: objects/1/1-0.parquet: the file is missing" in _lines(db)
    for call in (db.flush, db.checkpoint):
        with pytest.raises(UnavailableError, match="objects/1 was removed while it was in use"):
            call()
    assert not db.health().is_well
    (root / "aside").rename(root / "objects")
    assert db.flush().rows == 1
    assert db.health().is_well
    assert db.check() == []


def test_a_subscription_to_a_folder_that_was_deleted_ends(db: hc.Database, root: Path) -> None:
    shutil.rmtree(root)
    with pytest.raises(UnavailableError, match="was deleted"):
        for _ in db.subscribe("t", since=0):
            pass


def test_a_subscription_to_a_log_that_was_unlinked_ends(db: hc.Database, root: Path) -> None:
    for file in (root / "log").glob("*.log"):
        file.unlink()
    with pytest.raises(CorruptionError, match="came after timestamp 0 were removed"):
        for _ in db.subscribe("t", since=0):
            pass


def test_a_far_subscription_to_a_folder_that_was_deleted_ends(db: hc.Database, root: Path) -> None:
    server = db.serve()
    with hc.connect(server.uri, server.token) as far:
        shutil.rmtree(root)
        with pytest.raises(UnavailableError, match="was deleted"):
            for _ in far.subscribe("t", since=0):
                pass


READER = """
import sys
import halocline as hc
db = hc.open(sys.argv[1], read_only=True)
print(db.table("t").count(), flush=True)
sys.stdin.readline()
for call in (db.table("t").count, lambda: db.sql("select count(*) from t")):
    try:
        while True:  # it looks twice a second whether the folder is where it was
            call()
    except hc.UnavailableError as error:
        print(error)
health = db.health()
print(health.is_well, health.troubles)
db.close()
"""


def test_a_reader_of_a_folder_that_was_replaced_says_so(db: hc.Database, root: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "11\n"
    elsewhere = root.with_name("elsewhere")
    root.rename(elsewhere)
    root.mkdir()
    said = process.communicate("\n", timeout=60)[0].splitlines()
    assert len(said) == 3
    assert all("was moved to" in line and "another stands" in line for line in said)
    assert said[2].startswith("False")
    root.rmdir()
    elsewhere.rename(root)


def test_nothing_is_left_in_the_place_of_what_outgrew_memory(root: Path) -> None:
    with hc.open(root) as db:
        db.create_table("t", {"id": int})
        db.sql("select * from t")
        assert (root / "spill").is_dir()
    assert not (root / "spill").exists()
