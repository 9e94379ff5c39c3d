"""Single files put under any key, as no job does it."""

from __future__ import annotations

from typing import Any

from halocline.objects import ObjectStats
from halocline.objects.write import encode_data, encode_tombstones


def write_data(objects: Any, key: str, table: Any, schema: Any, **how: Any) -> ObjectStats:
    """Put a data object into a store; see `encode_data`."""
    data, stats = encode_data(table, schema, **how)
    objects.put(key, data)
    return stats


def write_tombstones(objects: Any, key: str, table: Any, schema: Any, **how: Any) -> ObjectStats:
    """Put a tombstone object into a store; see `encode_tombstones`."""
    data, stats = encode_tombstones(table, schema, **how)
    objects.put(key, data)
    return stats
