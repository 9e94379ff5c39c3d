"""Tables to compact on Spark, and jobs that wait, fail or are killed when a test says so.

Gate       tasks wait in their executors until the test has done what it wants to do meanwhile
failing    the task that is named raises, before it writes or after
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import halocline as hc
from halocline.spark import rewrite, runner

OPTIONS = hc.Options(
    page_rows=64,
    object_rows=128,
    row_group_rows=64,
    object_rows_min=100_000,
    bulk_rows=50,
    compact_local_bytes=1,
    background=False,
)
"""Nothing is small enough for this process: every group goes to Spark."""
Rows = dict[int, Any]


def overlapping(db: hc.Database, objects: int = 6, keys: int = 60) -> Rows:
    """Objects that all hold the same range of keys."""
    model: Rows = {}
    for number in range(objects):
        rows = {key * objects + number: number for key in range(keys)}
        put(db, rows)
        model |= rows
        db.flush("t")
    return model


def put(db: hc.Database, rows: Rows) -> int:
    with db.begin() as txn:
        txn.upsert("t", [{"id": key, "n": n} for key, n in rows.items()])
    return txn.commit_ts or 0


def drop(db: hc.Database, *keys: int) -> int:
    with db.begin() as txn:
        for key in keys:
            txn.delete("t", key)
    return txn.commit_ts or 0


def rows_at(db: hc.Database, ts: int | None = None) -> Rows:
    return {row["id"]: row["n"] for row in db.table("t").to_arrow(at=ts).to_pylist()}


def current(db: hc.Database) -> list[Any]:
    with db.begin() as txn:
        return list(txn.changes_of("t").state.shape.tier.current())


class Gate:
    """All tasks wait for it, before they write or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, *, after: bool = False) -> None:
        self._path = path
        place = str(path)

        def waiting(told: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
            inner = rewrite.run(told)

            def partition(batches: Iterator[Any]) -> Iterator[Any]:
                import os
                import time

                written = list(inner(batches)) if after else []
                while not os.path.exists(place):
                    time.sleep(0.02)
                yield from written if after else inner(batches)

            return partition

        monkeypatch.setattr(runner, "run", waiting)

    def open(self) -> None:
        self._path.touch()


def failing(monkeypatch: pytest.MonkeyPatch, number: int, *, after: bool = False) -> None:
    """The task of this number raises."""

    def injected(told: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
        inner = rewrite.run(told)

        def partition(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                fails = batch.column(0)[0].as_py() == number
                written = list(inner(iter([batch]))) if after or not fails else []
                if fails:
                    raise RuntimeError("injected failure")
                yield from written

        return partition

    monkeypatch.setattr(runner, "run", injected)


class Beside(Thread):
    """A call that runs in a thread of its own; `result` gives what it returned or raises."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join(120)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._value


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for another process or thread to get somewhere."""
    deadline = time.monotonic() + seconds
    pause = Event()
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        pause.wait(0.02)


def job_runs(db: hc.Database) -> bool:
    return bool(db.core.engine.jobs)
