"""Blind jobs without Spark: the same tasks and the same commit, in this process.

rows --begin_job--> two partitions run (spark/task.py) --> a transaction ready to commit
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from halocline.spark import worker
from halocline.spark.condition import check_condition
from halocline.spark.job import LoadReport, join, pack_base, start
from halocline.spark.task import Partition, Spec
from halocline.txn.blind import Counts

ACTIONS: dict[str, tuple[Any, Any]] = {
    "error": ("error", "insert"),
    "upsert": ("update", "insert"),
    "ignore": ("ignore", "insert"),
    "delete": ("delete", "ignore"),
    "update": ("update", "error"),
    "update-only": ("update", "ignore"),
    "delete-or-insert": ("delete", "insert"),
}


class Job(NamedTuple):
    """A job whose tasks have run and that has not committed."""

    txn: Any
    table: str
    report: LoadReport

    def commit(self) -> int:
        commit_ts: int = self.txn.commit()
        return commit_ts

    @property
    def blind(self) -> Any:
        return self.txn.changes_of(self.table).blind


def begin_job(
    db: Any, table: str, mode: str, rows: Any, condition: str = "", token: Any = None
) -> Job:
    """Run the tasks of a job against the newest snapshot."""
    txn = db.begin(token=token)
    state = txn.state_of(table)
    schema = state.schema
    # A database in memory has no folder: its tasks share its shelf.
    worker._shelves[state.shelf.root] = state.shelf
    matched, absent = ACTIONS[mode]
    bound = check_condition(condition, rows.schema, schema.arrow)[0] if condition else ""
    columns = schema.primary_key if mode == "delete" and not bound else tuple(rows.column_names)
    spec = Spec(matched=matched, absent=absent, columns=columns, condition=bound)
    changes = txn.changes_of(table)
    job = start(db, changes, 2)
    base = pack_base(state, txn.snapshot)
    rows = rows.select(list(columns)).sort_by([(name, "ascending") for name in schema.primary_key])
    half = _between_keys(rows, schema)
    lines: list[Any] = []
    for number, part in enumerate([rows.slice(0, half), rows.slice(half)]):
        batches = Partition(job, spec, base, number, attempt=number).write(iter(part.to_batches()))
        lines += [Line(**row) for batch in batches for row in batch.to_pylist()]
    return Job(txn, table, join(changes, spec, lines))


class Line(NamedTuple):
    """What a task says of one object."""

    kind: str
    rows: int
    content: bytes


def _between_keys(rows: Any, schema: Any) -> int:
    """About the middle, but never between two rows of one key."""
    keys = schema.keys_of(schema.table(rows, columns="given")) if rows.num_rows else []
    half = len(keys) // 2
    while 0 < half < len(keys) and keys[half] == keys[half - 1]:
        half += 1
    return half


def between_rounds(db: Any, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Run a step each time a job's commit is prepared, just before it takes the lock."""
    committer, waiting = db.core.committer, list(steps)
    prepare = committer._prepare

    def prepared(txn_id: int, txn: Any, tables: Any) -> Any:
        done = prepare(txn_id, txn, tables)
        # The last resort prepares under the lock, where nobody else can commit.
        if waiting and not committer.lock.locked() and tables_of_jobs(tables):
            waiting.pop(0)()
        return done

    monkeypatch.setattr(committer, "_prepare", prepared)


def tables_of_jobs(tables: Any) -> list[Any]:
    return [changes for changes in tables.values() if changes.blind]


__all__ = ["ACTIONS", "Counts", "Job", "begin_job", "between_rounds", "pa"]
