"""Tier: which objects can hold a key or meet a range, against a look at every one of them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from halocline.catalog.entries import ObjectEntry
from halocline.ids import ObjectId, TableId
from halocline.objects import ObjectFile, ObjectStats
from halocline.rows.tier import Tier

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12)


def entry(number: int, low: int, size: int) -> ObjectEntry:
    stats = ObjectStats(
        kind="data",
        order="key",
        rows=1,
        size_bytes=1,
        vector_bytes=1,
        tail_bytes=1,
        digest=bytes(16),
        tail_digest=bytes(16),
        key_min=bytes([low]),
        key_max=bytes([low + size]),
        rowid_min=1,
        rowid_max=1,
        commit_ts_min=1,
        commit_ts_max=1,
        zonemaps={},
    )
    file = ObjectFile(f"1/{number}-0.parquet", stats)
    return ObjectEntry(id=ObjectId(number), table_id=TableId(1), file=file)


@given(SPANS, st.integers(0, 45), st.integers(0, 45))
def test_holding_and_meeting_miss_no_object(spans: Any, one: int, other: int) -> None:
    entries = [entry(number, *span) for number, span in enumerate(spans, 1)]
    tier = Tier(entries)
    low, high = bytes([min(one, other)]), bytes([max(one, other)])
    ids = {e.id for e in entries if e.stats.key_min <= low <= e.stats.key_max}
    assert [e.id for e in tier.holding(low)] == sorted(ids, reverse=True)
    ids = {e.id for e in entries if e.stats.key_min <= high and e.stats.key_max >= low}
    assert {e.id for e in tier.meeting(low, high)} == ids
    ids = {e.id for e in entries if e.stats.key_max >= low}
    assert {e.id for e in tier.meeting(low, None)} == ids
