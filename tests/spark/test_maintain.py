"""hs.maintain: what is owed is done, large groups on Spark; it tells how far it is, and stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import halocline as hc
from halocline import spark as hs
from halocline.checkpoint.maintain import Chore, News
from halocline.errors import UsageError
from tests.spark.compacting import OPTIONS, Gate, current, overlapping, put, rows_at


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Any]:
    with hc.open(tmp_path / "shop", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "n": int}, primary_key="id")
        yield db
        assert db.check() == []


def test_one_round_brings_everything_into_shape(spark: Any, db: hc.Database) -> None:
    model = overlapping(db)
    put(db, {9000: 1})
    news: list[News] = []
    report = hs.maintain(spark, db, once=True, progress=news.append)
    assert (report.rounds, report.left, report.troubles) == (1, (), {})
    works = [chore.work for chore, _ in report.done]
    assert works[:2] == ["compact", "gc"]
    compacted = report.done[0][1]
    assert compacted["t"].done[0].tasks > 1
    assert compacted["t"].after.depth_max == 1
    assert any(one.kind == "tasks" and one.total for one in news)
    assert next(one.chore for one in news if one.kind == "done") == Chore("compact")
    assert rows_at(db) == model | {9000: 1}
    assert db.health().is_well


def test_tombstones_of_a_large_table_are_folded(spark: Any, db: hc.Database) -> None:
    """A tombstone object that concerns more objects than this process may take in one group."""
    for part in range(40):
        put(db, dict.fromkeys(range(part * 100, part * 100 + 100), part))
        db.flush()
    with db.begin() as txn:
        txn.delete("t", where="id % 10 = 3")
    db.flush()
    expected = rows_at(db)
    assert any(entry.kind == "tombstone" for entry in current(db))
    hs.maintain(spark, db, once=True)
    assert not any(entry.kind == "tombstone" for entry in current(db))
    assert rows_at(db) == expected


def test_it_stops_in_the_middle_of_a_job(
    spark: Any, db: hc.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, stop = overlapping(db), Event()
    gate = Gate(monkeypatch, tmp_path / "gate")

    def progress(news: News) -> None:
        if news.kind == "tasks" and news.total:
            stop.set()

    before = current(db)
    report = hs.maintain(spark, db, "1h", progress=progress, stop=stop)
    gate.open()
    assert report.stopped
    assert report.troubles == {}
    assert current(db) == before
    assert not db.core.engine.jobs
    assert rows_at(db) == model


def test_what_cannot_be_is_refused(spark: Any, db: hc.Database) -> None:
    with pytest.raises(UsageError, match="duration"):
        hs.maintain(spark, db, interval="soon")
    with pytest.raises(UsageError, match="database"):
        hs.maintain(spark, "shop")
    with pytest.raises(UsageError, match="SparkSession"):
        hs.maintain("local[2]", db)  # type: ignore[arg-type]
