"""`halocline maintain`: rounds of maintenance, with Spark for large groups or without it.

Without Spark (not installed, no Java, or not wanted) this process does all it can, and says what is
left. Where another process has the database open, that one carries out what it is asked to.

SIGTERM ends the rounds as Ctrl-C does: service managers send it.
"""

from __future__ import annotations

import signal

from rich.console import Console

from halocline import Database
from halocline.checkpoint.maintain import Flag, MaintenanceReport
from halocline.checkpoint.maintain import maintain as run_rounds
from halocline.cli.errors import TROUBLE, say
from halocline.cli.show import Show
from halocline.compaction import LocalRunner
from halocline.errors import UnavailableError


def maintain(db: Database, *, interval_s: float, once: bool, spark: bool) -> int:
    """Run the rounds; returns the exit code."""
    stop = Flag()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    console = Console()
    try:
        with Show(console) as show:
            if spark and _is_owner(db) and _has_spark():
                from halocline.spark import maintain as on_spark

                report = on_spark(None, db, interval_s, once, progress=show, stop=stop)
            else:
                report = run_rounds(
                    db,
                    lambda go_on, tasks: LocalRunner(db.core.options, go_on),
                    interval_s=interval_s,
                    once=once,
                    watch=show,
                    stop=stop,
                )
    finally:
        signal.signal(signal.SIGTERM, before)
    return _conclude(console, report)


def _is_owner(db: Database) -> bool:
    """Is this process the owner? Jobs of Spark commit only there."""
    if db.core.owned is not None:
        return True
    say("another process has the database open and does the work; large groups are left")
    return False


def _has_spark() -> bool:
    try:
        from halocline.spark.java import check_java
    except ImportError:
        say("Spark is not installed (pip install 'halocline[spark]'): large groups are left")
        return False
    try:
        check_java()
    except UnavailableError as error:
        say(f"{error}; large groups are left")
        return False
    return True


def _conclude(console: Console, report: MaintenanceReport) -> int:
    for text in report.left:
        console.print(f"still owed: {text}", markup=False, highlight=False, soft_wrap=True)
    if report.stopped:
        console.print("stopped; what was committed stays, the rest is done another time")
    elif not report.left and not report.troubles:
        console.print("nothing is owed")
    return TROUBLE if report.troubles else 0
