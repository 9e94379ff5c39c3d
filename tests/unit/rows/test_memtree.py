"""Memtree: newest version, all versions, order; single rows and runs together."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from halocline.rows.memtree import MemTree, merge_runs, sort_run


def test_put_remembers_older_versions_newest_first():
    tree = MemTree()
    for rowid in (1, 4, 9):
        tree.put("k", rowid)
    assert tree.newest("k") == 9
    assert list(tree.versions("k")) == [9, 4, 1]
    assert tree.newest("other") == 0


def test_whoever_wants_a_new_version_of_a_hot_key_does_not_walk_all_of_them():
    class Counted(dict[int, int]):
        asked = 0

        def get(self, *given: Any) -> Any:
            Counted.asked += 1
            return super().get(*given)

    tree = MemTree()
    tree.older = Counted()
    for rowid in range(1, 1001):
        tree.put("k", rowid)
    versions = tree.versions("k")
    assert [next(versions), next(versions), next(versions)] == [1000, 999, 998]
    assert Counted.asked == 2


def test_a_run_and_single_rows_of_one_key_are_ordered_by_rowid():
    tree = MemTree()
    tree.put(5, 1)
    tree.link(sort_run(np.array([7, 5, 3])).shifted(10))
    tree.put(5, 20)
    assert list(tree.versions(5)) == [20, 11, 1]
    assert tree.newest(3) == 12


def test_range_is_half_open_sorted_and_lists_each_key_once():
    tree = MemTree()
    for key in (9, 1, 5, 5, 3):
        tree.put(key, key + 100)
    tree.link(sort_run(np.array([4, 5])).shifted(500))
    assert tree.range(3, 9) == [3, 4, 5]
    assert tree.range(None, None) == [1, 3, 4, 5, 9]
    tree.put(2, 900)
    assert tree.range(None, 4) == [1, 2, 3]


def test_merge_runs_keeps_versions_ascending():
    runs = [sort_run(["b", "a"]).shifted(1), sort_run(["b", "c"]).shifted(10)]
    merged = merge_runs(runs)
    assert merged.keys == ["a", "b", "b", "c"]
    assert merged.find("b") == [1, 10]


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 20), max_size=5)), max_size=12))
def test_memtree_equals_a_dict_of_lists(steps):
    model: dict[Any, Any] = {}
    tree, rowid = MemTree(), 1
    for bulk, keys in steps:
        keys = list(dict.fromkeys(keys)) if bulk else keys
        if bulk and keys:
            tree.link(sort_run(np.array(keys)).shifted(rowid))
        for offset, key in enumerate(keys):
            if not bulk:
                tree.put(key, rowid + offset)
            model.setdefault(key, []).append(rowid + offset)
        rowid += len(keys)
    for key in range(21):
        assert list(tree.versions(key)) == model.get(key, [])[::-1]
    assert tree.range(None, None) == sorted(model)
    assert tree.range(5, 15) == [key for key in sorted(model) if 5 <= key < 15]


@given(
    st.integers(-(2**63), 2**63 - 2000),
    st.lists(st.sampled_from([0, 0, 1, 1, 1, 1, 1, 2, 3, 70, 2**40]), min_size=1, max_size=400),
    st.randoms(use_true_random=False),
)
def test_newest_of_a_run_is_right_whatever_the_gaps_between_its_keys(first, gaps, random):
    keys = [first]
    for gap in gaps:
        if keys[-1] + gap < 2**63:
            keys.append(keys[-1] + gap)
    random.shuffle(keys)
    run = merge_runs([sort_run(np.array(keys)).shifted(100)])
    model = {key: 100 + place for place, key in enumerate(keys)}
    for key in model:
        for near in (key - 1, key, key + 1):
            if run.first <= near <= run.last:
                assert run.newest(near) == model.get(near, -1)
    tree = MemTree()
    tree.link(run)
    assert all(tree.newest(key) == rowid for key, rowid in model.items())


@given(
    st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=4),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(1, 9),
    st.booleans(),
)
def test_a_cut_leaves_at_most_so_many_entries_of_each_part(parts, low, high, count, reverse):
    tree = MemTree()
    for number, keys in enumerate(parts):
        if number % 2:
            tree.link(sort_run(np.array(keys, dtype=np.int64)).shifted(100 * number))
        else:
            for offset, key in enumerate(keys):
                tree.put(key, 100 * number + offset)
    cut = tree.cut(low, high, count, reverse=reverse)
    singles = sorted(set(tree.recent))
    inside = [[k for k in part if low <= k < high] for part in (singles, *parts[1::2])]
    if cut is None:
        assert all(len(part) <= count for part in inside)
    else:
        assert low <= cut < high
        near = [[k for k in part if (k >= cut if reverse else k < cut)] for part in inside]
        # Versions of one key cannot be cut apart: with `reverse` they all are on the near side.
        assert all(len(set(part)) <= count for part in near)
