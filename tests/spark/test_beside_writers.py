"""A bulk upsert beside threads that update the same rows one by one: it commits once, nobody waits
long for the commit lock, and what is there in the end is what some serial order gives.

    4 threads: update a random row, remember what was acknowledged, and when
    one job:   upsert of every row                              --> commit at T
    at T       every row is the job's
    in the end rows that were updated after T have that value, all others are the job's

`make sim` runs it with a million rows and prints the longest wait.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import halocline as hc
from halocline import spark as hs

WAIT_MS_MAX = 100


class Stopwatch:
    """A lock that remembers the longest wait of each thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waits: dict[int, float] = {}

    def __enter__(self) -> bool:
        begin = time.perf_counter()
        self._lock.acquire()
        me = threading.get_ident()
        self.waits[me] = max(self.waits.get(me, 0.0), time.perf_counter() - begin)
        return True

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Updater(threading.Thread):
    """Updates rows at random until told to stop; remembers what was acknowledged."""

    def __init__(self, db: Any, rows: int, number: int, stop: threading.Event) -> None:
        super().__init__(name=f"updater-{number}")
        self._db, self._rows, self._number, self._stopped = db, rows, number, stop
        self.done: list[tuple[int, int, int]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        chance = random.Random(self._number)
        try:
            while not self._stopped.is_set():
                key, value = chance.randrange(self._rows), self._number + 4 * len(self.done)
                txn = self._update(key, value)
                if txn is not None:
                    self.done.append((txn.commit_ts, key, value))
        except BaseException as error:
            self.error = error
            raise

    def _update(self, key: int, value: int) -> Any:
        try:
            with self._db.begin() as txn:
                txn.update("t", key, {"a": value})
            return txn
        except hc.ConflictError:
            return None  # the job was faster


def run(spark: Any, folder: Path, rows: int) -> float:
    """Returns the longest wait of an updater for the commit lock, in milliseconds."""
    with hc.open(folder / "shop") as db:
        db.create_table("t", {"id": int, "a": int, "b": str}, primary_key="id")
        ids = pa.array(range(rows))
        zeros, old = pa.array([0] * rows), pa.array(["old"] * rows)
        with db.begin() as txn:
            txn.insert("t", pa.table({"id": ids, "a": zeros, "b": old}))
        given = spark.range(rows).selectExpr("id", "bigint(-1) as a", "'job' as b")
        watch = Stopwatch()
        db.core.committer.lock = watch
        stop = threading.Event()
        threads = [Updater(db, rows, number, stop) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            report = hs.load(given, db, "t", on_conflict="upsert")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert [thread.error for thread in threads] == [None] * 4
        waits = [watch.waits.get(thread.ident, 0.0) for thread in threads]
        verify(db, report, rows, threads)
        return max(waits) * 1e3


def verify(db: Any, report: Any, rows: int, threads: list[Updater]) -> None:
    done = sorted(one for thread in threads for one in thread.done)
    before = [one for one in done if one[0] < report.commit_ts]
    assert len({key for _, key, _ in before}) > 20, "nobody got in the job's way"
    assert (report.inserted, report.updated) == (0, rows)
    then = db.table("t").to_arrow(at=report.commit_ts)
    assert pc.value_counts(then.column("a")).to_pylist() == [{"values": -1, "counts": rows}]
    assert pc.value_counts(then.column("b")).to_pylist() == [{"values": "job", "counts": rows}]
    expected = {key: value for ts, key, value in done if ts > report.commit_ts}
    left = db.sql("select id, a from t where a <> -1").to_pylist()
    assert {row["id"]: row["a"] for row in left} == expected
    assert db.sql("select count(*) n from t where b = 'job'").to_pylist() == [{"n": rows}]
    assert db.check() == []


def test_an_upsert_beside_writers_of_the_same_rows(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_ms = run(spark, tmp_path, 20_000)
    with capsys.disabled():
        print(f"[longest wait for the commit lock: {wait_ms:.1f} ms]", end=" ")
    # Not held against the limit here: other tests may keep this machine busy.
    assert wait_ms < 20 * WAIT_MS_MAX


@pytest.mark.sim
def test_a_million_rows_beside_writers_of_the_same_rows(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_ms = run(spark, tmp_path, 1_000_000)
    with capsys.disabled():
        print(f"[longest wait for the commit lock: {wait_ms:.1f} ms]", end=" ")
    assert wait_ms < WAIT_MS_MAX
