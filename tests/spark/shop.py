"""A table of every type that lies in every tier: what the reading tests compare."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import halocline as hc

COLUMNS = {
    "id": int,
    "name": str,
    "amount": "decimal(12,2)",
    "flag": bool,
    "small": "smallint",
    "real": "double",
    "data": "blob",
    "day": "date",
    "clock": "time",
    "naive": "timestamp",
    "moment": "timestamptz",
}


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": None if number % 7 == 0 else f"name {number % 10}",
        "amount": Decimal(number) / 4,
        "flag": number % 2 == 0,
        "small": number % 300,
        "real": float("nan") if number % 11 == 0 else number / 3,
        "data": bytes([number % 256]),
        "day": date(2024, 1, 1 + number % 28),
        "clock": time(1, 2, 3, number),
        "naive": datetime(2024, 1, 1, 0, 0, number % 60, 123),
        "moment": datetime(2024, 1, 1, 0, 0, number % 60, tzinfo=UTC),
    }


def fill(db: hc.Database) -> list[int]:
    """Rows in objects, in dirty objects, in flushed tombstones and in memory; snapshots between."""
    db.create_table("orders", COLUMNS, primary_key="id")
    stamps = []
    with db.begin() as txn:
        txn.insert("orders", [row(number) for number in range(200)])
    stamps.append(db.visible_ts)
    with db.begin() as txn:
        txn.insert("orders", [row(number) for number in range(200, 210)])
    db.flush("orders")  # two commits in one object
    with db.begin() as txn:
        txn.delete("orders", where="id % 10 = 3")
        txn.update("orders", where="id % 10 = 4", set={"name": "changed"})
    stamps.append(db.visible_ts)
    db.flush("orders")
    stamps.append(db.visible_ts)
    with db.begin() as txn:
        txn.insert("orders", [row(number) for number in range(300, 330)])
        txn.delete("orders", 5)
        txn.update("orders", 6, {"name": "in memory"})
    stamps.append(db.visible_ts)
    return stamps
