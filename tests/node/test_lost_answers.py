"""The owner has heard a request and its answer never arrives: nobody is told something wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.node.channel import Channel
from halocline.node.link import Link, Local
from halocline.node.routes import NearRoute
from halocline.node.wire import Ping
from tests.roles import node_of, owner_of


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db") as db:
        db.create_table("t", {"id": int}, "id")
        yield db
        assert not db.check()


@pytest.fixture
def node(owner: hc.Database) -> Iterator[hc.Database]:
    with hc.open(owner.path) as db:
        db.begin().rollback()
        yield db


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From now on the next answer to this thread is lost, after the owner has done its work."""
    whole = Channel.receive

    def arm() -> None:
        lost: list[bytes | None] = []

        def receive(self: Channel, bytes_max: int, *spin: Any) -> bytes | None:
            body = whole(self, bytes_max, *spin)
            if threading.current_thread() is threading.main_thread() and not lost:
                lost.append(body)
                raise ConnectionResetError("cut")
            return body

        monkeypatch.setattr(Channel, "receive", receive)

    return arm


def test_a_snapshot_is_not_named_twice(owner: hc.Database, node: hc.Database, lose: Any) -> None:
    lose()
    with pytest.raises(hc.UnavailableError, match="snapshot 'monday'") as error:
        node.snapshot("monday")
    assert error.value.outcome == "unknown"
    assert [one.name for one in node.snapshots()] == ["monday"]
    node.health()  # another connection
    lose()
    with pytest.raises(hc.UnavailableError) as error:
        node.drop_snapshot("monday")
    assert error.value.outcome == "unknown"
    assert node.snapshots() == []


def test_a_definition_is_run_again(node: hc.Database, lose: Any) -> None:
    tries: list[int] = []

    def define(txn: hc.Transaction) -> None:
        tries.append(1)
        txn.create_table("u", {"id": int}, "id")
        if len(tries) == 1:
            lose()
        txn.create_table("v", {"id": int}, "id")

    node.run(define)
    assert len(tries) == 2
    assert node.tables() == ["t", "u", "v"]


def test_a_commit_that_cannot_be_asked_for_again_is_unknown(
    node: hc.Database, lose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was heard; then there is nobody any more who could say so."""
    txn = node.begin(token="once")
    txn.insert("t", {"id": 1})
    lose()
    find = Link._find

    def nobody(self: Link) -> None:
        raise hc.UnavailableError("nobody is there")

    monkeypatch.setattr(Link, "_find", nobody)
    with pytest.raises(hc.UnavailableError, match="nobody is there") as error:
        txn.commit()
    assert error.value.outcome == "unknown"
    monkeypatch.setattr(Link, "_find", find)
    again = node.begin(token="once")
    assert again.already_committed
    again.rollback()


def _never() -> Local:
    raise AssertionError("the owner is there")


def test_waiting_for_a_long_answer_takes_no_places(owner: hc.Database, node: hc.Database) -> None:
    """A request may take hours; whether the owner is awake is asked every few seconds."""
    service, link = owner_of(owner).service, node_of(node).link
    assert service is not None
    for _ in range(50):
        NearRoute(owner.path, _never).check_awake(link, Ping())
    until = time.monotonic() + 30
    while len(service._desk) > 2:
        assert time.monotonic() < until, "connections pile up at the owner"
        time.sleep(0.001)
    assert len(link._idle) <= 2
