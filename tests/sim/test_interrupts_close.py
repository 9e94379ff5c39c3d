"""Ctrl-C while a database is closed: the directory is free afterwards, and nothing is lost.

At many steps of `close`. Whatever it was doing is left undone; the next opening, in the same
process, is the owner and finds every commit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import halocline as hc
from tests.roles import owner_of
from tests.sim.interrupts import strike

ROWS = 30
OPTIONS = hc.Options(page_rows=4, bulk_rows=6)


def _filled(path: Path) -> hc.Database:
    db = hc.open(path, options=OPTIONS)
    db.create_table("t", {"id": int}, primary_key="id")
    db.run(lambda txn: txn.insert("t", [{"id": n} for n in range(ROWS)]))
    assert db.sql("select count(*) from t").num_rows == 1  # now DuckDB has to be closed, too
    return db


def _close_interrupted(folder: Path, k: int) -> bool:
    """False when close had ended before its k-th call."""
    db = _filled(folder / str(k))
    result = strike(k, "raise", db.close)
    if not result.hit:
        return False
    db.close()
    with hc.open(folder / str(k), options=OPTIONS) as again:
        assert again.role == "owner", result.where
        assert again.table("t").count() == ROWS, result.where
        assert again.check() == [], result.where
    return True


def test_ctrl_c_at_the_last_steps_of_close_leaves_no_lock(memory_path: Path) -> None:
    """Every ninth of the calls, and all that `_let_go` makes."""
    steps = 1
    while _close_interrupted(memory_path, steps):
        steps += 9
    last = range(max(1, steps - 30), steps)
    assert sum(_close_interrupted(memory_path / "last", k) for k in last) > 10


@pytest.mark.parametrize("name", ["duck", "log", "rest"])
def test_ctrl_c_without_a_second_close(
    memory_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `with` block closes once: the lock must not stay behind then either."""
    db = _filled(memory_path / "db")
    owner, method = {
        "duck": (db.core.duck.__class__, "close"),
        "log": (owner_of(db).log.__class__, "close"),
        "rest": (owner_of(db).maintenance.__class__, "rest"),
    }[name]
    calls = []

    def interrupted(self: object) -> None:
        calls.append(self)
        if len(calls) == 1:
            raise KeyboardInterrupt
        plain(self)

    plain = getattr(owner, method)
    monkeypatch.setattr(owner, method, interrupted)
    with pytest.raises(KeyboardInterrupt), db:
        pass
    monkeypatch.undo()
    with hc.open(memory_path / "db", options=OPTIONS) as again:
        assert (again.role, again.table("t").count(), again.check()) == ("owner", ROWS, [])
