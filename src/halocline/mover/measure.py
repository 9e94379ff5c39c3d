"""What L0 of a table weighs: the facts that plan.py decides by.

    TableState --pages, memtree, deletion buffer--> L0Stats        no row is looked at

Frozen pages know their size from Arrow, the active page guesses it from a few rows. Keys and
tombstones are Python objects or arrays, whose sizes were measured once and are multiplied here.
What the memtree costs is spread over all rows it knows, so that a plan which moves half of the
rows frees half of it.

No lock is taken: a commit that is folded meanwhile is counted or not.

Not here: memory that a move cannot free, as keys of moved rows that an open writer still needs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import takewhile
from operator import itemgetter
from typing import Final

import numpy as np

from halocline.ids import NEVER, TableId
from halocline.mover.plan import L0Stats, PageStats, RowIdRange, TombstoneStats
from halocline.rows.engine import Times
from halocline.rows.page import ActivePage, FrozenPage, Page
from halocline.rows.state import TableState

# Bytes of one entry, with its share of the dict or array, as CPython has them.
KEY_BYTES: Final = 130
LINK_BYTES: Final = 95
TOMBSTONE_BYTES: Final = 220
INT_RUN_BYTES: Final = 17
RUN_BYTES: Final = 90
TOMBSTONE_RUN_BYTES: Final = 80


def measure(state: TableState, times: Times, now_us: int, *, frozen: bool = False) -> L0Stats:
    """Pages and unflushed tombstones of a table; on demand only pages that are frozen by now."""
    shape = state.shape
    key_bytes = _key_bytes(state)
    closed: Iterable[Page] = shape.pages
    if frozen:  # from the front: pages leave in RowID order
        closed = takewhile(lambda page: isinstance(page, FrozenPage), closed)
    pages = [_page(page, len(page), times, now_us, key_bytes) for page in closed]
    count = len(shape.active)
    taking = None
    if count and not frozen:
        taking = _page(shape.active, count, times, now_us, key_bytes)
    return L0Stats(
        table=TableId(state.table_id),
        pages=tuple(pages),
        active=taking,
        tombstones=_tombstones(state, times, now_us),
    )


def _page(page: Page, count: int, times: Times, now_us: int, key_bytes: int) -> PageStats:
    end = page.start + count if isinstance(page, ActivePage) else page.end
    stamps = page.stamps
    first_ts = stamps if isinstance(stamps, int) else int(stamps[0])
    return PageStats(
        rows=RowIdRange(page.start, end),
        row_count=count,
        size_bytes=page.size_bytes + key_bytes * count,
        age_s=_age_s(first_ts, times, now_us),
    )


def _age_s(commit_ts: int, times: Times, now_us: int) -> float:
    # A clock that was set back makes rows younger, never an error.
    return max(0.0, (now_us - times.wall_of(commit_ts)) / 1e6)


def _key_bytes(state: TableState) -> int:
    """What the memtree costs for each row it knows."""
    tree = state.tree
    size = KEY_BYTES * len(tree.recent) + LINK_BYTES * len(tree.older)
    for run in tree.runs:
        size += len(run) * (INT_RUN_BYTES if isinstance(run.keys, np.ndarray) else RUN_BYTES)
    rows = len(tree.recent) + len(tree.older) + sum(len(run) for run in tree.runs)
    return size // rows if rows else 0


def _tombstones(state: TableState, times: Times, now_us: int) -> TombstoneStats | None:
    flushed = state.flushed_ts
    # list() of a dict view copies without giving up the interpreter; it is in commit order.
    singles = list(state.deletes.ended.values())
    first = bisect_right(singles, flushed, key=itemgetter(0))
    count = len(singles) - first
    size = count * TOMBSTONE_BYTES
    oldest = singles[first][0] if count else NEVER
    for run in state.deletes.runs:
        fresh = run.stamps[run.stamps > flushed] if run.ts_min <= flushed else run.stamps
        if len(fresh):
            count += len(fresh)
            size += len(fresh) * TOMBSTONE_RUN_BYTES
            oldest = min(oldest, int(fresh.min()))
    if not count:
        return None
    age_s = _age_s(oldest, times, now_us)
    return TombstoneStats(count=count, size_bytes=size, age_s=age_s)
