"""Live reads: each run of a query sees the newest snapshot.

    Spark plans a view or a DataFrame once and runs it again and again; its partitions stay. So the
    one partition of a live read names only the table, and its task plans.

    task --opens--> newest snapshot --lease by the name of view and run (checkpoint/leases.py)-->
                    the snapshot of this run: the first task's counts --plan--> parts --> rows

So a task that is tried again, a stage that is computed again and a view that stands twice in a
query read the same rows, for as long as the lease runs.

One partition, and not several: Spark may keep partitions that different runs have read (`cache`),
and parts of two plans do not make a table. With `at` the snapshot is fixed when it is planned; then
there are many, and executors need only the objects, not the database's own folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from halocline.checkpoint.leases import share_lease
from halocline.clock import SystemClock
from pyspark_halocline.connect import open_to_read
from pyspark_halocline.options import Address
from pyspark_halocline.parts import ScanPart, plan_parts

RUN_ID: Final = "spark.sql.execution.id"
LEASE_S_MIN: Final = 3600.0
"""A query may run for so long, however short the lease that was asked for."""


class LiveView(NamedTuple):
    """What a DataFrame or a view reads whenever it runs."""

    path: str
    table: str
    columns: tuple[str, ...]
    where: str | None
    lease_s: float
    name: str
    """One that no other has."""


@dataclass
class Live(InputPartition):
    """Whatever the table holds when the query runs."""

    view: LiveView


def live_parts(view: LiveView) -> Iterator[ScanPart]:
    """The table as the run sees it that this task belongs to."""
    name, seconds = f"{view.name}-{_run()}", max(view.lease_s, LEASE_S_MIN)
    with open_to_read(Address(view.path)) as db:
        with db.begin() as txn:
            ts = share_lease(view.path, SystemClock(), name, txn.snapshot, seconds)
        with db.begin(at=ts) as txn:
            state = txn.state_of(view.table)
            parts = list(plan_parts(state, ts, view.columns, view.where))
    yield from parts


def _run() -> str:
    """What all tasks of one run of a query, and no others, have in common."""
    context = TaskContext.get()
    if context is None:
        return "0"
    return context.getLocalProperty(RUN_ID) or f"stage-{context.stageId()}"
