"""Twins: two tables with the same rows, one with indexes and one without, through time.

    Twins.step()   rows come and go, move, merge; indexes come, are built, and go
    ask(txn)       one random question to both: a condition, or a look-up     --> (question, a, b)

Values come from small pools, so that questions find something, with NULL, NaN, both zeros, empty
and long texts among them.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

import halocline as hc
from halocline import Database, Transaction

OPTIONS = hc.Options(
    page_rows=8,
    object_rows=256,
    row_group_rows=64,
    object_rows_min=60,
    bulk_rows=12,
    background=False,
    log_file_bytes_first=1 << 16,
    sql_threads=1,
)
LONG = "long" * 80
POOLS: dict[str, tuple[str, list[Any]]] = {
    "n": ("int64", [None, 0, 1, 2, 3, -1, 7, 2**63 - 1, -(2**63)]),
    "small": ("int16", [None, 0, 1, -1, 5, 32767, -32768]),
    "flag": ("bool", [None, True, False]),
    "f": ("double", [None, 0.0, -0.0, 1.5, -1.5, math.nan, math.inf, -math.inf, 1e300]),
    "g": ("float", [None, 0.0, -0.0, 0.5, -2.25, math.nan, math.inf]),
    "d": ("decimal(12,2)", [None, *map(Decimal, ("0.00", "1.00", "1.01", "-3.50", "99.99"))]),
    "big": ("decimal(38,4)", [None, *map(Decimal, ("0.0000", "1.5000", "-7.0001"))]),
    "day": ("date", [None, dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(1969, 12, 31)]),
    "clock": ("time", [None, dt.time(0), dt.time(12, 30), dt.time(23, 59, 59, 999999)]),
    "at": ("timestamp", [None, dt.datetime(2024, 1, 1), dt.datetime(1960, 5, 5, 1, 2, 3, 4)]),
    "zoned": (
        "timestamptz",
        [None, dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(1999, 9, 9, tzinfo=dt.UTC)],
    ),
    "s": ("string", [None, "", "a", "ab", "abc", "b", "a\0", "a\0b", "é", LONG, LONG + "x"]),
    "raw": ("binary", [None, b"", b"\0", b"\0\xff", b"a", b"\xff\xff", b"\xff"]),
}
INDEXES: dict[str, list[str]] = {
    **{f"by_{name}": [name] for name in POOLS},
    "by_n_s": ["n", "s"],
    "by_s_f": ["s", "f"],
    "by_flag_day_n": ["flag", "day", "n"],
}
PAIRS = ("plain", "indexed")


class Twins:
    """The two tables, and the chance that drives them."""

    def __init__(self, db: Database, seed: int) -> None:
        self.db, self.chance = db, random.Random(seed)
        self.next_id = 1
        self.stamps: list[int] = []
        types = {"id": int, **{name: type for name, (type, _) in POOLS.items()}}
        for name in PAIRS:
            db.create_table(name, types, primary_key="id")
        for name in self.chance.sample(sorted(INDEXES), 9):
            db.create_index(name, "indexed", INDEXES[name])

    @property
    def indexes(self) -> list[str]:
        return self.db.indexes("indexed").column("name").to_pylist()

    # What happens.

    def step(self) -> None:
        """One thing that changes rows, files or indexes."""
        works = [self.insert] * 3 + [self.bulk, self.update, self.delete, self.flush, self.flush]
        works += [self.compact, self.create, self.create, self.drop, self.build, self.tidy]
        self.chance.choice(works)()
        self.stamps = [ts for ts in [*self.stamps, self.db.visible_ts][-6:] if ts >= self.db.floor]

    def row(self) -> dict[str, Any]:
        self.next_id += self.chance.choice((1, 1, 3))
        return {"id": self.next_id, **{name: self.some(name) for name in POOLS}}

    def some(self, name: str) -> Any:
        """A value that many rows have, or one that few have, which an index is good for."""
        pool, number = POOLS[name][1], self.chance.randrange(250)
        rare: dict[str, Any] = {
            "n": number,
            "f": number / 7,
            "d": Decimal(number) / 4,
            "day": dt.date(2020, 1, 1) + dt.timedelta(days=number),
            "at": dt.datetime(2020, 1, 1) + dt.timedelta(minutes=number),
            "zoned": dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number),
            "s": f"w{number:03}",
            "raw": number.to_bytes(2, "big"),
        }
        return (
            rare[name] if name in rare and self.chance.random() < 0.7 else self.chance.choice(pool)
        )

    def both(self, work: Any) -> None:
        """The same work on both tables, in one commit."""

        def run(txn: Transaction) -> None:
            for name in PAIRS:
                work(txn, name)

        self.db.run(run)

    def insert(self) -> None:
        rows = [self.row() for _ in range(self.chance.randrange(1, 25))]
        self.both(lambda txn, name: txn.insert(name, rows))

    def bulk(self) -> None:
        """More rows than stay in memory: they are objects before their commit."""
        schema = self.db.table("plain").schema
        table = pa.Table.from_pylist([self.row() for _ in range(90)], schema=schema)
        self.both(lambda txn, name: txn.insert(name, table))

    def update(self) -> None:
        name, value = self.value()
        low = self.chance.randrange(self.next_id)
        where, params = "id between ? and ?", [low, low + self.chance.choice((2, 30))]
        self.both(lambda txn, t: txn.update(t, where=where, params=params, set={name: value}))

    def delete(self) -> None:
        low = self.chance.randrange(self.next_id)
        where, params = "id between ? and ?", [low, low + self.chance.choice((1, 20))]
        self.both(lambda txn, t: txn.delete(t, where=where, params=params))

    def flush(self) -> None:
        self.db.flush(self.chance.choice([None, *PAIRS]))

    def compact(self) -> None:
        self.db.compact(self.chance.choice([None, *PAIRS]))

    def create(self) -> None:
        left = sorted(INDEXES.keys() - set(self.indexes))
        if left:
            name = self.chance.choice(left)
            self.db.create_index(name, "indexed", INDEXES[name], wait=self.chance.random() < 0.5)

    def drop(self) -> None:
        if self.indexes and self.chance.random() < 0.3:
            self.db.drop_index(self.chance.choice(self.indexes))

    def build(self) -> None:
        if self.indexes:
            name = self.chance.choice(self.indexes)
            self.db.drop_index(name)
            self.db.create_index(name, "indexed", INDEXES[name], wait=True)

    def tidy(self) -> None:
        self.chance.choice([self.db.gc, self.db.checkpoint])()

    # What is asked.

    def value(self) -> tuple[str, Any]:
        name = self.chance.choice(list(POOLS))
        return name, self.some(name)

    def condition(self, depth: int = 0) -> tuple[str, list[Any]]:
        """A condition, and its parameters."""
        if depth < 2 and self.chance.random() < 0.45:
            parts = [self.condition(depth + 1) for _ in range(2)]
            sign = self.chance.choice([" and ", " and ", " or "])
            text = sign.join(f"({part})" for part, _ in parts)
            return text, [value for _, values in parts for value in values]
        name, value = self.value()
        other = self.some(name)
        kind = self.chance.randrange(7)
        if kind == 0:
            return f"{name} is null", []
        if kind == 1:
            return f"{name} in (?, ?)", [value, other]
        if kind == 2:
            return f"{name} between ? and ?", [value, other]
        if kind == 3 and name == "s":
            start = (value or "")[: self.chance.choice((1, 2, 300))].replace("\0", "")
            return "s like ?", [f"{start}%"]
        if kind == 4 and name == "n":
            return f"n {self.sign()} {self.chance.choice(['1.5', '0.0', '2', '-1e0', '3e18'])}", []
        return f"{name} {self.sign()} ?", [value]

    def sign(self) -> str:
        return self.chance.choice(["=", "=", "=", "<", "<=", ">", ">=", "is not distinct from"])

    def ask(self, txn: Transaction) -> tuple[str, Any, Any]:
        """A question, and what each of the twins says to it."""
        names = self.indexes
        if names and self.chance.random() < 0.4:
            return self.look_up(txn, self.chance.choice(names))
        where, params = self.condition()
        if self.chance.random() < 0.3:
            found = [
                txn.sql(f"select count(*), min(id), max(id) from {t} where {where}", params)
                for t in PAIRS
            ]
            plain, indexed = map(shown, found)
            return f"count {where} {params}", plain, indexed
        found = [txn.scan(t, where=where, params=params, order="id") for t in PAIRS]
        plain, indexed = map(shown, found)
        return f"{where} {params}", plain, indexed

    def look_up(self, txn: Transaction, index: str) -> tuple[str, Any, Any]:
        columns = INDEXES[index][: self.chance.randrange(1, len(INDEXES[index]) + 1)]
        key = [self.some(name) for name in columns]
        one = len(INDEXES[index]) == 1
        if one and self.chance.random() < 0.4:
            name, low = columns[0], key[0]
            high = self.some(name)
            tests = [f"{name} is not null" if low is not None or high is not None else "true"]
            tests += [f"{name} >= ?"] * (low is not None) + [f"{name} < ?"] * (high is not None)
            given = [value for value in (low, high) if value is not None]
            found = txn.lookup("indexed", index, low=low, high=high)
            plain = txn.scan("plain", where=" and ".join(tests), params=given)
            return (
                f"{index} from {low!r} to {high!r}",
                shown(found, sort=True),
                shown(plain, sort=True),
            )
        tests = [f"{name} is not distinct from ?" for name in columns]
        found = txn.lookup("indexed", index, key[0] if one else tuple(key))
        plain = txn.scan("plain", where=" and ".join(tests), params=key)
        return f"{index} of {key!r}", shown(found, sort=True), shown(plain, sort=True)


def shown(table: pa.Table, *, sort: bool = False) -> list[str]:
    """Rows as text, in which NaN equals NaN."""
    rows = table.sort_by("id") if sort else table
    return [repr(row) for row in rows.to_pylist()]
