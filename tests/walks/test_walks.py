"""The five walks through the source are measured, held to limits, and told in the document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from tests.walks.page import check_page
from tests.walks.tracer import Tracer, Walk

OPTIONS = hc.Options(background=False)

# Walk -> most files, most crossings. `hs.load` is held in tests/spark.
LIMITS = {
    "one-row commit": (16, 12),
    "point read, memory": (7, 4),
    "point read, object": (17, 10),
    "SQL scan": (25, 23),
    "one row, second process": (35, 46),
}


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    with Tracer().installed() as installed:
        yield installed


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    options = hc.Options(background=False, serve=False)
    with hc.open(tmp_path / "shop", options=options) as opened:
        _fill(opened)
        yield opened
        assert not opened.check()


def _fill(db: hc.Database) -> None:
    db.create_table("orders", {"id": int, "status": str}, primary_key="id")
    with db.begin() as txn:
        txn.insert("orders", [{"id": key, "status": "new"} for key in range(20)])


class _Inserts:
    """One new row a call."""

    def __init__(self, db: hc.Database) -> None:
        self._db, self._key = db, 1000

    def __call__(self) -> None:
        self._key += 1
        with self._db.begin() as txn:
            txn.insert("orders", {"id": self._key, "status": "new"})


def _get(db: hc.Database) -> dict[str, Any] | None:
    with db.begin() as txn:
        return txn.get("orders", 5)


def _hold(name: str, walk: Walk) -> None:
    files, crossings = LIMITS[name]
    seen = "\n  ".join(walk.files)
    assert len(walk.files) <= files, f"{name}: {len(walk.files)} files\n  {seen}"
    assert len(walk.crossings) <= crossings, f"{name}: {walk.crossings}"
    check_page(name, walk)


def test_the_walk_of_a_one_row_commit(db: hc.Database, tracer: Tracer) -> None:
    _hold("one-row commit", tracer.walk(_Inserts(db)))


def test_the_walk_of_a_point_read_in_memory(db: hc.Database, tracer: Tracer) -> None:
    _hold("point read, memory", tracer.walk(lambda: _get(db)))


def test_the_walk_of_a_point_read_in_an_object(db: hc.Database, tracer: Tracer) -> None:
    db.flush("orders")
    _hold("point read, object", tracer.walk(lambda: _get(db)))


def test_the_walk_of_a_sql_scan(db: hc.Database, tracer: Tracer) -> None:
    db.flush("orders")
    _Inserts(db)()
    query = "select status, count(*) from orders where id > 3 group by 1"
    _hold("SQL scan", tracer.walk(lambda: db.sql(query)))


def test_the_walk_of_one_row_from_a_second_process(tmp_path: Path, tracer: Tracer) -> None:
    """Both sides of the socket: a second handle in this process speaks as another process does."""
    with hc.open(tmp_path / "shop", options=OPTIONS) as owner:
        _fill(owner)
        with hc.open(tmp_path / "shop", options=OPTIONS) as node:
            assert node.role == "node"
            _hold("one row, second process", tracer.walk(_Inserts(node)))
        assert not owner.check()
