"""xxh3-64 of many short keys of one width: the steps of the public algorithm, on whole arrays.

    rows of 9 to 32 bytes --xxh3_64--> uint64 each          other widths: one call for each row

A call of the library for each of a million keys takes 280 ms and holds the interpreter all the
while, as long as writing the object they belong to. Here it is 40 ms, in slices that fit into the
processor's cache, and other threads run meanwhile.

Invariant: the same numbers as the library's, for every width (tests compare them).
"""

from __future__ import annotations

from struct import iter_unpack
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

Hashes = npt.NDArray[np.uint64]
Bytes2D = npt.NDArray[np.uint8]

SLICE_ROWS: Final = 16384
_HALF: Final = np.uint64(0xFFFFFFFF)
_BITS: Final = np.uint64(32)
_PRIME: Final = 0x9E3779B185EBCA87
_AVALANCHE: Final = np.uint64(0x165667919E3779F9)
_SECRET: Final = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
        "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    ),
    np.uint64,
)
"""The first eight words of the constant that the algorithm mixes its input with."""


def xxh3_64(rows: Bytes2D) -> Hashes:
    """The hash of each row of bytes."""
    count, width = rows.shape
    if not 9 <= width <= 32:
        digest = xxhash.xxh3_64_intdigest
        keys = (digest(key) for (key,) in iter_unpack(f"{width}s", rows.tobytes()))
        return np.fromiter(keys, np.uint64, count)
    hashes = np.empty(count, np.uint64)
    for start in range(0, count, SLICE_ROWS):
        part = rows[start : start + SLICE_ROWS]
        hashes[start : start + SLICE_ROWS] = _short(part) if width <= 16 else _longer(part)
    return hashes


def _short(rows: Bytes2D) -> Hashes:
    """9 to 16 bytes: the first and the last eight, which may overlap."""
    width = rows.shape[1]
    low = _word(rows, 0) ^ _SECRET[3] ^ _SECRET[4]
    high = _word(rows, width - 8) ^ _SECRET[5] ^ _SECRET[6]
    return _avalanche(np.uint64(width) + low.byteswap() + high + _folded(low, high))


def _longer(rows: Bytes2D) -> Hashes:
    """17 to 32 bytes: the first and the last sixteen."""
    width = rows.shape[1]
    first = _folded(_word(rows, 0) ^ _SECRET[0], _word(rows, 8) ^ _SECRET[1])
    last = _folded(_word(rows, width - 16) ^ _SECRET[2], _word(rows, width - 8) ^ _SECRET[3])
    return _avalanche(np.uint64(width * _PRIME % 2**64) + first + last)


def _word(rows: Bytes2D, at: int) -> Hashes:
    """Eight bytes of each row as a little-endian integer."""
    return np.ascontiguousarray(rows[:, at : at + 8]).view(np.uint64).ravel()


def _folded(a: Hashes, b: Hashes) -> Hashes:
    """Both halves of the 128-bit product, one xor the other."""
    a_low, a_high, b_low, b_high = a & _HALF, a >> _BITS, b & _HALF, b >> _BITS
    low, middle = a_low * b_low, a_high * b_low
    cross = (low >> _BITS) + (middle & _HALF) + a_low * b_high
    upper: Hashes = (middle >> _BITS) + (cross >> _BITS) + a_high * b_high
    lower: Hashes = (cross << _BITS) + (low & _HALF)
    return upper ^ lower


def _avalanche(values: Hashes) -> Hashes:
    values = (values ^ values >> np.uint64(37)) * _AVALANCHE
    return values ^ values >> _BITS
