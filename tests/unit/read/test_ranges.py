"""Range reads over pages and objects: the same rows as a sorted dict, whatever the window."""

from __future__ import annotations

import random
from typing import Any

import pytest

from halocline import Database
from halocline.read import ranges
from tests.store.faulty import FaultyFiles
from tests.unit.read import moving
from tests.unit.rows.rig import seeds

KEYS = 200


def build(db: Database, rng: random.Random) -> dict[int, dict[str, Any]]:
    """Rows in overlapping objects, in tombstones of both kinds, and in pages."""
    model: dict[int, dict[str, Any]] = {}
    for _ in range(6):
        with db.begin() as txn:
            for key in rng.sample(range(KEYS), 25):
                row = {"id": key, "text": f"{key} {rng.random():.3f}"}
                txn.upsert("t", row)
                model[key] = row
            for key in rng.sample(range(KEYS), 8):
                txn.delete("t", key)
                model.pop(key, None)
        for step in (moving.move, moving.flush, moving.let_go, moving.merge):
            if rng.random() < 0.4:
                step(db, "t")
    absent = [key for key in range(KEYS) if key not in model]
    rows = [{"id": key, "text": "bulk"} for key in rng.sample(absent, 30)]
    moving.bulk_insert(db, "t", rows)
    return model | {int(str(row["id"])): row for row in rows}


@pytest.mark.parametrize("seed", seeds(5))
@pytest.mark.parametrize("slack", [0, 5, 32])
def test_a_range_is_a_slice_of_the_sorted_table(
    seed: int, slack: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "SLACK", slack)
    rng = random.Random(seed)
    with Database(FaultyFiles(), "ranges", options=moving.TINY) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        model = build(db, rng)
        with db.begin() as txn:
            for _ in range(60):
                check(txn, model, rng)
            own(txn, model, rng)
            for _ in range(60):
                check(txn, model, rng)
            txn.rollback()
        assert not db.check()


def own(txn: Any, model: dict[int, dict[str, Any]], rng: random.Random) -> None:
    """Changes of the reading transaction itself: single rows and a part."""
    for key in rng.sample(range(KEYS), 20):
        if rng.random() < 0.5:
            txn.delete("t", key)
            model.pop(key, None)
        else:
            row = {"id": key, "text": "own"}
            txn.upsert("t", row)
            model[key] = row
    assert txn.update("t", where="id % 7 = 0", set={"text": "where"}) == sum(
        key % 7 == 0 for key in model
    )
    for key in [key for key in model if key % 7 == 0]:
        model[key] = {"id": key, "text": "where"}


def check(txn: Any, model: dict[int, dict[str, Any]], rng: random.Random) -> None:
    low, high = (rng.choice([None, rng.randrange(-5, KEYS + 5)]) for _ in range(2))
    limit = rng.choice([None, 0, 1, 3, 10, 50, 1000])
    reverse = rng.random() < 0.5
    keys = [
        key
        for key in sorted(model, reverse=reverse)
        if (low is None or key >= low) and (high is None or key < high)
    ]
    found = txn.range("t", low, high, reverse=reverse, limit=limit)
    assert found.to_pylist() == [model[key] for key in keys[:limit]], (low, high, limit, reverse)


def test_one_key_with_more_versions_than_a_window_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "SLACK", 0)
    with Database(FaultyFiles(), "ranges", options=moving.TINY) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", [{"id": key, "text": "old"} for key in range(3)])
        for number in range(14):
            with db.begin() as txn:
                txn.update("t", 1, {"text": str(number)})
        moving.move(db, "t")
        moving.let_go(db, "t")
        with db.begin() as txn:
            for reverse in (False, True):
                rows = txn.range("t", 1, None, limit=2, reverse=reverse).to_pylist()
                expected = [{"id": 1, "text": "13"}, {"id": 2, "text": "old"}]
                assert rows == expected[:: -1 if reverse else 1]
        assert not db.check()
