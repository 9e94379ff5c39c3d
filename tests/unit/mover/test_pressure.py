"""Back-pressure: writers wait a bounded moment when L0 is over its budget, and never fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline.mover.pressure import WAIT_S_MAX
from halocline.options import MIB
from tests.roles import maintenance_of

Open = Callable[..., Any]
WIDE = {"id": int, "text": str}


def _wide(start: int, rows: int, width: int = 1000) -> pa.Table:
    return pa.table({"id": range(start, start + rows), "text": ["x" * width] * rows})


def _idle(db: Any) -> None:
    """The thread is stopped, the mover never comes, but writers believe that it will."""
    maintenance_of(db).background.stop()
    maintenance_of(db).mover.pressure.wake = lambda: None


def test_a_commit_over_the_budget_waits_and_wakes_the_mover(open_db: Open) -> None:
    db = open_db(durability="async", memory="16MB")
    _idle(db)
    woken = threading.Event()
    maintenance_of(db).mover.pressure.wake = woken.set
    db.create_table("t", WIDE, primary_key="id")
    began = time.monotonic()
    with db.begin() as txn:
        txn.insert("t", _wide(0, 8000))
    waited = time.monotonic() - began
    assert woken.is_set()
    assert maintenance_of(db).mover.pressure.over_bytes > 0
    assert 0.1 <= waited < WAIT_S_MAX
    assert db.core.state_of("t", db.visible_ts).owes, "small commits come by, too"
    began = time.monotonic()
    with db.begin() as txn:
        txn.insert("t", {"id": 100_000, "text": "x"})
    assert 0.05 < time.monotonic() - began < 2


def test_whoever_waits_goes_on_when_rows_have_moved(open_db: Open) -> None:
    db = open_db(durability="async", memory="16MB")
    _idle(db)
    db.create_table("t", WIDE, primary_key="id")
    pressure = maintenance_of(db).mover.pressure
    with db.begin() as txn:
        txn.insert("t", _wide(0, 8000))
    waits: list[float] = []

    def wait() -> None:
        began = time.monotonic()
        pressure._wait(30)
        waits.append(time.monotonic() - began)

    thread = threading.Thread(target=wait)
    thread.start()
    db.flush()
    thread.join(60)
    assert waits
    assert waits[0] < 29
    assert pressure.over_bytes == 0
    with db.begin() as txn:
        txn.insert("t", {"id": 100_000, "text": "x"})
    assert not db.core.state_of("t", db.visible_ts).owes, "all is well again"


def test_nobody_waits_without_a_background(open_db: Open) -> None:
    db = open_db(durability="async", memory="16MB", options=hc.Options(background=False))
    db.create_table("t", WIDE, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", _wide(0, 12_000))
    assert db.core.committer.after_tidy is None


def test_closing_lets_those_who_wait_go(open_db: Open) -> None:
    db = open_db(durability="async", memory="16MB")
    _idle(db)
    db.create_table("t", WIDE, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", _wide(0, 8000))
    thread = threading.Thread(target=lambda: maintenance_of(db).mover.pressure._wait(60))
    thread.start()
    db.close()
    thread.join(30)
    assert not thread.is_alive()


def test_dropped_tables_weigh_nothing(open_db: Open) -> None:
    db = open_db(durability="async", memory="16MB")
    _idle(db)
    db.create_table("t", WIDE, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", _wide(0, 8000))
    assert maintenance_of(db).mover.pressure.over_bytes > 0
    db.drop_table("t")
    maintenance_of(db).mover.step()
    assert maintenance_of(db).mover.pressure.used_bytes == 0


@pytest.mark.parametrize("batch", [0, 2000])
def test_l0_stays_near_its_budget_whatever_arrives(tmp_path: Path, batch: int) -> None:
    """Twenty times the budget of L0 goes through it, row by row or in batches."""
    worst = 0
    rows = 20_000
    width = 5000
    with hc.open(tmp_path / "db", durability="async", memory="16MB") as db:
        db.create_table("t", WIDE, primary_key="id")
        pressure = maintenance_of(db).mover.pressure  # type: ignore[union-attr]
        assert pressure.budget_bytes == 4 * MIB
        for start in range(0, rows, batch or 1):
            with db.begin() as txn:
                if batch:
                    txn.insert("t", _wide(start, batch, width))
                else:
                    txn.insert("t", {"id": start, "text": "x" * width})
            worst = max(worst, pressure.used_bytes)
        assert db.table("t").count() == rows
    # Beyond it goes what arrives between two looks, half a second apart if nobody has written yet.
    assert worst < 48 * MIB
