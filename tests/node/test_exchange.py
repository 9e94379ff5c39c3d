"""Lasting exchanges with a server: shared, watched, broken off, ended; never a wrong answer."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ArrowException, flight

import halocline as hc
from halocline.clock import ManualClock
from halocline.node import FlightLink, Server, exchange, wire
from halocline.node.visitors import SENDS, WAITS, WORKS, Visitors
from halocline.node.wire import Call, encode

OPTIONS = hc.Options(background=False)
LATE = 1 << 40
"""Nobody will commit that; who waits for it is answered after a second."""
WAIT_S = 30.0


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "text": str}, "id")
        yield db
        assert not db.check()


@pytest.fixture
def server(owner: hc.Database) -> Server:
    return owner.serve()


@pytest.fixture
def db(server: Server) -> Iterator[hc.Database]:
    with hc.connect(server.uri, server.token, options=OPTIONS) as db:
        _insert(db, 0)
        yield db


def _insert(db: hc.Database, key: int, text: str = "") -> None:
    with db.begin() as txn:
        txn.insert("t", {"id": key, "text": text})


def _link(db: hc.Database) -> FlightLink:
    assert db._afar is not None
    return db._afar


def _open(db: hc.Database) -> int:
    return len(_link(db)._exchanges._all)


def _until(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)


def _started(work: Callable[..., Any], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def _states(server: Server) -> list[str]:
    return sorted(visitor.state for visitor in server.visitors)


def _is_dead(one: exchange.Exchange) -> bool:
    """Has this side heard that the other one is gone?"""
    try:
        one._writer.write_metadata(wire.NIL)
    except flight.FlightError:
        return True
    return False


def _hello(server: Server, token: str | None = None) -> bytes:
    return encode(Call(wire.VERSION, (token or server.token).encode(), 0, b""))


def _begin(server: Server, hello: bytes) -> tuple[Any, Any, Any]:
    client = flight.connect(server.uri)
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(hello))
    return client, writer, reader


def _end(client: Any, writer: Any, reader: Any) -> None:
    reader.cancel()
    with pytest.raises(ArrowException):
        writer.close()
    client.close()


# -- taking and giving back ----------------------------------------------------------------------


def test_one_thread_needs_one_exchange(db: hc.Database, server: Server) -> None:
    for key in range(1, 20):
        _insert(db, key)
    assert db.table("t").count() == 20
    assert _open(db) == 1
    _until(lambda: len(server.visitors) == 1)


def test_many_threads_have_one_each_up_to_a_limit(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "EXCHANGES_MAX", 2)
    threads = [_started(_link(db).ask, wire.WaitVisible(LATE), int) for _ in range(5)]
    for key in range(1, 10):
        _insert(db, key)  # by calls of their own: both exchanges are taken
    for thread in threads:
        thread.join(WAIT_S)
    assert _open(db) <= 2
    assert db.table("t").count() == 10


def test_one_that_was_idle_is_not_used_again(
    db: hc.Database, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "IDLE_S", 0.0)
    (old,) = _link(db)._exchanges._all
    _insert(db, 1)
    _link(db).watch()
    assert old not in _link(db)._exchanges._all
    _until(lambda: not server.visitors)


def test_large_requests_and_answers_fit(db: hc.Database, owner: hc.Database) -> None:
    _insert(db, 1, "x" * 3_000_000)
    with owner.begin() as txn:
        assert len(txn.get("t", 1)["text"]) == 3_000_000
        txn.insert("t", {"id": 2, "text": "y" * 3_000_000})
    with db.begin() as txn:
        assert txn.get("t", 2)["text"] == "y" * 3_000_000
    assert _open(db) == 1


def test_a_long_request_is_a_call_of_its_own(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = exchange.Exchange.ask
    monkeypatch.setattr("halocline.node.flight.ALONE_BYTES", 10_000)
    monkeypatch.setattr(
        exchange.Exchange, "ask", lambda *given: asked.append(len(given[1])) or ask(*given)
    )
    _insert(db, 1, "x" * 5000)
    assert max(asked) > 5000
    _insert(db, 2, "x" * 20_000)
    assert max(asked) < 10_000
    with db.begin() as txn:
        assert len(txn.get("t", 2)["text"]) == 20_000


@pytest.mark.parametrize("limit", ["EXCHANGES_MAX", "old"])
def test_a_server_without_exchanges_answers_calls(
    owner: hc.Database, server: Server, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Old(flight.FlightServerBase):  # type: ignore[misc]
        def do_action(self, context: Any, action: Any) -> list[Any]:
            return [flight.Result(server.answer(action.body.to_pybytes()))]

    uri = server.uri
    if limit == "EXCHANGES_MAX":
        monkeypatch.setattr("halocline.node.server.EXCHANGES_MAX", 0)
    else:
        old = Old("grpc://127.0.0.1:0")
        uri = f"grpc://127.0.0.1:{old.port}"
    with hc.connect(uri, server.token, options=OPTIONS) as db:
        for key in range(5):
            _insert(db, key)
        assert _open(db) == 0
    assert owner.table("t").count() == 5
    if limit == "old":
        old.shutdown()


# -- breaking off --------------------------------------------------------------------------------


def test_after_ctrl_c_the_exchange_is_given_up(db: hc.Database, server: Server) -> None:
    (old,) = _link(db)._exchanges._all
    timer = threading.Timer(0.2, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        _link(db).ask(wire.WaitVisible(LATE), int)
    timer.join()
    assert old not in _link(db)._exchanges._all
    # The next request gets its own answer, not the one that nobody took.
    assert _link(db).ask(wire.ListLog(), list[str])
    _insert(db, 1)


def test_a_late_answer_is_not_waited_for(db: hc.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halocline.node.flight.CALL_S", 0.1)
    monkeypatch.setattr("halocline.node.flight.FIND_S", 0.0)
    (old,) = _link(db)._exchanges._all
    with pytest.raises(hc.UnavailableError, match="no answer within"):
        _link(db).ask(wire.WaitVisible(LATE), int)
    assert old not in _link(db)._exchanges._all
    monkeypatch.setattr("halocline.node.flight.CALL_S", 20.0)
    _insert(db, 1)


def test_a_commit_that_cannot_be_sent_has_not_happened(
    owner: hc.Database, server: Server, db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halocline.node.flight.FIND_S", 0.2)
    monkeypatch.setattr(exchange, "HEARD_S", -1.0)
    txn, tokened = db.begin(), db.begin(token="once")
    for key, one in ((1, txn), (2, tokened)):
        one.insert("t", {"id": key, "text": ""})
    _until(lambda: _states(server) == [WAITS])
    server.stop()
    _until(lambda: _is_dead(_link(db)._exchanges._idle[-1]))
    for one in (txn, tokened):
        with pytest.raises(hc.UnavailableError, match="does not answer") as gone:
            one.commit()
        assert gone.value.outcome == "not_committed"
    assert owner.table("t").count() == 1


def test_a_program_that_forks_or_forgets_to_close_ends(server: Server, db: hc.Database) -> None:
    script = f"""
import halocline as hc, os, sys
db = hc.connect({server.uri!r}, {server.token!r})
with db.begin() as txn:
    txn.insert("t", {{"id": 1, "text": "a"}})
if not (pid := os.fork()):
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
with db.begin() as txn:
    txn.insert("t", {{"id": 2, "text": "b"}})
"""
    run = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert db.table("t").count() == 3
    _until(lambda: len(server.visitors) == 1)


# -- the server ----------------------------------------------------------------------------------


def test_a_server_that_stops_finishes_commits_and_takes_no_others(
    owner: hc.Database, server: Server, db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halocline.node.flight.FIND_S", 0.2)
    monkeypatch.setattr(exchange, "HEARD_S", -1.0)
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
    _link(db).ask(wire.Ping(), wire.Position)  # a second exchange, idle now
    _until(lambda: _states(server) == [WAITS, WORKS])
    stopping = _started(server.stop)
    _until(lambda: _states(server) == [WORKS])
    _until(lambda: _is_dead(_link(db)._exchanges._idle[-1]))
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


def test_what_arrives_while_a_server_stops_is_refused(
    server: Server, db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = db.begin()
    txn.insert("t", {"id": 1, "text": ""})
    monkeypatch.setattr(server.visitors, "overdue", lambda now, stopping=False: set())
    _until(lambda: _states(server) == [WAITS])
    stopping = _started(server.stop)
    _until(lambda: server._stopping)
    with pytest.raises(hc.UnavailableError, match="the server is stopping") as refused:
        txn.commit()
    assert refused.value.outcome == "not_committed"
    stopping.join(WAIT_S)
    assert not stopping.is_alive()


def test_an_exchange_that_ends_in_good_order_has_not_heard_what_follows(
    owner: hc.Database, server: Server, db: hc.Database
) -> None:
    txn = db.begin()
    txn.insert("t", {"id": 1, "text": ""})
    server._stopping = True
    with pytest.raises(hc.UnavailableError, match="stopping"):
        _link(db).ask(wire.Ping(), wire.Position)
    _until(lambda: not server.visitors)
    server._stopping = False
    txn.commit()  # sent once more: nobody has heard it before
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
        with hc.connect(uri, token, options=OPTIONS) as db:
            _insert(db, 1)
            process.communicate(timeout=WAIT_S)
            assert process.returncode == 0


def test_who_says_nothing_is_cut_off(server: Server, db: hc.Database) -> None:
    stranger = _begin(server, _hello(server))
    _until(lambda: len(server.visitors) == 2)
    now = time.monotonic()
    server.sweep(now + 6)
    with pytest.raises(flight.FlightError):
        stranger[2].read_chunk()
    _until(lambda: len(server.visitors) == 1)
    _end(*stranger)
    server.sweep(now + 61)  # a client that has slept so long comes back
    _until(lambda: not server.visitors)
    _insert(db, 1)
    assert db.table("t").count() == 2


def test_limits_of_visitors() -> None:
    clock = ManualClock()
    visitors = Visitors(clock)
    with visitors.visit("a") as one, visitors.visit("a") as other, visitors.visit("b") as third:
        begin = clock.monotonic()
        one.turn(WORKS)
        third.turn(SENDS)
        assert visitors.overdue(begin + 1000) == {"b"}  # somebody works behind a
        assert visitors.overdue(begin + 0.5, stopping=True) == set()
        one.turn(SENDS)
        assert visitors.overdue(begin + 6) == {"a"}
        assert visitors.overdue(begin, stopping=True) == {"a"}
        other.calls = 1
        assert visitors.overdue(begin + 6) == set()
    assert not visitors


def test_strangers_and_rows_end_an_exchange(server: Server) -> None:
    for hello in (b"", b"x", _hello(server, "wrong")):
        stranger = _begin(server, hello)
        with pytest.raises((flight.FlightError, ArrowException)):
            stranger[2].read_chunk()
        _end(*stranger)
    client, writer, reader = _begin(server, _hello(server))
    batch = pa.record_batch({"a": [1]})
    writer.begin(batch.schema)
    writer.write_batch(batch)
    with pytest.raises((flight.FlightError, ArrowException), match="no rows"):
        reader.read_chunk()
    _end(client, writer, reader)
    _until(lambda: not server.visitors)


def test_a_wrong_token_inside_an_exchange_ends_it(server: Server) -> None:
    client, writer, reader = _begin(server, _hello(server))
    writer.write_metadata(encode(Call(wire.VERSION, b"wrong", 0, encode(wire.Ping()))))
    returned = wire.decode_returned(reader.read_chunk().app_metadata.to_pybytes())
    assert wire.decode_reply(returned.body).kind == "UsageError"
    with pytest.raises(StopIteration):
        reader.read_chunk()
    writer.close()
    client.close()
