"""SQL over the tables: what a query sees, under which names, and what comes back."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import halocline as hc
from tests.unit.api.shop import MANY, order

UTC = dt.UTC


def test_the_example_of_the_design_runs(own_db: Any) -> None:
    with own_db.begin() as txn:
        for n, status in enumerate(["new", "paid", "new"]):
            moment = dt.datetime(2026, 1, n + 1, tzinfo=UTC)
            txn.insert("orders", order(100 + n, status=status, amount=n + 1, at=moment))
        found = txn.sql(
            "select status, sum(amount) from orders where at > ? group by 1 order by 1",
            params=[dt.datetime(2026, 1, 1, tzinfo=UTC)],
        )
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        ("new", Decimal("3.00")),
        ("paid", Decimal("2.00")),
    ]


KEYWORDS = ["at", "select", "order", "group", "by", "from", "where", "table", "user", "end", "case"]
KEYWORDS += ["all", "limit", "primary", "values", "set", "count", "date", "timestamp", "null"]


def test_columns_named_like_keywords_that_other_databases_allow(own_db: Any) -> None:
    own_db.create_table("select", dict.fromkeys(KEYWORDS, int), primary_key="order")
    with own_db.begin() as txn:
        txn.insert("select", {name: n for n, name in enumerate(KEYWORDS)})
        for n, name in enumerate(KEYWORDS):
            found = txn.sql(f'select "{name}" from "select" where "{name}" = ?', params=[n])
            assert found.to_pylist() == [{name: n}]
            found = txn.scan("select", columns=[name], where=f'"{name}" = {n}', order=[name])
            assert found.to_pylist() == [{name: n}]
        assert txn.get("SELECT", 2)["group"] == 3
        assert txn.update("select", where='"group" = 3', set={"FROM": 70}) == 1
        assert txn.get("select", 2)["from"] == 70


def test_names_in_any_script(own_db: Any) -> None:
    columns = {"größe": int, "名前": str, "имя": str, "🙂": int, "a b": int, 'q"q': int, "x.y": int}
    own_db.create_table("таблица 表", columns, primary_key=["größe", "名前"])
    row = {"größe": 1, "名前": "山", "имя": "я", "🙂": 2, "a b": 3, 'q"q': 4, "x.y": 5}
    with own_db.begin() as txn:
        txn.insert("Таблица 表", row)
        found = txn.sql('select "größe", "q""q", "x.y", "🙂" from "ТАБЛИЦА 表" where "a b" = 3')
        assert [tuple(r.values()) for r in found.to_pylist()] == [(1, 4, 5, 2)]
    with own_db.begin() as txn:
        assert txn.get("таблица 表", (1, "山")) == row
        found = txn.scan("таблица 表", where='"имя" = ? and "x.y" = 5', params=["я"], order=['q"q'])
        assert found.to_pylist() == [row]
        assert own_db.changes("таблица 表", 0).select(list(columns)).to_pylist() == [row]


def test_names_of_tables_and_columns_are_found_in_any_case(own_db: Any) -> None:
    for text in (
        "select ID, Status from ORDERS where Id = 1",
        'select "Id", "STATUS" from "Orders" where "ID" = 1',
        "select o.id, p.status from orders o join ORDERS p using (id) where id = 1",
    ):
        assert [tuple(r.values()) for r in own_db.sql(text).to_pylist()] == [(1, "new")]
    with own_db.begin() as txn:
        assert txn.get("ORDERS", 1) == txn.get("orders", 1)
        found = txn.scan("Orders", columns=["ID", "sTATUS"], where="STATUS = 'new'", limit=1)
        assert found.schema.names == ["id", "status"]
        assert txn.update("Orders", 1, {"STATUS": "x"}) == 1
        assert txn.insert("oRders", {"ID": 70, "Qty": 1}) == 1
        assert txn.get("orders", 70)["qty"] == 1


@pytest.mark.parametrize("mood", ["single", "many", "bulk"])
def test_a_query_sees_own_writes(own_db: Any, mood: str) -> None:
    count = {"single": 1, "many": 3, "bulk": MANY}[mood]
    with own_db.begin() as txn:
        rows = [order(500 + n, status="mine") for n in range(count)]
        assert txn.insert("orders", rows[0] if count == 1 else rows) == count
        assert txn.sql("select count(*) as n from orders").to_pylist() == [{"n": 5 + count}]
        assert txn.update("orders", 500, {"status": "changed"}) == 1
        assert txn.update("orders", where="id = 3", set={"status": "changed"}) == 1
        assert txn.delete("orders", 4) is True
        text = "select id from orders where status = 'changed' order by id"
        assert txn.sql(text).column("id").to_pylist() == [3, 500]
        assert txn.sql("select max(id) as n from orders where id < 100").to_pylist() == [{"n": 3}]
    assert own_db.sql(text).column("id").to_pylist() == [3, 500]


def test_a_query_sees_tables_of_its_own_transaction(own_db: Any) -> None:
    txn = own_db.begin()
    txn.create_table("fresh", {"id": int})
    txn.insert("fresh", [{"id": 1}, {"id": 2}])
    assert txn.sql("select count(*) as n from fresh join orders using (id)").to_pylist() == [
        {"n": 2}
    ]
    txn.drop_table("orders")
    with pytest.raises(hc.NotFoundError):
        txn.sql("select * from orders")
    with pytest.raises(hc.NotFoundError):
        own_db.sql("select * from fresh")
    txn.rollback()
    assert own_db.sql("select count(*) as n from orders").to_pylist() == [{"n": 5}]


def test_many_tables_of_one_snapshot(own_db: Any) -> None:
    txn = own_db.begin()
    with own_db.begin() as other:
        other.delete("lines", (1, "a"))
        other.delete("orders", 1)
    text = """
        with sold as (select id, sum(n) as n from lines group by id)
        select o.id, s.n, (select count(*) from events) as e
        from orders o left join sold s using (id) order by o.id
    """
    rows = txn.sql(text).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (0, 0, 3),
        (1, 2, 3),
        (2, 4, 3),
        (3, None, 3),
        (4, None, 3),
    ]
    assert own_db.sql(text).num_rows == 4


def test_a_cte_may_take_the_name_of_the_table_it_reads(own_db: Any) -> None:
    text = "with orders as (select * from orders where id = 1) select id from orders"
    assert own_db.sql(text).to_pylist() == [{"id": 1}]


def test_a_cte_hides_a_table_only_in_its_own_scope(own_db: Any) -> None:
    text = """
        select a.x, b.id from (with orders as (select 7 as x) select * from orders) a, orders b
        where b.id = 1
    """
    assert own_db.sql(text).to_pylist() == [{"x": 7, "id": 1}]
    assert own_db.sql("with orders as (select 7 as x) from orders").to_pylist() == [{"x": 7}]


def test_all_forms_of_a_select_run(own_db: Any) -> None:
    for text, count in (
        ("from orders", 5),
        ("table orders", 5),
        ("from orders select id limit 2", 2),
        ("(select * from orders)", 5),
        ("select * from orders union all from orders", 10),
        ("select id from orders intersect select id from lines", 3),
        ("select id from orders except select id from lines", 2),
        ("with recursive r(n) as (select 1 union all select n + 1 from r where n < 4) from r", 4),
        ("select * from orders where id in (select id from lines)", 3),
        ("select * exclude (id) from orders", 5),
        ("select columns('i.*') from orders", 5),
        ("select distinct status from orders", 1),
        ("select * from orders qualify row_number() over (order by id) = 1", 1),
        ("select status, count(*) from orders group by all having count(*) > 1 order by all", 1),
        ("select * from orders o, lateral (select o.id + 1 as next) x", 5),
        ("select * from orders o, unnest(o.tags)", 10),
        ("select unnest(tags) from orders", 10),
        ("select * from orders left join lines using (id)", 8),
        ("select * from orders pivot (count(*) for status in ('new'))", 5),
        ("select * from (pivot lines on sku using sum(n) group by id)", 3),
        ("select 1 as x;", 1),
        ("select id -- comment\nfrom orders /* more */", 5),
        ("select [x for x in [1, 2]] as l, {'a': 1} as s", 1),
        ("select * from orders limit 0", 0),
    ):
        assert own_db.sql(text).num_rows == count, text


def test_a_result_has_the_types_of_its_columns(own_db: Any) -> None:
    found = own_db.sql("select * from orders where id = 1")
    assert found.schema.types == own_db.table("orders").schema.types
    assert found.to_pylist() == own_db.begin().get_many("orders", [1]).to_pylist()


def test_a_result_of_no_rows_has_its_columns(own_db: Any) -> None:
    own_db.create_table("empty", {"id": int, "s": str, "l": "int[]"}, primary_key="id")
    found = own_db.sql("select * from empty")
    assert (found.num_rows, found.schema.names) == (0, ["id", "s", "l"])
    assert found.schema.types == own_db.table("empty").schema.types
    assert own_db.sql("select count(*) as n, max(id) as m from empty").to_pylist() == [
        {"n": 0, "m": None}
    ]


def test_a_query_in_the_past(own_db: Any) -> None:
    before = own_db.visible_ts
    with own_db.begin() as txn:
        txn.delete("orders", where="true")
    assert own_db.sql("select count(*) as n from orders").to_pylist() == [{"n": 0}]
    assert own_db.sql("select count(*) as n from orders", at=before).to_pylist() == [{"n": 5}]
    with own_db.begin(at=before) as txn:
        assert txn.sql("select count(*) as n from orders").to_pylist() == [{"n": 5}]
    with pytest.raises(hc.NotFoundError, match="orders"):
        own_db.sql("select count(*) as n from orders", at=0)


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine whose clock shows another zone."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_times_are_in_utc_whatever_the_machine_says(own_db: Any) -> None:
    moment = dt.datetime(2026, 1, 1, 23, 30, tzinfo=UTC)
    with own_db.begin() as txn:
        txn.update("orders", 1, {"at": moment})
    found = own_db.sql('select "at"::varchar as t, "at"::date as d from orders where id = 1')
    assert found.to_pylist() == [{"t": "2026-01-01 23:30:00+00", "d": dt.date(2026, 1, 1)}]
    assert own_db.sql('select "at" from orders').schema.types == [pa.timestamp("us", "UTC")]
    with own_db.begin() as txn:
        assert txn.scan("orders", where="at < '2026-01-02'").num_rows == 1
        assert txn.scan("orders", where="at::date = '2026-01-01'").num_rows == 1


def test_null_is_null(own_db: Any) -> None:
    with own_db.begin() as txn:
        txn.insert("orders", [order(n, status=None) for n in (500, 501)])
        assert txn.scan("orders", where="status is null").num_rows == 2
        assert txn.scan("orders", where="status = null").num_rows == 0
        assert txn.scan("orders", where="status = ?", params=[None]).num_rows == 0
        assert txn.scan("orders", where="status <> 'new'").num_rows == 0
        assert txn.scan("orders", where="not (status = 'new')").num_rows == 0
        assert txn.update("orders", where="status is null", set={"amount": None}) == 2
        assert txn.sql("select count(status) as n, count(*) as m from orders").to_pylist() == [
            {"n": 5, "m": 7}
        ]
        assert txn.delete("orders", where="status is null") == 2


def test_a_result_can_go_back_into_a_table(own_db: Any) -> None:
    with own_db.begin() as txn:
        found = txn.sql("select id + 100 as id, status, qty, tags, dims from orders")
        assert isinstance(found, pa.Table)
        assert txn.insert("orders", found) == 5
        assert txn.upsert("orders", found) == 5
    assert own_db.table("orders").count() == 10


def test_parameters_may_be_numbers_of_numpy(own_db: Any) -> None:
    with own_db.begin() as txn:
        for value in (np.int64(3), np.int32(3), np.float64(3), np.uint8(3), 3.0, Decimal(3)):
            assert txn.sql("select id from orders where id = ?", params=[value]).num_rows == 1
            assert txn.scan("orders", where="id = ?", params=[value]).num_rows == 1
        assert txn.sql("select ? as b", params=[np.bool_(True)]).to_pylist() == [{"b": True}]


def test_a_moment_is_the_same_in_every_zone(own_db: Any) -> None:
    moment = dt.datetime(2026, 1, 1, 12, tzinfo=UTC)
    tokyo = moment.astimezone(dt.timezone(dt.timedelta(hours=9)))
    with own_db.begin() as txn:
        txn.update("orders", 1, {"at": tokyo})
        assert txn.get("orders", 1)["at"] == moment
        for value in (moment, tokyo):
            assert txn.scan("orders", where="at = ?", params=[value]).num_rows == 1
            assert txn.scan("orders", where="at > ?", params=[value]).num_rows == 0


def test_a_predicate_may_name_its_table(own_db: Any) -> None:
    with own_db.begin() as txn:
        for where in (
            "orders.id = 1",
            "ORDERS.dims.w = 1",
            '"Orders"."id" = 1 and status = \'new\'',
        ):
            assert txn.scan("orders", where=where).column("id").to_pylist() == [1]


def test_a_snapshot_keeps_its_tables_when_they_are_dropped_and_made_again(own_db: Any) -> None:
    old = own_db.begin()
    own_db.drop_table("orders")
    own_db.create_table("orders", {"other": int}, primary_key="other")
    with own_db.begin() as txn:
        txn.insert("orders", {"other": 7})
        assert txn.get("orders", 7) == {"other": 7}
    for _ in range(2):  # whatever names were remembered in between
        assert old.get("orders", 3)["qty"] == 1
        assert old.scan("orders").num_rows == 5
        assert old.sql("select sum(qty) as n from orders").to_pylist() == [{"n": 5}]
        assert own_db.sql("select * from orders").to_pylist() == [{"other": 7}]
        assert own_db.begin().get("orders", 7) == {"other": 7}
    old.rollback()


@pytest.mark.parametrize("tail", [";", " ; ", "; -- done", ";;", "\n-- done\n", "/* done */ ;"])
def test_a_statement_may_end_in_semicolons_and_comments(db: Any, tail: str) -> None:
    assert db.sql(f"select 1 as a{tail}").to_pylist() == [{"a": 1}]


def test_a_parameter_may_be_cast_with_colons(own_db: Any) -> None:
    with own_db.begin() as txn:
        for n in (1, 2, 3):
            txn.insert("orders", order(100 + n, at=dt.datetime(2026, 1, n, tzinfo=UTC)))
    own_db.flush("orders")
    params = ["2026-01-02 00:00:00+00", "101"]
    where = "at >= ?::timestamptz and id > ?::bigint"
    found = own_db.sql(f"select id from orders where {where} order by id", params=params)
    assert found.column("id").to_pylist() == [102, 103]
    with own_db.begin() as txn:
        found = txn.scan("orders", columns=["id"], where=where, params=params, order=["id"])
    assert found.column("id").to_pylist() == [102, 103]
