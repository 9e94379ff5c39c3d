"""Tables that stand in every tier at once, and the data source over them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import halocline as hc

OPTIONS = hc.Options(
    page_rows=16,
    object_rows=64,
    row_group_rows=32,
    bulk_rows=50,
    object_rows_min=100,
    background=False,
)
COLUMNS = {"id": int, "name": str, "amount": "decimal(12,2)", "tags": "list<text>"}
BASICS = {"id": int, "name": str}


def row(number: int, chance: random.Random) -> dict[str, Any]:
    return {
        "id": number,
        "name": chance.choice([None, "", f"name {number % 10}"]),
        "amount": None if chance.random() < 0.1 else number,
        "tags": chance.choice([None, [], ["a", None], [str(number)]]),
    }


def grow(db: hc.Database, chance: random.Random, steps: int) -> list[int]:
    """Random changes of table `orders`, with maintenance between; returns the timestamps."""
    stamps = [db.visible_ts]
    for _ in range(steps):
        keys = db.table("orders").to_arrow().column("id").to_pylist()
        with db.begin() as txn:
            free = sorted(set(range(400)) - set(keys))
            few = chance.sample(free, min(len(free), chance.choice([1, 5, 120])))
            txn.insert("orders", [row(number, chance) for number in few])
            for key in chance.sample(keys, min(len(keys), chance.choice([0, 3, 30]))):
                if chance.random() < 0.5:
                    txn.delete("orders", key)
                else:
                    txn.update("orders", key, {"name": "changed"})
        stamps.append(db.visible_ts)
        chance.choice([lambda: None, db.flush, db.compact, db.checkpoint])()
    return stamps


def plain(rows: Any) -> list[str]:
    """Rows without an order."""
    return sorted(repr(sorted(one.items())) for one in rows)


def source(reader: Any, path: Path | str, table: str = "orders", **options: Any) -> Any:
    """A reader or writer of Spark's, pointed at a table."""
    return reader.format("halocline").options(path=str(path), table=table, **options)
