"""Scans of L0: prefix, marks, runs and a transaction's own deletes, with and without RowIDs."""

from __future__ import annotations

import random
from threading import Lock

import numpy as np
import pyarrow as pa
import pytest

from halocline.read.changes import changes_schema, read_changes
from halocline.read.scan import count_rows, scan_pages, take_plan
from halocline.rows.nodes import Append
from halocline.rows.tidy import tidy
from halocline.rows.undo import collect
from tests.unit.rows.rig import KEYED, Story, fold, scan_table, state_of


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", range(2))
def test_rows_of_a_transaction_can_be_left_out_and_row_ids_added(kind: str, seed: int) -> None:
    story = Story(seed, kind)
    rng = random.Random(seed)
    for _ in range(20):
        story.commit()
        if rng.random() < 0.3:
            tidy(story.live, Lock())
    for ts in range(story.ts + 1):
        seen = sorted(v for v in story.versions.values() if v.began <= ts < v.ended)
        without = sorted(v.rowid for v in seen if rng.random() < 0.4)
        table = scan_table(story.live, ts, without=np.array(without, dtype=np.int64), rowids=True)
        kept = [v for v in seen if v.rowid not in without]
        assert table.column("_rowid").to_pylist() == [v.rowid for v in kept]
        rows = story.schema.from_table(table.drop_columns("_rowid"))
        assert rows == [v.row for v in kept]


def test_a_page_without_dead_rows_is_passed_on_as_it_is() -> None:
    state = state_of("int", page_rows=4)
    table = state.schema.to_table([(n, "x", n) for n in range(8)])
    fold(state, Append(1, table=table, run=None, first_rowid=1), 1)
    first, second = scan_pages(take_plan(state, 1))
    address = table.column("n").chunk(0).buffers()[1].address
    assert first.column("n").buffers()[1].address == address
    assert (first.num_rows, second.num_rows) == (4, 4)
    assert not list(scan_pages(take_plan(state, 0)))


def test_an_empty_table_has_its_schema() -> None:
    state = state_of("int")
    assert scan_table(state, 5) == state.schema.arrow.empty_table()
    with_ids = scan_table(state, 5, rowids=True).schema
    assert with_ids == state.schema.arrow.append(pa.field("_rowid", pa.int64()))
    assert count_rows(state, 5) == 0
    assert read_changes(state, 0, 5).schema == changes_schema(state.schema)


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", range(3))
def test_the_change_feed_leads_from_one_snapshot_to_another(kind: str, seed: int) -> None:
    story = Story(seed, kind)
    rng = random.Random(seed)
    lock = Lock()
    floor = 0
    for _ in range(25):
        story.commit()
        tidy(story.live, lock)
        if rng.random() < 0.1:
            floor = rng.randrange(floor, story.ts + 1)
            collect(story.live, floor, lock)
    for _ in range(30):
        since, until = sorted(rng.choices(range(floor, story.ts + 1), k=2))
        bag = list(story.rows_at(since))
        feed = read_changes(story.live, since, until)
        events = story.schema.from_table(feed.drop_columns(["_change", "_commit_ts"]))
        kinds = feed.column("_change").to_pylist()
        stamps = feed.column("_commit_ts").to_pylist()
        assert stamps == sorted(stamps)
        assert all(since < ts <= until for ts in stamps)
        for change, row in zip(kinds, events, strict=True):
            if change in ("insert", "update_after"):
                bag.append(row)
            else:
                bag.remove(row)
        assert sorted(bag) == sorted(story.rows_at(until)), seed
        assert kinds.count("update_before") == kinds.count("update_after")
