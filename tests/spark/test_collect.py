"""A Spark job that is broken off: it ends on all executors, and nothing of it is left."""

from __future__ import annotations

import signal
import time
from itertools import count
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pytest
from pyspark.sql import functions as F

import halocline as hc
from halocline import spark as hs
from halocline.spark.collect import collect


class ChangedHisMind(Exception):
    pass


def _later() -> Any:
    looks = count()

    def go_on() -> None:
        if next(looks) > 3:
            raise ChangedHisMind

    return go_on


def _slow(spark: Any) -> Any:
    """Two tasks of some minutes each."""
    slow = F.udf(lambda number: (time.sleep(0.1), number)[1], "bigint")
    return spark.range(0, 4000, numPartitions=2).select("id", slow("id").alias("n"))


@pytest.mark.parametrize("guest", [True, False])
def test_a_job_ends_when_it_may_not_go_on(spark: Any, guest: bool) -> None:
    started = time.monotonic()
    with pytest.raises(ChangedHisMind):
        collect(_slow(spark), "a slow job", go_on=_later(), guest=guest)
    assert time.monotonic() - started < 100
    assert spark.range(10).count() == 10, "the cores are free again"


def test_a_guest_stays_in_the_group_of_the_caller(spark: Any) -> None:
    context = spark.sparkContext
    context.setJobGroup("mine", "of the caller")
    try:
        collect(spark.range(3), "a job", go_on=lambda: None, guest=True)
        assert context.statusTracker().getJobIdsForGroup("mine")
        assert not context.getJobTags()
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)


def test_a_write_job_ends_with_its_database(spark: Any, tmp_path: Path) -> None:
    db = hc.open(tmp_path / "db")
    db.create_table("t", {"id": int, "n": int}, primary_key="id")
    closing = Timer(1.0, db.close)
    closing.start()
    with pytest.raises(hc.HaloclineError):
        hs.load(_slow(spark), db, "t")
    closing.join()
    with hc.open(tmp_path / "db") as again:
        assert again.table("t").count() == 0
        assert again.check() == []


def test_ctrl_c_ends_a_query(spark: Any, tmp_path: Path) -> None:
    with hc.open(tmp_path / "db") as db:
        db.create_table("t", {"id": int}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", [{"id": number} for number in range(500)])
        # Seconds of work and not more: Spark frees a core only when a task looks up from its loop.
        long = "select count(*) from t a, t b, t c where a.id + b.id * c.id = -1"
        running = spark.sparkContext.statusTracker().getActiveJobsIds
        ended = Event()

        def strike() -> None:
            while not running() and not ended.wait(0.1):
                pass
            signal.raise_signal(signal.SIGINT)

        striking = Thread(target=strike)
        striking.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                db.sql(long, engine="spark")
        finally:
            ended.set()
            striking.join()
        assert db.sql("select count(*) as n from t", engine="spark").to_pylist() == [{"n": 500}]
