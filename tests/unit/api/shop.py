"""The small shop that the API tests run in, and pictures of what it holds.

    orders   key id           5 rows, every usual type, one list, one struct
    lines    key (id, sku)    composite
    events   no key

`bulk_rows` is 8, so nine rows travel as Arrow.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import halocline as hc

OPTIONS = hc.Options(page_rows=64, bulk_rows=8, log_file_bytes_first=1 << 16, sql_threads=1)
ORDERS = {
    "id": int,
    "status": str,
    "amount": "decimal(12,2)",
    "qty": "int not null",
    "at": "timestamptz",
    "tags": "string[]",
    "dims": "struct<w: int, h: int>",
}
SORTED = {
    "orders": [("id", "ascending")],
    "lines": [("id", "ascending"), ("sku", "ascending")],
    "events": [("text", "ascending"), ("n", "ascending")],
}
MANY = 9
"""More rows than `bulk_rows`: they travel as Arrow."""


def order(id: int, **values: Any) -> dict[str, Any]:
    """A row of `orders` that fits."""
    return {"id": id, "status": "new", "qty": 1, **values}


def build(db: Any) -> None:
    """Create the tables and fill them."""
    db.create_table("orders", ORDERS, primary_key="id")
    db.create_table("lines", {"id": int, "sku": str, "n": int}, primary_key=["id", "sku"])
    db.create_table("events", {"text": str, "n": int})
    with db.begin() as txn:
        txn.insert(
            "orders", [order(n, tags=["a", str(n)], dims={"w": n, "h": 2}) for n in range(5)]
        )
        txn.insert("lines", [{"id": n, "sku": s, "n": n} for n in range(3) for s in "ab"])
        txn.insert("events", [{"text": "opened", "n": n} for n in range(3)])


def picture(reader: Any) -> dict[str, pa.Table]:
    """All rows of all tables as a database or a transaction sees them, always in one order."""
    txn = reader.begin() if isinstance(reader, hc.Database) else reader
    seen = {name: txn.scan(name).sort_by(SORTED[name]).combine_chunks() for name in txn.tables()}
    if txn is not reader:
        txn.rollback()
    return seen


def with_rows(seen: dict[str, pa.Table], table: str, rows: list[dict[str, Any]]) -> None:
    """What a picture shows once these rows have come to it."""
    schema = seen[table].schema
    added = pa.Table.from_pylist(rows, schema=schema)
    seen[table] = pa.concat_tables([seen[table], added]).sort_by(SORTED[table]).combine_chunks()


def write(txn: Any, mood: str) -> None:
    """Own changes of a transaction before something goes wrong in it."""
    if mood == "single":
        txn.insert("orders", order(1000, status=mood))
    elif mood == "busy":
        txn.insert("orders", order(1000, status=mood))
        txn.update("orders", 1, {"status": mood})
        txn.delete("orders", 2)
        txn.upsert("orders", [order(n, status=mood) for n in range(2000, 2000 + MANY)])
        txn.insert("lines", [{"id": n, "sku": mood, "n": 0} for n in range(MANY)])
        txn.delete("events", where="n = 1")


MOODS = ("fresh", "single", "busy")
"""What a transaction has done before: nothing, one row that is kept aside, all kinds of writes."""
