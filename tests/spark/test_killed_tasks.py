"""Files of writes that never came to their commit: GC takes them, and never those of others.

No session is needed: tasks run as Spark would run them, in processes that are killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from tests.spark.sources import BASICS, OPTIONS

pytest.importorskip("pyspark")

from halocline.spark.types import spark_schema
from pyspark_halocline import DefaultSource, travel

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


def write(path: str, mode: str, lease_s: str) -> None:
    """In a process of its own: one task of a stream; says so, and waits to be killed."""
    travel.MESSAGE_BYTES = 1000  # type: ignore[misc]
    travel.LEASE_S = float(lease_s)  # type: ignore[misc]
    source = DefaultSource({"path": path, "table": "orders", "onConflict": mode})
    writer: Any = source.streamWriter(spark_schema(rows().schema), False)
    message = writer.write(iter(rows().to_batches()))
    print(*(Path(key).name for key in keys_of(message)), flush=True)
    signal.pause()


def keys_of(message: Any) -> list[str]:
    return [*(one.key for one in message.made), *(key for key, _ in message.files)]


def killed_task(path: str, mode: str, lease_s: float) -> set[str]:
    """The names of the files that it has left."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    command = [sys.executable, "-m", "tests.spark.test_killed_tasks", path, mode, str(lease_s)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        names = process.stdout.readline().decode().split()
        process.kill()
    assert names
    return set(names)


def files(db: hc.Database) -> set[str]:
    return {file.name for file in Path(db.path, "objects").rglob("*.parquet")}


@pytest.mark.parametrize("mode", ["error", "ignore"], ids=["objects", "rows"])
def test_gc_takes_what_killed_tasks_have_left_once_their_lease_is_over(
    db: hc.Database, mode: str
) -> None:
    held = killed_task(db.path, mode, 1000)
    over = killed_task(db.path, mode, 0)
    assert files(db) == held | over
    report = db.gc()
    assert report.files == len(over)
    assert report.bytes_freed > 0
    assert files(db) == held, "a commit may still need them"
    assert db.gc().files == 0


if __name__ == "__main__":
    write(*sys.argv[1:])
