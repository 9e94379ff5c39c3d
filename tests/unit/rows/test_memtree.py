"""Memtree: newest version, all versions, order; single rows and runs together."""

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
    tree, model, rowid = MemTree(), {}, 1
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
