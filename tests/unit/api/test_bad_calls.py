"""Calls at the wrong time or with wrong arguments: after the end, twice, on a reader, nonsense."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any

import numpy as np
import pytest

import halocline as hc
from tests.unit.api import shop
from tests.unit.api.shop import order

CALLS: dict[str, Any] = {
    "insert": lambda txn: txn.insert("orders", order(500)),
    "insert many": lambda txn: txn.insert("orders", [order(500)]),
    "upsert": lambda txn: txn.upsert("orders", order(500)),
    "update": lambda txn: txn.update("orders", 3, {"status": "x"}),
    "update where": lambda txn: txn.update("orders", where="id = 3", set={"status": "x"}),
    "delete": lambda txn: txn.delete("orders", 3),
    "delete where": lambda txn: txn.delete("orders", where="id = 3"),
    "create_table": lambda txn: txn.create_table("t", {"id": int}),
    "drop_table": lambda txn: txn.drop_table("orders"),
    "get": lambda txn: txn.get("orders", 3),
    "get_many": lambda txn: txn.get_many("orders", [3]),
    "range": lambda txn: txn.range("orders"),
    "scan": lambda txn: txn.scan("orders"),
    "sql": lambda txn: txn.sql("select 1"),
    "tables": lambda txn: txn.tables(),
}
WRITES = [name for name in CALLS if name.split()[0] not in ("get", "get_many", "range", "scan")][
    :-2
]


def _warm(txn: Any, warm: bool) -> Any:
    """A transaction that has used its tables before, so that their names are remembered."""
    if warm:
        txn.get("orders", 1)
        txn.scan("orders")
    return txn


def _refuses_all(txn: Any, reason: str) -> None:
    for name, call in CALLS.items():
        with pytest.raises(hc.UsageError, match=reason):
            call(txn)
        assert name


@pytest.mark.parametrize("warm", [False, True])
def test_after_commit_every_call_is_refused(own_db: Any, warm: bool) -> None:
    txn = _warm(own_db.begin(), warm)
    txn.insert("orders", order(900))
    ts = txn.commit()
    before = shop.picture(own_db)
    _refuses_all(txn, "committed")
    for again in (txn.commit, txn.rollback):
        with pytest.raises(hc.UsageError, match="already committed"):
            again()
    assert txn.commit_ts == ts == own_db.visible_ts
    assert shop.picture(own_db) == before


@pytest.mark.parametrize("warm", [False, True])
def test_after_rollback_every_call_but_rollback_is_refused(own_db: Any, warm: bool) -> None:
    before = shop.picture(own_db)
    txn = _warm(own_db.begin(), warm)
    txn.insert("orders", order(900))
    txn.rollback()
    txn.rollback()
    _refuses_all(txn, "rolled back")
    with pytest.raises(hc.UsageError, match="rolled back"):
        txn.commit()
    assert txn.commit_ts is None
    assert shop.picture(own_db) == before


@pytest.mark.parametrize("bulk", [False, True])
def test_after_a_failed_commit_every_call_but_rollback_is_refused(own_db: Any, bulk: bool) -> None:
    loser = own_db.begin()
    loser.update("orders", 3, {"status": "loser"})
    if bulk:
        loser.insert("lines", [{"id": n, "sku": "z", "n": n} for n in range(20)])
    with own_db.begin() as winner:
        winner.update("orders", 3, {"status": "winner"})
    with pytest.raises(hc.ConflictError) as error:
        loser.commit()
    assert (error.value.table, error.value.key) == ("orders", 3)
    assert error.value.winner_ts == winner.commit_ts
    _refuses_all(loser, "failed")
    with pytest.raises(hc.UsageError, match="failed"):
        loser.commit()
    loser.rollback()
    assert loser.commit_ts is None
    with own_db.begin() as txn:
        assert txn.get("orders", 3)["status"] == "winner"
        assert txn.get_many("lines", [(n, "z") for n in range(20)]).num_rows == 0
    assert own_db.visible_ts == winner.commit_ts


def _lose(db: Any, loser: Any) -> None:
    loser.insert("orders", order(900))
    with db.begin() as winner:
        winner.insert("orders", order(900, status="winner"))


def test_a_conflict_inside_with_ends_the_block_and_the_transaction(own_db: Any) -> None:
    loser = own_db.begin()
    with pytest.raises(hc.ConflictError), loser:
        _lose(own_db, loser)
    with pytest.raises(hc.UsageError, match="failed"):
        loser.get("orders", 1)
    with own_db.begin() as txn:
        assert txn.get("orders", 900)["status"] == "winner"


def test_an_exception_inside_with_rolls_back_and_passes_on(own_db: Any) -> None:
    before = shop.picture(own_db)
    txn = own_db.begin()
    txn.insert("orders", order(900))
    with pytest.raises(ZeroDivisionError), txn:
        raise ZeroDivisionError
    with pytest.raises(hc.UsageError, match="rolled back"):
        txn.commit()
    assert shop.picture(own_db) == before


def test_committing_or_rolling_back_inside_with_is_fine(own_db: Any) -> None:
    with own_db.begin() as txn:
        txn.insert("orders", order(900))
        assert txn.commit() == txn.commit_ts
    with own_db.begin() as txn:
        txn.insert("orders", order(901))
        txn.rollback()
    assert own_db.table("orders").count() == 6


def test_a_commit_of_nothing_takes_no_timestamp(own_db: Any) -> None:
    before = own_db.visible_ts
    with own_db.begin() as txn:
        txn.get("orders", 1)
        txn.delete("orders", 77)
        txn.insert("orders", [])
        txn.insert("orders", order(900))
        txn.delete("orders", 900)
    assert txn.commit_ts is None
    assert own_db.visible_ts == before


def test_a_transaction_that_is_dropped_without_a_word_is_rolled_back(own_db: Any) -> None:
    txn = own_db.begin()
    txn.insert("orders", order(900))
    txn.create_table("t", {"id": int})
    del txn
    assert own_db.tables() == ["events", "lines", "orders"]
    assert own_db.table("orders").count() == 5
    own_db.create_table("t", {"id": int})


@pytest.mark.parametrize("warm", [False, True])
def test_after_close_every_call_is_refused(disk_db: Any, tmp_path: Any, warm: bool) -> None:
    table = disk_db.table("orders")
    txn = _warm(disk_db.begin(), warm)
    written = disk_db.begin()
    written.insert("orders", order(900))
    before = shop.picture(disk_db)
    disk_db.close()
    disk_db.close()
    _refuses_all(txn, "is closed")
    _refuses_all(written, "is closed")
    with pytest.raises(hc.UsageError, match="is closed"):
        written.commit()
    written.rollback()
    for call in (
        disk_db.begin,
        disk_db.tables,
        disk_db.check,
        disk_db.gc,
        lambda: disk_db.begin(at=1),
        lambda: disk_db.begin(token="x"),
        lambda: disk_db.run(lambda txn: None),
        lambda: disk_db.create_table("t", {"id": int}),
        lambda: disk_db.drop_table("orders"),
        lambda: disk_db.table("orders"),
        lambda: disk_db.sql("select 1"),
        lambda: disk_db.changes("orders", 0),
        table.count,
        table.to_arrow,
        table.history,
        table.files,
        lambda: table.schema,
        lambda: table.primary_key,
        table.__arrow_c_stream__,
    ):
        with pytest.raises(hc.UsageError, match="is closed"):
            call()
    assert "closed" in repr(disk_db)
    with hc.open(tmp_path / "shop", options=shop.OPTIONS) as again:
        assert shop.picture(again) == before
        assert not again.check()


def test_a_transaction_in_the_past_refuses_writes_and_goes_on_reading(own_db: Any) -> None:
    before = shop.picture(own_db)
    txn = own_db.begin(at=own_db.visible_ts)
    for name in WRITES:
        with pytest.raises(hc.UsageError, match="read-only"):
            CALLS[name](txn)
    assert txn.get("orders", 3)["status"] == "new"
    assert shop.picture(txn) == before
    assert txn.commit() is None


def test_a_read_only_database_refuses_writes_and_goes_on_reading(
    disk_db: Any, tmp_path: Any
) -> None:
    before = shop.picture(disk_db)
    with hc.open(tmp_path / "shop", read_only=True, options=shop.OPTIONS) as reader:
        for name in WRITES:
            with reader.begin() as txn, pytest.raises(hc.UsageError, match="read-only"):
                CALLS[name](txn)
        for call in (
            lambda: reader.create_table("t", {"id": int}),
            lambda: reader.drop_table("orders"),
            lambda: reader.run(lambda txn: txn.insert("orders", order(900))),
        ):
            with pytest.raises(hc.UsageError, match="read-only"):
                call()
        with pytest.raises(hc.UnavailableError, match="read-only"):
            reader.gc()
        assert shop.picture(reader) == before
        assert reader.table("orders").count() == 5
        assert reader.sql("select count(*) as n from orders").to_pylist() == [{"n": 5}]
        assert reader.changes("orders", 0).num_rows == 5
        assert not reader.check()
        with disk_db.begin() as txn:
            txn.insert("orders", order(900))
        assert reader.table("orders").count() == 6


def test_update_wants_a_key_and_values_or_where_and_set(txn: Any) -> None:
    for arguments, keywords in (
        ((), {}),
        ((3,), {}),
        ((3, {}), {}),
        ((3, None), {}),
        ((3, "x"), {}),
        ((3, [("status", "x")]), {}),
        ((), {"where": "id = 3"}),
        ((), {"where": "id = 3", "set": {}}),
        ((), {"set": {"status": "x"}}),
        ((3, {"status": "x"}), {"where": "id = 3"}),
        ((3,), {"where": "id = 3", "set": {"status": "x"}}),
    ):
        with pytest.raises(hc.UsageError, match="update"):
            txn.update("orders", *arguments, **keywords)


def test_delete_wants_a_key_or_where(txn: Any) -> None:
    for arguments, keywords in (((), {}), ((3,), {"where": "id = 3"}), ((), {"params": [3]})):
        with pytest.raises(hc.UsageError, match="delete takes either"):
            txn.delete("orders", *arguments, **keywords)


def test_a_limit_is_a_whole_number_of_rows(txn: Any) -> None:
    for limit in (-1, 1.5, "5", True, [1]):
        for call in (txn.scan, txn.range):
            with pytest.raises(hc.UsageError, match="limit"):
                call("orders", limit=limit)


def test_a_limit_may_be_larger_than_any_table(txn: Any) -> None:
    rows = txn.scan("orders").num_rows
    for limit in (rows, 2**31, 2**63, 10**30):
        assert txn.scan("orders", limit=limit).num_rows == rows
        assert txn.scan("orders", where="true", order="id", limit=limit).num_rows == rows
        assert txn.range("orders", limit=limit).num_rows == rows


def test_columns_are_a_list_of_names(txn: Any) -> None:
    for columns in ("id", 5, [5], [None], b"id", {"id": 1}.items(), [], ["id", "ID"]):
        with pytest.raises(hc.UsageError):
            txn.scan("orders", columns=columns)
    with pytest.raises(hc.SchemaError, match="did you mean 'status'"):
        txn.scan("orders", columns=["id", "statsu"])


def test_an_unknown_isolation_is_refused_everywhere(own_db: Any) -> None:
    for isolation in ("SNAPSHOT", "", None, 5, ["snapshot"]):
        for begin in (own_db.begin, partial(own_db.begin, at=1), partial(own_db.run, _nothing)):
            with pytest.raises(hc.UsageError, match="isolation"):
                begin(isolation=isolation)


def _nothing(txn: Any) -> None:
    raise AssertionError("a function that must not be called")


TOKENS: list[Any] = [
    5,
    "",
    b"x",
    "x" * 1025,
    "é" * 513,
    ("a",),
    ("a", 1, 2),
    ("a", -1),
    ("a", True),
]
TOKENS += [("a", 2**63), ("a", "b"), (1, "a"), ("", 1), "\ud800", ("\ud800", 1), ["a"], {"a": 1}]


def test_a_bad_token_is_refused_everywhere(own_db: Any) -> None:
    for token in TOKENS:
        for begin in (own_db.begin, partial(own_db.begin, at=1), partial(own_db.run, _nothing)):
            with pytest.raises(hc.UsageError, match="token"):
                begin(token=token)


def test_retries_are_a_whole_number(own_db: Any) -> None:
    for retries in (-1, "5", None, 1.5):
        with pytest.raises(hc.UsageError, match="retries"):
            own_db.run(_nothing, retries=retries)


def test_run_without_retries_lets_the_first_conflict_through(own_db: Any) -> None:
    calls = []

    def lose(txn: Any) -> None:
        calls.append(1)
        txn.update("orders", 3, {"status": "loser"})
        with own_db.begin() as winner:
            winner.update("orders", 3, {"status": f"winner {len(calls)}"})

    with pytest.raises(hc.ConflictError):
        own_db.run(lose, retries=0)
    assert len(calls) == 1
    with pytest.raises(hc.ConflictError):
        own_db.run(lose, retries=2)
    assert len(calls) == 4


def test_run_passes_on_what_the_function_raises_and_rolls_back(own_db: Any) -> None:
    def fail(txn: Any) -> None:
        txn.insert("orders", order(900))
        raise KeyError("no")

    with pytest.raises(KeyError):
        own_db.run(fail)
    assert own_db.table("orders").count() == 5


UTC = dt.UTC


def _points(db: Any) -> list[Any]:
    return [
        lambda at: db.begin(at=at),
        lambda at: db.sql("select 1", at=at),
        lambda at: db.table("orders").count(at=at),
        lambda at: db.table("orders").to_arrow(at=at),
        lambda at: db.changes("orders", at),
        lambda at: db.changes("orders", 0, at),
    ]


def test_points_in_time_that_are_none_are_refused(own_db: Any) -> None:
    for at, named in (
        (dt.datetime(2026, 1, 1), "time zone"),
        (dt.datetime(2999, 1, 1), "time zone"),
        (dt.date(2026, 1, 1), "date"),
        (own_db.visible_ts + 1, "future"),
        (2**70, "future"),
        (-1, "negative"),
        (True, "True"),
        (1.0, "1.0"),
        ([1], "[1]"),
        (b"1", "1"),
        (dt.timedelta(1), "timedelta"),
    ):
        for call in _points(own_db):
            with pytest.raises(hc.UsageError) as error:
                call(at)
            assert named in str(error.value)


def test_a_named_snapshot_that_is_not_there_is_not_found(own_db: Any) -> None:
    for call in _points(own_db):
        with pytest.raises(hc.NotFoundError, match="snapshot 'friday' does not exist"):
            call("friday")


def test_changes_wants_a_point_to_start_from(own_db: Any) -> None:
    with pytest.raises(hc.UsageError):
        own_db.changes("orders", None)


def test_now_is_the_newest_snapshot_and_a_later_moment_is_refused(own_db: Any) -> None:
    """What it would show depends on when one asks."""
    assert own_db.begin(at=dt.datetime.now(UTC)).snapshot == own_db.visible_ts
    with pytest.raises(hc.UsageError, match="lies in the future"):
        own_db.begin(at=dt.datetime(2999, 1, 1, tzinfo=UTC))


def test_the_numbers_of_numpy_and_arrow_are_not_silently_misread(own_db: Any) -> None:
    """Either refused, or read as the number that they hold."""
    try:
        assert own_db.begin(at=np.int64(1)).snapshot == 1
    except hc.UsageError:
        pass


def test_an_unknown_engine_is_refused(shop_db: Any) -> None:
    for engine in ("duck", "", None):
        with pytest.raises(hc.UsageError, match="engine"):
            shop_db.sql("select 1", engine=engine)
