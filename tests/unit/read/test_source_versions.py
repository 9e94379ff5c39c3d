"""Files of several schema versions in one scan: DuckDB by column ids against the verified reader.

`txn.range` reads objects through our own reader and casts with Arrow. What it gives is the truth
for all that DuckDB makes of the same snapshot: whole rows, filters, groups and extremes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import halocline as hc
from halocline.read import mask
from halocline.read.duck import Duck
from halocline.read.source import quote
from tests.unit.schema.pools import same

OPTIONS = hc.Options(object_rows_min=1, background=False)
WIDER = {
    "int8": "int16",
    "int16": "int32",
    "int32": "int64",
    "float32": "float64",
    "decimal(5,2)": "decimal(18,2)",
    "decimal(18,2)": "decimal(38,2)",
    "date": "timestamp",
}
POOL: dict[str, list[Any]] = {
    "int8": [-128, 127, 0, 7],
    "int16": [-(1 << 15), (1 << 15) - 1, 127, 7],
    "int32": [-(1 << 31), (1 << 31) - 1, 128, 7],
    "int64": [-(1 << 63), (1 << 63) - 1, 1 << 31, 7],
    "float32": [float("inf"), float("nan"), -0.0, 1.5, 0.10000000149011612],
    "float64": [float("-inf"), float("nan"), 0.1, 1e300, 5e-324, 1.5],
    "decimal(5,2)": [Decimal("-999.99"), Decimal("0.01"), Decimal("1.50")],
    "decimal(18,2)": [Decimal("9999999999999999.99"), Decimal("-0.01"), Decimal("1.50")],
    "decimal(38,2)": [Decimal("9" * 36 + ".99"), Decimal("1.50")],
    "string": ["", "it's \\ \x00", "NULL", "ünï", "a longer text than twelve bytes"],
    "binary": [b"", b"\x00\xff", b"\\x41'", b"abc"],
    "date": [date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31), date(2024, 2, 29)],
    "timestamp": [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)],
    "timestamptz": [datetime(1, 1, 1, tzinfo=UTC), datetime(2024, 2, 29, 1, 2, 3, 4, UTC)],
    "time": [time(0), time(23, 59, 59, 999999)],
    "bool": [True, False],
}
POOL["timestamp"] += [datetime(2024, 2, 29), datetime(1969, 12, 31, 0, 0, 0, 1)]


class History:
    """A table that is altered between its objects."""

    def __init__(self, db: hc.Database, seed: int) -> None:
        self.db, self.rng = db, random.Random(seed)
        self.types = {f"c{at}": self.rng.choice([*POOL, *WIDER]) for at in range(6)}
        self.fresh_names = iter(f"n{at}" for at in range(1000))
        self.last_key = 0
        db.create_table("t", {"id": int, **self.types}, primary_key="id")

    def step(self) -> None:
        self.rng.choices([self.write, self.delete, self.alter], [5, 1, 4])[0]()
        if self.rng.random() < 0.2:
            self.db.compact("t")

    def write(self) -> None:
        """Some commits, which become one object: older snapshots find newer rows in it."""
        for _ in range(self.rng.randrange(1, 4)):
            with self.db.begin() as txn:
                for _ in range(self.rng.randrange(1, 8)):
                    self.last_key += 1
                    row = {name: self.value(type) for name, type in self.types.items()}
                    txn.insert("t", {"id": self.last_key, **row})
        if self.rng.random() < 0.9:
            self.db.flush("t")

    def delete(self) -> None:
        keys = self.rng.sample(range(1, self.last_key + 1), self.last_key // 4)
        with self.db.begin() as txn:
            txn.delete_many("t", keys)

    def alter(self) -> None:
        rng, names = self.rng, list(self.types)
        done: dict[str, Any] = {}
        one, other, third = rng.sample(names, 3)
        if self.types[one] in WIDER:
            self.types[one] = WIDER[self.types[one]]
            done["change"] = {one: self.types[one]}
        if rng.random() < 0.4:
            done["drop"] = [third]
            del self.types[third]
        if rng.random() < 0.4:  # two swap their names, or a dropped name is used again
            fresh = third if "drop" in done else other
            done["rename"] = {one: fresh} | ({other: one} if fresh == other else {})
            types = self.types
            if fresh == other:
                types[one], types[other] = types[other], types[one]
            else:
                types[fresh] = types.pop(one)
        while len(self.types) < 5 or "add" not in done:
            name, type = next(self.fresh_names), rng.choice(list(POOL))
            self.types[name], default = type, self.value(type)
            added = type if default is None else hc.Column(type, default=default)
            done.setdefault("add", {})[name] = added
        self.db.alter_table("t", **done)

    def value(self, type: str) -> Any:
        return None if self.rng.random() < 0.2 else self.rng.choice(POOL[type])

    def compare(self, ts: int) -> None:
        """All that DuckDB says of a snapshot is what it says of the rows of the verified reader."""
        with self.db.begin(at=ts) as txn:
            truth = txn.range("t", None, None)
            plain = duckdb.connect()
            plain.execute("set TimeZone = 'UTC'")
            plain.register("t", truth)
            rows = txn.scan("t", order="id")
            assert rows.schema == truth.schema
            assert same(rows.to_pylist(), truth.to_pylist())
            for field in truth.schema:
                column = quote(field.name)
                for where, values in self.conditions(column, truth.column(field.name)):
                    text = f"select id, {column} from t where {where} order by id"
                    found = txn.sql(text, values).to_pylist()
                    wanted = plain.sql(text, params=values).to_arrow_table().to_pylist()
                    assert same(found, wanted), (where, values)
                text = f"select {column}, count(*) n, min(id) i from t group by all order by all"
                wanted = plain.sql(text).to_arrow_table().to_pylist()
                assert same(txn.sql(text).to_pylist(), wanted), text
                text = f"select min({column}), max({column}), count({column}) from t"
                wanted = plain.sql(text).to_arrow_table().to_pylist()
                assert same(txn.sql(text).to_pylist(), wanted), text
            plain.close()

    def conditions(self, column: str, values: Any) -> list[tuple[str, list[Any]]]:
        there = [one for one in values.to_pylist() if one is not None]
        # Every type that the column may have had: bounds of the narrower ones, too.
        some = self.rng.sample(there, min(3, len(there)))
        found: list[tuple[str, list[Any]]] = [(f"{column} is null", [])]
        for one in some:
            found += [(f"{column} {operator} ?", [one]) for operator in ("=", "<", ">=", "<>")]
        if len(some) > 1:
            found.append((f"{column} in (?, ?)", some[:2]))
        return found


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.more) for seed in range(1, 12))]
)
def test_duckdb_reads_every_version_as_the_verified_reader_does(
    seed: int, masked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if masked:
        monkeypatch.setattr(mask, "ROWS_MIN", 1)
    with hc.open(tmp_path / "db", durability="async", options=OPTIONS) as db:
        history = History(db, seed)
        noted = []
        for _ in range(12):
            history.step()
            noted.append(db.visible_ts)
        history.write()
        for ts in (*history.rng.sample(noted, 2), db.visible_ts):
            history.compare(ts)
        assert db.check() == []


# What DuckDB plans.


@pytest.fixture
def duck(tmp_path: Path) -> Iterator[Duck]:
    duck = Duck(memory_bytes=64 << 20, threads=1, folder=str(tmp_path))
    yield duck
    duck.close()


def three_versions(path: Path, **more: Any) -> hc.Database:
    db = hc.open(path, options=OPTIONS)
    db.create_table("t", {"id": int, "a": "int32", "b": str, **more}, primary_key="id")
    for number, change in enumerate(({"rename": {"a": "b", "b": "a"}}, {"change": {"b": "int64"}})):
        rows = {"id": range(100 * number, 100 * number + 100), "a": range(100)}
        frame = pa.table({**rows, "b": [f"b{n}" for n in range(100)]})
        if number:
            frame = frame.rename_columns(["id", "b", "a"])
        db.run(lambda txn, frame=frame: txn.insert("t", frame))
        db.flush("t")
        db.alter_table("t", add={f"n{number}": hc.Column(int, default=number)}, **change)
    db.run(lambda txn: txn.insert("t", {"id": 1000, "a": "new", "b": 1 << 40, "n0": 5}))
    db.flush("t")
    return db


def explained(db: hc.Database, duck: Duck, text: str, at: int | None = None) -> str:
    with db.begin(at=at or db.visible_ts) as txn:
        source = txn.view_of("t").source()
        (shown,) = duck.query(f"explain {text}", [], {"t": source}).column("explain_value")
        return str(shown)


def test_all_versions_are_one_scan_with_filters_and_columns_in_it(
    tmp_path: Path, duck: Duck
) -> None:
    with three_versions(tmp_path / "db") as db:
        text = "select a from t where b = 20 and n0 = 0"
        shown = explained(db, duck, text)
        assert shown.count("READ_PARQUET") == 1
        assert "Filters:" in shown
        assert "b = 20" in shown
        assert "n0 = 0" in shown
        assert "Union" not in shown
        assert "n1" not in shown, "a column that nobody asked for"
        with db.begin() as txn:
            assert txn.sql(text).to_pylist() == [{"a": "b20"}, {"a": "b20"}]


def test_rows_too_large_for_an_older_shape_do_not_disturb_it(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "a": "int32"}, primary_key="id")
        db.run(lambda txn: txn.insert("t", {"id": 1, "a": 1}))
        before = db.visible_ts
        with db.begin(at=before) as pin:
            db.alter_table("t", change={"a": "int64"})
            db.run(lambda txn: txn.insert("t", {"id": 2, "a": 1 << 40}))
            db.flush("t")  # the rows of both versions in one file
            assert pin.sql("select * from t").to_pylist() == [{"id": 1, "a": 1}]


def test_nested_columns_are_read_version_by_version(tmp_path: Path, duck: Duck) -> None:
    with three_versions(tmp_path / "db", tags="list<string>") as db:
        assert explained(db, duck, "select id from t").count("READ_PARQUET") == 3
