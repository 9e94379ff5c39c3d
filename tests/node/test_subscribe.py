"""Subscriptions: every commit once and in order, by every way; nobody waits for the slow."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

import halocline as hc
from halocline.node import push, streams, wire
from halocline.node.session import Session
from halocline.node.subscription import Delivery, Subscription, unseen
from halocline.node.wire import HEAD, encode
from tests.node.handles import calling, dialing, greet, secret_of
from tests.node.handles import far as connect
from tests.node.test_logtail import Copy, change_at_random
from tests.roles import owner_of

OPTIONS = hc.Options(
    background=False, bulk_rows=4, object_rows_min=12, object_rows=16, page_rows=4, compact_depth=1
)
SMALL_LOG = hc.Options(background=False, log_file_bytes=4096, log_file_bytes_first=4096)
TABLES = {"other": {"id": int}}
LONG_S = 30.0


@pytest.fixture(params=["owner", "socket", "tls", "reading"])
def handle(
    owner: hc.Database, certificate: tuple[str, str], request: pytest.FixtureRequest
) -> Iterator[hc.Database]:
    """The same database, in every way to be subscribed to."""
    if request.param == "owner":
        yield owner
    elif request.param == "socket":
        with hc.open(owner.path, options=OPTIONS) as node:
            yield node
    else:
        door = owner.serve(tls=certificate, read_token="only looking")
        token = door.token if request.param == "tls" else "only looking"
        named = {"token": token, "read_only": request.param == "reading", "options": OPTIONS}
        with connect(door, certificate, **named) as node:
            yield node


def _insert(db: hc.Database, key: int, table: str = "t") -> int:
    with db.begin() as txn:
        txn.insert(table, {"id": key, "v": key} if table == "t" else {"id": key})
    assert txn.commit_ts is not None
    return txn.commit_ts


def _next(feed: Subscription) -> Delivery:
    delivery = feed.read(LONG_S)
    assert delivery is not None
    return delivery


# -- what comes ----------------------------------------------------------------------------------


def test_a_commit_comes_with_its_rows(owner: hc.Database, handle: hc.Database) -> None:
    with handle.subscribe("t") as feed:
        begun = feed.position
        _insert(owner, 1, "other")
        ts = _insert(owner, 7)
        commit_ts, messages = _next(feed)
        assert commit_ts == ts == feed.position > begun
        (message,) = messages
        assert (message.kind, message.table) == ("Rows", "t")
        assert message.rows.select(["id", "v"]).to_pylist() == [{"id": 7, "v": 7}]
        assert feed.read(0.01) is None


@pytest.mark.parametrize("seed", range(2))
def test_the_messages_applied_are_the_table(
    owner: hc.Database, handle: hc.Database, seed: int
) -> None:
    chance, copy, keys = random.Random(seed), Copy(owner.path), set[int]()
    with handle.subscribe("t", since=0) as feed:
        for _ in range(25):
            change_at_random(owner, chance, keys)
            _insert(owner, 10_000 + _, "other")
        mark = _insert(owner, 9999)
        for delivery in feed:
            for message in delivery.messages:
                assert message.table == "t"
                copy.apply(message.kind, message.rows)
            if delivery.commit_ts == mark:
                break
    found = owner.table("t").to_arrow().to_pylist()
    assert sorted(map(_pair, copy.live())) == sorted(map(_pair, found))
    assert {row["id"] for row in found} == keys | {9999}


def _pair(row: dict[str, Any]) -> tuple[int, int]:
    return row["id"], row["v"]


def test_the_whole_database_is_one_subscription(owner: hc.Database, handle: hc.Database) -> None:
    with handle.subscribe() as feed:
        with owner.begin() as txn:
            txn.insert("t", {"id": 1, "v": 1})
            txn.insert("other", {"id": 2})
        owner.create_table("late", {"id": int}, "id")
        _insert(owner, 3, "late")
        first, second = _next(feed), _next(feed)
        assert first.commit_ts == txn.commit_ts
        assert [message.table for message in first.messages] == ["t", "other"]
        assert [message.table for message in second.messages] == ["late"]


def test_it_goes_on_where_another_one_has_ended(owner: hc.Database, handle: hc.Database) -> None:
    stamps = [_insert(owner, key) for key in range(6)]
    with handle.subscribe("t", since=0) as feed:
        found = [_next(feed).commit_ts for _ in range(3)]
    with handle.subscribe("t", since=feed.position) as feed:
        found += [_next(feed).commit_ts for _ in range(3)]
        assert feed.read(0.01) is None
    assert found == stamps


@pytest.mark.parametrize("size", [1, 2000, 1 << 20])
def test_much_comes_in_parts_whatever_the_files_of_the_log(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "PUSH_BYTES_MAX", size)
    with hc.open(tmp_path / "db", options=SMALL_LOG) as db:
        db.create_table("t", {"id": int, "v": int}, "id")
        stamps = [_insert(db, key) for key in range(80)]
        assert owner_of(db).log.places.last_file() > 2
        with db.subscribe("t", since=0) as feed:
            assert [_next(feed).commit_ts for _ in stamps] == stamps
            stamps = [_insert(db, key) for key in range(100, 180)]
            assert [_next(feed).commit_ts for _ in stamps] == stamps


def test_it_reaches_back_into_an_earlier_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "LOOK_RECORDS", 1)
    monkeypatch.setattr(push, "BEAT_S", 0.001)  # signs of life between entries
    stamps: list[int] = []
    for opening in range(3):
        with hc.open(tmp_path / "db", options=OPTIONS) as db:
            db.create_table("t", {"id": int, "v": int}, "id", if_not_exists=True)
            stamps += [_insert(db, 100 * opening + key) for key in range(5)]
            with db.subscribe("t", since=stamps[1]) as feed:
                assert [_next(feed).commit_ts for _ in stamps[2:]] == stamps[2:]


def test_commits_that_are_not_synced_come_when_they_are(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", durability="async", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "v": int}, "id")
        with db.subscribe("t") as feed:
            stamps = [_insert(db, key) for key in range(20)]
            assert [_next(feed).commit_ts for _ in stamps] == stamps


# -- what cannot be ------------------------------------------------------------------------------


def test_refusals_come_at_once(owner: hc.Database, handle: hc.Database) -> None:
    with pytest.raises(hc.NotFoundError, match="missing"):
        handle.subscribe("missing")
    with pytest.raises(hc.UsageError, match="future"):
        handle.subscribe("t", since=1000)
    with pytest.raises(hc.UsageError):
        handle.subscribe(7)  # type: ignore[arg-type]


def test_a_reader_without_an_owner_cannot_subscribe(owner: hc.Database) -> None:
    with (
        hc.open(owner.path, read_only=True, options=OPTIONS) as reader,
        pytest.raises(hc.UsageError, match="read_only"),
    ):
        reader.subscribe("t")


def test_a_table_that_is_dropped_ends_it(owner: hc.Database, handle: hc.Database) -> None:
    with handle.subscribe("t") as feed:
        ts = _insert(owner, 1)
        owner.drop_table("t")
        assert _next(feed).commit_ts == ts
        with pytest.raises(hc.NotFoundError):
            feed.read(LONG_S)


def test_a_table_that_is_renamed_goes_on_under_its_new_name(
    owner: hc.Database, handle: hc.Database
) -> None:
    with handle.subscribe("t") as feed:
        first = _insert(owner, 1)
        owner.rename_table("t", "u")
        owner.create_table("t", {"id": int, "v": int}, primary_key="id")
        _insert(owner, 9)
        with owner.begin() as txn:
            txn.insert("u", {"id": 2, "v": 2})
        found = [_next(feed), _next(feed)]
        assert [one.commit_ts for one in found] == [first, txn.commit_ts]
        assert [one.messages[0].table for one in found] in (["t", "u"], ["u", "u"])
        owner.drop_table("u")
        with pytest.raises(hc.NotFoundError):
            feed.read(LONG_S)
    owner.drop_table("t")


def test_who_is_too_far_behind_begins_with_a_checkpoint(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=SMALL_LOG) as db:
        db.create_table("t", {"id": int, "v": str}, "id")
        slow = owner_of(db).answers.hub.open(wire.Subscribe(0, "t"))
        pushes = iter(slow)
        assert next(pushes) == wire.Pushed(0, 0, ())
        for key in range(60):
            with db.begin() as txn:
                txn.insert("t", {"id": key, "v": "x" * 200})
            if key % 20 == 19:
                db.checkpoint()
        with pytest.raises(hc.SnapshotExpiredError, match="checkpoint"):
            list(pushes)
        with pytest.raises(hc.SnapshotExpiredError, match="subscribe since") as gone:
            db.subscribe("t", since=1)
        facts = owner_of(db).answers.answer(Session(0, iter(())), wire.ListCheckpoints())
        assert [fact.ts for fact in facts] == sorted((fact.ts for fact in facts), reverse=True)
        assert gone.value.floor <= facts[0].since <= facts[0].ts
        assert db.core.engine.shelf.objects.size(facts[0].key) == facts[0].size_bytes
        with db.subscribe("t", since=facts[0].since) as feed:
            assert _next(feed).commit_ts == facts[0].since + 1
        _until(lambda: not owner_of(db).answers.hub.feeds())


def test_a_gap_is_an_error_and_what_comes_twice_is_dropped() -> None:
    parts = [[(5, 5), (6, 8)], [(7, 9), (9, 9), (11, 12)]]
    opened: list[int | None] = []

    class Parts:
        def __iter__(self) -> Iterator[wire.Pushed]:
            for start, end in parts.pop(0):
                yield wire.Pushed(start, end, ())
            raise ConnectionResetError("lost")

        def stop(self) -> None:
            pass

    def open_stream(since: int | None) -> Any:
        opened.append(since)
        return Parts()

    with Subscription(open_stream, None) as feed:
        with pytest.raises(hc.CorruptionError, match="gap"):
            feed.read(LONG_S)
        assert opened == [None, 8]
        assert feed.pump.end == 9


@pytest.mark.parametrize(
    ("start", "stop", "first"),
    [(90, 110, 101), (85, 95, None), (101, 110, 101), (0, 100, None), (100, 101, 101)],
    ids=["overlap", "inside", "neighbour", "all of it", "one more"],
)
def test_n04_what_overlaps_or_adjoins_extends_what_has_come(
    start: int, stop: int, first: int | None
) -> None:
    assert unseen(100, start, stop) == first


def test_n04_a_gap_is_an_error() -> None:
    with pytest.raises(hc.CorruptionError, match="gap"):
        unseen(100, 110, 120)
    with pytest.raises(hc.CorruptionError, match="not a range"):
        unseen(100, 95, 90)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20))))
def test_n04_whatever_arrives_all_up_to_the_end_has_come(parts: list[tuple[int, int]]) -> None:
    end, have = 10, set(range(11))
    for start, length in parts:
        try:
            first = unseen(end, start, start + length)
        except hc.CorruptionError:
            assert start > end + 1
            continue
        if first is not None:
            assert first == end + 1  # each commit once, in order
            end = start + length
            have |= set(range(first, end + 1))
        assert have == set(range(end + 1))


# -- slow, many, and the end ---------------------------------------------------------------------


Leave = Callable[[], None]


def _stalled(owner: hc.Database, way: str, certificate: tuple[str, str]) -> tuple[push.Hub, Leave]:
    """A subscriber that says what it wants and then reads nothing more."""
    if way == "socket":
        context, token, hub = calling(owner), secret_of(owner), owner_of(owner).answers.hub
    else:
        door = owner.serve(tls=certificate)
        context, token = dialing(door, tls=True), door.token.encode()
        hub = door._answers.hub
    channel = context.__enter__()
    greet(channel, token)
    channel.send(wire.Subscribe(None, "wide"))
    return hub, lambda: context.__exit__(None, None, None)  # type: ignore[return-value]


def _until(done: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1500):
        if done():
            return
        pause.wait(0.02)
    pytest.fail("it never happened")


def _fill(owner: hc.Database, first: int) -> None:
    """More than sockets and windows hold."""
    for key in range(first, first + 6):
        with owner.begin() as txn:
            txn.insert("wide", {"id": key, "text": "x" * (4 << 20)})


def _stands_still(feed: push.Feed) -> bool:
    """Has it pushed nothing for a while, though there is more?"""
    before = feed._told
    threading.Event().wait(0.3)
    return feed._told == before


@pytest.mark.parametrize("way", ["socket", "tls"])
def test_nobody_waits_for_a_subscriber_that_does_not_read(
    owner: hc.Database, way: str, certificate: tuple[str, str]
) -> None:
    owner.create_table("wide", {"id": int, "text": str}, "id")
    hub, leave = _stalled(owner, way, certificate)
    _until(lambda: len(hub.feeds()) == 1)
    (feed,) = hub.feeds()
    _fill(owner, 0)
    _until(lambda: _stands_still(feed))
    held = feed._told
    _fill(owner, 100)
    assert owner.table("wide").count() == 12
    assert feed._told == held < owner.visible_ts
    owner.close()  # the end does not wait for it, either
    assert not hub.feeds()
    leave()


def test_a_subscriber_that_does_not_read_is_cut_off(
    owner: hc.Database, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PUSH_S", 1)
    owner.create_table("wide", {"id": int, "text": str}, "id")
    ways = [_stalled(owner, way, certificate) for way in ("socket", "tls")]
    _until(lambda: all(len(hub.feeds()) == 1 for hub, _ in ways))
    _fill(owner, 0)
    _until(lambda: not any(hub.feeds() for hub, _ in ways))
    for _, leave in ways:
        leave()


@pytest.mark.parametrize("way", ["socket", "tls"])
def test_whoever_leaves_makes_room(
    owner: hc.Database, way: str, certificate: tuple[str, str]
) -> None:
    owner.create_table("wide", {"id": int, "text": str}, "id")
    hub, leave = _stalled(owner, way, certificate)
    _until(lambda: len(hub.feeds()) == 1)
    leave()
    _until(lambda: not hub.feeds())


def test_there_are_only_so_many(
    owner: hc.Database, handle: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "SUBSCRIBERS_MAX", 2)
    with handle.subscribe("t"), handle.subscribe() as second:
        with pytest.raises(hc.UnavailableError, match="close one, or try later"):
            handle.subscribe("other")
        _insert(owner, 1)
        assert _next(second).messages


def test_closing_ends_who_waits(owner: hc.Database, handle: hc.Database) -> None:
    found: list[Any] = []
    for end in (lambda feed: feed.close(), lambda feed: handle.close()):
        feed = handle.subscribe("t")
        thread = threading.Thread(target=lambda: found.append(list(feed)))  # noqa: B023
        thread.start()
        end(feed)
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert found == [[], []]


def test_ctrl_c_ends_the_wait_and_nothing_else(owner: hc.Database, handle: hc.Database) -> None:
    main = threading.get_ident()
    with handle.subscribe("t") as feed:
        for key in range(3):
            timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                feed.read(LONG_S)
            timer.join()
            ts = _insert(owner, key)
            assert _next(feed).commit_ts == ts


def test_a_server_that_stops_says_so(owner: hc.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halocline.node.subscription.FIND_S", 0.2)
    door = owner.serve()
    with hc.connect(door.uri, door.token, options=OPTIONS) as db, db.subscribe("t") as feed:
        ts = _insert(owner, 1)
        assert _next(feed).commit_ts == ts
        door.stop()
        with pytest.raises(hc.UnavailableError, match="lost"):
            feed.read(LONG_S)


@pytest.mark.parametrize("way", ["socket", "tls"])
def test_mutated_subscriptions_leave_nothing_behind(
    owner: hc.Database, way: str, certificate: tuple[str, str], sim: bool
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    _insert(owner, 1)
    good = [encode(wire.Subscribe(since, table)) for since in (None, 0, 3) for table in ("t", None)]
    door = owner.serve(tls=certificate) if way == "tls" else None
    for _ in range(2000 if sim else 150):
        body = bytearray(chance.choice(good))
        for _ in range(chance.randrange(3)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        with calling(owner) if door is None else dialing(door, tls=True) as channel:
            greet(channel, secret_of(owner) if door is None else door.token.encode())
            channel.sock.sendall(HEAD.pack(len(body), crc32(body)) + body)
            reply = channel.receive(1 << 20)
        assert reply is not None
        wire.decode_reply(reply)
    hub = owner_of(owner).answers.hub if door is None else door._answers.hub
    _until(lambda: not hub.feeds())
    assert owner.table("t").count() == 1


def test_a_token_is_asked_for(owner: hc.Database) -> None:
    door = owner.serve()
    with dialing(door) as channel:
        assert greet(channel, b"wrong")[:2] == ["failed", "UsageError"]
        with suppress(OSError):
            channel.send(wire.Subscribe())
        with suppress(ConnectionError):
            assert channel.receive(1 << 20) is None
    assert not door._answers.hub.feeds()


def test_it_goes_on_with_the_next_owner(tmp_path: Path) -> None:
    """The owner is killed; this process takes over, and its subscription misses nothing."""
    script = f"""
import sys
import halocline as hc
db = hc.open({str(tmp_path / "db")!r})
db.create_table("t", {{"id": int, "v": int}}, "id")
print("ready", flush=True)
for key in sys.stdin:
    with db.begin() as txn:
        txn.insert("t", {{"id": int(key), "v": 0}})
    print(txn.commit_ts, flush=True)
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == "ready\n"
        with hc.open(tmp_path / "db") as db, db.subscribe("t") as feed:
            assert db.role == "node"
            owner.stdin.write("1\n")
            owner.stdin.flush()
            assert _next(feed).commit_ts == int(owner.stdout.readline())
            os.kill(owner.pid, signal.SIGKILL)
            owner.wait()
            stamps = [_insert(db, key) for key in (2, 3)]
            assert db.role == "owner"
            assert [_next(feed).commit_ts for _ in stamps] == stamps
    finally:
        owner.kill()
        owner.wait()
        owner.stdin.close()
        owner.stdout.close()
