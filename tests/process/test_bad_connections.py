"""Clients behind bad connections: cut, late and lost ones, killed and paused processes.

    witnesses (witness.py) --Proxy (tests/node/proxy.py)--> the owner of the moment
    the test: bad weather for some seconds, then calm: everybody goes on; then the histories

Near: processes of one machine, any of which may be the owner. Afar: one server, killed and started
again, and clients that are connected to it. Every history must be one of snapshot isolation, no
snapshot older than what anybody had been told by then, and nobody may be told something wrong.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.node.endpoint import read_endpoint
from tests.concurrency.registers import check_sessions
from tests.node.proxy import CALM, Address, Proxy, Weather
from tests.process.nursery import Nursery
from tests.process.witness import TINY, Board, read_journal

WITNESSES = 4
PAUSES_S = (0.05, 0.3, 1.2)
"""Shorter and longer than a witness has patience."""
CALM_S = 60.0
"""Everybody must have gone on by then."""


class Scene:
    """Witnesses, the proxy between them and the owner, and what happens to them."""

    def __init__(self, nursery: Nursery, folder: Path, chance: random.Random) -> None:
        self.path = str(folder / "db")
        self.board = Board(str(folder))
        self.chance = chance
        self.counts = dict.fromkeys(("cut", "pause", "kill", "weather"), 0)
        self._nursery = nursery
        self._folder = folder
        self._numbers = 0
        self._witnesses: dict[int, int] = {}
        """pid -> number"""
        with hc.open(self.path, options=TINY) as db:
            db.create_table("register", {"key": int, "value": int}, primary_key="key")
        self.proxy = self._make_proxy()
        for _ in range(WITNESSES):
            self.start()

    # Two ways.

    def _make_proxy(self) -> Proxy:
        return Proxy(self._owner, self.chance)

    def _owner(self) -> Address | None:
        endpoint = read_endpoint(self.path)
        return None if endpoint is None else endpoint.socket

    def _watch(self) -> tuple[str, dict[str, Any]]:
        return "witness.watch_near", {"path": self.path, "proxy": self.proxy.address}

    def _weather(self) -> Weather:
        return Weather(late=self.chance.choice((0, 20)), late_s_max=0.1, cut=self.chance.random())

    @property
    def pids(self) -> list[int]:
        return list(self._witnesses)

    # What happens.

    def start(self) -> None:
        work, arguments = self._watch()
        arguments |= {"folder": str(self._folder), "number": self._numbers}
        self._witnesses[self._nursery.fork(work, arguments)] = self._numbers
        self._numbers += 1

    def kill(self, pid: int) -> None:
        self._nursery.kill(pid)
        if self._witnesses.pop(pid, None) is not None:
            self.start()

    def storm(self, seconds: float) -> None:
        """Something happens every now and then."""
        self.proxy.weather = self._weather()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(self.chance.uniform(0.02, 0.3))
            what = self.chance.choice(list(self.counts))
            self.counts[what] += 1
            if what == "cut":
                self.proxy.cut()
            elif what == "weather":
                self.proxy.weather = self._weather()
            elif what == "kill":
                self.kill(self.chance.choice(self.pids))
            else:
                self._pause(self.chance.choice(self.pids), self.chance.choice(PAUSES_S))

    def _pause(self, pid: int, seconds: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    def clear_up(self) -> None:
        """From now on nothing happens any more: every witness must soon commit something."""
        self.proxy.weather = CALM
        self.proxy.cut()  # connections that have lost something
        before = {number: self.board.of(number) for number in self._witnesses.values()}
        until = time.monotonic() + CALM_S
        while waiting := [one for one, ts in before.items() if self.board.of(one) == ts]:
            assert time.monotonic() < until, f"witnesses {waiting} hang"
            time.sleep(0.01)

    def close(self) -> None:
        """Everybody is killed. Closing twice is fine."""
        pids = self.pids
        self._forget()
        for pid in pids:
            self._nursery.kill(pid)
        self.proxy.close()
        self.board.close()

    def _forget(self) -> None:
        self._witnesses.clear()

    def check(self) -> None:
        """All histories together, and the database that they have left."""
        journals = [self._folder / f"{number}.journal" for number in range(self._numbers)]
        with hc.open(self.path, options=TINY) as db:
            tokens = db.core.engine.tokens
            clients = [read_journal(path, tokens.find) for path in journals if path.exists()]
            line = check_sessions(clients)
            rows = db.table("register").to_arrow().to_pylist()
            assert {row["key"]: row["value"] for row in rows} == line.state(db.visible_ts)
            assert not db.check()
        records = [record for client in clients for record in client]
        unsure = [record for record in line.commits if not record.told]
        print(
            f"{len(records)} transactions, {len(line.commits)} commits, {len(unsure)} of them "
            f"without a word, {self.proxy.faults} bad chunks, {self.counts}"
        )
        assert line.commits


class AfarScene(Scene):
    """One server and its clients."""

    _server = 0
    _port: int | None = None

    def _make_proxy(self) -> Proxy:
        self._serve()
        return Proxy(self._owner, self.chance, tcp=True)

    def _owner(self) -> Address | None:
        return None if self._port is None else ("127.0.0.1", self._port)

    def _watch(self) -> tuple[str, dict[str, Any]]:
        roots = str(Path(self.path, "tls", "certificate.pem"))
        return "witness.watch_afar", {"port": self.proxy.address[1], "roots": roots}

    def _weather(self) -> Weather:
        bad = super()._weather()
        return Weather(late=bad.late, late_s_max=0.05, cut=bad.cut, lost=self.chance.random() / 2)

    @property
    def pids(self) -> list[int]:
        return [*self._witnesses, self._server] if self._server else list(self._witnesses)

    def kill(self, pid: int) -> None:
        super().kill(pid)
        if pid == self._server:
            self._serve()

    def _forget(self) -> None:
        super()._forget()
        self._server = 0

    def _serve(self) -> None:
        output, theirs = os.pipe()
        self._server = self._nursery.fork("witness.serve_afar", {"path": self.path}, [theirs])
        os.close(theirs)
        with os.fdopen(output, "r", encoding="utf-8") as said:
            self._port = int(said.readline())


@pytest.fixture(params=[Scene, AfarScene], ids=["near", "afar"])
def scene(
    request: pytest.FixtureRequest, nursery: Nursery, tmp_path: Path, chance: random.Random
) -> Iterator[Scene]:
    scene: Scene = request.param(nursery, tmp_path, chance)
    yield scene
    scene.close()


@pytest.mark.parametrize(
    "seconds", [3, pytest.param(30, marks=pytest.mark.sim)], ids=["short", "long"]
)
def test_histories_through_bad_connections_have_no_anomaly(scene: Scene, seconds: int) -> None:
    scene.storm(seconds)
    scene.clear_up()
    scene.close()
    scene.check()
