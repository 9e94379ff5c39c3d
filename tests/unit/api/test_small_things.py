"""Small things that tripped people up: dates, moments, net changes, hints, clocks, paths."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline.errors import (
    ConflictError,
    DuplicateKeyError,
    NotFoundError,
    SchemaError,
    UsageError,
)
from halocline.txn import Rerun
from tests.clock import ManualClock
from tests.store.faulty import FaultyFiles
from tests.unit.checkpoint.rig import World

OPTIONS = hc.Options(background=False, object_rows_min=1000)


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "n": float}, primary_key="id")
        yield db
        assert db.check() == []


def put(db: hc.Database, rows: dict[int, float | None]) -> int:
    with db.begin() as txn:
        txn.upsert("t", [{"id": key, "n": value} for key, value in rows.items()])
    assert txn.commit_ts is not None
    return txn.commit_ts


def test_a_text_like_a_date_is_a_date(db: hc.Database) -> None:
    put(db, {1: 1.0})
    now = datetime.now(UTC)
    assert db.table("t").count(at=now.isoformat()) == 1
    assert db.table("t").count(at=f"{now:%Y-%m-%dT%H:%M:%S.%fZ}") == 1
    with pytest.raises(UsageError, match="time zone"):
        db.table("t").count(at=f"{now.date()} 10:00")
    for name in ("2026-11-18", "2026-11-18T10:00:00+01:00"):
        with pytest.raises(UsageError, match="cannot be called"):
            db.snapshot(name)
    db.snapshot("2026-11-18-before")
    assert db.table("t").count(at="2026-11-18-before") == 1
    for nonsense in ("2026-13-45", "2026-02-31", "2026-02-03T25:00Z"):
        with pytest.raises(UsageError, match="no date or time that exists"):
            db.table("t").count(at=nonsense)


def test_a_moment_in_the_future_has_not_happened(db: hc.Database) -> None:
    put(db, {1: 1.0})
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for at in (tomorrow, tomorrow.isoformat(), tomorrow.date().isoformat(), 10**6):
        for ask in (db.begin, db.table("t").count, partial(db.changes, "t")):
            with pytest.raises(UsageError, match="lies in the future"):
                ask(at)
    with pytest.raises(UsageError, match="comes after until="):
        db.changes("t", since=2, until=1)
    newest = db.wall_of(db.visible_ts)
    assert db.table("t").count(at=newest) == 1


@pytest.mark.parametrize("name", ["2026", "20261118", "2026-W47", "10:00", "2026-11", "18.11.2026"])
def test_a_snapshot_has_no_name_like_a_date(db: hc.Database, name: str) -> None:
    with pytest.raises(UsageError, match="looks like a date"):
        db.snapshot(name)
    db.snapshot(f"v{name}")


def test_run_without_a_function_says_what_it_takes(db: hc.Database) -> None:
    with pytest.raises(UsageError, match="takes a function of one transaction, not None"):
        db.run(None)  # type: ignore[arg-type]


def test_a_statement_that_is_no_select_is_called_by_its_name(db: hc.Database) -> None:
    with pytest.raises(UsageError, match=r"not ALTER; .*db\.alter_table"):
        db.sql("alter table t add column x int")
    with pytest.raises(UsageError, match=r"not TRUNCATE; "):
        db.sql("truncate t")


def test_an_expression_that_fails_names_its_column(db: hc.Database) -> None:
    db.create_table("p", {"id": int, "price": int, "n": int}, primary_key="id")
    rows = [{"id": 1, "price": 1, "n": 2**62}]
    db.run(lambda txn: txn.insert("p", rows))
    both = {"price": hc.expr("price + 1"), "n": hc.expr("n * 4")}
    for column, call in (
        ("price", lambda txn: txn.update("p", 1, {"price": hc.expr("price / 0")})),
        ("n", lambda txn: txn.update("p", 1, both)),
        ("n", lambda txn: txn.update("p", where="id = 1", set=both)),
        ("n", lambda txn: txn.update("p", where="id = 1", set={"price": 1, "n": hc.add(2**62)})),
    ):
        with pytest.raises(SchemaError) as caught:
            db.run(call)
        assert caught.value.column == column
    assert db.table("p").to_arrow().to_pylist() == rows


def test_a_conflict_names_table_and_key(db: hc.Database) -> None:
    put(db, {7: 1.0})
    with db.begin() as holder:
        holder.get("t", 7, for_update=True)
        with pytest.raises(ConflictError, match="over key 7 in table 't'"):
            db.begin().get("t", 7, for_update=True, timeout=0)


def test_a_run_that_gives_up_names_table_and_key(tmp_path: Path) -> None:
    clock = ManualClock()
    with hc.Database(FaultyFiles(), "mem", options=OPTIONS, clock=clock) as db:
        db.create_table("t", {"id": int, "n": float}, primary_key="id")
        put(db, {7: 1.0})
        again = Rerun({})
        holder = db.begin()
        holder.get("t", 7, for_update=True)
        again.lost(db.core, None, ConflictError("lost", table="t", key=7))
        again._wait_s = 0
        with pytest.raises(ConflictError, match="over key 7 in table 't'") as caught:
            again.take(db.core.writing, clock)
        assert (caught.value.table, caught.value.key) == ("t", 7)
        again.end()
        holder.rollback()


def test_a_table_that_was_not_there_yet_says_since_when(db: hc.Database) -> None:
    ts = put(db, {1: 1.0})
    db.create_table("later", {"id": int}, primary_key="id")
    with pytest.raises(NotFoundError, match=rf"at timestamp {ts} \(20.* UTC\) it was not there"):
        db.table("later").count(at=ts)
    with pytest.raises(NotFoundError, match="before the first commit, the database had no tables"):
        db.table("later").count(at=0)


def net(db: hc.Database, since: int) -> list[tuple[int, float | None, str]]:
    rows = db.changes("t", since, net=True).to_pylist()
    return [(row["id"], row["n"], row["_change"]) for row in rows]


def test_net_changes_have_one_row_for_each_key_that_differs(db: hc.Database) -> None:
    start = put(db, {1: 1.0, 2: 2.0, 3: None, 4: 4.0, 5: float("nan"), 6: 6.0})
    put(db, {1: 10.0, 2: 20.0, 3: 3.0, 7: 7.0, 8: 8.0, 5: 0.0})
    put(db, {1: 11.0, 2: 2.0, 3: None, 5: float("nan")})
    with db.begin() as txn:
        txn.delete("t", 4)
        txn.delete("t", 6)
        txn.delete("t", 7)
    last = put(db, {6: 60.0})
    assert len(db.changes("t", start)) > 10
    found = net(db, start)
    assert sorted(found) == [
        (1, 11.0, "update_after"),
        (4, 4.0, "delete"),
        (6, 60.0, "update_after"),
        (8, 8.0, "insert"),
    ]
    assert found[-1][0] == 6, "in the order of their last commits"
    db.flush()
    db.compact()
    assert net(db, start) == found
    assert net(db, last) == []
    db.create_table("log", {"n": int})
    with pytest.raises(UsageError, match="has none"):
        db.changes("log", db.visible_ts, net=True)


@pytest.mark.parametrize("rows", [50, 400, 3000])
def test_duplicate_keys_are_all_counted_and_ten_are_named(db: hc.Database, rows: int) -> None:
    twice = pa.table({"id": [*range(rows), *range(rows)], "n": [0.0] * (2 * rows)})
    with pytest.raises(DuplicateKeyError) as caught, db.begin() as txn:
        txn.insert("t", twice)
    assert (caught.value.total, len(caught.value.keys)) == (rows, 10)
    with pytest.raises(DuplicateKeyError) as caught, db.begin() as txn:
        txn.upsert("t", twice)
    assert (caught.value.total, len(caught.value.keys)) == (rows, 10)
    assert f"and {rows - 10} more" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("show tables", "db.tables"),
        ("describe t", "db.tables"),
        ("explain select 1", "plans are not shown"),
        ("insert into t values (1, 2)", "txn.insert"),
        ("create table x (a int)", "db.create_table"),
        ("set threads = 1", "halocline.open"),
        ("copy t to 'file'", "files"),
        ("begin", "db.begin"),
    ],
)
def test_what_is_no_select_says_what_to_do_instead(db: hc.Database, text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"only SELECT runs here.*{hint}") as caught:
        db.sql(text)
    assert "the transaction's methods" not in str(caught.value)


def test_tokens_outlive_a_clock_that_is_years_ahead() -> None:
    world = World()
    with world.db.begin(token="once") as txn:
        txn.insert("t", {"id": 1, "v": 1})
    world.db.close()
    ahead = 10 * 365 * 86400 * 10**6
    wall_us = world.clock.wall_us
    world.clock.wall_us = lambda: wall_us() + ahead  # type: ignore[method-assign]
    world.db = world.open()
    world.db.gc()
    with world.db.begin(token="once") as txn:
        assert txn.already_committed
    world.clock.advance(8 * 86400)  # time that has really passed
    assert world.db.gc().tokens == 1
    world.close()


@pytest.mark.parametrize(
    "text",
    [
        "select current_setting('temp_directory')",
        "select id from t where current_setting('temp_directory') <> ''",
        "select * from (with duckdb_databases as (select 1) select 1) a, duckdb_databases",
        "select * from (with pragma_database_list as (select 1) select 1) a, pragma_database_list",
    ],
)
def test_queries_tell_nothing_of_the_machine(db: hc.Database, text: str) -> None:
    with pytest.raises(UsageError):
        db.sql(text)
    with pytest.raises(UsageError), db.begin() as txn:
        txn.scan("t", where="current_setting('temp_directory') <> ''")


LEFT = ['db.sql("select 1")', 'x = db.sql("select * from t", stream=True)']


@pytest.mark.slow
@pytest.mark.parametrize("left", LEFT)
def test_leaving_without_close_is_quiet(tmp_path: Path, left: str) -> None:
    program = f"""
import halocline as hc
db = hc.open({str(tmp_path / "db")!r})
db.create_table("t", {{"id": int}}, primary_key="id")
{left}
"""
    call = [sys.executable, "-c", program]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
