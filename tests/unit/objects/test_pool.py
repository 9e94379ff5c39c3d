"""Buffer pools: pins, the budget, who is evicted, and many threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.objects.pool import Handle, Pool
from tests.sim.interrupts import strike
from tests.unit.objects.rig import empty


def content(name: str, size: int = 10) -> Callable[[], tuple[str, int]]:
    return lambda: (name, size)


def never() -> tuple[Any, int]:
    raise AssertionError("it is loaded already")


def test_b01_a_node_is_loaded_or_unloaded() -> None:
    pool = Pool("data", 100)
    assert not pool.loaded("a")
    pool.pin("a", content("A")).close()
    assert pool.loaded("a")


def test_b02_a_pin_loads_what_is_not_there_and_counts_what_is() -> None:
    pool = Pool("data", 100)
    with pool.pin("a", content("A")) as value:
        assert value == "A"
        with pool.pin("a", never) as again:
            assert again is value
    stats = pool.stats()
    assert (stats.hits, stats.misses, stats.nodes, stats.used_bytes) == (1, 1, 1, 10)


def test_b03_the_least_recently_used_leaves_first() -> None:
    pool = Pool("data", 30)
    for name in "abc":
        pool.pin(name, content(name)).close()
    pool.pin("a", never).close()
    pool.pin("d", content("d", 15)).close()
    assert [name for name in "abcd" if pool.loaded(name)] == ["a", "d"]
    assert pool.stats().evictions == 2


def test_b04_what_is_held_is_never_evicted() -> None:
    pool = Pool("index", 30)
    held = [pool.pin(name, content(name)) for name in "abc"]
    with pool.pin("d", content("d")) as value:
        assert value == "d", "what finds no room is handed out and not kept"
    assert all(pool.loaded(name) for name in "abc")
    assert pool.stats().used_bytes == 30
    assert not pool.loaded("d")
    held[1].close()
    pool.pin("d", content("d")).close()
    assert not pool.loaded("b")
    assert pool.stats().pinned_bytes == 20


def test_b04_a_node_pinned_twice_is_held_until_both_are_closed() -> None:
    pool = Pool("data", 10)
    first, second = pool.pin("a", content("A")), pool.pin("a", never)
    first.close()
    first.close()
    pool.pin("b", content("B")).close()
    assert (pool.loaded("a"), pool.loaded("b")) == (True, False)
    second.close()
    pool.pin("b", content("B")).close()
    assert (pool.loaded("a"), pool.loaded("b")) == (False, True)


def test_b05_pools_do_not_share_a_budget() -> None:
    data, index = Pool("data", 10), Pool("index", 10)
    with data.pin("a", content("A")), index.pin("a", content("a")) as value:
        assert value == "a"
    assert (data.stats().name, index.stats().used_bytes) == ("data", 10)


def test_a_node_larger_than_the_pool_is_read_past_it_and_drives_nothing_out() -> None:
    pool = Pool("data", 10)
    pool.pin("b", content("B", 10)).close()
    for _ in range(2):
        with pool.pin("a", content("A", 11)) as value:
            assert value == "A"
    assert (pool.loaded("a"), pool.loaded("b"), pool.stats().used_bytes) == (False, True, 10)
    assert (pool.stats().misses, pool.stats().evictions) == (3, 0)


def columns(sizes: Sequence[int], asked: list[list[int]]) -> Callable[..., Any]:
    def load(wanted: Sequence[int]) -> list[tuple[str, int]]:
        asked.append(list(wanted))
        return [(f"c{at}", sizes[at]) for at in wanted]

    return load


def test_columns_are_pinned_at_once_and_those_that_left_are_loaded_together() -> None:
    pool, asked, joins = Pool("data", 60), list[list[int]](), list[Any]()
    load = columns([10, 10, 20], asked)

    def join(contents: list[str]) -> str:
        joins.append(contents)
        return "".join(contents)

    for _ in range(2):
        with pool.pin_all("block", 3, load, join) as row:
            assert row == "c0c1c2"
            assert pool.stats().pinned_bytes == 40
    assert (asked, len(joins)) == ([[0, 1, 2]], 1)
    stats = pool.stats()
    assert (stats.hits, stats.misses, stats.nodes, stats.pinned_bytes) == (1, 3, 3, 0)
    pool.pin("other", content("o", 45)).close()
    assert (pool.stats().nodes, pool.stats().evictions) == (2, 2), "a column leaves at a time"
    assert not pool.loaded("block")
    with pool.pin_all("block", 3, load, join) as row:
        assert row == "c0c1c2"
    assert asked[1:] == [[1, 2]]
    assert pool.drop("block")


def test_columns_that_find_no_room_are_handed_out_beside_those_that_do() -> None:
    pool, asked = Pool("data", 25), list[list[int]]()
    load = columns([10, 30, 10], asked)
    for _ in range(2):
        with pool.pin_all("block", 3, load, "".join) as row:
            assert row == "c0c1c2"
            assert not pool.loaded("block")
    assert asked == [[0, 1, 2], [1]]
    assert (pool.stats().used_bytes, pool.stats().pinned_bytes) == (20, 0)


def test_room_is_made_before_loading_for_what_is_expected() -> None:
    pool = Pool("data", 20)
    pool.pin("a", content("A", 15)).close()

    def load() -> tuple[str, int]:
        assert not pool.loaded("a")
        assert pool.stats().used_bytes == 12
        return "B", 5

    pool.pin("b", load, expect=12).close()
    assert pool.stats().used_bytes == 5


def test_a_load_that_fails_leaves_nothing() -> None:
    pool = Pool("data", 20)

    def fail() -> tuple[Any, int]:
        raise KeyError("no such file")

    for _ in range(3):
        with pytest.raises(KeyError):
            pool.pin("a", fail, expect=20)
    assert pool.stats().used_bytes == 0
    pool.pin("a", content("A", 20)).close()


def test_a_dropped_node_is_gone_unless_it_is_held() -> None:
    pool = Pool("data", 20)
    handle = pool.pin("a", content("A"))
    assert not pool.drop("a")
    handle.close()
    assert pool.drop("a")
    assert pool.drop("a")
    assert pool.stats().used_bytes == 0


def test_a_loader_may_pin_other_nodes() -> None:
    pool = Pool("data", 20)

    def load() -> tuple[str, int]:
        with pool.pin("inner", content("i")) as inner:
            return f"outer of {inner}", 10

    with pool.pin("outer", load) as value:
        assert value == "outer of i"


def test_one_thread_loads_and_the_others_wait() -> None:
    pool = Pool("data", 100)
    started, release = threading.Event(), threading.Event()
    loads: list[int] = []

    def load() -> tuple[str, int]:
        loads.append(1)
        started.set()
        assert release.wait(30)
        return "A", 10

    seen: list[Any] = []
    threads = [
        threading.Thread(target=lambda: seen.append(pool.pin("a", load).value)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    assert started.wait(30)
    release.set()
    for thread in threads:
        thread.join(30)
    assert seen == ["A"] * 4
    assert len(loads) == 1


def test_whoever_waited_for_a_failed_load_loads_by_himself() -> None:
    pool = Pool("data", 100)
    started, release = threading.Event(), threading.Event()

    def fail() -> tuple[Any, int]:
        started.set()
        assert release.wait(30)
        raise OSError("gone")

    errors: list[Exception] = []

    def first() -> None:
        try:
            pool.pin("a", fail)
        except OSError as error:
            errors.append(error)

    seen: list[Any] = []
    one = threading.Thread(target=first)
    two = threading.Thread(target=lambda: seen.append(pool.pin("a", content("A")).value))
    one.start()
    assert started.wait(30)
    two.start()
    release.set()
    one.join(30)
    two.join(30)
    assert (len(errors), seen) == (1, ["A"])


def test_threads_share_a_small_pool() -> None:
    pool = Pool("data", 60)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        state = seed
        for _ in range(400):
            state = (state * 1103515245 + 12345) % 2**31
            node = state % 17
            with pool.pin(node, content(f"v{node}", 5 + node % 5)) as value:
                if value != f"v{node}" or pool.stats().used_bytes > 60:
                    wrong.append((node, value))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    stats = pool.stats()
    assert stats.pinned_bytes == 0
    assert stats.hits + stats.misses == 1600
    assert stats.evictions == stats.misses - stats.nodes


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 40), st.booleans()), max_size=40),
    st.integers(20, 80),
)
def test_a_pool_behaves_as_its_model(steps: list[tuple[int, int, bool]], budget: int) -> None:
    """Pins and closes in any order against a list in order of use."""
    pool = Pool("data", budget)
    sizes: dict[int, int] = {}
    order: list[int] = []
    held: dict[int, list[Handle]] = {}
    for node, size, hold in steps:
        if node in sizes:
            handle = pool.pin(node, never)
        else:
            while (
                size <= budget
                and sum(sizes.values()) + size > budget
                and any(n not in held for n in order)
            ):
                victim = next(n for n in order if n not in held)
                order.remove(victim)
                del sizes[victim]
            if sum(sizes.values()) + size > budget:
                with pool.pin(node, content(str(node), size)) as value:
                    assert value == str(node)
                assert not pool.loaded(node)
                continue
            handle = pool.pin(node, content(str(node), size))
            sizes[node] = size
        if node in order:
            order.remove(node)
        order.append(node)
        if hold:
            held.setdefault(node, []).append(handle)
        else:
            handle.close()
            for other in held.pop(node, []):
                other.close()
        assert {n for n in range(7) if pool.loaded(n)} == set(sizes)
        assert pool.stats().used_bytes == sum(sizes.values()) <= budget


@pytest.mark.parametrize("mode", ["signal", "raise"])
def test_an_interrupt_at_any_step_of_a_load_leaves_a_node_that_can_be_loaded(mode: Any) -> None:
    """A node that stayed half loaded would make everybody wait for it for ever."""
    k = 0
    hit = True
    while hit:
        k += 1
        pool = Pool("data", 100)
        hit = strike(k, mode, lambda pool=pool: pool.pin("a", lambda: ("A", 60)).close()).hit
        with pool.pin("a", lambda: ("A", 60)) as content:
            assert content == "A"
        empty(pool)
        with pool.pin("b", lambda: ("B", 30)):
            assert pool.stats().used_bytes in (30, 90)
    assert k > 10
