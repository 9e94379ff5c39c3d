"""What travels beside the commit record of a workspace, and what all messages are made of.

The record says what a transaction does to rows and objects. What it has read, and what of its files
the record does not tell, stands here (parcel.py packs and unpacks it).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

U63 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Name = Annotated[str, msgspec.Meta(max_length=1000)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Fields by position; the tag comes first."""


class TableReads(Message, frozen=True):
    """What a serializable transaction has read of one table, keys as `Schema.encode_keys` does."""

    table_id: U63
    keys: bytes
    ranges: tuple[tuple[bytes | None, bytes | None], ...]
    whole: bool


class BlindNotes(Message, frozen=True):
    """A job that decides at its commit what becomes of its keys (txn/blind.py)."""

    mode: Literal["upsert", "ignore", "delete"]
    changed: tuple[U63, ...]
    """Ids of the columns that it writes."""
    absent: tuple[Any, ...]
    held: tuple[Any, ...]
    """Side files that never join the table, as `entry_to_wire` has them."""


class ObjectNotes(Message, frozen=True):
    """What the record does not say of the files that a transaction has written."""

    table_id: U63
    jobs: tuple[U63, ...]
    """Jobs that are over when the transaction is; those with leases are told by their files."""
    successors: tuple[U63, ...]
    """Ids of data objects that hold successors of updated rows; the others hold new rows."""
    blind: BlindNotes | None = None
