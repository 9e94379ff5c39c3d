"""SQL on either engine: the same rows, the same types, the same order where one is asked for."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline import spark as hs
from halocline.database import engines
from halocline.errors import CorruptionError, NotFoundError, UsageError
from halocline.spark import dialect
from halocline.spark.values import bound
from tests.spark.shop import fill, row

OPTIONS = hc.Options(
    page_rows=16, object_rows=64, row_group_rows=32, bulk_rows=50, background=False, spark_bytes=1
)

# Rows in any order.
PLAIN = (
    "select * from orders",
    "select id, amount as a, amount * 2 as b, -amount, abs(small) from orders where id % 3 = 1",
    "from orders",
    "select o.id, O.Name from orders o where o.flag and not o.small > 100",
    "select count(*), count(name), count(distinct name), count(*) filter (where flag) from orders",
    "select sum(id), sum(small), sum(amount), sum(real) from orders where small < 50",
    "select avg(id), avg(amount), avg(small) filter (where flag), avg(distinct small) from orders",
    "select min(day), max(moment), min(naive), max(clock), min(name), max(amount) from orders",
    "select name, sum(amount) as total from orders group by name having count(*) > 5",
    "select name, flag, count(*) from orders group by all",
    "select day, avg(amount) over (partition by name) as mean from orders where real < 20",
    "select stddev(small), var_pop(small), stddev_pop(id), variance(id), median(id) from orders",
    "select bool_and(flag), bool_or(flag), count_if(small > 5) from orders",
    "select id / small, amount / 3, id / 2, small / 0, -id / 0, 0 / 0 from orders where id < 40",
    "select id // 7, id % 7, mod(small, 5) from orders",
    "select cast(amount as int), cast(id as double), cast(small as varchar) from orders",
    "select cast(real as bigint) from orders where real < 1e6 and not real = 'nan'::double",
    "select id from orders where clock > time '01:02:03.000020'",
    "select cast(day as timestamp), cast(moment as date), cast('2024-02-03' as date) from orders",
    (
        "select cast(amount as decimal(10,1)), round(amount, 1), round(amount), floor(amount), "
        "ceil(amount) from orders"
    ),
    (
        "select case when small > 10 then 'many' when small is null then 'none' else 'few' end, "
        "coalesce(name, 'nobody'), nullif(small, 3), if(flag, 1, 2) from orders"
    ),
    (
        "select upper(name), lower(name), length(name), name || '!', concat(name, '?', null), "
        "substring(name, 2, 3), replace(name, 'n', 'm'), position('a' in name), trim('  x ') "
        "from orders"
    ),
    "select id from orders where name like 'n%1' or name ilike 'NAME 2' or name like '%\\%'",
    "select id from orders where name like 'name!_%' escape '!'",
    "select id from orders where starts_with(name, 'name 1') or contains(name, '7')",
    "select year(day), month(day), day(day), quarter(day), extract(hour from moment) from orders",
    (
        "select date_trunc('month', day), date_trunc('day', naive), day + interval 1 month, "
        "day - interval '3' day, naive + interval 90 minute from orders"
    ),
    "select day - date '2024-01-01', day + 3 from orders",
    "select id from orders where day between date '2024-01-03' and date '2024-01-09'",
    "select id from orders where name is not distinct from null or flag is true",
    "select id, name from orders where small in (1, 2, 3) or name in ('name 1', 'name 2')",
    "select greatest(id, small), least(amount, 3) from orders",
    "select sign(small - 10), sqrt(small) from orders where small >= 0",
    "select distinct name, flag from orders",
    "select name from orders union select town from customers",
    "select small from orders intersect select id from customers",
    "select id from customers except all select small from orders",
    "select o.id, c.town from orders o join customers c on o.small = c.id",
    "select o.id, c.town from orders o left join customers c on o.id = c.id and c.town <> 'York'",
    "select o.id, c.id from orders o full join customers c on o.id = c.id where o.id is null",
    "select id, town, amount from orders join customers using (id)",
    "select cast(id as varchar(1)), cast(day as varchar) from orders",
    "select cast(sum(small) as bigint) as small, cast(max(amount) as int) as id from orders",
    "select count(*) from orders, customers where orders.small = customers.id",
    "select id from orders semi join customers on orders.small = customers.id",
    "select id from orders o where exists (select 1 from customers c where c.id = o.small)",
    "select id from orders where small not in (select id from customers where id > 5)",
    "select id, (select max(town) from customers c where c.id = o.small) as town from orders o",
    (
        "with few as (select * from orders where id < 50), orders as (select id from few) "
        "select count(*) as n, max(id) from orders"
    ),
    "select * from (select id, small from orders where flag) q(a, b) where a < 100 and b > 3",
    "select x, y from (values (1, 'a'), (2, null)) v(x, y)",
    "select 1, 1.5, 'it''s \\ here', true, null, 10000000000, date '2024-01-01', 1e0",
    "select name, flag, sum(small) from orders group by rollup (name, flag)",
    "select pair.a, pair.b, many from shapes",
    'select id as "select", name as "a b" from orders where id = 1',
    "select id, id, small as id from orders where id < 5",
    "select * exclude (data, real) from orders where id > 100",
    (
        "select sum(i8), sum(i32), sum(f32), min(i8), max(money), sum(money), i32 + i8 from shapes "
        "group by i32, i8"
    ),
)

# Rows in exactly this order.
ORDERED = (
    "select id, name from orders order by name, id",
    "select id, name from orders order by name desc, id desc limit 20",
    "select id, name from orders order by name nulls first, id limit 10 offset 5",
    "select id, real from orders order by real, id",
    "select id, real from orders order by real desc, id",
    "select name, count(*) as n, sum(amount) from orders group by 1 order by n desc, 1",
    (
        "select id, row_number() over (partition by name order by id) as n, rank() over (order by "
        "name) as r, lag(small) over (order by id) as before, sum(small) over (order by id rows "
        "between 2 preceding and current row) as three, ntile(4) over (order by id) as part "
        "from orders order by id"
    ),
    (
        "select id, row_number() over (partition by name order by small desc, id) as r from orders "
        "qualify r = 1 order by id"
    ),
    "select max(id) as top, name from orders group by name order by top",
    "select id from orders union all select id from customers order by 1 desc limit 30",
)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Iterator[hc.Database]:
    """Three tables, of which the largest lies in every tier."""
    with hc.open(tmp_path_factory.mktemp("sql") / "shop", options=OPTIONS) as db:
        fill(db)
        db.create_table("customers", {"id": int, "town": str}, primary_key="id")
        db.create_table(
            "shapes",
            pa.schema(
                [
                    pa.field("id", pa.int64(), nullable=False),
                    pa.field("i8", pa.int8()),
                    pa.field("i32", pa.int32()),
                    pa.field("f32", pa.float32()),
                    pa.field("money", pa.decimal128(38, 9)),
                    pa.field("many", pa.list_(pa.int32())),
                    pa.field("pair", pa.struct([("a", pa.string()), ("b", pa.decimal128(5, 2))])),
                ]
            ),
            primary_key="id",
        )
        towns = ["York", None, "Bath", "Ely"]
        with db.begin() as txn:
            txn.insert("customers", [{"id": n, "town": towns[n % 4]} for n in range(40)])
            txn.insert(
                "shapes",
                [
                    {
                        "id": n,
                        "i8": n % 7 or None,
                        "i32": n * 1000,
                        "f32": n / 4,
                        "money": Decimal(n) / 8,
                        "many": [n, None] if n % 3 else None,
                        "pair": {"a": str(n), "b": None} if n % 4 else None,
                    }
                    for n in range(30)
                ],
            )
        yield db
        assert db.check() == []


def same(one: Any, other: Any) -> bool:
    """Equal, but for the last digits of what was summed up in another order."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12) or (one != one and other != other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def rows_of(table: pa.Table, *, ordered: bool) -> list[Any]:
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return rows if ordered else sorted(rows, key=repr)


def check(db: hc.Database, text: str, params: Any = None, *, ordered: bool, at: Any = None) -> None:
    local = db.sql(text, params, at=at)
    spark = db.sql(text, params, at=at, engine="spark")
    assert spark.schema == local.schema
    expected, found = rows_of(local, ordered=ordered), rows_of(spark, ordered=ordered)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert same(one, other), (one, other)


@pytest.mark.parametrize("text", PLAIN)
def test_r03_both_engines_give_the_same_rows_and_types(db: hc.Database, text: str) -> None:
    check(db, text, ordered=False)


@pytest.mark.parametrize("text", ORDERED)
def test_r03_both_engines_give_the_same_order(db: hc.Database, text: str) -> None:
    check(db, text, ordered=True)


def test_parameters_are_bound_and_never_become_text(db: hc.Database) -> None:
    values = {
        "id": 7,
        "name": "name 3",
        "amount": Decimal("12.50"),
        "flag": True,
        "small": 12,
        "real": 7 / 3,
        "data": b"\x07",
        "day": date(2024, 1, 5),
        "clock": time(1, 2, 3, 11),
        "naive": datetime(2024, 1, 1, 0, 0, 9, 123),
        "moment": datetime(2024, 1, 1, 0, 0, 9, tzinfo=UTC),
    }
    given = list(values.values())
    columns = [f"{name} = ${at}, {name} > ${at}, ${at}" for at, name in enumerate(values, 1)]
    check(db, f"select {', '.join(columns)} from orders", given, ordered=False)
    asked = " or ".join(f"{name} = ?" for name in values)
    check(db, f"select id from orders where {asked}", given, ordered=False)
    nasty = ["' or 1=1 --", "`; drop view orders", "\\' \\\\ :p1 {x}", "%", "ä\n\x00"]
    asked = " and ".join("name <> ?" for _ in nasty)
    check(db, f"select count(*), ?, ?, ?, ?, ? from orders where {asked}", nasty * 2, ordered=False)
    check(db, "select id from orders where name = ? or id > ? limit ?", ["x", 1000, 3],
          ordered=False)  # fmt: skip
    with pytest.raises(UsageError, match="parameter"):
        db.sql("select ?", [{"a": 1}], engine="spark")
    with pytest.raises(UsageError):
        db.sql("select ?, ?", [1], engine="spark")


@pytest.mark.parametrize("value", [Decimal("1.50"), Decimal("-0.001"), Decimal("1E+3"), 1 << 70])
def test_numbers_travel_exactly(value: Any) -> None:
    text, kind = bound(value)
    assert kind is not None
    assert Decimal(text) == value


def test_the_past_and_streams(db: hc.Database) -> None:
    for ts in (1, 2, db.visible_ts - 2, db.visible_ts - 1):
        check(db, "select * from orders", at=ts, ordered=False)
    reader = db.sql("select id from orders order by id", engine="spark", stream=True)
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.read_all() == db.sql("select id from orders order by id")


@pytest.mark.parametrize(
    "text",
    [
        "select many[1] from shapes",
        "select string_agg(name, ',') from orders",
        "select regexp_matches(name, 'a.') from orders",
        "select cast(real as varchar) from orders",
        "select round(real, 1) from orders",
        "select substring(name, -2) from orders",
        "select cast(small as int) from (select amount / 3 as small from orders) q",
        "with q as (select amount / 3 as id from orders) select cast(id as int) from q",
        "select * from orders asof join customers on orders.id >= customers.id",
        "select * from orders join customers using (id)",
        "select * from range(3)",
        "select * from orders using sample 3",
        "select distinct on (name) name, id from orders",
        "select unnest(many) from shapes",
        "select columns('a.*') from orders",
        "select hash(id) from orders",
        "select interval 1 day",
    ],
)
def test_what_has_no_certain_form_in_spark_is_refused_there_and_runs_here(
    db: hc.Database, text: str
) -> None:
    with pytest.raises(UsageError, match="Spark"):
        db.sql(text, engine="spark")
    assert db.sql(text, engine="auto").schema == db.sql(text).schema


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("delete from orders", UsageError),
        ("with x as (insert into orders values (1)) select 1", UsageError),
        ("select * from read_parquet('x')", UsageError),
        ("select * from orders; select 1", UsageError),
        ("select nope from orders", UsageError),
        ("select * from nowhere", NotFoundError),
        ("selec 1", UsageError),
        ("select cast(name as int) from orders", UsageError),
        ("select id % 0 from orders", UsageError),
        ("select 9223372036854775807 + id from orders", UsageError),
        ("select (select id from orders)", UsageError),
    ],
)
def test_the_checks_of_the_local_engine_hold_for_both(
    db: hc.Database, text: str, error: type[Exception]
) -> None:
    for engine in ("local", "spark", "auto"):
        with pytest.raises(error):
            db.sql(text, engine=engine)


def test_an_engine_that_does_not_exist(db: hc.Database) -> None:
    with pytest.raises(UsageError, match="local, spark or auto"):
        db.sql("select 1", engine="duck")


def test_settings_and_views_of_the_session_stay_as_they_are(spark: Any, db: hc.Database) -> None:
    spark.createDataFrame([(1,)], "x int").createOrReplaceTempView("orders")
    try:
        check(db, "select count(*) from orders", ordered=True)
        assert spark.sql("select * from orders").collect() == [(1,)]
        assert spark.catalog.listTables() != []
        assert hs.session() is spark, "the session of the query was another one"
    finally:
        spark.catalog.dropTempView("orders")


def test_auto_sends_many_bytes_to_spark_and_few_to_duckdb(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = engines._on_spark

    def watched(*args: Any, **named: Any) -> Any:
        asked.append(args[2])
        return real(*args, **named)

    monkeypatch.setattr(engines, "_on_spark", watched)
    many, few = "select count(*) from orders", "select count(*) from orders where id > 100000"
    assert db.sql(many, engine="auto") == db.sql(many)
    assert db.sql(few, engine="auto") == db.sql(few)
    assert asked == [many], "no object can hold such an id, so there is nothing to read"
    with db.begin() as txn:
        assert engines.bytes_to_read(txn, many, None) > engines.bytes_to_read(txn, few, None) == 0
    monkeypatch.delitem(sys.modules, "pyspark")
    assert db.sql(many, engine="auto") == db.sql(many)
    assert asked == [many], "nobody has imported Spark, so nobody has a session"


def test_auto_starts_no_session(db: hc.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halocline.spark.query.running", lambda: None)
    monkeypatch.setattr("halocline.spark.query.session", lambda: pytest.fail("started"))
    many = "select count(*) from orders"
    assert db.sql(many, engine="auto") == db.sql(many)


def test_rows_in_memory_travel_as_a_file_that_goes_with_the_query(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halocline.spark.scan.ROWS_IN_PLAN_MAX", 10)
    before = set(db.core.engine.jobs)
    check(db, "select id, name from orders", ordered=False)
    assert set(db.core.engine.jobs) == before


def test_a_damaged_object_is_named(spark: Any, tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", [{"id": n, "text": f"some text {n}"} for n in range(100)])
        db.flush()
        path = Path(db.table("t").files()[0])
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[40] ^= 0xFF
        path.write_bytes(data)
        with pytest.raises(CorruptionError, match=path.name):
            db.sql("select sum(id), max(text) from t", engine="spark")


def test_spark_text_has_every_name_quoted_and_no_value(db: hc.Database) -> None:
    with db.begin() as txn:
        schema = txn.changes_of("orders").schema
    found = dialect.translate("select id from orders where name = ?", ["x' or 1=1"], [schema])
    assert found.text == "SELECT `id` FROM `orders` WHERE `name` = :p1"
    assert found.args == {"p1": "x' or 1=1"}


def test_rows_are_as_the_test_thinks(db: hc.Database) -> None:
    assert db.sql("select name from orders where id = 8").to_pylist() == [{"name": row(8)["name"]}]
