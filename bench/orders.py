"""The wide table of the analytical cases: six columns, rows that follow from their id alone.

orders (id bigint primary key, status text, amount decimal(12,2), at timestamptz,
        price double, quantity int)

Made of whole columns with NumPy: ten million rows must not take longer than what is measured.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

TABLE = "orders"
DEFINITION = {
    "id": int,
    "status": str,
    "amount": "decimal(12,2)",
    "at": "timestamptz",
    "price": float,
    "quantity": "int",
}
_STATUS = pa.array(["new", "paid", "packed", "sent", "returned"])


def rows(start: int, count: int) -> pa.Table:
    """Rows with ids from `start` on."""
    ids = np.arange(start, start + count, dtype=np.int64)
    # A multiplicative hash: as hard to compress as real figures, and the same everywhere.
    mixed = (ids * 2654435761) % (1 << 31)
    cents = pa.array(mixed % 1_000_000).cast(pa.decimal128(19, 0))
    return pa.table(
        {
            "id": ids,
            "status": _STATUS.take(pa.array(mixed % 5)),
            "amount": pa.compute.multiply(cents, pa.scalar("0.01").cast(pa.decimal128(3, 2))).cast(
                pa.decimal128(12, 2)
            ),
            "at": pa.array(1_600_000_000_000_000 + ids * 31_000_000 + mixed % 999_983).cast(
                pa.timestamp("us", "UTC")
            ),
            "price": mixed / 1_000_003.0,
            "quantity": pa.array((mixed >> 8) % 1000, pa.int32()),
        }
    )


def parts(total: int, size: int) -> Iterator[pa.Table]:
    """All rows with ids below `total`, so many at a time."""
    for start in range(0, total, size):
        yield rows(start, min(size, total - start))
