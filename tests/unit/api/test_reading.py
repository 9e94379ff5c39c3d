"""get, get_many, range, scan, count: every way to the same rows, across pages, with own writes.

One property runs them all against a plain dict: whatever a transaction has done, all ways to read
agree with the dict and with each other, and the types are those of the table.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from tests.unit.rows.rig import seeds

OPTIONS = hc.Options(page_rows=4, bulk_rows=6)
COLUMNS = {"a": int, "b": str, "v": int, "s": str}


@pytest.fixture
def db(open_db: Any) -> Any:
    """A database with tiny pages."""
    db = open_db(durability="async", options=OPTIONS)
    yield db
    assert not db.check()


def _row(key: tuple[int, str], v: int | None) -> dict[str, Any]:
    return {"a": key[0], "b": key[1], "v": v, "s": None if v is None else f"s{v}"}


def _agree(txn: Any, model: dict[tuple[int, str], Any], rng: random.Random) -> None:
    """Every way to read shows the model."""
    arrow = txn.scan("t").schema
    rows = [_row(key, model[key]) for key in sorted(model)]
    by_key = sorted(txn.scan("t").to_pylist(), key=lambda row: (row["a"], row["b"]))
    assert by_key == rows
    assert txn.range("t").to_pylist() == rows
    assert txn.range("t", reverse=True).to_pylist() == rows[::-1]
    assert txn.sql("select * from t order by a, b").to_pylist() == rows
    assert txn.scan("t", order=["a", "b"]).to_pylist() == rows
    keys = [(rng.randrange(6), rng.choice("xyz")) for _ in range(8)]
    found = [_row(key, model[key]) for key in keys if key in model]
    assert txn.get_many("t", keys).to_pylist() == found
    for key in keys:
        assert txn.get("t", key) == (_row(key, model[key]) if key in model else None)
    low, high = sorted(keys[:2])
    inside = [row for row in rows if low <= (row["a"], row["b"]) < high]
    limit = rng.randrange(4)
    for table in (txn.range("t", low, high), txn.range("t", high=high, low=low, limit=99)):
        assert table.to_pylist() == inside
        assert table.schema == arrow
    assert txn.range("t", low, high, limit=limit).to_pylist() == inside[:limit]
    assert txn.range("t", low, high, reverse=True, limit=limit).to_pylist() == inside[::-1][:limit]
    assert txn.range("t", low).to_pylist() == [r for r in rows if (r["a"], r["b"]) >= low]
    assert txn.range("t", None, high).to_pylist() == [r for r in rows if (r["a"], r["b"]) < high]
    assert txn.range("t", high, low).num_rows == 0 if high != low else True
    assert txn.scan("t", where="v is null").num_rows == sum(v is None for v in model.values())
    for table in (txn.get_many("t", keys), txn.range("t"), txn.scan("t", where="a > 2")):
        assert table.schema == arrow


def _change(txn: Any, model: dict[tuple[int, str], Any], rng: random.Random, bulk: bool) -> None:
    keys = rng.sample([(a, b) for a in range(6) for b in "xyz"], 9 if bulk else rng.randrange(1, 4))
    rows = [_row(key, rng.choice([None, rng.randrange(100)])) for key in keys]
    kind = rng.choice(["upsert", "upsert", "delete", "insert", "where", "delete where"])
    if kind == "upsert":
        data = pa.Table.from_pylist(rows, schema=txn.scan("t").schema) if bulk else rows
        txn.upsert("t", data)
        model.update({(row["a"], row["b"]): row["v"] for row in rows})
    elif kind == "insert":
        fresh = [row for row in rows if (row["a"], row["b"]) not in model]
        txn.insert("t", pa.Table.from_pylist(fresh, schema=txn.scan("t").schema) if bulk else fresh)
        model.update({(row["a"], row["b"]): row["v"] for row in fresh})
    elif kind == "delete":
        for key in keys[:3]:
            assert txn.delete("t", key) is (key in model)
            model.pop(key, None)
    elif kind == "where":
        v = rng.randrange(100)
        hits = [key for key in model if key[0] < 3]
        values = {"v": v, "s": f"s{v}"}
        assert txn.update("t", where="a < 3", set=values) == len(hits)
        model.update(dict.fromkeys(hits, v))
    else:
        hits = [key for key in model if key[1] == "y" and key[0] % 2]
        assert txn.delete("t", where="b = ? and a % 2 = 1", params=["y"]) == len(hits)
        for key in hits:
            del model[key]


@pytest.mark.parametrize("seed", seeds(4))
def test_all_ways_to_read_agree(db: Any, seed: int, sim: bool) -> None:
    rng = random.Random(seed)
    db.create_table("t", COLUMNS, primary_key=["a", "b"])
    model: dict[tuple[int, str], Any] = {}
    past: list[tuple[int, dict[tuple[int, str], Any]]] = []
    for _ in range(25 if sim else 6):
        with db.begin() as txn:
            for _ in range(rng.randrange(1, 4)):
                _change(txn, model, rng, bulk=rng.random() < 0.4)
            _agree(txn, model, rng)
        with db.begin() as txn:
            _agree(txn, model, rng)
        assert db.table("t").count() == len(model), seed
        past.append((db.visible_ts, dict(model)))
    for ts, old in rng.sample(past, 3):
        with db.begin(at=ts) as txn:
            _agree(txn, old, rng)
        assert db.table("t").count(at=ts) == len(old), seed


def test_get_many_keeps_the_order_and_repeats_of_its_keys(db: Any) -> None:
    db.create_table("n", {"id": int, "v": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("n", [{"id": n, "v": n * 10} for n in range(20)])
    for own in (False, True):
        with db.begin() as txn:
            if own:
                txn.update("n", 3, {"v": 31})
            found = txn.get_many("n", [7, 3, 99, 7, 0, -1, 19])
            assert found.column("id").to_pylist() == [7, 3, 7, 0, 19]
            assert found.column("v").to_pylist()[1] == (31 if own else 30)
            assert txn.get_many("n", []).num_rows == 0
            assert txn.get_many("n", (n for n in (1, 2))).num_rows == 2
            assert txn.get_many("n", range(5)).num_rows == 5
            assert txn.get_many("n", {1: "a", 2: "b"}.keys()).num_rows == 2


def test_nothing_is_a_table_with_the_right_types(db: Any) -> None:
    db.create_table("t", COLUMNS, primary_key=["a", "b"])
    arrow = db.table("t").schema
    for fill in (False, True):
        with db.begin() as txn:
            if fill:
                txn.insert("t", _row((1, "x"), 1))
                txn.delete("t", (1, "x"))
            for table in (
                txn.scan("t"),
                txn.scan("t", where="v > 1"),
                txn.scan("t", order="a", limit=5),
                txn.scan("t", limit=0),
                txn.get_many("t", [(1, "x")]),
                txn.range("t"),
                txn.range("t", (0, ""), (9, "")),
                txn.scan("t", stream=True).read_all(),
                db.table("t").to_arrow(),
            ):
                assert (table.num_rows, table.schema) == (0, arrow)
            assert txn.get("t", (1, "x")) is None
            assert db.table("t").count() == 0
            assert txn.update("t", where="true", set={"v": 1}) == 0
            assert txn.delete("t", where="true") == 0


def test_columns_are_given_in_the_order_asked_for(db: Any) -> None:
    db.create_table("t", COLUMNS, primary_key=["a", "b"])
    with db.begin() as txn:
        txn.insert("t", [_row((n, "x"), n) for n in range(9)])
        for keywords in ({}, {"where": "a = 3"}, {"order": "a desc"}, {"limit": 2}):
            found = txn.scan("t", columns=["v", "A"], **keywords)
            assert found.schema.names == ["v", "a"]
            assert not found.schema.field("a").nullable
        assert txn.scan("t", columns=("s",), limit=1).to_pylist() == [{"s": "s0"}]
        # A column that is not asked for may still decide.
        assert txn.scan("t", columns=["s"], where="v = 4", order="b").to_pylist() == [{"s": "s4"}]


def test_ten_thousand_rows_across_pages(open_db: Any) -> None:
    db = open_db(durability="async", options=hc.Options(page_rows=1000, bulk_rows=1000))
    db.create_table("t", {"id": int, "v": int, "name": str}, primary_key="id")
    count = 10_000
    for begin in range(0, count, 2500):
        with db.begin() as txn:
            ids = range(begin, begin + 2500)
            txn.insert("t", pa.table({"id": ids, "v": ids, "name": [f"n{n}" for n in ids]}))
    with db.begin() as txn:
        for n in range(0, count, 1000):
            txn.update("t", n, {"v": -n})
        assert txn.delete("t", where="id % 10 = 5") == 1000
        txn.insert("t", {"id": count, "v": 0})
    with db.begin() as txn:
        assert db.table("t").count() == 9001
        found = txn.scan("t", order="id")
        assert found.column("id").to_pylist() == [n for n in range(count + 1) if n % 10 != 5]
        assert txn.scan("t", where="v < 0").num_rows == 9
        assert txn.range("t", 4990, 5010).column("id").to_pylist() == [
            n for n in range(4990, 5010) if n % 10 != 5
        ]
        keys = [9999, 0, 5, 2500, 2499, 10_000]
        assert txn.get_many("t", keys).column("id").to_pylist() == [9999, 0, 2500, 2499, 10_000]
        assert txn.get("t", 4321) == {"id": 4321, "v": 4321, "name": "n4321"}
        assert txn.sql("select sum(v) as s, count(*) as n from t").to_pylist() == [
            {
                "s": sum(n if n % 1000 else -n for n in range(count) if n % 10 != 5),
                "n": 9001,
            }
        ]
    assert not db.check()


def test_a_table_of_three_hundred_columns(db: Any) -> None:
    columns = {f"c{n}": (int, str, "decimal(10,2)", "timestamptz")[n % 4] for n in range(300)}
    db.create_table("wide", columns, primary_key="c0")
    with db.begin() as txn:
        txn.insert("wide", [{"c0": n, "c1": f"x{n}", "c296": n} for n in range(5)])
        txn.insert("wide", {**dict.fromkeys(columns), "c0": 9, "c297": "last"})
    with db.begin() as txn:
        txn.update("wide", 3, {"c1": "new", "c298": 7})
        assert txn.scan("wide").schema == db.table("wide").schema
    with db.begin() as txn:
        row = txn.get("wide", 3)
        assert len(row) == 300
        assert (row["c1"], row["c296"], float(row["c298"])) == ("new", 3, 7.0)
        found = txn.scan("wide", columns=["c299", "c0"], where="c297 = 'last' and c2 is null")
        assert found.to_pylist() == [{"c299": None, "c0": 9}]
        assert txn.sql("select count(c298) as n from wide").to_pylist() == [{"n": 1}]
    assert db.changes("wide", 0).num_columns == 302


def test_a_table_without_a_key_keeps_equal_rows(db: Any) -> None:
    db.create_table("log", {"text": str, "n": int})
    with db.begin() as txn:
        assert txn.insert("log", [{"text": "a", "n": 1}] * 3) == 3
        assert txn.insert("log", pa.table({"text": ["a"] * 8, "n": [1] * 8})) == 8
    with db.begin() as txn:
        assert txn.insert("log", {"text": "b"}) == 1
        assert txn.update("log", where="text = 'b'", set={"n": 2}) == 1
        assert txn.update("log", where="text = 'a'", set={"n": 5}) == 11
        assert txn.delete("log", where="n = 2") == 1
        assert txn.scan("log", where="n = 5").num_rows == 11
    assert db.table("log").count() == 11
    assert db.table("log").primary_key == ()
    with db.begin() as txn:
        assert txn.delete("log", where="n = 5") == 11
    assert db.table("log").count() == 0


def test_the_handle_of_a_table_says_what_it_is(db: Any) -> None:
    table = db.create_table("Orders", {"ID": int, "note": "string not null"}, primary_key="id")
    assert (table.name, table.primary_key, table.files()) == ("Orders", ("ID",), [])
    assert table.schema == pa.schema(
        [pa.field("ID", pa.int64(), nullable=False), pa.field("note", pa.string(), nullable=False)]
    )
    assert "Orders" in repr(table)
    with db.begin() as txn:
        txn.insert("orders", {"id": 1, "note": "x"})
    assert (table.count(), db.table("ORDERS").count()) == (1, 1)


def test_keys_may_be_a_column_of_an_earlier_answer(db: Any) -> None:
    db.create_table("one", {"id": int, "v": int}, primary_key="id")
    db.run(lambda txn: txn.insert("one", [{"id": n, "v": n} for n in range(9)]))
    with db.begin() as txn:
        some = txn.scan("one", where="id > 5", order=["id"])
        assert txn.get_many("one", some["id"]).equals(some)
        assert txn.get_many("one", some["id"].combine_chunks()).equals(some)
        for frame in (some, some.to_batches()[0], some.to_pandas()):
            with pytest.raises(hc.UsageError, match="a list of keys, or an Arrow array"):
                txn.get_many("one", frame)
