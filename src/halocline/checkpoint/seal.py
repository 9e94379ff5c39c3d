"""Seal: magic, version, length and digest around the bytes of a small file.

    | magic 8 | version u32 | zero u32 | length u64 | xxh3-128 of the body 16 | body |

Whoever opens a sealed file knows what it is, whether this release can read it, and that every bit
is what was written. Nothing is decoded before that is known.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import xxhash

from halocline.errors import CorruptionError, UsageError

_HEAD: Final = Struct("<8sI4xQ16s")


def seal(magic: bytes, version: int, body: bytes) -> bytes:
    """The content of a file that holds this body."""
    return _HEAD.pack(magic, version, len(body), xxhash.xxh3_128_digest(body)) + body


def unseal(magic: bytes, version: int, data: bytes, path: str) -> memoryview:
    """The body; CorruptionError unless all of it is there, UsageError for another version."""
    if len(data) < _HEAD.size:
        raise CorruptionError(path, f"it has only {len(data)} bytes")
    found, its_version, length, digest = _HEAD.unpack_from(data)
    if found != magic:
        raise CorruptionError(path, "it does not begin as such a file does")
    body = memoryview(data)[_HEAD.size :]
    if len(body) != length or xxhash.xxh3_128_digest(body) != digest:
        raise CorruptionError(path, "its digest does not fit")
    if its_version != version:
        raise UsageError(f"{path} has format version {its_version}; this release reads {version}")
    return body
