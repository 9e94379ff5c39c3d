"""Random tables: DuckDB, hs.table, hs.attach and a dict agree on every row at every snapshot.

All types, nulls, deletes and updates; rows in L0, in clean and dirty objects, in objects that
straddle a snapshot, tombstones in memory and flushed, compacted objects. A failure names its seed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline import spark as hs
from halocline.spark.types import spark_schema

OPTIONS = hc.Options(page_rows=8, object_rows=32, row_group_rows=16, bulk_rows=20, background=False)
SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("flag", pa.bool_()),
        pa.field("i8", pa.int8()),
        pa.field("i16", pa.int16()),
        pa.field("i32", pa.int32()),
        pa.field("i64", pa.int64()),
        pa.field("f32", pa.float32()),
        pa.field("f64", pa.float64()),
        pa.field("money", pa.decimal128(12, 2)),
        pa.field("huge", pa.decimal128(38, 9)),
        pa.field("text", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("clock", pa.time64("us")),
        pa.field("naive", pa.timestamp("us")),
        pa.field("moment", pa.timestamp("us", "UTC")),
        pa.field("many", pa.list_(pa.int32())),
        pa.field("pair", pa.struct([("a", pa.string()), ("b", pa.decimal128(5, 2))])),
    ]
)
TEXTS = ("", "a", "NULL", "ä€𝄞", "tab\tline\nquote'\"`\\", "x" * 300)
START = datetime(1970, 1, 1)
Model = dict[tuple[str, int], dict[str, Any]]


def _whole(bits: int) -> Callable[[Random], int]:
    edge = 1 << (bits - 1)
    return lambda random: random.choice([0, -1, edge - 1, -edge, random.randrange(-edge, edge)])


def _moment(random: Random) -> datetime:
    return START + timedelta(days=random.randrange(-90_000, 90_000), microseconds=random.randrange(
        86_400_000_000))  # fmt: skip


MAKERS: dict[str, Callable[[Random], Any]] = {
    "flag": lambda random: random.random() < 0.5,
    "i8": _whole(8),
    "i16": _whole(16),
    "i32": _whole(32),
    "i64": _whole(64),
    "f32": lambda random: random.choice([0.0, -0.0, 1.5, float("inf"), float("nan"), 2.0**-100]),
    "f64": lambda random: random.choice([0.1, -0.0, float("-inf"), float("nan"), random.random()]),
    "money": lambda random: Decimal(random.randrange(-(10**12) + 1, 10**12)) / 100,
    "huge": lambda random: Decimal(random.randrange(-(10**28), 10**28)).scaleb(-9),
    "text": lambda random: random.choice(TEXTS),
    "bytes": lambda random: random.randbytes(random.randrange(5)),
    "day": lambda random: _moment(random).date(),
    "clock": lambda random: _moment(random).time(),
    "naive": _moment,
    "moment": lambda random: _moment(random).replace(tzinfo=UTC),
    "many": lambda random: random.choice([[], [None], [1, -2, None], list(range(20))]),
    "pair": lambda random: {
        "a": random.choice([None, *TEXTS]),
        "b": random.choice([None, Decimal("1.25"), Decimal("-999.99")]),
    },
}


def _row(random: Random, key: tuple[str, int]) -> dict[str, Any]:
    cells = {name: None if random.random() < 0.2 else make(random) for name, make in MAKERS.items()}
    return {"key": key[0], "number": key[1], **cells}


def _key(random: Random) -> tuple[str, int]:
    return random.choice("abcdef"), random.randrange(30)


def _step(db: hc.Database, model: Model, random: Random) -> None:
    """One transaction, in the table and in the model."""
    with db.begin() as txn:
        fresh = {_key(random) for _ in range(random.choice([1, 5, 40]))} - model.keys()
        if fresh:
            rows = [_row(random, key) for key in sorted(fresh)]
            txn.insert("t", pa.Table.from_pylist(rows, schema=SCHEMA))
            model |= {(row["key"], row["number"]): row for row in rows}
        for key in random.sample(sorted(model), min(len(model), random.randrange(6))):
            if random.random() < 0.5:
                txn.delete("t", key)
                del model[key]
            else:
                name = random.choice(list(MAKERS))
                value = MAKERS[name](random)
                txn.update("t", key, {name: value})
                model[key] = {**model[key], name: value}
        if random.random() < 0.3:
            txn.delete("t", where="number % 7 = 3")
            for key in [key for key in model if key[1] % 7 == 3]:
                del model[key]


def _settle(db: hc.Database, random: Random) -> None:
    chosen = random.random()
    if chosen < 0.35:
        db.flush("t")
    elif chosen < 0.45:
        db.compact("t")
    elif chosen < 0.5:
        db.checkpoint()


def _plain(value: Any) -> Any:
    """A value as a text that tells -0.0 from 0.0, and one NaN not from another."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value.quantize(Decimal(1).scaleb(-9))) if value else "0"
    return repr(value)


def _bag(rows: Any) -> list[str]:
    return sorted(str(_plain(dict(row))) for row in rows)


def _build(path: Path, seed: int, steps: int) -> tuple[hc.Database, dict[int, list[str]]]:
    """A database and, for some snapshots, what the model says."""
    random = Random(seed)
    db = hc.open(path, options=OPTIONS)
    db.create_table("t", SCHEMA, primary_key=["key", "number"])
    model: Model = {}
    seen: dict[int, list[str]] = {}
    for _ in range(steps):
        _step(db, model, random)
        if random.random() < 0.4:
            seen[db.visible_ts] = _bag(model.values())
        _settle(db, random)
    seen[db.visible_ts] = _bag(model.values())
    return db, seen


def _compare(spark: Any, tmp_path: Path, seed: int, *, steps: int, snapshots: int) -> None:
    print(f"seed {seed}")
    db, seen = _build(tmp_path / str(seed), seed, steps)
    with db:
        stamps = sorted(seen)
        chosen = {stamps[-1], *Random(seed).sample(stamps, min(snapshots, len(stamps)))}
        for ts in sorted(chosen):
            expected = seen[ts]
            with db.begin(at=ts) as txn:
                assert _bag(txn.scan("t").to_pylist()) == expected, (seed, ts)
                assert txn.scan("t").schema == SCHEMA
            assert _bag(db.sql("select * from t", at=ts).to_pylist()) == expected, (seed, ts)
            frame = hs.table(spark, db, "t", at=ts)
            assert frame.schema == spark_schema(SCHEMA), (seed, ts)
            assert _bag(frame.toArrow().to_pylist()) == expected, (seed, ts)
            with hs.attach(spark, db, at=ts, prefix="random_"):
                rows = spark.sql("select * from random_t").toArrow().to_pylist()
            assert _bag(rows) == expected, (seed, ts)
        assert hs.release(spark, db) == len(chosen)
        assert db.check() == []


@pytest.mark.parametrize("seed", [1, 2])
def test_every_reader_sees_the_same_rows(spark: Any, tmp_path: Path, seed: int) -> None:
    _compare(spark, tmp_path, seed, steps=25, snapshots=1)


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(100, 130))
def test_every_reader_sees_the_same_rows_for_long(spark: Any, tmp_path: Path, seed: int) -> None:
    _compare(spark, tmp_path, seed, steps=60, snapshots=5)
