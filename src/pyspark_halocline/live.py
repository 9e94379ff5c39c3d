"""Live reads: each run of a query sees the newest snapshot, and all of its tasks the same one.

    Spark plans a view or a DataFrame once and runs it again and again; its partitions stay. So a
    partition is only a slot, and the plan is made when the first task of a run asks for it.

    task --is there a plan of this run?--no--> open, plan, hold, write it down: the first one counts
                                       '-yes-> read the file of its slot

A plan is a folder in the database's folder `staging`, named after the view and Spark's number of
the run, with a file for each slot; so tasks that are tried again, and stages that are computed
again, read the same rows. Two plans of one snapshot may differ in their files (a flush came
between), so of two tasks that plan at the same time one must give way. Plans go when their lease is
over.

This needs the database's own folder on the executor's machine. With `at` the snapshot is fixed when
it is planned, and executors need only the objects.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import xxhash
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from halocline.clock import SystemClock
from halocline.errors import CorruptionError
from halocline.spark.owner import state_of
from pyspark_halocline.connect import open_to_read
from pyspark_halocline.options import Address
from pyspark_halocline.parts import Part, Wanted, hold, plan_parts
from pyspark_halocline.staging import FOLDER

RUN_ID: Final = "spark.sql.execution.id"
ENDING: Final = ".plan"
SLOTS_MIN: Final = 2
_DIGEST_BYTES: Final = 16


class View(NamedTuple):
    """What a DataFrame or a view reads whenever it runs."""

    path: str
    table: str
    columns: tuple[str, ...]
    where: str | None
    lease_s: float
    name: str
    """One that no other has."""


@dataclass
class Slot(InputPartition):
    """A share of whatever the table holds when the query runs."""

    view: View
    number: int
    count: int


class _Plan(msgspec.Struct):
    """What one slot reads in one run: where, and the parts as (files, dead RowIDs, rows)."""

    root: str
    schema: dict[str, Any]
    ts: int
    parts: list[tuple[list[tuple[str, int, list[Any], bool]], bytes, bytes]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Plan, strict=False).decode


def live_parts(slot: Slot) -> Iterator[Part]:
    """The slot's share of the run that this task belongs to."""
    view = slot.view
    folder = Path(view.path, FOLDER, f"{view.name}-{_run()}{ENDING}")
    if not folder.exists():
        _write(folder, _make(view), slot.count)
        _sweep(folder.parent, view.lease_s)
    plan = _read(folder / str(slot.number))
    wanted = Wanted(plan.root, plan.schema, plan.ts, view.columns, view.where)
    for files, dead, rows in plan.parts:
        yield Part(wanted, tuple(files), dead, rows)


def _run() -> str:
    """What all tasks of one run of a query, and no others, have in common."""
    context = TaskContext.get()
    if context is None:
        return "0"
    return context.getLocalProperty(RUN_ID) or f"stage-{context.stageId()}"


def _make(view: View) -> _Plan:
    with open_to_read(Address(view.path)) as db, db.begin() as txn:
        state = state_of(txn, view.table)
        parts = plan_parts(state, txn.snapshot, view.columns, view.where)
        plan = _Plan(
            root=state.shelf.root,
            schema=state.schema.to_wire(),
            ts=txn.snapshot,
            parts=[(list(part.files), part.dead, part.rows) for part in parts],
        )
        hold(db, txn.snapshot, view.lease_s)
    return plan


def _write(folder: Path, plan: _Plan, count: int) -> None:
    """Write a plan down, unless another task has been faster: a rename never replaces a folder
    that is not empty."""
    draft = folder.with_name(f"{SystemClock().random_bytes(12).hex()}.tmp")
    draft.mkdir(mode=0o700, parents=True)
    for number in range(count):
        share = _Plan(plan.root, plan.schema, plan.ts, plan.parts[number::count])
        data = _encode(share)
        file = draft / str(number)
        file.touch(mode=0o600)
        file.write_bytes(xxhash.xxh3_128_digest(data) + data)
    try:
        draft.rename(folder)
    except OSError as error:
        shutil.rmtree(draft)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _read(file: Path) -> _Plan:
    data = file.read_bytes()
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if xxhash.xxh3_128_digest(body) != digest:
        raise CorruptionError(str(file), "it is not what its task wrote")
    return _decode(body)


def _sweep(folder: Path, lease_s: float) -> None:
    """Plans that nobody may read any more."""
    now_s = SystemClock().wall_us() / 1e6
    for path in (*folder.glob(f"*{ENDING}"), *folder.glob("*.tmp")):
        with suppress(OSError):
            if now_s - path.stat().st_mtime > max(lease_s, 3600.0):
                shutil.rmtree(path)
