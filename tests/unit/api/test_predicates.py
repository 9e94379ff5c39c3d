"""where= and order=: expressions over one table that mean what they mean in DuckDB, and no more."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import halocline as hc

REFUSED = """\
id in (select 1)
exists (from orders)
id = (values (1))
id = any (select 1)
(with x as (select 1) select * from x) = 1
count(*) > 1
sum(id) > 1
max(id) = id
median(id) > 0
list(id) is null
string_agg(status, ',') = ''
first(id) = 1
row_number() over () = 1
sum(id) over (order by id) > 1
lag(id) over () = 1
1 = 1; drop table orders
1 = 1) limit 1 --
1 = 1 limit 1
1 = 1 order by id
1 = 1 group by id
1 = 1 union select 1
1 = 1) union (select 1
true) or (true
id = 1, true
id as x
where id = 1
select 1
drop table orders
id =
id = 1 and
(id = 1
id = 1)
'unclosed
"unclosed
/* unclosed
*
orders.*
read_csv('x') is null
read_text('x') is null
nosuchfunction(id)
id + 'x'::date > 1
status
""".splitlines()


@pytest.mark.parametrize("where", REFUSED)
def test_what_is_no_predicate_over_one_table_is_refused(shop_db: Any, where: str) -> None:
    txn = shop_db.begin()
    for call in (
        lambda: txn.scan("orders", where=where),
        lambda: txn.update("orders", where=where, set={"status": "x"}),
        lambda: txn.delete("orders", where=where),
    ):
        with pytest.raises(hc.UsageError):
            call()
    assert txn.scan("orders").num_rows == 5
    assert txn.commit() is None


def test_refused_predicates_leave_a_transaction_usable(txn: Any) -> None:
    for where in ("id in (select 1)", "nope = 1", "1 = 1; drop table orders", "status = ?"):
        with pytest.raises(hc.UsageError):
            txn.delete("orders", where=where)
        with pytest.raises(hc.UsageError):
            txn.update("orders", where=where, set={"status": "x"})
        with pytest.raises(hc.UsageError):
            txn.scan("orders", where=where)


@pytest.mark.parametrize("where", ["", " ", 5, ["id = 1"], b"id = 1", True, {"id": 1}], ids=repr)
def test_a_predicate_is_text(shop_db: Any, where: Any) -> None:
    txn = shop_db.begin()
    for call in (
        lambda: txn.scan("orders", where=where),
        lambda: txn.update("orders", where=where, set={"status": "x"}),
        lambda: txn.delete("orders", where=where),
    ):
        with pytest.raises(hc.UsageError, match=r"where=|text"):
            call()


ORDERS_REFUSED = """\
id; drop table orders
id limit 1
id) limit (1
(select 1)
count(*)
row_number() over ()
id desc desc
id from orders
nope
""".splitlines()


@pytest.mark.parametrize("order", [*ORDERS_REFUSED, "", " ", [], 5, [5], [None], ["id", 5], b"id"])
def test_what_is_no_order_is_refused(shop_db: Any, order: Any) -> None:
    txn = shop_db.begin()
    with pytest.raises(hc.UsageError):
        txn.scan("orders", order=order)
    assert txn.scan("orders", order="id desc", limit=1).column("id").to_pylist() == [4]


def test_names_in_a_list_are_names_and_never_text(shop_db: Any) -> None:
    txn = shop_db.begin()
    for name in ("id desc", "id; drop table orders", 'id" desc, "id', "1", "(select 1)"):
        with pytest.raises(hc.UsageError):
            txn.scan("orders", order=[name])
        with pytest.raises(hc.SchemaError):
            txn.scan("orders", columns=[name])


def test_unknown_columns_are_named_with_a_hint(shop_db: Any) -> None:
    txn = shop_db.begin()
    for call in (
        lambda: txn.scan("orders", where="statsu = 'x'"),
        lambda: txn.scan("orders", order="statsu"),
        lambda: txn.scan("orders", order=["statsu"]),
        lambda: txn.delete("orders", where="statsu = 'x'"),
        lambda: txn.update("orders", where="statsu = 'x'", set={"status": "x"}),
    ):
        with pytest.raises(hc.UsageError, match="statsu") as error:
            call()
        assert "status" in str(error.value)
        assert "_place" not in str(error.value)
        assert "_view" not in str(error.value)


def test_hidden_columns_stay_hidden(shop_db: Any) -> None:
    txn = shop_db.begin()
    for name in ("_rowid", "_place", "_commit_ts", "_view", "rowid", "_view.id", "_view._place"):
        for call in (
            lambda name=name: txn.scan("orders", where=f"{name} is not null"),
            lambda name=name: txn.scan("orders", order=f"{name} desc"),
            lambda name=name: txn.delete("orders", where=f"{name} is not null"),
            lambda name=name: txn.update(
                "orders", where=f"{name} is not null", set={"status": "x"}
            ),
        ):
            with pytest.raises(hc.UsageError):
                call()
    for name in ("_rowid", "_place", "_commit_ts"):
        with pytest.raises(hc.SchemaError):
            txn.scan("orders", columns=[name])
        with pytest.raises(hc.UsageError):
            txn.sql(f"select {name} from orders")


def test_parameters_need_a_predicate(shop_db: Any) -> None:
    txn = shop_db.begin()
    for keywords in ({}, {"order": "id"}, {"limit": 1}):
        with pytest.raises(hc.UsageError, match="params= without where="):
            txn.scan("orders", params=[1], **keywords)


UTC = dt.UTC
ROWS = [
    {
        "id": n,
        "a": (n * 7) % 5 - 2 if n % 6 else None,
        "b": n % 3,
        "x": n / 4 if n % 5 else None,
        "price": Decimal(n) / 4,
        "name": ["ann", "Bob", "", "c_d%", None, "été"][n % 6],
        "day": dt.date(2026, 1 + n % 12, 1 + n % 28),
        "moment": dt.datetime(2026, 1, 1, n % 24, 5, tzinfo=UTC) + dt.timedelta(days=n),
        "clock": dt.time(n % 24, n % 60),
        "ok": [True, False, None][n % 3],
        "tags": [["x"], [], None, ["x", "y", None]][n % 4],
        "dims": [{"w": n, "h": 2}, None][n % 2],
        "raw": bytes([n % 7]),
        "order": n % 4,
        "Group By": n % 2,
    }
    for n in range(60)
]
TYPES = {
    "id": int,
    "a": "int",
    "b": "smallint",
    "x": float,
    "price": "decimal(10,2)",
    "name": str,
    "day": dt.date,
    "moment": "timestamptz",
    "clock": dt.time,
    "ok": bool,
    "tags": "string[]",
    "dims": "struct<w: int, h: int>",
    "raw": bytes,
    "order": int,
    "Group By": int,
}
PREDICATES = """\
id = 7
id <> 7 and id != 8 and not id = 9
a is null or a < 0
a is not null
a is distinct from b
a is not distinct from null
a between -1 and 1
a not between -1 and 1
a in (1, 2, null)
a not in (1, 2)
a + b * 2 - 1 > 0
a / 2 = 0.5
a // 2 = 0
a % 2 = 1
-a > 0
a ** 2 = 4
a ^ 2 = 4
a & 1 = 1
a | 1 = 1
xor(a, b) = 1
b << 1 = 2
abs(a) = greatest(a, b)
coalesce(a, 99) = 99
ifnull(a, 99) = 99
nullif(a, 1) is null
case when a > 0 then b = 1 else ok end
case b when 0 then true when 1 then false else null end
if(a > 0, true, false)
x > 3.5 or x <= 1e0
x::int = 2
cast(x as varchar) = '2.5'
try_cast(name as int) is null
round(x) = 3
floor(x) = ceil(x)
price = 2.5
price > 10 and price < 12.25
price * 2 = id / 2
name = 'ann' or name = 'Bob'
name like '%n%'
name not like 'a%'
name ilike 'b%'
name like 'c\\_d\\%' escape '\\'
name similar to '[a-c].*'
name ~ 'a.*'
regexp_matches(name, '^[A-Z]')
name || '!' = 'ann!'
lower(name) = 'bob'
upper(name) = 'ÉTÉ'
length(name) = 3
len(name) = 0
substring(name, 1, 1) = 'a'
name[1] = 'a'
name[1:2] = 'an'
name[-1] = 'b'
left(name, 1) = 'B'
starts_with(name, 'a')
name ^@ 'a'
contains(name, '_')
position('o' in name) = 2
concat(name, b) = 'ann0'
name < 'b'
name collate nocase = 'bob'
'ann' = name
day = date '2026-03-03'
day >= '2026-06-01'
day + interval 1 month > date '2026-10-01'
day - date '2026-01-01' < 40
extract(month from day) = 2
month(day) = 2
date_part('day', day) = 5
date_trunc('month', day) = date '2026-02-01'
dayofweek(day) = 0
strftime(day, '%d') = '05'
moment >= timestamptz '2026-02-01 00:00:00+00'
moment < '2026-01-20'
moment::date = date '2026-01-05'
moment + interval 2 hours > timestamptz '2026-02-20 00:00:00+00'
epoch_us(moment) % 2 = 0
hour(moment) = 3
clock < time '12:00'
clock = '03:03:00'
ok
not ok
ok is true
ok is not false
ok is null
ok = (b = 0)
ok and a > 0 or not ok and a < 0
len(tags) = 3
tags[1] = 'x'
tags = ['x']
list_contains(tags, 'y')
'y' in tags
array_length(tags) > 0
tags is null
tags[1:1] = ['x']
list_transform(tags, lambda t: t || '!')[1] = 'x!'
list_filter(tags, lambda t: t = 'y') = ['y']
dims.w = 4
dims['w'] > 30
struct_extract(dims, 'h') = 2
dims = {'w': 4, 'h': 2}
dims is null
raw = '\\x01'::blob
octet_length(raw) = 1
hex(raw) = '02'
"order" = 1
"Group By" = 1 and "order" in (1, 3)
"group by" = 0
ID = 7 and NAME = 'Bob'
true
false
null
1 = 1
id in (1, 2, 3) -- a comment
/* a comment */ id = 4
(((id = 5)))
hash(id) % 2 = 0
id = 5 or id = (6)
exists(select 1) is null or true
""".splitlines()[:-1]


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A table of every type in a database, and its rows as Arrow for DuckDB alone."""
    options = hc.Options(page_rows=16, bulk_rows=20)
    with hc.open(tmp_path_factory.mktemp("items") / "db", options=options) as db:
        db.create_table("items", TYPES, primary_key="id")
        with db.begin() as txn:
            txn.insert("items", ROWS)
        yield db
        assert not db.check()


@pytest.fixture(scope="module")
def duck(items: Any) -> Any:
    """DuckDB alone, over the same rows."""
    connection = duckdb.connect()
    connection.execute("set TimeZone='UTC'")
    connection.register("items", items.table("items").to_arrow())
    return connection


@pytest.mark.parametrize("where", PREDICATES)
def test_a_predicate_means_what_it_means_in_duckdb(items: Any, duck: Any, where: str) -> None:
    """It is parsed and written again on the way: nothing may change its meaning."""
    wanted = duck.execute(f"select id from items where ({where}\n) order by id").fetchall()
    txn = items.begin()
    found = txn.scan("items", columns=["id"], where=where).column("id").to_pylist()
    assert found == [id for (id,) in wanted]


SORTS = """\
a
a desc
a desc nulls last, id
name collate nocase, id
x nulls first, b desc
b, a
abs(a), id desc
"order", "Group By" desc
dims.w desc
tags
ok desc nulls first
day, moment
length(name), price desc
-id
raw, id
""".splitlines()


@pytest.mark.parametrize("order", SORTS)
def test_an_order_means_what_it_means_in_duckdb(items: Any, duck: Any, order: str) -> None:
    """Rows that are equal in it keep the order of the table."""
    wanted = duck.execute(f"select id from items order by {order}, id").fetchall()
    found = items.begin().scan("items", columns=["id"], order=order).column("id").to_pylist()
    assert found == [id for (id,) in wanted]


def test_parameters_of_every_type(items: Any) -> None:
    txn = items.begin()
    row = ROWS[7]
    for name in (
        "id",
        "a",
        "b",
        "x",
        "price",
        "name",
        "day",
        "moment",
        "clock",
        "ok",
        "tags",
        "raw",
    ):
        found = txn.scan("items", where=f"{name} = ? and id = ?", params=[row[name], 7])
        if row[name] is None:
            assert found.num_rows == 0
        else:
            assert found.column("id").to_pylist() == [7], name
    assert txn.scan("items", where="a is not distinct from ?", params=[None]).num_rows == 10
    assert txn.scan("items", where="id = any (?)", params=[[1, 2]]).num_rows == 2
    assert txn.scan("items", where="id in (?, ?)", params=(1, 2)).num_rows == 2
    assert txn.scan("items", where="id = $2 or id = $1", params=(1, 2)).num_rows == 2


def test_a_question_mark_in_a_text_is_no_parameter(items: Any) -> None:
    assert items.begin().scan("items", where="name = '?' or id = ?", params=[1]).num_rows == 1


def test_where_order_limit_and_columns_together(items: Any) -> None:
    found = items.begin().scan(
        "items",
        columns=["NAME", "id"],
        where="b = ? and a is not null",
        params=[1],
        order="a desc, id",
        limit=3,
    )
    rows = sorted(
        (row for row in ROWS if row["b"] == 1 and row["a"] is not None),
        key=lambda row: (-row["a"], row["id"]),
    )
    assert found.to_pylist() == [{"name": row["name"], "id": row["id"]} for row in rows[:3]]
    assert found.schema == pa.schema(
        [pa.field("name", pa.string()), pa.field("id", pa.int64(), nullable=False)]
    )


def test_the_order_of_nulls_is_that_of_duckdb(items: Any) -> None:
    txn = items.begin()
    assert txn.scan("items", order="a", limit=1).column("a").to_pylist() == [-2]
    last = txn.scan("items", order="a").column("a").to_pylist()
    assert last[-10:] == [None] * 10
