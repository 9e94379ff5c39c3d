"""A shop per file, a transaction per test, and what every refused call must leave behind.

After a call that was refused the transaction sees what it saw before, takes another write, commits,
and exactly that is in the table: nothing half-done, nothing lost. The `txn` fixture asks for all of
it after every test that uses it, for transactions in three moods.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import halocline as hc
from tests.unit.api import shop


@pytest.fixture(scope="module")
def shop_db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One shop for all tests of a file; at the end it is opened again and must be the same."""
    path = tmp_path_factory.mktemp("shop") / "db"
    db = hc.open(path, options=shop.OPTIONS)
    shop.build(db)
    yield db
    assert not db.check()
    before = shop.picture(db)
    db.close()
    with hc.open(path, options=shop.OPTIONS) as again:
        assert shop.picture(again) == before
        assert not again.check()


_marks = itertools.count(1)


@pytest.fixture(params=shop.MOODS)
def txn(shop_db: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A transaction for calls that are refused; the teardown proves that they left no trace."""
    mood = request.param
    txn = shop_db.begin()
    shop.write(txn, mood)
    before = None
    if mood == "busy":  # Looking would end the other moods.
        before = shop.picture(txn)
    yield txn
    expected = before or _with(shop.picture(shop_db), mood)
    assert shop.picture(txn) == expected
    mark = {"text": "mark", "n": next(_marks)}
    assert txn.insert("events", mark) == 1
    assert isinstance(txn.commit(), int)
    expected["events"] = sorted([*expected["events"], mark], key=lambda r: repr(list(r.values())))
    assert shop.picture(shop_db) == expected
    assert not shop_db.check()
    _restore(shop_db, mood)


def _with(seen: dict[str, list[Any]], mood: str) -> dict[str, list[Any]]:
    if mood == "single":
        row = dict.fromkeys(shop.ORDERS) | shop.order(1000, status=mood)
        seen["orders"] = sorted([*seen["orders"], row], key=lambda r: repr(list(r.values())))
    return seen


def _restore(db: Any, mood: str) -> None:
    """Take the mood back out of the shop, through other calls than those that put it in."""
    if mood == "fresh":
        return
    with db.begin() as txn:
        txn.delete("orders", where="id >= 1000")
        if mood == "busy":
            txn.delete("lines", where="sku = ?", params=[mood])
            txn.update("orders", 1, {"status": "new"})
            txn.insert("orders", shop.order(2, tags=["a", "2"], dims={"w": 2, "h": 2}))
            txn.insert("events", {"text": "opened", "n": 1})
        txn.delete("events", where="text = 'mark'")


@pytest.fixture
def own_db(tmp_path: Any) -> Iterator[Any]:
    """A shop of the test's own. It may close it; if not, it is checked and closed here."""
    db = hc.open(tmp_path / "shop", options=shop.OPTIONS)
    shop.build(db)
    yield db
    if "(closed)" not in repr(db):
        assert not db.check()
        db.close()
