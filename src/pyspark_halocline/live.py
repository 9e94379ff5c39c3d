"""Live reads: each run of a query sees the newest snapshot.

    Spark plans a view or a DataFrame once and runs it again and again; its partitions stay. So the
    one partition of a live read names only the table, and its task plans.

    task --is there a plan of this run?--no--> open, plan, hold, write it down: the first one counts
                                       '-yes-> read it

A plan is a file in the database's folder `staging`, named after the view and Spark's number of the
run; so a task that is tried again, a stage that is computed again and a view that stands twice in a
query read the same rows. Two plans of one snapshot may differ in their files (a flush came
between), so of two tasks that plan at the same time one must give way. Plans go when their lease is
over: with the next one, or with GC.

One partition, and not several: Spark may keep partitions that different runs have read (`cache`),
and parts of two plans do not make a table. With `at` the snapshot is fixed when it is planned; then
there are many, and executors need only the objects, not the database's own folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import xxhash
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from halocline.checkpoint.staging import FOLDER, hold_staged, sweep_staged
from halocline.clock import SystemClock
from halocline.errors import CorruptionError
from halocline.store import LocalFiles
from pyspark_halocline.connect import open_to_read
from pyspark_halocline.options import Address
from pyspark_halocline.parts import ScanPart, Wanted, hold, plan_parts

RUN_ID: Final = "spark.sql.execution.id"
ENDING: Final = ".plan"
LEASE_S_MIN: Final = 3600.0
"""A query that was planned may run for so long, however short the lease of its snapshot."""
_DIGEST_BYTES: Final = 16


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


class _Plan(msgspec.Struct):
    """What one run reads: where, and the parts as (files, dead RowIDs, rows)."""

    root: str
    schema: dict[str, Any]
    ts: int
    parts: list[tuple[list[tuple[str, int, list[Any], bool]], bytes, bytes]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Plan, strict=False).decode


def live_parts(view: LiveView) -> Iterator[ScanPart]:
    """The table as the run sees it that this task belongs to."""
    job = f"{view.name}-{_run()}"
    file = Path(view.path, FOLDER, f"{job}{ENDING}")
    if not file.exists():
        hold_staged(view.path, SystemClock(), job, max(view.lease_s, LEASE_S_MIN))
        _write(file, _make(view))
        sweep_staged(LocalFiles(view.path), SystemClock())
    plan = _read(file)
    wanted = Wanted(plan.root, plan.schema, plan.ts, view.columns, view.where)
    for files, dead, rows in plan.parts:
        yield ScanPart(wanted, tuple(files), dead, rows)


def _run() -> str:
    """What all tasks of one run of a query, and no others, have in common."""
    context = TaskContext.get()
    if context is None:
        return "0"
    return context.getLocalProperty(RUN_ID) or f"stage-{context.stageId()}"


def _make(view: LiveView) -> _Plan:
    with open_to_read(Address(view.path)) as db, db.begin() as txn:
        state = txn.state_of(view.table)
        parts = plan_parts(state, txn.snapshot, view.columns, view.where)
        plan = _Plan(
            root=state.shelf.root,
            schema=state.schema.to_wire(),
            ts=txn.snapshot,
            parts=[(list(part.files), part.dead, part.rows) for part in parts],
        )
        hold(db, txn.snapshot, view.lease_s)
    return plan


def _write(file: Path, plan: _Plan) -> None:
    """Write a plan down, unless another task has been faster: a link never replaces a file."""
    data = _encode(plan)
    draft = file.with_name(f"{file.stem}.{SystemClock().random_bytes(12).hex()}.draft")
    draft.touch(mode=0o600)
    try:
        draft.write_bytes(xxhash.xxh3_128_digest(data) + data)
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        draft.unlink()


def _read(file: Path) -> _Plan:
    data = file.read_bytes()
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if xxhash.xxh3_128_digest(body) != digest:
        raise CorruptionError(str(file), "it is not what its task wrote")
    return _decode(body)
