"""What a commit may leave behind: a record that nobody leads, and runs that pile up."""

from __future__ import annotations

from typing import Any

import pytest

import halocline as hc
from tests.concurrency.threads import together
from tests.roles import owner_of


def test_a_commit_whose_thread_was_interrupted_is_finished_by_whoever_needs_it(
    open_db: Any,
) -> None:
    """Ctrl-C between the fold and the wait: nobody leads the log until somebody wants the row."""
    db = open_db()
    db.create_table("t", {"id": int, "v": int}, primary_key="id")

    def struck(order: int) -> None:
        del owner_of(db).log.wait
        raise KeyboardInterrupt

    def put(txn: hc.Transaction) -> None:
        txn.upsert("t", {"id": 1, "v": 7})

    owner_of(db).log.wait = struck
    with pytest.raises(KeyboardInterrupt):
        db.run(put, token="once")
    together(lambda: db.run(put, token="once"))
    together(lambda: db.run(lambda txn: txn.update("t", 1, {"v": 8})))
    with db.begin() as txn:
        assert txn.get("t", 1) == {"id": 1, "v": 8}


def test_many_bulk_updates_leave_few_runs_behind(open_db: Any) -> None:
    db = open_db(durability="async", options=hc.Options(bulk_rows=2, page_rows=64))
    db.create_table("t", {"id": int, "v": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", [{"id": n, "v": 0} for n in range(40)])
    for value in range(100):
        with db.begin() as txn:
            txn.update("t", where="id < 20", set={"v": value})
    (state,) = db.core.engine.tables.values()
    assert len(state.deletes.runs) < 20
    assert len(state.tree.runs) < 20
    assert db.sql("select sum(v) as s from t").to_pylist() == [{"s": 20 * 99}]
