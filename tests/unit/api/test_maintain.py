"""Rounds of maintenance: what is owed is done in order, failures are told, stopping stops."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import halocline as hc
from halocline.checkpoint.maintain import Chore, MaintenanceReport, News, maintain
from halocline.compaction import LocalRunner
from halocline.errors import UnavailableError

OPTIONS = hc.Options(page_rows=16, object_rows=64, row_group_rows=16, background=False)


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int}, primary_key="id")
        for part in range(6):
            with db.begin() as txn:
                txn.insert("t", [{"id": n} for n in range(part, 120, 6)])
            db.flush()
        yield db
        assert db.check() == []


class Asked:
    """A database whose compaction is done by this process, and written down."""

    def __init__(self, db: hc.Database) -> None:
        self._db = db
        self.tables: list[str | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def compact(self, table: str | None, *, runner: Any) -> Any:
        self.tables.append(table)
        return self._db.compact(table, runner=runner)


def here(go_on: Any, tasks: Any) -> LocalRunner:
    tasks(1, 2)
    return LocalRunner(OPTIONS, go_on)


def refusing(error: Exception) -> Any:
    def runner_of(go_on: Any, tasks: Any) -> Any:
        raise error

    return runner_of


def test_a_round_does_what_is_owed_and_tells(db: hc.Database) -> None:
    news: list[News] = []
    asked = Asked(db)
    report = maintain(asked, here, interval_s=60, once=True, watch=news.append)
    assert asked.tables == ["t"]
    assert [chore for chore, _ in report.done] == [Chore("compact", "t"), Chore("gc")]
    assert (report.rounds, report.left, report.troubles) == (1, (), {})
    assert not report.stopped
    assert [one.kind for one in news] == ["began", "tasks", "done", "began", "done"]
    assert "compact t: t: 1 groups rewritten" in str(report)
    again = maintain(asked, here, interval_s=60, once=True)
    assert [chore for chore, _ in again.done] == [Chore("gc")]
    assert db.health().is_well


def test_a_runner_that_may_do_more_is_always_asked(db: hc.Database) -> None:
    asked = Asked(db)
    maintain(asked, here, interval_s=60, once=True, everywhere=True)
    maintain(asked, here, interval_s=60, once=True, everywhere=True)
    assert asked.tables == [None, None], "all tables, instead of one that owes"


def test_a_failure_is_told_and_the_rest_is_done(db: hc.Database) -> None:
    news: list[News] = []
    refuse = refusing(UnavailableError("no room"))
    report = maintain(db, refuse, interval_s=60, once=True, watch=news.append)
    failed = [one.chore for one in news if one.kind == "failed"]
    assert len(failed) == 1, "what does not help is not tried again in the same round"
    assert report.troubles == {"compact t": "UnavailableError: no room"}
    assert report.left
    assert [chore for chore, _ in report.done] == [Chore("gc")]
    assert "failed: compact t" in str(report)


def test_rounds_go_on_until_somebody_stops_them(db: hc.Database) -> None:
    stop, rested = Event(), []

    def watch(news: News) -> None:
        if news.kind == "rest":
            rested.append(news.seconds)
            if len(rested) == 3:
                stop.set()

    report = maintain(db, here, interval_s=0.01, watch=watch, stop=stop)
    assert (report.rounds, report.stopped, rested) == (3, True, [0.01] * 3)


def test_stopping_breaks_a_compaction_off(db: hc.Database) -> None:
    stop, files = Event(), db.table("t").files()

    def watch(news: News) -> None:
        if news.kind == "tasks":
            stop.set()

    report = maintain(db, here, interval_s=60, watch=watch, stop=stop)
    assert report.stopped
    assert report.done == []
    assert report.troubles == {}
    assert db.table("t").files() == files
    assert not db.core.engine.jobs


def test_ctrl_c_ends_a_loop_and_interrupts_a_single_round(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = Thread.join
    pressed: list[bool] = []

    def interrupted(self: Thread, timeout: float | None = None) -> None:
        if timeout is not None and not pressed:
            pressed.append(True)
            raise KeyboardInterrupt
        join(self, timeout)

    monkeypatch.setattr(Thread, "join", interrupted)
    report = maintain(db, here, interval_s=60)
    assert isinstance(report, MaintenanceReport)
    assert report.stopped
    pressed.clear()
    with pytest.raises(KeyboardInterrupt):
        maintain(db, here, interval_s=60, once=True)


def test_an_error_that_is_nobodys_fault_but_ours_is_raised(db: hc.Database) -> None:
    with pytest.raises(ZeroDivisionError):
        maintain(db, refusing(ZeroDivisionError()), interval_s=60, once=True)
