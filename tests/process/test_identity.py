"""kill -9 beside identity columns: no key is drawn twice, whoever draws and whoever dies.

several processes, several threads each --draw--> a line before the commit, one after it
test: kills one after the other, the owner too; others start, take over, go on
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from random import Random

import pytest

import halocline as hc
from tests.process.children import SMALL
from tests.process.nursery import Nursery


class Drawers:
    """Processes that draw keys from one directory, and what they have said."""

    def __init__(self, nursery: Nursery, path: Path, threads: int) -> None:
        self._nursery, self._path, self._threads = nursery, path, threads
        self._pipes: dict[int, int] = {}
        """Of those who live: the pipe, and which one of all it is."""
        self._pids: list[int] = []
        self._said: list[bytes] = []

    def start(self) -> None:
        ours, theirs = os.pipe()
        arguments = {"path": str(self._path), "threads": self._threads}
        pid = self._nursery.fork("draw_keys", arguments, [theirs])
        os.close(theirs)
        self._pipes[ours] = len(self._pids)
        self._pids.append(pid)
        self._said.append(b"")

    def listen(self, lines: int) -> None:
        """Until so many further lines were said."""
        until, heard = time.monotonic() + 60, 0
        while heard < lines:
            assert time.monotonic() < until, "they have stopped drawing"
            for pipe in select.select(list(self._pipes), [], [], 1)[0]:
                said = self._read(pipe)
                assert said, "one of them has ended by itself"
                heard += said.count(b"\n")

    def kill(self, chance: Random) -> None:
        pipe = chance.choice(list(self._pipes))
        self._nursery.kill(self._pids[self._pipes[pipe]])
        while self._read(pipe):
            pass
        del self._pipes[pipe]
        os.close(pipe)

    def end(self) -> list[list[tuple[str, int, list[int]]]]:
        """What each of them has said: a word, a thread, keys."""
        while self._pipes:
            self.kill(Random(0))
        told = []
        for said in self._said:
            whole = said[: said.rfind(b"\n") + 1].decode().splitlines()
            words = [line.split() for line in whole]
            told.append([(word, int(thread), [*map(int, keys)]) for word, thread, *keys in words])
        return told

    def _read(self, pipe: int) -> bytes:
        data = os.read(pipe, 65536)
        self._said[self._pipes[pipe]] += data
        return data


def live(nursery: Nursery, path: Path, chance: Random, *, processes: int, threads: int) -> None:
    """Some of them die, others start; then everything that was said is looked at."""
    with hc.open(path, options=SMALL) as db:
        db.create_table("keys", {"id": hc.Column(int, identity=True), "by": int}, "id")
    drawers = Drawers(nursery, path, threads)
    for _ in range(processes):
        drawers.start()
    for _ in range(processes):
        drawers.listen(chance.randrange(50, 200))
        drawers.kill(chance)
        drawers.start()
    drawers.listen(100)
    told = drawers.end()
    drawn = [key for said in told for word, _, keys in said if word == "drew" for key in keys]
    assert len(set(drawn)) == len(drawn), "a key was drawn twice"
    for said in told:
        for thread in range(threads):
            mine = [k for word, by, keys in said if (word, by) == ("drew", thread) for k in keys]
            assert mine == sorted(mine), "keys of a thread fall"
    with hc.open(path, options=SMALL) as db:
        stored = set(db.sql("select id from keys")["id"].to_pylist())
        acked = {key for said in told for word, _, keys in said if word == "ack" for key in keys}
        assert acked <= stored
        with db.begin() as txn:
            assert txn.insert("keys", {}, returning=True)["id"] > max(drawn)
        assert db.check() == []


def test_no_key_is_drawn_twice(nursery: Nursery, tmp_path: Path, chance: Random) -> None:
    live(nursery, tmp_path / "db", chance, processes=2, threads=2)


@pytest.mark.more
def test_no_key_is_drawn_twice_by_many(nursery: Nursery, tmp_path: Path, chance: Random) -> None:
    live(nursery, tmp_path / "db", chance, processes=4, threads=8)
