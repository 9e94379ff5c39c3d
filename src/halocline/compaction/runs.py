"""Runs: the live rows of some objects, sorted, in objects of equal size.

    Run(files, low, high) --merge, less what has ended--> rows in order --cut--> data objects

A run is what is written in one go: by this process, or by one task of many, each with a range of
the keys (`split`). Ranges that meet share out the rows, so tasks need not know of each other.

Where to split is found by looking at a few keys of each object, each time at other places, so that
objects of the same keys do not all give the same answer.

Not here: which objects (plan.py), tombstones (rewrite.py), entries and the commit (run.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

import numpy as np
import pyarrow as pa

from halocline.compaction import merge
from halocline.compaction.gather import OBJECT_BYTES_MAX
from halocline.compaction.plan import Group
from halocline.objects import JobWriter, ObjectFile, ObjectReader
from halocline.rows.tier import Tier
from halocline.schema.schema import Schema

SPARE: Final = 16
"""How many rows of a range of keys have ended is not known exactly: its objects are planned this
part of an object smaller than they may be, and a small rest goes into the last."""
SAMPLED_FILES_MAX: Final = 64
SAMPLES_PER_PART: Final = 32
SAMPLES_MAX: Final = 64
GOLDEN: Final = 0.6180339887
"""Multiples of it are spread evenly over the fractions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRun:
    """Objects to be merged, or a range of their keys: low <= key < high, as bytes."""

    files: tuple[ObjectFile, ...]
    low: bytes = b""
    high: bytes | None = None
    live_rows: int
    """Rows that will be left; of a range of keys, about so many."""
    live_share: float
    """Part of the rows that will be left."""
    size_bytes: int
    """About what the rows that will be left take."""

    @property
    def is_whole(self) -> bool:
        return not self.low and self.high is None

    def objects(self, rows_max: int) -> int:
        """How many outputs are planned, so that none is over the limits."""
        return self._count(self.live_rows, rows_max)

    def object_rows(self, rows: int, rows_max: int) -> int:
        """Rows of each output, so that all are alike; `rows` have been found in the range."""
        live_rows = self.live_rows if self.is_whole else ceil(rows * self.live_share)
        count = self._count(live_rows, rows_max)
        return min(self._most(rows_max), max(1, ceil(live_rows / count)))

    def _count(self, live_rows: int, rows_max: int) -> int:
        by_rows = ceil(live_rows / self._most(rows_max))
        return max(1, by_rows, ceil(self.size_bytes / OBJECT_BYTES_MAX))

    def _most(self, rows_max: int) -> int:
        return rows_max if self.is_whole else max(1, rows_max - rows_max // SPARE)


def runs_of(group: Group, tier: Tier) -> list[MergeRun]:
    """One run over all inputs, or one for each."""
    files = [file_of(tier, id) for id in group.inputs]
    if not (group.merge and files):
        return [_run((file,), file.stats.rows) for file in files]
    return [_run(tuple(files), group.live_rows)]


def _run(files: tuple[ObjectFile, ...], live_rows: int) -> MergeRun:
    rows = sum(file.stats.rows for file in files)
    size_bytes = sum(file.stats.size_bytes for file in files)
    share = live_rows / rows
    size_bytes = ceil(size_bytes * share)
    return MergeRun(files=files, live_rows=live_rows, live_share=share, size_bytes=size_bytes)


def file_of(tier: Tier, object_id: int) -> ObjectFile:
    """The file of an object that the tier knows."""
    file = tier.by_id[object_id].file
    assert file is not None, "an object without a file"
    return file


def split(run: MergeRun, reader: ObjectReader, schema: Schema, parts: int) -> list[MergeRun]:
    """Splits a run into this many runs of about the same size, or into fewer."""
    ends = _quantiles(_sample(run, reader, schema, parts), parts)
    lows, highs = [b"", *ends], [*ends, None]
    return [
        replace(
            run,
            low=low,
            high=high,
            files=_meeting(run.files, low, high),
            live_rows=ceil(run.live_rows / len(lows)),
            size_bytes=ceil(run.size_bytes / len(lows)),
        )
        for low, high in zip(lows, highs, strict=True)
    ]


def _sample(run: MergeRun, reader: ObjectReader, schema: Schema, parts: int) -> dict[bytes, float]:
    """Some keys, and how many rows each of them stands for."""
    files = sorted(run.files, key=lambda file: (file.stats.key_min, file.stats.rowid_min))
    files = files[:: ceil(len(files) / SAMPLED_FILES_MAX)]
    count = min(SAMPLES_MAX, max(2, ceil(SAMPLES_PER_PART * parts / len(files))))
    weights: dict[bytes, float] = {}
    for number, cursor in enumerate(merge.open_cursors(reader, files, schema, columns=[])):
        shift = (number * GOLDEN) % 1.0
        for place in range(count):
            key = cursor.key_at(int((place + shift) / count * cursor.rows))
            weights[key] = weights.get(key, 0.0) + cursor.rows / count
    return weights


def _quantiles(weights: Mapping[bytes, float], parts: int) -> list[bytes]:
    keys = sorted(weights)
    sums = np.cumsum([weights[key] for key in keys])
    places = np.searchsorted(sums, sums[-1] * np.arange(1, parts) / parts)
    return sorted({keys[place] for place in places.tolist()})


def _meeting(files: Sequence[ObjectFile], low: bytes, high: bytes | None) -> tuple[ObjectFile, ...]:
    """Files that may have rows of a range; all of them where rows are not sorted by key."""
    return tuple(
        file
        for file in files
        if file.stats.order != "key"
        or (file.stats.key_max >= low and (high is None or file.stats.key_min < high))
    )


def write_run(
    run: MergeRun,
    reader: ObjectReader,
    schema: Schema,
    writer: JobWriter,
    *,
    drop: merge.Drop,
    rows_max: int,
    slab_bytes: int = merge.SLAB_BYTES,
) -> Iterator[ObjectFile]:
    """Write the objects of a run, one after the other."""
    if not run.files:
        return
    # A slab is in memory three times while it is sorted, beside the object that it goes to.
    slab_rows, order = min(merge.SLAB_ROWS, max(1, rows_max // 4)), run.files[0].stats.order
    cursors = merge.open_cursors(
        reader, run.files, schema, slab_rows=slab_rows, low=run.low, high=run.high
    )
    rows = run.object_rows(sum(cursor.rows for cursor in cursors), rows_max)
    slabs = merge.merge_cursors(
        cursors,
        merge.sorted_by(schema, order),
        drop=drop,
        slab_rows=slab_rows,
        slab_bytes=slab_bytes,
    )
    for table in cut(slabs, rows, rows if run.is_whole else rows_max):
        yield writer.rows(table, order=order)


def cut(slabs: Iterable[Any], rows: int, rows_max: int = 0) -> Iterator[Any]:
    """Cuts a stream of tables into tables of exactly this many rows.

    The last one has fewer, or more, up to `rows_max`, so that a small rest is not by itself.
    """
    most = max(rows, rows_max)
    held: list[Any] = []
    count = 0
    for slab in slabs:
        held.append(slab)
        count += slab.num_rows
        while count > most:
            table = pa.concat_tables(held)
            yield table.slice(0, rows)
            held = [table.slice(rows)]
            count -= rows
    if count:
        yield pa.concat_tables(held)
