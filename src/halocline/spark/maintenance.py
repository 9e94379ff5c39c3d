"""Maintenance with Spark: what `health()` says is owed, with large groups on executors.

    hs.maintain(session, db, once=True)        one round, and what it did
    hs.maintain(session, db, interval="1m")    until Ctrl-C, or until `stop` is set

The rounds are those of checkpoint/maintain.py; this file only brings the runner. Spark is started
when the first group needs it.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from halocline.checkpoint.maintain import MaintenanceReport, OnNews, Stop
from halocline.checkpoint.maintain import maintain as run_rounds
from halocline.options import parse_duration
from halocline.spark.owner import check_here
from halocline.spark.runner import SparkRunner
from halocline.spark.sessions import prepare


def maintain(
    session: SparkSession | None,
    db: Any,
    interval: str | float = "1m",
    once: bool = False,
    progress: OnNews | None = None,
    stop: Stop | None = None,
) -> MaintenanceReport:
    """Move, compact, fold tombstones, checkpoint and collect, by what `db.health()` says.

    Goes on, `interval` after each round, until Ctrl-C or until `stop` is set; with `once`, one
    round. `progress` is told what begins, what is done and how far a job of Spark is. Returns what
    was done, what failed and what is still owed.
    """
    owner = check_here(db)
    interval_s = parse_duration(interval)
    if session is not None:
        prepare(session)
    options = owner.core.options
    return run_rounds(
        db,
        lambda go_on, tasks: SparkRunner(options, session, progress=tasks, go_on=go_on),
        interval_s=interval_s,
        once=once,
        watch=progress,
        stop=stop,
        everywhere=True,
    )
