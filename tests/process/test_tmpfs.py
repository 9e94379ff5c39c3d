"""A disk that is really full: a small file system in memory, with everything else real.

    ballast + database fill the disk --> writes are refused, reads go on, GC makes room
    ballast goes --> everything works again, in the same process

The file system is mounted in a namespace of a child's own, so that nothing of it is left behind.
Where that is not permitted the test is skipped; sim/test_faults.py has a store that refuses.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from tests.process.nursery import ROOT

MOUNT = 'mount -t tmpfs -o size=8m none "$1" && shift && exec "$@"'
OPTIONS = hc.Options(
    page_rows=64,
    object_rows=256,
    row_group_rows=128,
    object_rows_min=200,
    compact_depth=1,
    log_file_bytes=256 * 1024,
    log_file_bytes_first=64 * 1024,
    background=False,
)


def text_of(key: int) -> str:
    """Nothing that can be compressed to nothing."""
    return Random(key).randbytes(350).hex()


def _mounted(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    command = ["unshare", "-rm", "sh", "-c", MOUNT, "sh", str(folder), sys.executable, "-c"]
    return subprocess.run(
        [*command, program],
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_full_disk_refuses_writes_and_goes_on_when_there_is_room(
    tmp_path: Path, durability: str
) -> None:
    if shutil.which("unshare") is None or _mounted(tmp_path, "pass").returncode:
        pytest.skip("a file system cannot be mounted here")
    call = f"live({str(tmp_path)!r}, {durability!r})"
    result = _mounted(tmp_path, f"from tests.process.test_tmpfs import live; {call}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] == "done"


# -- in the child --------------------------------------------------------------------------------


class Full:
    """A database, and what must be in it."""

    def __init__(self, folder: Path, durability: Any) -> None:
        self.folder = folder
        self.durability = durability
        self.keys: set[int] = set()
        self.refused = 0
        self.db = self.open()
        self.db.create_table("t", {"id": int, "v": str}, primary_key="id")

    def open(self) -> hc.Database:
        return hc.open(self.folder / "db", durability=self.durability, retention=0, options=OPTIONS)

    def put(self, *keys: int) -> bool:
        """One commit; False when there was no room, and then nothing of it is there."""
        rows = pa.table({"id": list(keys), "v": [text_of(key) for key in keys]})
        outcome = "committed"
        try:
            self.db.run(lambda txn: txn.upsert("t", rows))
        except hc.UnavailableError as error:
            outcome = str(error.outcome)
        if outcome == "committed":
            self.keys.update(keys)
            return True
        assert outcome == "not_committed"
        self.refused += 1
        return False

    def attempt(self, name: str) -> bool:
        """Upkeep: it works, or says that it cannot; the rows are the same in either case."""
        try:
            getattr(self.db, name)()
        except hc.UnavailableError as error:
            print(name, error)
            worked = False
        else:
            worked = True
        self.verify(name)
        return worked

    def verify(self, when: str) -> None:
        found = self.db.sql("select count(*) as n, count(distinct id) as d, sum(id) as s from t")
        (row,) = found.to_pylist()
        assert (row["n"], row["d"], row["s"]) == (len(self.keys), len(self.keys), sum(self.keys)), (
            when
        )
        with self.db.begin() as txn:
            for key in (min(self.keys), max(self.keys)):
                assert txn.get("t", key) == {"id": key, "v": text_of(key)}, when
        assert self.db.check() == [], when


def live(path: str, durability: str) -> None:
    """What the child does; an AssertionError ends it."""
    folder = Path(path)
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(3 << 20))
    full = Full(folder, durability)
    for _ in range(2):  # the second time around the first becomes garbage
        for first in range(0, 1000, 100):
            assert full.put(*range(first, first + 100))
        full.db.flush()
    full.db.compact()
    key = 1000
    while full.put(key):
        key += 1
    full.verify("full")
    # Many rows would be an object, and there is no room for one either.
    assert not full.put(*range(100_000, 106_000))
    full.verify("a load that did not fit")
    for name in ("flush", "compact", "checkpoint", "health"):
        full.attempt(name)
    assert full.attempt("gc"), "GC needs no room"
    assert full.put(key), "it has made some"
    while full.put(key):
        key += 1
    for name in ("flush", "checkpoint", "gc"):
        full.attempt(name)
    ballast.unlink()
    assert full.put(200_000), "there is room again"
    assert full.put(*range(200_001, 200_401)), "for an object, too"
    for name in ("flush", "compact", "checkpoint", "gc"):
        assert full.attempt(name), name
    full.db.close()
    full.db = full.open()
    full.verify("opened again")
    full.db.close()
    print(len(full.keys), full.refused, "done")
