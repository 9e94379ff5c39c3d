"""Staged rows of writes that never came to their commit: GC takes them, and never those of others.

No session is needed: tasks and commits run as Spark would run them, in processes that are killed.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline.clock import SystemClock
from halocline.errors import NotFoundError
from tests.spark.sources import BASICS, OPTIONS

pytest.importorskip("pyspark")

from halocline.spark.types import spark_schema
from pyspark_halocline import DefaultSource, staging

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS = 3000


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("orders", BASICS, primary_key="id")
        yield db
        assert not db.check()


def rows() -> pa.Table:
    return pa.table({"id": range(ROWS), "name": ["x"] * ROWS})


def writer_of(path: str) -> Any:
    source = DefaultSource({"path": path, "table": "orders"})
    return pickle.loads(pickle.dumps(source.writer(spark_schema(rows().schema), False)))


def write(path: str, lease_s: str, until: str) -> None:
    """In a process of its own: one task of a write; says so, and waits to be killed.

    `half`: in the middle of its file. `whole`: when its message is ready.
    """
    staging.MESSAGE_BYTES = 1000  # type: ignore[misc]
    staging.LEASE_S = float(lease_s)  # type: ignore[misc]
    stage = staging.Stage(path, f"job{os.getpid()}", rows().schema)
    stage.add(rows())
    if until == "whole":
        stage.finish()
    print("ready", flush=True)
    signal.pause()


def killed_writer(path: str, lease_s: float, until: str) -> int:
    """Its process id; its files are named after it."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    command = [sys.executable, "-m", "tests.spark.test_staging", path, str(lease_s), until]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    return process.pid


def staged(db: hc.Database, pid: int) -> list[str]:
    return [path.name for path in Path(db.path, "staging").glob(f"job{pid}.*")]


@pytest.mark.parametrize("until", ["half", "whole"])
def test_gc_takes_what_killed_writers_have_left_once_their_lease_is_over(
    db: hc.Database, until: str
) -> None:
    held = killed_writer(db.path, 1000, until)
    over = killed_writer(db.path, 0, until)
    foreign = Path(db.path, "staging", "notes.txt")
    foreign.touch()
    assert any(name.endswith(".arrow") for name in staged(db, over))
    report = db.gc()
    assert report.files == 1
    assert report.bytes_freed > 0 or until == "half"  # of half a file nothing may be on disk yet
    assert staged(db, over) == []
    assert any(name.endswith(".arrow") for name in staged(db, held)), "somebody may still need it"
    assert foreign.exists()
    assert db.gc().files == 0


def test_a_commit_ends_all_files_of_its_write(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "MESSAGE_BYTES", 1000)
    writer, other = writer_of(db.path), writer_of(db.path)
    lost = writer.write(iter(rows().to_batches()))  # of a task that is tried again
    message = writer.write(iter(rows().to_batches()))
    waiting = other.write(iter(rows().slice(0, 2000).to_batches()))
    db.gc()
    writer.commit([message])
    folder = Path(db.path, "staging")
    assert lost.file != message.file
    assert [path.name for path in folder.glob("*.arrow")] == [waiting.file]
    assert db.table("orders").count() == ROWS


def test_a_write_whose_lease_was_over_is_run_again(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "MESSAGE_BYTES", 1000)
    monkeypatch.setattr(staging, "LEASE_S", 0.0)
    writer = writer_of(db.path)
    message = writer.write(iter(rows().to_batches()))
    assert db.gc().files == 1
    with pytest.raises(NotFoundError, match="run the write again"):
        writer.commit([message])
    assert db.table("orders").count() == 0
    # Before GC has come by, the rows are there and may be committed.
    message = writer.write(iter(rows().to_batches()))
    writer.commit([message])
    assert db.table("orders").count() == ROWS


def test_the_clock_of_a_lease_is_the_wall_clock(db: hc.Database) -> None:
    stage = staging.Stage(db.path, "one", rows().schema)
    assert stage.finish().data, "few rows need no file, and no lease"
    assert not Path(db.path, "staging").exists()
    now_us = SystemClock().wall_us()
    staging.hold(db.path, [staging.TaskMessage(job="one", file="one.x.arrow")])
    (lease,) = Path(db.path, "staging").iterdir()
    until_us = int(lease.name.split(".")[1])
    lease_us = staging.LEASE_S * 1e6
    assert lease_us <= until_us - now_us <= lease_us * 1.2


if __name__ == "__main__":
    write(*sys.argv[1:])
