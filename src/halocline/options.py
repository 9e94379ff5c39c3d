"""Sizes and durations: every limit of the engine in one place, so that tests can make it tiny.

hc.open("shop", memory="1GB", retention="1d", options=Options(page_rows=4))
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final, Literal

from halocline.errors import UsageError

Durability = Literal["sync", "async"]

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

DURATION_MAX: Final = 1000 * 366 * 86400.0
"""A thousand years: longer than any clock will run, short enough for 64-bit microseconds."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", re.IGNORECASE)
_SIZE_UNITS: Final = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1024 * GIB}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|w)\s*", re.IGNORECASE)
_DURATION_UNITS: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Sizes that matter to tests and to tuning. The defaults are right for almost everyone."""

    log_file_bytes: int = 64 * MIB
    """Size of a full-grown log file."""
    log_file_bytes_first: int = 1 * MIB
    """Size of a new database's first log file; each next one doubles up to `log_file_bytes`."""
    page_rows: int = 8192
    """Most rows in a page of L0."""
    bulk_rows: int = 1000
    """Changes of more rows than this travel as Arrow and fold as one sealed run."""
    object_rows: int = 1_048_576
    """Most rows in an object."""
    row_group_rows: int = 122_880
    """Most rows in a Parquet row group."""
    block_bytes: int = 4 * MIB
    """Most bytes in a block of an object, all columns together, before they are encoded. A row is
    read by key with its whole block, so wide rows make blocks of fewer than `page_rows` rows."""
    object_rows_min: int = 262_144
    """Inserts or deletes of one table in one transaction above this many rows become objects
    before the commit."""
    object_bytes_min: int = 128 * MIB
    """Inserts of one table in one transaction above this many bytes do so, too, unless they come
    row by row: as entries of the log they would be in memory several times."""
    move_rows: int = 1_048_576
    """Rows of a table in L0 that make the mover write an object."""
    move_bytes: int = 128 * MIB
    """Bytes of a table in L0 that do so."""
    move_age_s: int = 60
    """Age of the oldest row in L0, in seconds, that does so."""
    move_tombstones: int = 262_144
    """Tombstones of a table in memory that make the mover flush them."""
    compact_depth: int = 4
    """More objects than this over one key are merged."""
    compact_local_bytes: int = 1024 * MIB
    """The largest group of objects that `compact` rewrites in this process."""
    checkpoint_log_bytes: int = 64 * MIB
    """Bytes of log since the last checkpoint that make the next one."""
    background: bool = True
    """Move, checkpoint and collect in a thread of the owner; tests that count steps say no."""
    serve: bool = True
    """Let other processes of this machine read and write through the owner; without it they are
    refused, and may only read."""
    async_sync_ms: int = 50
    """With durability="async": how often the log is synced."""
    log_buffer_bytes: int = 16 * MIB
    """With durability="async": unsynced bytes that make a writer sync at once."""
    sequence_block: int = 1 << 20
    """Timestamps and RowIDs are promised to an epoch in blocks of this many."""
    identity_block: int = 1024
    """Keys of an identity column that a process has for itself at a time, once it draws many."""
    token_retention: str = "7d"
    """How long a plain idempotency token is remembered."""
    key_bytes_max: int = 1024
    """Longest primary key, in order-preserving bytes."""
    sql_threads: int = 0
    """Threads of the local SQL engine; 0 means all cores."""
    spark_bytes: int = 4 * GIB
    """With engine="auto": a query that has to look into this many bytes of objects goes to the
    Spark session that runs, if there is one."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "token_retention":
                parse_duration(value)
                continue
            if field.name in ("background", "serve"):
                if type(value) is not bool:
                    raise UsageError(f"option {field.name} is True or False, not {value!r}")
                continue
            lowest = 0 if field.name in ("sql_threads", "bulk_rows", "spark_bytes") else 1
            if type(value) is not int or value < lowest:
                raise UsageError(
                    f"option {field.name} must be a whole number, at least {lowest}, not {value!r}"
                )
        for name in ("log_file_bytes", "log_file_bytes_first"):
            if getattr(self, name) < 2048 or getattr(self, name) % 512:
                raise UsageError(f"option {name} must be a multiple of 512, at least 2048")


def parse_size(text: str | int) -> int:
    """`"1GB"`, `"256 MiB"`, `4096` -> bytes. Units are powers of 1024."""
    if isinstance(text, int) and not isinstance(text, bool):
        size = float(text)
    else:
        match = _SIZE.fullmatch(text) if isinstance(text, str) else None
        size = float(match[1]) * _SIZE_UNITS[match[2].lower()] if match is not None else 0.0
    if not 1 <= size < float(1 << 62):
        raise UsageError(f"{text!r} is not a size; write it like '512MB' or '2GB'")
    return int(size)


def parse_duration(text: str | int | float) -> float:
    """`"1d"`, `"90s"`, `"250ms"`, a number of seconds -> seconds."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        seconds = float(text)
    else:
        match = _DURATION.fullmatch(text) if isinstance(text, str) else None
        seconds = -1.0
        if match is not None:
            seconds = float(match[1]) * _DURATION_UNITS[match[2].lower()]
    if not 0 <= seconds <= DURATION_MAX:
        raise UsageError(f"{text!r} is not a duration; write it like '90s', '6h' or '7d'")
    return seconds
