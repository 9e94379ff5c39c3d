"""examples/orders_api under load: its owner is killed, and no order that was answered is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.node.endpoint import read_endpoint

pytest.importorskip("fastapi", reason="the extra `examples` is not installed")
pytest.importorskip("uvicorn", reason="the extra `examples` is not installed")
httpx = pytest.importorskip("httpx", reason="the extra `examples` is not installed")

ROOT = Path(__file__).resolve().parent.parent.parent
WORKERS = 4
CLIENTS = 6
KILLS = 2
ORDERS = 40
"""So many between two kills."""
WAIT_S = 120.0
STOCK = {"tea": 1_000_000, "coffee": 1_000_000, "cake": 60}
CUSTOMER = str(uuid.UUID(int=7))


class Service:
    """The example as people run it: uvicorn and its workers, on a socket of their own."""

    def __init__(self, folder: Path) -> None:
        self.path, self._socket = folder / "db", folder / "http"
        command = [sys.executable, "-m", "uvicorn", "app:app", "--log-level", "warning"]
        command += ["--app-dir", str(ROOT / "examples" / "orders_api")]
        command += ["--workers", str(WORKERS), "--uds", str(self._socket)]
        environment = os.environ | {"SHOP": str(self.path), "PYTHONPATH": str(ROOT / "src")}
        self.process = subprocess.Popen(command, env=environment, start_new_session=True)

    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as sock:
            return sock.connect_ex(str(self._socket)) == 0

    def client(self) -> Any:
        transport = httpx.HTTPTransport(uds=str(self._socket))
        return httpx.Client(transport=transport, base_url="http://shop", timeout=WAIT_S)

    def stop(self) -> None:
        """As a system does it: the workers end what they are at, and close the database."""
        self.process.terminate()
        assert self.process.wait(WAIT_S) in (0, -signal.SIGTERM)


@pytest.fixture
def service() -> Iterator[Service]:
    folder = Path(tempfile.mkdtemp(prefix="shop-"))  # the name of a socket must be short
    running = Service(folder)
    yield running
    try:
        os.killpg(running.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all of them have ended, as they should
    running.process.wait()
    shutil.rmtree(folder)


def _until(what: str, holds: Callable[[], Any]) -> Any:
    began = time.monotonic()
    while not (found := holds()):
        assert time.monotonic() - began < WAIT_S, what
        time.sleep(0.01)
    return found


def _asked(client: Any, method: str, url: str, **arguments: Any) -> Any:
    """The answer; asked again while workers come and go, as a client of any service does."""
    began = time.monotonic()
    while time.monotonic() - began < WAIT_S:
        try:
            answer = client.request(method, url, **arguments)
        except httpx.TransportError:
            time.sleep(0.01)
            continue
        if answer.status_code != 503:
            return answer
    raise AssertionError(f"{method} {url}: nobody answers")


class Buyer:
    """A thread that places orders, and what it was told."""

    def __init__(self, service: Service, seed: int) -> None:
        self._client, self._chance = service.client(), random.Random(seed)
        self._done = threading.Event()
        self.placed: dict[str, dict[str, Any]] = {}
        self.refused: set[str] = set()
        self.trouble: list[BaseException] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._done.is_set():
                self._buy()
        except BaseException as error:
            self.trouble.append(error)

    def _buy(self) -> None:
        order_id = str(uuid.UUID(int=self._chance.getrandbits(128)))
        skus = self._chance.sample(list(STOCK), self._chance.randint(1, 2))
        items = {sku: self._chance.randint(1, 3) for sku in skus}
        body = {"customer_id": CUSTOMER, "items": items}
        answer = _asked(self._client, "PUT", f"/orders/{order_id}", json=body)
        if answer.status_code == 409:
            self.refused.add(order_id)
            return
        assert answer.status_code == 200, answer.text
        placed = answer.json()
        assert {line["sku"]: line["quantity"] for line in placed["lines"]} == items
        self.placed[order_id] = placed

    def stop(self) -> None:
        self._done.set()
        self._thread.join(2 * WAIT_S)
        self._client.close()
        assert not self._thread.is_alive()
        assert not self.trouble, self.trouble


def test_every_order_that_was_answered_is_there_after_kills_of_the_owner(service: Service) -> None:
    _until("the service listens", service.listens)
    with service.client() as client:
        _set_up(client)
        buyers = [Buyer(service, seed) for seed in range(CLIENTS)]

        def more(wanted: int) -> None:
            goal = wanted + sum(len(buyer.placed) for buyer in buyers)
            _until(
                "orders are placed",
                lambda: (
                    sum(len(buyer.placed) for buyer in buyers) >= goal
                    or any(buyer.trouble for buyer in buyers)
                ),
            )

        for _ in range(KILLS):
            more(ORDERS)
            owner = _until("there is an owner", lambda: read_endpoint(str(service.path)))
            os.kill(owner.pid, signal.SIGKILL)
        more(ORDERS)
        for buyer in buyers:
            buyer.stop()
        placed = {key: order for buyer in buyers for key, order in buyer.placed.items()}
        refused = {key for buyer in buyers for key in buyer.refused}
        some = next(iter(placed))
        assert _asked(client, "GET", f"/orders/{some}").json() == placed[some]
        assert _asked(client, "GET", f"/orders/{uuid.uuid4()}").status_code == 404
        sold = {row["sku"]: row["sold"] for row in _asked(client, "GET", "/sales").json()}
    service.stop()
    with hc.open(service.path) as db:
        _check_books(db, placed, refused, sold)
        assert not db.check()


def _set_up(client: Any) -> None:
    assert _asked(client, "GET", "/health").json()["is_well"]
    _asked(client, "PUT", f"/customers/{CUSTOMER}", json={"name": "Ada"})
    for sku, stock in STOCK.items():
        _asked(client, "PUT", f"/products/{sku}", json={"title": sku, "price_cents": 250})
        _asked(client, "POST", f"/products/{sku}/restock", params={"quantity": stock})
    wrong = {"customer_id": CUSTOMER, "items": {"tea": -1}}
    assert _asked(client, "PUT", f"/orders/{uuid.uuid4()}", json=wrong).status_code == 422
    stranger = {"customer_id": str(uuid.uuid4()), "items": {"tea": 1}}
    assert _asked(client, "PUT", f"/orders/{uuid.uuid4()}", json=stranger).status_code == 404


def _check_books(
    db: hc.Database, placed: dict[str, dict[str, Any]], refused: set[str], sold: dict[str, int]
) -> None:
    orders = {row["id"]: row for row in db.table("orders").to_arrow().to_pylist()}
    assert orders.keys() == placed.keys(), "all that was answered, and nothing else"
    assert not orders.keys() & refused
    lines = db.table("order_lines").to_arrow().to_pylist()
    for key, order in placed.items():
        assert order["total_cents"] == orders[key]["total_cents"]
    told = [line for order in placed.values() for line in order["lines"]]
    assert sorted(lines, key=_name) == sorted(told, key=_name)
    taken: Counter[str] = Counter()
    for line in lines:
        taken[line["sku"]] += line["quantity"]
    assert sold == dict(taken)
    stock = {row["sku"]: row["stock"] for row in db.table("products").to_arrow().to_pylist()}
    assert stock == {sku: there - taken[sku] for sku, there in STOCK.items()}
    assert all(left >= 0 for left in stock.values())


def _name(line: dict[str, Any]) -> tuple[str, int]:
    return line["order_id"], line["line"]
