"""A line that loses everything without a word: errors in time, then the handle goes on."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import halocline as hc
from halocline.node import Server, link, routes
from tests.node.handles import port_of
from tests.node.proxy import CALM, Proxy, Weather

COLUMNS = {"id": int}
SILENT = Weather(lost=100)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    port = port_of(server)
    with Proxy(lambda: ("127.0.0.1", port), random.Random(1), tcp=True) as proxy:
        yield proxy


@pytest.fixture
def afar(
    server: Server,
    proxy: Proxy,
    certificate: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[hc.Database]:
    uri = f"halocline://127.0.0.1:{proxy.address[1]}"
    with hc.connect(uri, server.token, tls_roots=certificate[0]) as db:
        db.begin().rollback()
        monkeypatch.setattr(routes, "CALL_S", 0.5)
        monkeypatch.setattr(routes, "WORK_S", 0.5)
        monkeypatch.setattr(link, "FIND_S", 1.0)
        yield db
        proxy.weather = CALM
        monkeypatch.setattr(routes, "CALL_S", 20.0)


def _insert(db: hc.Database, key: int, token: str | None = None) -> None:
    with db.begin(token=token) as txn:
        txn.insert("t", {"id": key})


def test_a_silent_line_is_an_error_and_then_another_line(afar: hc.Database, proxy: Proxy) -> None:
    proxy.weather = SILENT
    with pytest.raises(hc.UnavailableError, match="no answer within") as error:
        afar.begin()
    assert error.value.outcome == "not_committed"
    proxy.weather = CALM
    # The old connection stays silent for ever: bytes are missing in it. The handle goes on.
    _insert(afar, 1)
    assert afar.table("t").count() == 1


def test_a_commit_into_the_void_is_unknown(
    afar: hc.Database, owner: hc.Database, proxy: Proxy
) -> None:
    for key, token in ((1, None), (2, "once")):
        txn = afar.begin(token=token)
        txn.insert("t", {"id": key})
        proxy.weather = SILENT
        with pytest.raises(hc.UnavailableError) as error:
            txn.commit()
        assert error.value.outcome == "unknown"
        proxy.weather = CALM
    _insert(afar, 2, token="once")
    assert owner.table("t").to_arrow().column("id").to_pylist() == [2]


def test_a_line_that_is_cut_is_made_again(afar: hc.Database, proxy: Proxy) -> None:
    for key in range(5):
        _insert(afar, key)
        proxy.cut()
        assert afar.table("t").count() == key + 1
