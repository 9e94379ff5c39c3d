"""SQL from callers: SELECT over the tables of the database and nothing else, however written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from tests.unit.api import shop

STATEMENTS = """\
insert into orders values (9)
insert or replace into orders values (9)
update orders set status = 'x'
delete from orders
merge into orders using lines on true when matched then delete
truncate orders
drop table orders
create table x (a int)
create or replace table orders as select 1
create view v as select 1
create temp table x (a int)
create macro m() as 1
alter table orders add column x int
copy orders to 'out.csv'
copy (select 1) to 'out.parquet' (format parquet)
copy orders from 'in.csv'
attach 'other.db'
attach ':memory:' as other
detach memory
use memory
install httpfs
load httpfs
pragma version
pragma enable_profiling
set threads = 1
set memory_limit = '1TB'
set enable_external_access = true
set variable x = 1
reset threads
call pragma_version()
explain select 1
explain analyze select 1
describe orders
show tables
summarize orders
begin
commit
rollback
checkpoint
vacuum
analyze
export database 'out'
import database 'out'
prepare p as select 1
execute p
deallocate p
select * into copied from orders
with x as (insert into orders values (9) returning *) select * from x
with x as (update orders set status = 'x' returning *) select * from x
with x as (delete from orders returning *) from x
with x as (merge into orders using lines on true when matched then delete) select 1
select 1; select 2
select 1; drop table orders
select 1;; drop table orders
drop table orders; select 1
; drop table orders
""".splitlines()


@pytest.fixture
def unharmed(shop_db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The shop, in an empty directory; nothing may be in it afterwards, and nothing gone."""
    monkeypatch.chdir(tmp_path)
    before = shop.picture(shop_db)
    inside = _inside(shop_db)
    yield shop_db
    assert shop.picture(shop_db) == before
    assert not list(tmp_path.iterdir())
    assert _inside(shop_db) == inside


def _inside(db: Any) -> list[Any]:
    """What DuckDB itself holds: nothing of ours may stay there, nothing foreign may come."""
    db.sql("select 1")
    cursor = db.core.duck._cursor()
    tables = cursor.execute("select table_name from duckdb_tables()").fetchall()
    views = cursor.execute("select view_name from duckdb_views() where not internal").fetchall()
    files = cursor.execute("select database_name, path from duckdb_databases()").fetchall()
    return [tables, views, files]


@pytest.mark.parametrize("text", STATEMENTS)
def test_what_is_not_one_select_is_refused(unharmed: Any, text: str) -> None:
    for run in (unharmed.sql, unharmed.begin().sql):
        with pytest.raises(hc.UsageError):
            run(text)


def test_the_error_names_the_statement(shop_db: Any) -> None:
    for text, word in (
        ("insert into orders values (9)", "INSERT"),
        ("drop table orders", "DROP"),
        ("copy orders to 'x'", "COPY"),
        ("attach 'x'", "ATTACH"),
        ("pragma version", "PRAGMA"),
        ("set threads = 1", "SET"),
        ("select 1; select 2", "one statement"),
        ("select * from read_csv('x')", "READ_CSV"),
        ("select * from nope.orders", "nope.orders"),
        ("selct 1", "selct 1"),
        ("explain select 1", "EXPLAIN"),
    ):
        with pytest.raises(hc.UsageError, match=word):
            shop_db.sql(text)


@pytest.mark.parametrize("text", ["", " ", ";", "-- nothing", "/* nothing */", "()"])
def test_no_statement_is_refused(unharmed: Any, text: str) -> None:
    with pytest.raises(hc.UsageError):
        unharmed.sql(text)


@pytest.mark.parametrize("text", [5, None, b"select 1", ["select 1"], {"select 1"}])
def test_sql_is_text(unharmed: Any, text: Any) -> None:
    with pytest.raises(hc.UsageError, match="text"):
        unharmed.sql(text)


FUNCTIONS = """\
read_csv('secret.csv')
read_csv_auto('secret.csv')
read_parquet('secret.csv')
read_json('secret.csv')
read_text('secret.csv')
read_blob('secret.csv')
glob('*')
sniff_csv('secret.csv')
parquet_metadata('secret.csv')
duckdb_settings()
duckdb_secrets()
duckdb_databases()
pragma_version()
query('select 1')
query_table('orders')
test_all_types()
seq_scan('orders')
""".splitlines()
PLACES = """\
select * from {}
from {}
select * from orders, {}
select * from orders cross join {}
select * from orders, lateral {}
select * from orders left join lateral {} on true
select * from orders, lateral (select * from {}) x
select * from (select * from {}) x
select * from (from {}) x
with x as (select * from {}) select * from x
with x as materialized (from {}) from x
select (select count(*) from {})
select * from orders where exists (from {})
select * from orders where id in (select 1 from {})
select 1 union all select 1 from {}
select * from orders order by (select count(*) from {})
select * from {} tablesample 1 rows
select * from (pivot {} on name using count(*))
select * from orders semi join {} on true
select * from orders natural join {}
select array(select 1 from {})
""".splitlines()


@pytest.mark.parametrize("place", PLACES)
def test_a_table_function_is_refused_wherever_it_stands(shop_db: Any, place: str) -> None:
    for function in FUNCTIONS if place == PLACES[0] else FUNCTIONS[:1] + FUNCTIONS[9:11]:
        with pytest.raises(hc.UsageError, match="table function") as error:
            shop_db.sql(place.format(function))
        assert function.split("(")[0].upper() in str(error.value).upper()


def test_the_row_makers_are_allowed(shop_db: Any) -> None:
    for text in (
        "select count(*) from range(3)",
        "select count(*) from generate_series(1, 3)",
        "select count(*) from unnest([1, 2, 3])",
        "select count(*) from (values (1), (2), (3))",
        "select count(*) from (select unnest([1, 2, 3]))",
    ):
        assert shop_db.sql(text).column(0).to_pylist() == [3]


def test_files_are_not_tables(unharmed: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = tmp_path_factory.mktemp("secret") / "secret.csv"
    secret.write_text("a\nhunter2\n")
    for name in (str(secret), secret.name, "secret", "*.csv", "https://example.com/x.csv"):
        for quoted in (f"'{name}'", f'"{name}"'):
            with pytest.raises((hc.NotFoundError, hc.UsageError)):
                unharmed.sql(f"select * from {quoted}")
    with pytest.raises(hc.UsageError):
        unharmed.sql(f"select content from read_text('{secret}')")


def test_python_variables_are_not_tables(unharmed: Any) -> None:
    frame = pa.table({"a": [1]})
    for text in ("select * from frame", "select * from shop_db", "select * from FUNCTIONS"):
        with pytest.raises(hc.NotFoundError):
            unharmed.sql(text)
    assert frame.num_rows == 1


def test_catalogs_of_duckdb_are_not_tables(unharmed: Any) -> None:
    for name in ("duckdb_tables", "duckdb_settings", "sqlite_master", "pg_class", "pg_tables"):
        with pytest.raises(hc.NotFoundError, match=name):
            unharmed.sql(f"select * from {name}")
    for name in ("information_schema.tables", "pg_catalog.pg_class", "main.orders", "temp.orders"):
        with pytest.raises(hc.UsageError, match=name):
            unharmed.sql(f"select * from {name}")


def test_a_table_may_have_the_name_of_a_catalog_or_a_function(own_db: Any) -> None:
    for name in ("duckdb_tables", "sqlite_master", "range", "read_csv", "main", "temp"):
        own_db.create_table(name, {"mine": int})
        with own_db.begin() as txn:
            txn.insert(name, {"mine": 7})
        assert own_db.sql(f'select * from "{name}"').to_pylist() == [{"mine": 7}]


TRICKS = [
    "select 1 /* /* */ ; create table hacked (a int) /* */ */",
    "select 1 /* /* */ */ ; create table hacked (a int) --",
    "select 1 -- \r ; create table hacked (a int)",
    "select 1 -- \x0b ; create table hacked (a int)",
    "select 1 -- \x85 ; create table hacked (a int)",
    "select 1 -- \u2028 ; create table hacked (a int)",
    "select 1 {# ; create table hacked (a int); #}",
    "select {{ 1 }} ; create table hacked (a int)",
    "select $a$ $b$ ' $a$ ; create table hacked (a int); -- '",
    "select $$ ' $$ ; create table hacked (a int); -- '",
    "select e'\\' ; create table hacked (a int); --'",
    "select e'\\\\' ; create table hacked (a int); --'",
    "select '\\' ; create table hacked (a int); --'",
    'select "a\\" ; create table hacked (a int); --"',
    "select U&'\\' ; create table hacked (a int); --'",
    "select 1 /*+ */ ; create table hacked (a int)",
    "select 1 \x00 ; create table hacked (a int)",
    "select 1 as $$ ; create table hacked (a int); $$",
    "select e'\\047 ; create table hacked (a int); --'",
    "select '''' ; create table hacked (a int); --'",
]


def test_no_trick_of_quoting_or_commenting_gets_a_second_statement_through(unharmed: Any) -> None:
    """Two parsers read the text, ours and DuckDB's. They must not disagree where it ends."""
    for text in TRICKS:
        with contextlib.suppress(hc.UsageError):
            unharmed.sql(text)
        assert not _inside(unharmed)[0], text


def test_the_instance_stays_locked(shop_db: Any) -> None:
    """Even with the statement check out of the way DuckDB would refuse."""
    duck = shop_db.core.duck
    for text in (
        "set enable_external_access = true",
        "set lock_configuration = false",
        "set memory_limit = '1TB'",
        "copy (select 1) to 'out.csv'",
        "attach 'other.db'",
        "install httpfs",
        "load httpfs",
        "select * from read_csv('secret.csv')",
        "select * from glob('*')",
        "select * from shop_db",
    ):
        with pytest.raises((hc.UsageError, hc.UnavailableError)):
            duck.query(text, [], {})


def test_statements_of_one_query_leave_nothing_for_the_next(unharmed: Any) -> None:
    assert unharmed.sql("select count(*) as n from orders").to_pylist() == [{"n": 5}]
    cursor = unharmed.core.duck._cursor()
    with pytest.raises(Exception, match="orders"):
        cursor.execute("select * from orders")


def test_a_query_that_outgrows_memory_writes_nothing_into_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with hc.open(tmp_path / "db", memory="32MB") as db:
        text = "select max(h) from (select hash(i) as h, i from range(2500000) t(i) order by h)"
        with contextlib.suppress(hc.UnavailableError):  # It may also say that memory is short.
            assert db.sql(text).num_rows == 1
        assert db.sql("select 1 as one").to_pylist() == [{"one": 1}]
        assert not db.check()
        for path in (tmp_path / "db").rglob("*"):
            # DuckDB's own files are as it makes them; nobody else gets into their folder.
            if path.parent.name != "spill":
                assert not path.stat().st_mode & 0o077, path
    assert not os.listdir(tmp_path / "here")


def test_a_query_that_needs_more_memory_than_there_is_says_so(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", memory="16MB") as db:
        with pytest.raises(hc.UnavailableError, match="memory"):
            db.sql("select list(i) from range(20000000) t(i)")
        assert db.sql("select 1 as one").to_pylist() == [{"one": 1}]
        assert not db.check()


def test_a_statement_nested_too_deeply_is_an_error_and_no_crash(unharmed: Any) -> None:
    for text in (
        "select " + "(" * 5000 + "1" + ")" * 5000,
        "select " + "-" * 1 + "not " * 5000 + "1",
    ):
        with pytest.raises(hc.UsageError):
            unharmed.sql(text)


def test_parameters_are_values_and_never_text(unharmed: Any) -> None:
    evil = "'; drop table orders; --"
    assert unharmed.sql("select ? as x", params=[evil]).to_pylist() == [{"x": evil}]
    assert unharmed.sql("select * from orders where status = ?", params=[evil]).num_rows == 0
    with unharmed.begin() as txn:
        assert txn.scan("orders", where="status = ?", params=[evil]).num_rows == 0
        assert txn.update("orders", where="status = ?", params=[evil], set={"status": "x"}) == 0
        assert txn.delete("orders", where="status = ?", params=[evil]) == 0


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("select ?", None),
        ("select ?", []),
        ("select ?", [1, 2]),
        ("select ?, ?", [1]),
        ("select 1", [1]),
        ("select $2", [1]),
        ("select $name", [1]),
    ],
)
def test_the_number_of_parameters_must_be_right(unharmed: Any, text: str, params: Any) -> None:
    with pytest.raises(hc.UsageError, match=r"[Pp]arameter"):
        unharmed.sql(text, params=params)


@pytest.mark.parametrize(
    "params", ["a", b"a", {"a": 1}, 5, iter([1]), {1}], ids=lambda one: type(one).__name__
)
def test_parameters_are_a_list(unharmed: Any, params: Any) -> None:
    txn = unharmed.begin()
    for call in (
        lambda: unharmed.sql("select ?", params=params),
        lambda: txn.scan("orders", where="id = ?", params=params),
        lambda: txn.delete("orders", where="id = ?", params=params),
        lambda: txn.update("orders", where="id = ?", params=params, set={"status": "x"}),
    ):
        with pytest.raises(hc.UsageError, match="params="):
            call()


def test_a_parameter_that_is_no_value_is_refused(unharmed: Any) -> None:
    for value in (object(), "\ud800", lambda: 1, unharmed):
        with pytest.raises(hc.UsageError):
            unharmed.sql("select ?", params=[value])
        with pytest.raises(hc.UsageError):
            unharmed.begin().scan("orders", where="status = ?", params=[value])


def test_refused_statements_leave_a_transaction_usable(txn: Any) -> None:
    for text in ("drop table orders", "select nope from orders", "selct", "select error('x')"):
        with pytest.raises(hc.UsageError):
            txn.sql(text)
    with pytest.raises(hc.NotFoundError):
        txn.sql("select * from nope")


def test_a_refused_statement_says_so_once(
    shop_db: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the error, and not in a log or on the terminal as well."""
    for text in ("load x", "call pragma_version()", "explain select 1", "prepare p as select 2"):
        with pytest.raises(hc.UsageError):
            shop_db.sql(text)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")
