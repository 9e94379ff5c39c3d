"""Random histories of a table that is altered and renamed, against a model with its versions.

The model keeps rows by column id. After every few steps each reader must agree with it at every
snapshot that was noted: in the columns of that moment, whatever was moved, compacted, written down
or read back since.
"""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline.options import Options

WIDER = {
    "int8": "int16",
    "int16": "int32",
    "int32": "int64",
    "float32": "float64",
    "decimal(6,2)": "decimal(12,2)",
    "date": "timestamp",
}
TYPES = [*WIDER, "string", "int64", "bool"]
OPTIONS = Options(page_rows=8, object_rows=64, object_rows_min=24, bulk_rows=12)
Row = dict[int, Any]


class Model:
    """What the table is: columns by id, rows by key."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.columns: dict[int, tuple[str, str]] = {2: ("a", "int8"), 3: ("b", "string")}
        self.last_id = 3
        self.defaults: dict[int, Any] = {}
        self.rows: dict[int, Row] = {}
        self.name = "t"
        self.noted: dict[int, tuple[str, list[dict[str, Any]]]] = {}
        """By snapshot: what the table was called, and its rows."""

    def value(self, type: str) -> Any:
        rng = self.rng
        if rng.random() < 0.2:
            return None
        if type.startswith("int"):
            bits = int(type[3:]) - 1
            return rng.randrange(-(1 << bits), 1 << bits)
        if type.startswith("decimal"):
            return Decimal(rng.randrange(-999999, 999999)).scaleb(-2)
        if type == "bool":
            return rng.random() < 0.5
        if type.startswith("float"):
            return rng.randrange(-4096, 4096) / 8
        day = date(2020, 1, 1) + timedelta(days=rng.randrange(1000))
        if type == "date":
            return day
        if type == "timestamp":
            return datetime(day.year, day.month, day.day, rng.randrange(24))
        return rng.choice(["", "x", "ünï", "a longer text"])

    def fresh(self) -> Row:
        return {id: self.value(type) for id, (_, type) in self.columns.items()}

    def inserted(self) -> tuple[Row, dict[str, Any]]:
        """A new row, and what an insert gives of it: columns with a default may be left out."""
        row = self.fresh()
        given = self.named(row)
        for id, default in self.defaults.items():
            if self.rng.random() < 0.5:
                row[id] = default
                del given[self.columns[id][0]]
        return row, given

    def named(self, row: Row) -> dict[str, Any]:
        return {name: row.get(id) for id, (name, _) in self.columns.items()}

    def shown(self) -> list[dict[str, Any]]:
        return [{"id": key, **self.named(self.rows[key])} for key in sorted(self.rows)]

    def now(self) -> tuple[str, list[dict[str, Any]]]:
        return self.name, self.shown()

    def free_name(self) -> str:
        taken = {name for name, _ in self.columns.values()}
        return self.rng.choice([one for one in "abcdefghijklmnop" if one not in taken])

    def alteration(self) -> dict[str, Any]:
        """One to three changes in one call, done to the model as well."""
        rng, before = self.rng, dict(self.columns)
        done: dict[str, Any] = {}
        wider = [id for id, (_, type) in before.items() if type in WIDER]
        if wider and rng.random() < 0.6:
            id = rng.choice(wider)
            name, type = before[id]
            done["change"] = {name: WIDER[type]}
            self.columns[id] = (name, WIDER[type])
            if type == "date":
                for held in (*self.rows.values(), self.defaults):
                    if (day := held.get(id)) is not None:
                        held[id] = datetime(day.year, day.month, day.day)
        if before and rng.random() < 0.4:
            id = rng.choice(list(before))
            fresh = self.free_name()
            done["rename"] = {before[id][0]: fresh}
            self.columns[id] = (fresh, self.columns[id][1])
        if len(before) > 1 and rng.random() < 0.4:
            id = rng.choice([id for id in before if before[id][0] not in done.get("rename", {})])
            if before[id][0] not in done.get("change", {}):
                done["drop"] = [before[id][0]]
                del self.columns[id]
                for held in (*self.rows.values(), self.defaults):
                    held.pop(id, None)
        if not done or rng.random() < 0.5:
            done["add"] = self.addition()
        return done

    def addition(self) -> dict[str, Any]:
        """A column at the end; with a default every row that is there shows it."""
        self.last_id += 1
        name, type = self.free_name(), self.rng.choice(TYPES)
        self.columns[self.last_id] = (name, type)
        default = self.value(type)
        if default is None or self.rng.random() < 0.3:
            return {name: type}
        self.defaults[self.last_id] = default
        for row in self.rows.values():
            row[self.last_id] = default
        return {name: hc.Column(type, default=default)}

    def redefaulted(self) -> dict[str, Any]:
        """Another default for a column: rows that are there do not change."""
        id = self.rng.choice([id for id in self.columns if id not in (2, 3)] or list(self.columns))
        name, type = self.columns[id]
        value = self.value(type)
        self.defaults.pop(id, None)
        if value is not None:
            self.defaults[id] = value
        return {"set_default": {name: value}, "comment": f"{self.rng.random()}"}


class History:
    """A database and its model, step by step."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.rng = path, random.Random(seed)
        self.model = Model(self.rng)
        self.db = hc.open(path, options=OPTIONS, durability="async")
        self.db.create_table("t", {"id": int, "a": "int8", "b": str}, primary_key="id")
        self.model.noted[self.db.visible_ts] = self.model.now()

    def step(self) -> None:
        steps = [
            (self.write, 10),
            (self.bulk, 3),
            (self.alter, 3),
            (self.rename, 1),
            (lambda: self.db.flush(self.model.name), 2),
            (lambda: self.db.compact(self.model.name), 1),
            (self.db.checkpoint, 1),
            (self.reopen, 1),
            (self.take_over, 1),
        ]
        (chosen,) = self.rng.choices([one for one, _ in steps], [often for _, often in steps])
        chosen()
        if self.rng.random() < 0.3:
            self.model.noted[self.db.visible_ts] = self.model.now()

    def write(self) -> None:
        model, rng = self.model, self.rng
        with self.db.begin() as txn:
            for _ in range(rng.randrange(1, 4)):
                key = rng.randrange(60)
                if key not in model.rows:
                    row, given = model.inserted()
                    txn.insert(model.name, {"id": key, **given})
                    model.rows[key] = row
                elif rng.random() < 0.3:
                    txn.delete(model.name, key)
                    del model.rows[key]
                elif model.columns:
                    id = rng.choice(list(model.columns))
                    name, type = model.columns[id]
                    value = model.value(type)
                    txn.update(model.name, key, {name: value})
                    model.rows[key] = {**model.rows[key], id: value}

    def bulk(self) -> None:
        model = self.model
        keys = self.rng.sample(range(60), self.rng.choice([5, 15, 40]))
        rows = {key: model.fresh() for key in keys}
        with self.db.begin() as txn:
            types = self.db.table(model.name).schema
            given = [{"id": key, **model.named(row)} for key, row in rows.items()]
            txn.upsert(model.name, pa.Table.from_pylist(given, schema=types))
        model.rows |= rows

    def alter(self) -> None:
        changes = self.model.redefaulted if self.rng.random() < 0.2 else self.model.alteration
        self.db.alter_table(self.model.name, **changes())

    def rename(self) -> None:
        """Another name, perhaps together with another shape; another table takes the old one."""
        model, old = self.model, self.model.name
        model.name = self.rng.choice([name for name in ("t", "s", "r", "T") if name != old])
        with self.db.begin() as txn:
            if txn.has_table(model.name) and model.name.lower() != old.lower():
                txn.drop_table(model.name)
            txn.rename_table(old, model.name)
            if self.rng.random() < 0.3:
                txn.alter_table(model.name, **model.alteration())
            if model.name.lower() != old.lower() and self.rng.random() < 0.5:
                txn.create_table(old, {"other": int})

    def take_over(self) -> None:
        """Another handle follows the log, and owns the database when the first one is closed."""
        following = hc.open(self.path, options=OPTIONS, durability="async")
        assert following.role == "node"
        self.alter()
        self.db.close()
        self.db = following
        self.write()

    def reopen(self) -> None:
        self.db.close()
        self.db = hc.open(self.path, options=OPTIONS, durability="async")

    def compare(self) -> None:
        model, db = self.model, self.db
        noted = {**model.noted, db.visible_ts: model.now()}
        for ts, (name, expected) in noted.items():
            with db.begin(at=ts) as txn:
                assert by_id(txn.scan(name).to_pylist()) == expected, ts
                compare_reads(txn, name, expected)
        first, last = min(noted), max(noted)
        for ts in (last, self.rng.choice(list(noted))):
            name, expected = noted[ts]
            feed = rolled(db.changes(name, since=first, until=ts))
            assert feed == {row["id"]: row for row in expected}
        with hc.open(self.path, read_only=True) as reader:
            for ts in (first, last):
                name, expected = noted[ts]
                with reader.begin(at=ts) as txn:
                    assert by_id(txn.scan(name).to_pylist()) == expected


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def compare_reads(txn: Any, table: str, expected: list[dict[str, Any]]) -> None:
    """The same rows by key, by many keys, by range and by SQL with a filter."""
    rows = {row["id"]: row for row in expected}
    for key in (0, 7, 31, 59):
        assert txn.get(table, key) == rows.get(key)
    keys = [key for key in range(0, 60, 3) if key in rows]
    assert txn.get_many(table, keys).to_pylist() == [rows[key] for key in keys]
    assert txn.range(table, 20, 40).to_pylist() == [row for row in expected if 20 <= row["id"] < 40]
    assert txn.sql(f"select count(*) n from {table}").to_pylist() == [{"n": len(expected)}]
    for name in list(expected[0])[1:] if expected else ():
        values = [row[name] for row in expected]
        nulls = [row for row in expected if row[name] is None]
        assert by_id(txn.scan(table, where=f'"{name}" is null').to_pylist()) == nulls
        wanted = next((value for value in values if value is not None), None)
        if wanted is not None:
            found = txn.scan(table, where=f'"{name}" = ?', params=[wanted]).to_pylist()
            assert by_id(found) == [row for row in expected if row[name] == wanted]


def rolled(feed: pa.Table) -> dict[int, dict[str, Any]]:
    """The table at the end of a feed of all its changes, in the columns of that moment."""
    rows: dict[int, dict[str, Any]] = {}
    for change in feed.to_pylist():
        if change["_change"] in ("delete", "update_before"):
            rows.pop(change["id"])
        else:
            shown = {name: value for name, value in change.items() if not name.startswith("_")}
            rows[change["id"]] = shown
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(3, 6))]
)
def test_readers_agree_with_a_model_that_has_a_schema_for_each_version(
    tmp_path: Path, seed: int
) -> None:
    history = History(tmp_path / "db", seed)
    try:
        for _ in range(4):
            for _ in range(15):
                history.step()
            history.compare()
        assert history.db.check() == []
    finally:
        history.db.close()
