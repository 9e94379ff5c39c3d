"""A shop per file, a transaction per test, and what every refused call must leave behind.

After a call that was refused the transaction sees what it saw before, takes another write, commits,
and exactly that is in the table: nothing half-done, nothing lost. The `txn` fixture asks for all of
it after every test that uses it, for transactions in three moods.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline import Database
from tests.store.faulty import FaultyFiles
from tests.unit.api import shop


@pytest.fixture(scope="module")
def shop_db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One shop for all tests of a file; at the end it is opened again and must be the same."""
    path = tmp_path_factory.mktemp("shop") / "db"
    db = hc.open(path, durability="async", retention=0, options=shop.OPTIONS)
    shop.build(db)
    yield db
    assert not db.check()
    before = shop.picture(db)
    db.close()
    with hc.open(path, options=shop.OPTIONS) as again:
        assert shop.picture(again) == before
        assert not again.check()


@pytest.fixture(params=shop.MOODS)
def txn(shop_db: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A transaction for calls that are refused; the teardown proves that they left no trace."""
    mood = request.param
    expected = shop.picture(shop_db)
    txn = shop_db.begin()
    shop.write(txn, mood)
    if mood == "single":  # Looking through the transaction would end this mood.
        shop.with_rows(expected, "orders", [shop.order(1000, status=mood)])
    elif mood == "busy":
        expected = shop.picture(txn)
    yield txn
    assert shop.picture(txn) == expected
    mark = {"id": 3000, "sku": mood, "n": 1}
    assert txn.insert("lines", mark) == 1
    assert isinstance(txn.commit(), int)
    shop.with_rows(expected, "lines", [mark])
    assert shop.picture(shop_db) == expected
    assert not shop_db.check()
    _restore(shop_db, mood)


def _restore(db: Any, mood: str) -> None:
    """Take the mood back out of the shop, through other calls than those that put it in."""
    with db.begin() as txn:
        txn.delete("lines", (3000, mood))
        for row in txn.range("orders", 1000).to_pylist():
            txn.delete("orders", row["id"])
        if mood == "busy":
            txn.delete("lines", where="sku = ?", params=[mood])
            txn.update("orders", 1, {"status": "new"})
            txn.insert("orders", shop.order(2, tags=["a", "2"], dims={"w": 2, "h": 2}))
            txn.insert("events", {"text": "opened", "n": 1})
    db.gc()


@pytest.fixture
def own_db() -> Iterator[Any]:
    """A shop of the test's own, in memory. If the test does not close it, it is checked here."""
    db = Database(FaultyFiles(), "shop", options=shop.OPTIONS)
    shop.build(db)
    yield db
    _finish(db)


@pytest.fixture
def disk_db(tmp_path: Path) -> Iterator[Any]:
    """The same on disk, in `tmp_path / "shop"`, for tests that open it a second time."""
    db = hc.open(tmp_path / "shop", options=shop.OPTIONS)
    shop.build(db)
    yield db
    _finish(db)


def _finish(db: Any) -> None:
    if "(closed)" not in repr(db):
        assert not db.check()
        db.close()
