"""What a statement says about its tables: enough to prune, never so much that a row is missed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from halocline.objects.zonemap import zonemap
from halocline.read.duck import Duck
from halocline.read.predicate import filters_of, predicate_of
from halocline.schema.schema import Schema
from tests.unit.rows.rig import seeds

ORDERS = Schema.define({"id": int, "n": int, "s": str, "user": str, "d": "struct<x: int>"}, "id")
LINES = Schema.define({"id": int, "n": int, "s": str, "o": int}, "id")


def shown(text: str) -> dict[str, list[str]]:
    return {
        name: [part.tree.sql(dialect="duckdb") for part in parts]
        for name, parts in filters_of(text).items()
        if parts
    }


KNOWN = {
    "select * from orders where id = 5": {"orders": ["(id = 5)"]},
    "from orders where id = ? and (n > ? or s like 'a%')": {
        "orders": ["(id = $1)", "(n > $2 OR s LIKE 'a%')"]
    },
    "select * from orders where (id = 1 and (n = 2))": {"orders": ["(id = 1)", "(n = 2)"]},
    "select o.n from Orders o where O.id < 5": {"orders": ['("id" < 5)']},
    "select * from orders o join lines l on o.id = l.o where o.id = 1 and l.n = 2 and o.n = l.n": {
        "orders": ['("id" = 1)'],
        "lines": ['("n" = 2)'],
    },
    "select * from orders, lines where orders.id = 1 and n = 5": {"orders": ['("id" = 1)']},
    "select * from orders left join lines on true where orders.n = 1 and lines.n = 2": {
        "orders": ['("n" = 1)']
    },
    "with c as (select * from orders where n = 1) select * from c join lines on true": {
        "orders": ["(n = 1)"]
    },
    "select * from lines where id in (select id from orders where n = ?)": {"orders": ["(n = $1)"]},
    "select count(*) from orders where n = 1 group by s having count(*) > 1 order by 1 limit 3": {
        "orders": ["(n = 1)"]
    },
    "select n + 1 as m from orders where n = 1": {"orders": ["(n = 1)"]},
    "select * from orders where id = 1 union all select * from lines where n = 2": {
        "orders": ["(id = 1)"],
        "lines": ["(n = 2)"],
    },
}


@pytest.mark.parametrize("text", KNOWN)
def test_what_is_understood(text: str) -> None:
    assert shown(text) == KNOWN[text]


NOTHING = [
    "select * from orders",
    "select * from orders where id = ? and n = $1",
    "select * from orders a join orders b on a.id = b.n where a.id = 1",
    "select * from lines right join orders on true where lines.n is null",
    "select * from lines full join orders on true where lines.n = 1 and orders.n = 2",
    "select * from orders positional join lines where orders.n = 1",
    "select * from lines asof join orders on lines.n >= orders.n where orders.n = 1",
    "select * from lines semi join orders on lines.n = orders.n where lines.n = 1",
    "select * from orders natural join lines where orders.n = 1",
    "select * from orders tablesample 10% where n = 1",
    "select * from orders where n = 1 using sample 5",
    "select * from orders as o(a, b, c, d, e) where o.a = 1",
    "select n + 1 as id from orders where id = 5",
    "select * from orders where user = 'x'",
    "with orders as (select 1 as id) select * from orders where id = 5",
    "select * from orders where id = 5 and exists (select 1 from orders)",
    "select * from orders where id = (select max(o) from lines)",
    "select * from orders, lines where n = 1",
    "select * from orders, unnest([1, 2]) u(id) where id = 5",
    "select * from (select * from orders) where id = 5",
    "pivot orders on n using sum(id)",
    "select * from orders group by all having n = 1",
    "select * from orders left join lines on orders.id = lines.o where lines.o is null",
    "nonsense ((",
]


@pytest.mark.parametrize("text", NOTHING)
def test_when_in_doubt_nothing_is_said(text: str) -> None:
    assert shown(text) == {}


def test_columns_must_be_the_tables() -> None:
    def pruned(text: str, params: list[Any] | None = None) -> bool:
        predicate = predicate_of(text, "ORDERS", params or [], ORDERS)
        if predicate is None:
            return False
        zones = {c.id: zonemap(pa.array([1], pa.int64())) for c in ORDERS.columns[:2]}
        return not predicate.may_match(zones)

    assert pruned("select * from orders where id = 2")
    assert pruned("select * from orders where ID = ?", [2])
    assert not pruned("select * from orders where id = ?", [1])
    assert pruned('select * from orders where nope = 7 and "Id" = 2')
    assert not pruned("select * from lines where exists (select 1 from orders where o = 2)")
    assert pruned('select "user" from orders where n > 5')
    # `d.x` is a field of a struct, and a table called d would be something else.
    assert not pruned("select * from orders d where d.x = 7")
    assert pruned("select * from orders where n > ? and 1 = ? and id = ?", [0, 1, 3])


# The same answer with and without pruning.

ATOMS = [
    "{t}id = {v}",
    "{t}n < {v}",
    "{t}n >= {v}",
    "not {t}n = {v}",
    "{t}s = 's{v}'",
    "{t}s like 's{v}%'",
    "{t}n between {v} and {w}",
    "{t}id in ({v}, {w}, null)",
    "{t}n is null",
    "{t}n is not null",
    "{t}n + 1 > {v}",
    "{v} <= {t}id",
    "{t}n = {v} is null",
    "-{t}n > -{v}",
    "{t}n = ?",
    "{t}n <> ? and {t}id > ?",
]
SHAPES = [
    "select {cols} from orders o where {a}",
    "select count(*), min(o.n), max(s) from orders o where {a} and {a}",
    "select o.id, l.id from orders o join lines l on o.id = l.o where {a} and {b}",
    "select o.id, l.id from orders o left join lines l on o.id = l.o where {a} and {b}",
    "select o.id, l.id from orders o right join lines l on o.id = l.o where {a} and {b}",
    "select o.id, l.id from orders o full join lines l on o.id = l.o where {a} or {b}",
    "select o.id, l.id from orders o, lines l where o.n = l.n and {a} and {b}",
    "select id from orders o where {a} and exists (from lines l where l.o = o.id and {b})",
    "select o.id from orders o where {a} and o.id not in (select l.o from lines l where {b})",
    "select n as id, id as n from orders o where {u}",
    "select {cols} from (select * from orders o where {a}) o where {a}",
    "with l as (select * from lines l where {b}) select * from orders o join l on l.o = o.id",
    "select {cols} from orders o where {a} or {a} and {a}",
    "select {cols} from orders o where not {a} and {u} or {u} is null",
    "select o.id from orders o where {a} union select l.o from lines l where {b}",
]


class Chunks:
    """Two tables in small chunks, as objects would hold them, and one statement over both."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.parts = {"orders": self._parts(ORDERS), "lines": self._parts(LINES)}

    def _parts(self, schema: Schema) -> list[Any]:
        """Neighbouring values stand together, so that zonemaps tell something."""
        parts = []
        for number in range(6):
            rows = []
            for at in range(5):
                near = number * 5 + self.rng.randrange(5)
                n = None if self.rng.random() < 0.2 else near
                row = {"id": number * 5 + at, "n": n, "s": f"s{near}", "o": self.rng.randrange(30)}
                rows.append({name: row.get(name) for name in schema.names})
            parts.append(schema.table(rows))
        return parts

    def statement(self) -> tuple[str, list[Any]]:
        text = self.rng.choice(SHAPES)
        while "{a}" in text or "{b}" in text or "{u}" in text:
            for mark, table in (("{a}", "o."), ("{b}", "l."), ("{u}", "")):
                text = text.replace(mark, self._atom(table), 1)
        text = text.replace("{cols}", "o.*")
        return text, [self.rng.randrange(32) for _ in range(text.count("?"))]

    def _atom(self, table: str) -> str:
        v, w = sorted(self.rng.choices(range(32), k=2))
        return self.rng.choice(ATOMS).format(t=table, v=v, w=w)

    def whole(self) -> dict[str, Any]:
        return {name: pa.concat_tables(parts) for name, parts in self.parts.items()}

    def pruned(self, text: str, params: list[Any]) -> tuple[dict[str, Any], int]:
        """What is left when chunks that cannot matter are left out, and how many were."""
        left: dict[str, Any] = {}
        gone = 0
        for (name, parts), schema in zip(self.parts.items(), (ORDERS, LINES), strict=True):
            predicate = predicate_of(text, name, params, schema)
            kept = [p for p in parts if predicate is None or predicate.may_match(_zones(p, schema))]
            gone += len(parts) - len(kept)
            left[name] = pa.concat_tables([*kept, parts[0].slice(0, 0)])
        return left, gone


def _zones(part: Any, schema: Schema) -> dict[int, Any]:
    return {c.id: zonemap(part.column(c.name)) for c in schema.columns}


@pytest.fixture(scope="module")
def duck() -> Iterator[Duck]:
    duck = Duck(memory_bytes=64 << 20, threads=1)
    yield duck
    duck.close()


@pytest.mark.parametrize("seed", seeds(3, 60))
def test_r02_pruning_changes_no_answer(seed: int, duck: Duck) -> None:
    rng = random.Random(seed)
    chunks = Chunks(rng)
    total = 0
    for _ in range(120):
        text, params = chunks.statement()
        left, gone = chunks.pruned(text, params)
        total += gone
        if gone:
            wanted = duck.query(text, params, chunks.whole())
            found = duck.query(text, params, left)
            assert _sorted(found) == _sorted(wanted), (text, params)
    assert total > 100, "the statements are such that nothing is pruned"


def _sorted(table: Any) -> list[Any]:
    return sorted(zip(*table.to_pydict().values(), strict=True), key=repr)
