"""Connections to a server: shared, broken off, ended; no wrong answer, no wrong outcome."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.node import Link, Server, link, routes, wire
from halocline.node import server as server_module
from tests.node.handles import WAIT_S, dialing, greet, until
from tests.node.handles import far as connect
from tests.roles import node_of

COLUMNS = {"id": int, "text": str}
LATE = 1 << 40
"""Nobody will commit that; who waits for it is answered after a second."""
Certificate = tuple[str, str]


@pytest.fixture
def db(far: hc.Database) -> hc.Database:
    _insert(far, 0)
    return far


def _insert(db: hc.Database, key: int, text: str = "") -> None:
    with db.begin() as txn:
        txn.insert("t", {"id": key, "text": text})


def _link(db: hc.Database) -> Link:
    link = node_of(db).link
    assert link.far
    return link


def _idle(db: hc.Database) -> list[Any]:
    return [channel for channel, _ in _link(db)._idle]


def _started(work: Callable[..., Any], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


# -- taking and giving back ----------------------------------------------------------------------


def test_one_thread_needs_one_connection(db: hc.Database, server: Server) -> None:
    for key in range(1, 20):
        _insert(db, key)
    assert db.table("t").count() == 20
    assert len(_idle(db)) == 1
    until(lambda: len(server._peers) == 1)


def test_many_threads_have_one_each(db: hc.Database, server: Server) -> None:
    threads = [_started(_link(db).ask, wire.WaitVisible(LATE), int) for _ in range(5)]
    for key in range(1, 10):
        _insert(db, key)
    for thread in threads:
        thread.join(WAIT_S)
    assert 1 <= len(_idle(db)) <= 6
    assert db.table("t").count() == 10
    assert len(server._sessions) == 1


def test_one_that_was_idle_is_not_used_again(
    db: hc.Database, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "IDLE_S", 0.0)
    (old,) = _idle(db)
    _insert(db, 1)
    assert old not in _idle(db)
    _link(db).drop_idle(0.0)
    until(lambda: not server._peers)
    _insert(db, 2)
    assert db.table("t").count() == 3


def test_who_says_nothing_for_long_is_hung_up_on(
    owner: hc.Database, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "IDLE_S", 0.2)
    server = owner.serve(tls=certificate)
    with connect(server, certificate) as db:
        _insert(db, 1)
        until(lambda: not server._peers)
        _insert(db, 2)  # a client that has slept so long comes back
    assert owner.table("t").count() == 2


def test_large_requests_and_answers_fit(db: hc.Database, owner: hc.Database) -> None:
    _insert(db, 1, "x" * 3_000_000)
    with owner.begin() as txn:
        assert len(txn.get("t", 1)["text"]) == 3_000_000
        txn.insert("t", {"id": 2, "text": "y" * 3_000_000})
    with db.begin() as txn:
        assert txn.get("t", 2)["text"] == "y" * 3_000_000
    assert len(_idle(db)) == 1


def test_nagle_is_off(db: hc.Database, server: Server) -> None:
    import socket

    (peer,) = server._peers
    near = socket.socket(fileno=_idle(db)[0].sock.fileno())
    try:
        for sock in (peer.sock, near):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        near.detach()


# -- breaking off --------------------------------------------------------------------------------


def test_after_ctrl_c_the_connection_is_given_up(db: hc.Database) -> None:
    (old,) = _idle(db)
    timer = threading.Timer(0.2, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        _link(db).ask(wire.WaitVisible(LATE), int)
    timer.join()
    assert old not in _idle(db)
    # The next request gets its own answer, not the one that nobody took.
    assert _link(db).ask(wire.ListLog(), list[str])
    _insert(db, 1)


def test_a_late_answer_is_not_waited_for(db: hc.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "CALL_S", 0.1)
    monkeypatch.setattr(link, "FIND_S", 0.0)
    (old,) = _idle(db)
    with pytest.raises(hc.UnavailableError, match="no answer within"):
        _link(db).ask(wire.WaitVisible(LATE), int)
    assert old not in _idle(db)
    monkeypatch.setattr(routes, "CALL_S", 20.0)
    _insert(db, 1)


def test_a_commit_that_cannot_be_sent_has_not_happened(
    owner: hc.Database, server: Server, db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "FIND_S", 0.2)
    txn, tokened = db.begin(), db.begin(token="once")
    for key, one in ((1, txn), (2, tokened)):
        one.insert("t", {"id": key, "text": ""})
    server.stop()
    for one in (txn, tokened):
        with pytest.raises(hc.UnavailableError, match="does not answer") as gone:
            one.commit()
        assert gone.value.outcome == "not_committed"
    assert owner.table("t").count() == 1


def test_a_commit_whose_answer_is_lost_is_found(
    owner: hc.Database, server: Server, db: hc.Database
) -> None:
    """The server hangs up when the commit has happened, and before it has said so."""
    commit = server._answers._methods[wire.Commit]

    def cut(*arguments: Any) -> Any:
        commit(*arguments)
        for peer in list(server._peers):
            peer.shut()

    plain, tokened = db.begin(), db.begin(token="once")
    for key, one in ((1, plain), (2, tokened)):
        one.insert("t", {"id": key, "text": ""})
    server._answers._methods[wire.Commit] = cut
    for one in (plain, tokened):
        one.commit()
        assert one.commit_ts == owner.visible_ts
    assert owner.table("t").count() == 3


def test_a_program_that_forks_or_forgets_to_close_ends(
    server: Server, db: hc.Database, certificate: Certificate
) -> None:
    script = f"""
import halocline as hc, os, sys
db = hc.connect({server.uri!r}, {server.token!r}, tls_roots={certificate[0]!r})
with db.begin() as txn:
    txn.insert("t", {{"id": 1, "text": "a"}})
if not (pid := os.fork()):
    try:
        db.begin()
    except hc.UsageError:
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
with db.begin() as txn:
    txn.insert("t", {{"id": 2, "text": "b"}})
"""
    run = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert db.table("t").count() == 3
    until(lambda: len(server._peers) == 1)


# -- the server ----------------------------------------------------------------------------------


def test_a_server_that_stops_finishes_commits_and_takes_no_others(
    owner: hc.Database, server: Server, db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "FIND_S", 0.2)
    gate, inside = threading.Event(), threading.Event()
    commit = server._answers._methods[wire.Commit]

    def slow(*arguments: Any) -> Any:
        inside.set()
        assert gate.wait(WAIT_S)
        return commit(*arguments)

    waiting = db.begin()
    waiting.insert("t", {"id": 2, "text": ""})
    server._answers._methods[wire.Commit] = slow
    thread = _started(_insert, db, 1)
    assert inside.wait(WAIT_S)
    _link(db).ask(wire.Ping(), wire.Position)  # a second connection, idle now
    until(lambda: len(server._peers) == 2)
    stopping = _started(server.stop)
    until(lambda: [peer.works for peer in list(server._peers)] == [True])
    with pytest.raises(hc.UnavailableError) as refused:
        waiting.commit()
    assert refused.value.outcome == "not_committed"
    assert stopping.is_alive()
    gate.set()
    stopping.join(WAIT_S)
    thread.join(WAIT_S)
    assert not stopping.is_alive()
    assert not thread.is_alive()
    assert sorted(owner.table("t").to_arrow().column("id").to_pylist()) == [0, 1]


def test_what_has_arrived_when_a_server_stops_is_refused(
    owner: hc.Database, server: Server, db: hc.Database
) -> None:
    txn = db.begin()
    txn.insert("t", {"id": 1, "text": ""})
    server.stopping = True  # it was asked to stop, and has told nobody yet
    with pytest.raises(hc.UnavailableError, match="the server is stopping") as refused:
        txn.commit()
    assert refused.value.outcome == "not_committed"
    until(lambda: not server._peers)
    assert owner.table("t").count() == 1


def test_a_connection_that_ends_in_good_order_has_not_heard_what_follows(
    owner: hc.Database, server: Server, db: hc.Database
) -> None:
    txn = db.begin()
    txn.insert("t", {"id": 1, "text": ""})
    for peer in list(server._peers):
        peer.shut()
    until(lambda: not server._peers)
    txn.commit()  # through another one
    assert owner.table("t").count() == 2


def test_a_server_that_nobody_stops_ends_with_its_program(tmp_path: Path) -> None:
    script = """
import halocline as hc, sys
db = hc.open(sys.argv[1])
db.create_table("t", {"id": int, "text": str}, "id")
server = db.serve()
print(server.uri, server.token, flush=True)
sys.stdin.read()
"""
    run = [sys.executable, "-c", script, str(tmp_path / "db")]
    pipe = subprocess.PIPE
    with subprocess.Popen(run, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        uri, token = process.stdout.readline().split()
        with hc.connect(uri, token) as db:
            _insert(db, 1)
            process.communicate(timeout=WAIT_S)
            assert process.returncode == 0


def test_a_reader_that_takes_nothing_does_not_hold_up_the_end(
    owner: hc.Database, server: Server, db: hc.Database
) -> None:
    """Somebody asks for much and reads nothing of it; the server stops all the same."""
    for key in range(1, 9):
        _insert(db, key, "x" * 4_000_000)
    with dialing(server, tls=True) as channel:
        greet(channel, server.token.encode())
        newest = max(owner.files.list("log"))
        channel.send(wire.ReadFile(f"log/{newest}", 0, wire.READ_BYTES_MAX))
        until(lambda: len(server._peers) == 2)
        server.stop()
    assert not server._peers
    assert owner.table("t").count() == 9
