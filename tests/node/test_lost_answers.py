"""The owner has heard a request and its answer never arrives: nobody is told something wrong."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import halocline as hc
from halocline.log.record import encode_commit
from halocline.node import wire
from halocline.node.channel import Channel
from halocline.node.link import Link, Local
from halocline.node.routes import NearRoute
from halocline.node.wire import Ping
from halocline.rows.nodes import Append, encode_node
from halocline.schema.codec import encode as encode_rows
from tests.node.handles import calling, greet, secret_of
from tests.roles import node_of, owner_of

OPTIONS = hc.Options()
COLUMNS = {"id": int}


@pytest.fixture
def node(node: hc.Database) -> hc.Database:
    """One that has a connection."""
    node.begin().rollback()
    return node


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


def test_a_commit_whose_answer_is_lost_has_happened_once(
    owner: hc.Database, node: hc.Database, lose: Any
) -> None:
    """Whatever it is: one row, several rows, a definition."""
    for key in range(3):
        with node.begin() as txn:
            txn.insert("t", {"id": key} if key else [{"id": 0}, {"id": 10}])
            if key == 2:
                txn.create_table("u", {"id": int}, "id")
            lose()
        assert txn.commit_ts == owner.visible_ts
    assert owner.table("t").count() == 4
    assert owner.tables() == ["t", "u"]


@pytest.mark.parametrize("rows", [1, 2])
def test_a_commit_that_arrives_again_is_not_committed_again(owner: hc.Database, rows: int) -> None:
    """By another connection, which says so, and by the first one, late, which does not."""
    state = next(iter(owner.core.engine.tables.values()))
    body = encode_rows([(key,) for key in range(rows)])
    node = Append(state.table_id, [(key,) for key in range(rows)], body=body)
    record = bytes(encode_commit(0, 0, [encode_node(node, None)]))
    commit = wire.Commit(owner.visible_ts, 0, record, single=rows == 1, serial=(77, 1))
    with calling(owner) as first, calling(owner) as second:
        for channel in (first, second):
            greet(channel, secret_of(owner))
        stamps = []
        for channel, again in ((first, False), (second, True), (first, False), (second, True)):
            channel.send(msgspec.structs.replace(commit, again=again))
            reply = channel.receive(1 << 16)
            assert reply is not None
            answer = wire.decode_reply(reply)
            assert isinstance(answer, wire.Done)
            stamps.append(msgspec.msgpack.decode(answer.value))
        assert set(stamps) == {owner.visible_ts}
    assert owner.table("t").count() == rows


def test_serials_outlive_owners_and_checkpoints(tmp_path: Path) -> None:
    for turn in range(3):
        with hc.open(tmp_path / "db") as first:
            if not turn:
                first.create_table("t", {"id": int}, "id")
            with hc.open(first.path) as other:
                with other.begin() as txn:
                    txn.insert("t", {"id": turn})
                ((sequence, number),) = node_of(other).link._sequences
            if turn == 1:
                first.checkpoint()
        with hc.open(tmp_path / "db") as later:
            assert later.core.engine.serials.find((sequence, number)) == txn.commit_ts
            assert not later.core.engine.serials.find((sequence, number + 1))


def _never() -> Local:
    raise AssertionError("the owner is there")


def test_waiting_for_a_long_answer_takes_no_places(owner: hc.Database, node: hc.Database) -> None:
    """A request may take hours; whether the owner is awake is asked every few seconds."""
    service, link = owner_of(owner).service, node_of(node).link
    assert service is not None
    for _ in range(50):
        NearRoute(owner.path, _never).check_awake(link, Ping())
    until = time.monotonic() + 30
    while len(service._loop) > 2:
        assert time.monotonic() < until, "connections pile up at the owner"
        time.sleep(0.001)
    assert len(link._idle) <= 2
