"""Sets of numbers as sorted arrays: who is in one, and how to make one.

NumPy's own `isin` and `unique` build hash tables: 100,000 numbers in 300,000 took 125 to 400 ms,
and 3 million distinct ones 3 s. Bisecting takes 20 ms, and 6 if both sides ascend.
"""

from __future__ import annotations

import numpy as np

from halocline.schema.batches import BoolArray, Int64Array


def is_among(values: Int64Array, ascending: Int64Array) -> BoolArray:
    """Which of the values are in a sorted array."""
    if not len(ascending) or not len(values):
        return np.zeros(len(values), dtype=np.bool_)
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    hits: BoolArray = ascending[places] == values
    return hits


def places_in(ascending: Int64Array, values: Int64Array) -> Int64Array:
    """Where in a sorted array, without repeats, those of the values stand that are in it."""
    if not len(ascending) or not len(values):
        return np.zeros(0, dtype=np.int64)
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    found: Int64Array = places[ascending[places] == values]
    return found


def distinct(values: Int64Array) -> Int64Array:
    """The values in order, each once."""
    ordered = np.sort(values)
    once: Int64Array = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return once
