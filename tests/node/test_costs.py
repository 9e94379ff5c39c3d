"""What a transaction of a second process costs, counted in requests, frames and looks at files.

Times depend on the machine; these numbers do not. And Ctrl-C at any line of it leaves it whole.
"""

from __future__ import annotations

import linecache
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import halocline as hc
from halocline.checkpoint.pins import Pins, read_pins
from halocline.ids import NEVER
from halocline.node.channel import Channel
from halocline.node.link import Link
from halocline.node.replica import Replica
from halocline.rows.engine import EngineState
from halocline.store import LocalFiles
from halocline.store.local import LocalFile
from tests.roles import node_of

OPTIONS = hc.Options(background=False, page_rows=16)
INTERRUPTS = 60
OURS = str(Path(hc.__file__).parent)


def catch_up(node: hc.Database) -> None:
    with node.begin() as txn:
        txn.tables()


class Counter:
    """Calls of methods, by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *methods: tuple[type, str]) -> None:
        self._calls: list[str] = []
        for cls, name in methods:
            monkeypatch.setattr(cls, name, self._counting(getattr(cls, name), name))

    def _counting(self, real: Any, name: str) -> Any:
        def counted(*args: Any, **named: Any) -> Any:
            self._calls.append(name)
            return real(*args, **named)

        return counted

    def take(self) -> list[str]:
        """What was called since the last look."""
        calls, self._calls = self._calls, []
        return sorted(calls)


def test_a_transaction_of_a_current_node_asks_nothing_and_reads_nothing(
    node: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node.begin() as txn:
        txn.insert("t", {"id": 1, "v": 1})
    catch_up(node)
    count = Counter(
        monkeypatch,
        (Link, "ask"),
        (Channel, "send"),
        (LocalFile, "pread"),
        (LocalFiles, "open_read"),
        (Replica, "_fold"),
    )
    for _ in range(3):
        with node.begin() as txn:
            assert txn.get("t", 1) == {"id": 1, "v": 1}
    assert count.take() == []


def test_a_commit_is_one_frame_each_way(
    owner: hc.Database, node: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def insert(first: int, rows: int) -> None:
        with node.begin() as txn:
            txn.insert("t", [{"id": first + n, "v": 0} for n in range(rows)])

    insert(0, 1)
    count = Counter(
        monkeypatch,
        (Channel, "send"),
        (Channel, "try_send"),
        (LocalFile, "pread"),
        (LocalFiles, "open_read"),
    )
    for first in (10, 20):  # it folds what it has committed: one read of the log
        insert(first, 1)
        assert count.take() == ["pread", "send", "try_send"]
    with owner.begin() as txn:
        txn.insert("t", {"id": 30, "v": 0})
    count.take()
    with node.begin() as txn:
        txn.update("t", 30, {"v": 1})
    assert count.take() == ["pread", "send", "try_send"]
    insert(40, 3)
    assert count.take() == ["pread", "send", "try_send"]


def test_rows_of_others_are_folded_in_one_go(
    owner: hc.Database, node: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    catch_up(node)
    count = Counter(monkeypatch, (EngineState, "fold_record"), (LocalFile, "pread"))
    for key in range(20):
        with owner.begin() as txn:
            txn.insert("t", {"id": key, "v": 0})
    count.take()
    catch_up(node)
    assert count.take() == ["pread"]
    assert node.table("t").count() == 20


def test_an_insert_reads_nothing_of_what_others_have_inserted(
    owner: hc.Database, node: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    catch_up(node)
    count = Counter(
        monkeypatch,
        (Channel, "send"),
        (LocalFile, "pread"),
        (Replica, "_fold"),
        (Pins, "_publish"),
    )
    for key in range(20):
        with owner.begin() as txn:
            txn.insert("t", {"id": key, "v": 0})
        count.take()
        with node.begin() as txn:
            txn.insert("t", {"id": 100 + key, "v": 0})
        assert count.take() == ["send"]
    catch_up(node)  # it pins, and lets go
    assert count.take() == ["_fold", "_publish", "_publish", "pread"]


def test_a_transaction_from_afar_is_two_requests(
    far: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One begins it and brings what is new, one commits it; an object is fetched once."""
    with far.begin() as txn:
        txn.insert("t", {"id": 0, "v": 0})
    far.begin().rollback()
    count = Counter(monkeypatch, (Channel, "send"), (Channel, "receive"))
    for key in range(1, 12):
        with far.begin() as txn:
            assert txn.get("t", key - 1) is not None
            txn.insert("t", {"id": key, "v": 0})
        # The owner, in this process, hears two and answers them with `sendall`.
        assert count.take().count("send") == 2
    with far.begin() as txn:
        txn.update("t", 3, {"v": 1})
        txn.delete("t", 4)
    with far.begin(token="once") as txn:
        assert txn.get("t", 3) == {"id": 3, "v": 1}
        txn.insert("t", {"id": 100, "v": 0})
    assert count.take().count("send") == 4
    with far.begin(token="once") as txn:
        txn.insert("t", {"id": 101, "v": 0})
    assert far.table("t").count() == 12


def test_a_state_that_another_thread_has_just_loaded_is_used_at_once(
    owner: hc.Database, node: hc.Database
) -> None:
    """A reader that lost its place loads anew; until the handle knows, it is not up to date."""
    reader = node_of(node).replica
    with owner.begin() as txn:
        txn.insert("t", {"id": 1, "v": 1})
    reader._torn = True
    reader.refresh()  # in the other thread, which goes no further for the moment
    assert reader.is_current()
    with node.begin() as txn:
        assert txn.get("t", 1) == {"id": 1, "v": 1}
        assert txn.core.engine is reader.engine


# -- Ctrl-C --------------------------------------------------------------------------------------


@contextmanager
def ctrl_c(line: int) -> Iterator[list[int]]:
    """KeyboardInterrupt at the so-manieth line of ours that runs; gives the lines that ran.

    Not where a `with` begins or ends: Python looks for signals behind calls, never in between. Nor
    in `__del__`, where it would be shown and forgotten.
    """
    ran = [0]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not source.startswith(("with ", "try:")):
            ran[0] += 1
            if ran[0] >= line > 0 and not _is_in_del(frame):
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            yield ran
    finally:
        sys.settrace(before)


def _is_in_del(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a connection that it took and dropped
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("what", ["read", "write"])
def test_ctrl_c_at_any_line_leaves_a_node_that_works(
    owner: hc.Database, node: hc.Database, what: str
) -> None:
    def work(key: int) -> None:
        with node.begin() as txn:
            if what == "write":
                txn.insert("t", {"id": -key, "v": 0})
            else:
                txn.get("t", key)

    def commit(key: int) -> None:
        for id in (key, key + 1):
            with owner.begin() as txn:
                txn.insert("t", {"id": id, "v": key})
        if key % 3 == 0:
            with owner.begin() as txn:
                txn.update("t", key, {"v": -1})

    commit(1)
    with ctrl_c(0) as ran:
        work(1)
    chance = random.Random(7)
    lines = sorted(chance.sample(range(1, ran[0]), min(INTERRUPTS, ran[0] - 1)))
    files = LocalFiles(Path(owner.path))
    for key, line in enumerate(lines, 2):
        commit(10 * key)
        with ctrl_c(line):
            work(10 * key)
        with node.begin() as txn:
            assert txn.get("t", 10 * key) == owner.begin().get("t", 10 * key), line
        assert [pin.ts for pin in read_pins(files)] == [NEVER], line
    seen = node.table("t").to_arrow().sort_by("id")
    assert seen == owner.table("t").to_arrow().sort_by("id")
    assert not node.check()
