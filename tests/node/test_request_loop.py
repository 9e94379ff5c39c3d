"""The request loop with real sockets: a caller that stalls, hurries or fails holds up no other."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import halocline as hc
from halocline.log.record import DML_A, encode_commit
from halocline.log.tape import Tape
from halocline.node import service, wire
from halocline.node.channel import Channel
from halocline.node.endpoint import read_endpoint
from halocline.node.request_loop import SHORT_BYTES, RequestLoop
from halocline.node.service import Service
from halocline.node.wire import HEAD, Hello, frame
from halocline.rows import nodes
from halocline.schema.codec import encode as encode_rows
from halocline.schema.schema import Schema
from tests.roles import committer_of, maintenance_of, owner_of

WAIT_S = 30
OPTIONS = hc.Options(background=False, page_rows=4)
COLUMNS = {"id": int, "text": str}
PING = frame(wire.Ping())


@pytest.fixture
def db(owner: hc.Database) -> hc.Database:
    return owner


@contextmanager
def caller(db: hc.Database) -> Iterator[Channel]:
    """A connection that has said hello."""
    endpoint = read_endpoint(db.path)
    assert endpoint is not None
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(endpoint.socket)
        channel = Channel(sock)
        channel.send(Hello(wire.VERSION, endpoint.secret, os.getpid(), 0))
        assert said(channel)[0] == "welcome"
        yield channel


def said(channel: Channel) -> Any:
    body = channel.receive(1 << 20)
    assert body is not None, "the owner hung up"
    return msgspec.msgpack.decode(body)


def row_record(kind: int, table_id: int, body: bytes) -> bytes:
    """The record of one row, as another process sends it."""
    head = nodes.HEAD.pack(nodes.VERSION, nodes.ROWS, 0, table_id, 0, 0, 1)
    return bytes(encode_commit(0, 0, [(kind, head + body)]))


def insert(db: hc.Database, key: int) -> bytes:
    """The frame of a commit of one row."""
    state = db.core.engine.tables[1]
    assert isinstance(state.schema, Schema)
    body = state.schema.encode_rows([(key, "x")])
    record = row_record(DML_A, state.table_id, body)
    return frame(wire.Commit(db.visible_ts, 0, record, None, True))


@contextmanager
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """The next sync begins, which sets the first event, and waits for the second."""
    real, began, go_on = Tape.sync, threading.Event(), threading.Event()

    def wait_once(tape: Tape) -> None:
        if not began.is_set():
            began.set()
            assert go_on.wait(WAIT_S)
        real(tape)

    with monkeypatch.context() as patch:
        patch.setattr(Tape, "sync", wait_once)
        yield began, go_on


def check_others(db: hc.Database) -> None:
    """Somebody else is answered at once."""
    with caller(db) as channel:
        channel.sock.sendall(PING)
        assert said(channel)[0] == "done"


def until(due: Callable[[], bool]) -> None:
    bell = threading.Event()
    for _ in range(WAIT_S * 100):
        if due():
            return
        bell.wait(0.01)
    raise AssertionError("it never happened")


def keys(db: hc.Database) -> list[int]:
    return sorted(db.table("t").to_arrow().column("id").to_pylist())


# -- those who stall -----------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 7, 8, 9, -1])
def test_half_a_request_holds_up_nobody(db: hc.Database, cut: int) -> None:
    data = insert(db, 1)
    with caller(db) as slow:
        slow.sock.sendall(data[:cut])
        check_others(db)
        check_others(db)
        slow.sock.sendall(data[cut:])
        assert said(slow)[0] == "done"
    assert keys(db) == [1]


def test_half_a_request_does_not_keep_the_loop_busy(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = _count(monkeypatch, "halocline.node.request_loop.RequestLoop._turn")
    with caller(db) as slow:
        slow.sock.sendall(PING[:5])
        check_others(db)
        before = len(turns)
        check_others(db)
        assert len(turns) - before < 20
        slow.sock.sendall(PING[5:])
        assert said(slow)[0] == "done"


def test_half_a_long_request_holds_up_nobody(db: hc.Database) -> None:
    with caller(db) as slow:
        slow.sock.sendall(HEAD.pack(1 << 20, 0) + b"x" * 1000)
        check_others(db)
    with caller(db) as slow:
        slow.sock.sendall(HEAD.pack(wire.FRAME_BYTES_MAX + 1, 0) + b"x" * 1000)
        with suppress(ConnectionError):
            assert slow.receive(100) is None
    check_others(db)
    until(lambda: not any(t.name == "halocline-connection" for t in threading.enumerate()))


def test_who_never_reads_its_answers_holds_up_nobody(db: hc.Database) -> None:
    with caller(db) as silent:
        sent = 0
        silent.sock.setblocking(False)
        with suppress(BlockingIOError):
            while sent < 1 << 22:
                sent += silent.sock.send((PING * 1000)[sent % len(PING) :])
        assert sent < 1 << 22, "it was answered all the time"
        check_others(db)
        silent.sock.settimeout(WAIT_S)
        for _ in range(sent // len(PING)):
            assert said(silent)[0] == "done"
        check_others(db)


def test_who_leaves_before_the_welcome_leaves_no_session(db: hc.Database) -> None:
    endpoint = read_endpoint(db.path)
    assert endpoint is not None
    hello = frame(Hello(wire.VERSION, endpoint.secret, os.getpid(), 0))
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(endpoint.socket)
            sock.sendall(hello)
    door = owner_of(db).service
    assert isinstance(door, Service)
    check_others(db)
    until(lambda: len(door._loop) == 0)
    assert len(door._sessions) == 1  # that of the process itself


# -- those who do not wait for answers -----------------------------------------------------------


def test_requests_in_a_row_are_answered_in_a_row(db: hc.Database) -> None:
    """Commits whose pages are frozen aside, long requests, and short ones, all sent at once."""
    health = frame(wire.Command("health"))
    with caller(db) as hasty:
        for first in range(0, 60, 20):
            rows = [insert(db, key) for key in range(first, first + 20)]
            hasty.sock.sendall(b"".join(row + PING + health for row in rows))
            stamps = []
            for _ in rows:
                stamps.append(said(hasty)[1])
                assert said(hasty)[1][0] == "position"
                assert said(hasty)[0] == "done"
            assert stamps == sorted(stamps)
            check_others(db)
    assert keys(db) == list(range(60))


def test_who_sends_without_end_holds_up_nobody(db: hc.Database) -> None:
    done = threading.Event()

    def hurry() -> None:
        with caller(db) as hasty:
            while not done.is_set():
                hasty.sock.sendall(PING * 50)
                for _ in range(50):
                    said(hasty)

    threads = [threading.Thread(target=hurry) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            check_others(db)
    finally:
        done.set()
        for thread in threads:
            thread.join(WAIT_S)


# -- many ----------------------------------------------------------------------------------------


def test_there_are_only_so_many_places(db: hc.Database) -> None:
    endpoint = read_endpoint(db.path)
    assert endpoint is not None
    with ExitStack() as stack:
        for _ in range(service.CONNECTIONS_MAX):
            stack.enter_context(caller(db))
        for _ in range(300 - service.CONNECTIONS_MAX):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(WAIT_S)
                sock.connect(endpoint.socket)
                assert "connections already" in str(said(Channel(sock)))
    door = owner_of(db).service
    assert isinstance(door, Service)
    until(lambda: len(door._loop) == 0)
    check_others(db)


def test_numbers_of_connections_are_used_again(db: hc.Database) -> None:
    """Some leave in the middle of a request or of its answer, others get their file numbers."""
    errors: list[BaseException] = []

    def come_and_go(first: int) -> None:
        try:
            for key in range(first, first + 25):
                with caller(db) as channel:
                    channel.sock.sendall(insert(db, key))
                    assert said(channel)[0] == "done"
                with caller(db) as channel:
                    channel.sock.sendall(frame(wire.Command("health")) + PING[: key % 12])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=come_and_go, args=(n * 100,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not errors
    assert len(keys(db)) == 100
    door = owner_of(db).service
    assert isinstance(door, Service)
    until(lambda: len(door._loop) == 0)


def test_an_owner_without_file_numbers_takes_in_those_who_wait_later(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(errno.EMFILE, "too many open files")] * 3
    real = socket.socket.accept

    def accept(sock: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return real(sock)

    monkeypatch.setattr(socket.socket, "accept", accept)
    check_others(db)  # taken in by the call that was waiting already
    check_others(db)
    assert not failures


# -- commits of one moment -----------------------------------------------------------------------


@contextmanager
def together(db: hc.Database, count: int) -> Iterator[list[Channel]]:
    """So many commits have been sent when the commit lock is let go."""
    committer = committer_of(db.core)
    with ExitStack() as stack:
        channels = [stack.enter_context(caller(db)) for _ in range(count)]
        frames = [insert(db, key) for key in range(count)]
        with committer.lock:
            for channel, data in zip(channels, frames, strict=True):
                channel.sock.sendall(data)
        yield channels


def test_commits_of_one_moment_share_a_sync(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = _count(monkeypatch, "halocline.log.tape.Tape.sync")
    with together(db, 8) as channels:
        stamps = [said(channel)[1] for channel in channels]
    assert sorted(stamps) == list(range(min(stamps), min(stamps) + 8))
    assert len(syncs) <= 3  # the first may go alone
    assert keys(db) == list(range(8))


def test_who_hangs_up_behind_a_commit_is_answered_first(db: hc.Database) -> None:
    """As all do whom a closing owner has cut off: their commits are not to be left in doubt."""
    with caller(db), caller(db):
        for key in range(20):
            with caller(db) as channel:
                channel.sock.sendall(insert(db, key))
                channel.sock.shutdown(socket.SHUT_WR)
                assert said(channel)[0] == "done"
                assert channel.receive(1 << 20) is None
    assert keys(db) == list(range(20))


def test_who_is_refused_and_has_hung_up_takes_nobody_with_it(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file number may be somebody else's while the other rows of its turn are logged."""
    dismissed: list[Any] = []
    dismiss = RequestLoop._dismiss

    def note(loop: RequestLoop, caller: Any) -> None:
        dismissed.append(caller)
        dismiss(loop, caller)

    monkeypatch.setattr(RequestLoop, "_dismiss", note)
    record = row_record(DML_A, 1, encode_rows([(77, "x")]))
    late = frame(wire.Commit(db.visible_ts + 1000, 0, record, None, False))  # not yet: refused
    with caller(db) as first, caller(db) as good, caller(db), slow_disk(monkeypatch) as disk:
        began, go_on = disk
        with caller(db) as bad:
            first.sock.sendall(insert(db, 1))
            assert began.wait(WAIT_S)
            good.sock.sendall(insert(db, 2))
            bad.sock.sendall(late)
        go_on.set()
        assert said(first)[0] == said(good)[0] == "done"
        check_others(db)
    until(lambda: len(dismissed) == 5)
    assert len(set(dismissed)) == 5, "a caller was dismissed twice"


def test_a_log_that_fails_leaves_all_outcomes_open(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tape: Tape) -> None:
        raise OSError(5, "the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Tape, "sync", fail)
        with together(db, 6) as channels:
            answers = [said(channel) for channel in channels]
            assert {(tag, kind) for tag, kind, *_ in answers} == {("failed", "UnavailableError")}
            outcomes = [fields["outcome"] for _, _, fields, *_ in answers]
            # Those who came when the log had failed already are told so.
            assert "unknown" in outcomes
            assert set(outcomes) <= {"unknown", "not_committed"}
            channels[0].sock.sendall(PING)
            assert said(channels[0])[0] == "done"
        assert keys(db) == []
    # The request loop is still there, and nothing happens any more.
    with caller(db) as channel:
        channel.sock.sendall(insert(db, 100))
        assert said(channel)[2]["outcome"] == "not_committed"
    with suppress(hc.UnavailableError):
        db.close()
    with hc.open(db.path, options=OPTIONS) as again:
        assert not again.check()
        assert set(keys(again)) <= set(range(6))


def test_a_batch_whose_sync_fails_is_unknown_to_everybody(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit waits for the disk, the others for the lock: they are the batch."""
    real, began, go_on = Tape.sync, threading.Event(), threading.Event()

    def once(tape: Tape) -> None:
        if not began.is_set():
            began.set()
            assert go_on.wait(WAIT_S)
            real(tape)
        else:
            raise OSError(5, "the disk is gone")

    monkeypatch.setattr(Tape, "sync", once)
    with ExitStack() as stack:
        first, *rest = [stack.enter_context(caller(db)) for _ in range(6)]
        first.sock.sendall(insert(db, 0))
        assert began.wait(WAIT_S)
        for key, channel in enumerate(rest, 1):
            channel.sock.sendall(insert(db, key))
        go_on.set()
        assert said(first)[0] == "done"
        assert [said(channel)[2]["outcome"] for channel in rest] == ["unknown"] * 5
        check_others(db)
    with suppress(hc.UnavailableError):
        db.close()


def test_an_owner_that_lets_go_before_the_sync_leaves_the_outcome_open(db: hc.Database) -> None:
    answers = owner_of(db).answers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "_owner", lambda: None)
        with pytest.raises(hc.UnavailableError) as lost:
            answers.settle()
        assert lost.value.outcome == "unknown"
        answers.tidy([db.core.engine.tables[1]])  # the commit has happened: nothing to say


# -- aside ---------------------------------------------------------------------------------------


def test_back_pressure_slows_down_those_who_fill_the_memory(db: hc.Database) -> None:
    went, go_on = threading.Event(), threading.Event()

    def wait(state: Any) -> None:
        went.set()
        assert go_on.wait(WAIT_S)

    committer_of(db.core).after_tidy = wait
    with caller(db) as busy:
        for key in range(4):
            busy.sock.sendall(insert(db, key))
            assert said(busy)[0] == "done"
        busy.sock.sendall(insert(db, 4) + PING)  # the page is full: it is frozen now
        assert went.wait(WAIT_S)
        check_others(db)
        busy.sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            busy.sock.recv(1)
        busy.sock.settimeout(WAIT_S)
        go_on.set()
        assert isinstance(said(busy)[1], int)
        assert said(busy)[1][0] == "position"
    committer_of(db.core).after_tidy = None


def test_many_rows_in_few_bytes_are_committed_aside(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.create_table("log", {"v": int}, None)
    names = []
    real = owner_of(db).answers._commit

    def commit(*args: Any) -> Any:
        assert len(args[2].record) < SHORT_BYTES // 2
        names.append(threading.current_thread().name)
        return real(*args)

    monkeypatch.setitem(owner_of(db).answers._methods, wire.Commit, commit)
    with hc.open(db.path, options=OPTIONS) as node:
        with node.begin() as txn:
            txn.insert("log", [{"v": 0}] * 3)
        assert names == []
        with node.begin() as txn:
            txn.insert("log", pa.table({"v": [0] * 10_000}))
    assert names == ["halocline-connection"]
    assert db.table("log").count() == 10_003


def test_a_bug_aside_ends_one_connection(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(states: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(owner_of(db).answers, "tidy", fail)
    with caller(db) as channel:
        for key in range(5):
            channel.sock.sendall(insert(db, key))
            assert said(channel)[0] == "done"  # it is committed, whatever came after
        assert channel.receive(100) is None
    assert "a bug" in caplog.text
    check_others(db)


def test_no_more_threads_end_one_connection(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caller(db) as channel, monkeypatch.context() as patch:

        def fail(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", fail)
        channel.sock.sendall(frame(wire.Command("health")))
        assert channel.receive(100) is None
    assert "new thread" in caplog.text
    check_others(db)


def test_closing_answers_what_is_aside_and_cuts_off_the_rest(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    real = maintenance_of(db).health

    def slow() -> Any:
        began.set()
        assert go_on.wait(WAIT_S)
        return real()

    monkeypatch.setattr(maintenance_of(db), "health", slow)
    with caller(db) as busy, caller(db) as half, caller(db) as long, caller(db) as idle:
        busy.sock.sendall(frame(wire.Command("health")))
        assert began.wait(WAIT_S)
        half.sock.sendall(PING[:6])
        long.sock.sendall(HEAD.pack(1 << 20, 0) + b"x")
        closing = threading.Thread(target=db.close)
        closing.start()
        for channel in (half, long, idle):
            with suppress(ConnectionError):
                assert channel.receive(100) is None
        assert closing.is_alive()
        go_on.set()
        assert said(busy)[0] in ("done", "failed")
        closing.join(WAIT_S)
        assert not closing.is_alive()


def _count(monkeypatch: pytest.MonkeyPatch, name: str) -> list[None]:
    """Grows with every call."""
    place, _, method = name.rpartition(".")
    module, _, owner = place.rpartition(".")
    cls = getattr(__import__(module, fromlist=[owner]), owner)
    real = getattr(cls, method)
    calls: list[None] = []

    def counted(*args: Any, **named: Any) -> Any:
        calls.append(None)
        return real(*args, **named)

    monkeypatch.setattr(cls, method, counted)
    return calls
