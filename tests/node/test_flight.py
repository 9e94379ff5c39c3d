"""Serving other machines: who is let in, what happens when somebody leaves, and strange calls."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import halocline as hc
from halocline.ids import NEVER
from halocline.node import Server, wire
from halocline.node.afar import AfarPin
from halocline.node.grpc import direct_reads
from halocline.node.wire import Call, encode

OPTIONS = hc.Options(background=False, object_rows_min=50, bulk_rows=10)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "v": int}, "id")
        with db.begin() as txn:
            txn.insert("t", [{"id": key, "v": key} for key in range(5)])
        yield db
        assert not db.check()


@pytest.fixture
def server(owner: hc.Database) -> Server:
    return owner.serve(read_token="only looking")


def ask(server: Server, request: Any, **changed: Any) -> Any:
    """What a bare call is answered with."""
    body = request if isinstance(request, bytes) else encode(request)
    facts = {"version": wire.VERSION, "token": server.token.encode(), "session": 0, "body": body}
    return _reply(server, encode(Call(**(facts | changed))))


def _reply(server: Server, call: bytes) -> Any:
    return wire.decode_reply(wire.decode_returned(server.answer(call)).body)


# -- who is let in -------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_reach_needs_tls_and_a_token(owner: hc.Database, host: str) -> None:
    with pytest.raises(hc.UsageError, match="tls_cert"):
        owner.serve(host)
    with pytest.raises(hc.UsageError, match="tls_cert"):
        owner.serve(host, token="secret")


def test_a_wrong_token_is_refused(owner: hc.Database, server: Server) -> None:
    for token in ("", "wrong", server.token + "x"):
        with pytest.raises(hc.UsageError, match="token"):
            hc.connect(server.uri, token)


def test_another_release_is_told_so(server: Server) -> None:
    failed = ask(server, wire.Ping(), version=wire.VERSION + 1)
    assert failed.kind == "UsageError"
    assert "protocol" in failed.fields["text"]


@pytest.mark.parametrize("uri", ["", "host:1", "http://host:1", "grpc://", 7])
def test_an_address_that_is_none(uri: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halocline.node.flight.FIND_S", 0.1)
    with pytest.raises(hc.HaloclineError):
        hc.connect(uri, "token")


def test_a_token_for_reading_reads(owner: hc.Database, server: Server) -> None:
    with hc.connect(server.uri, "only looking", read_only=True, options=OPTIONS) as db:
        assert db.role == "reader"
        assert db.table("t").count() == 5
        with pytest.raises(hc.UsageError):
            db.create_table("u", {"a": int})
    with hc.connect(server.uri, "only looking", options=OPTIONS) as db:
        with pytest.raises(hc.UsageError, match="reading only"), db.begin() as txn:
            txn.insert("t", {"id": 50, "v": 0})
        with pytest.raises(hc.UsageError, match="reading only"):
            db.gc()
        assert db.sql("select count(*) as n from t").to_pylist() == [{"n": 5}]
    assert owner.table("t").count() == 5


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls_is_verified_by_clients(owner: hc.Database, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout {key} -out {cert}",
        shell=True,
        check=True,
        capture_output=True,
    )
    server = owner.serve("localhost", token="secret", tls_cert=str(cert), tls_key=str(key))
    assert server.uri.startswith("grpc+tls://localhost:")
    with hc.connect(server.uri, "secret", tls_roots=str(cert), options=OPTIONS) as db:
        assert db.table("t").count() == 5


def test_a_port_that_is_taken(owner: hc.Database, server: Server, tmp_path: Path) -> None:
    port = int(server.uri.rpartition(":")[2])
    with (
        hc.open(tmp_path / "other", options=OPTIONS) as other,
        pytest.raises(hc.UnavailableError, match=f"{port} cannot be listened on"),
    ):
        other.serve(port=port)


def test_who_forgets_to_close_leaves_no_files(owner: hc.Database, server: Server) -> None:
    script = f"""
import halocline as hc
db = hc.connect({server.uri!r}, {server.token!r})
with db.begin() as txn:
    txn.insert("t", [{{"id": key, "v": 0}} for key in range(100, 200)])
db.flush()
assert db.sql("select count(*) as n from t").to_pylist() == [{{"n": 105}}]
print(db._shelf.objects.folder)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stderr == ""
    folder = Path(done.stdout.strip())
    assert folder.name.startswith("halocline-cache-")
    assert not folder.exists()


def test_only_the_owner_serves(owner: hc.Database) -> None:
    with hc.open(owner.path, options=OPTIONS) as node, pytest.raises(hc.UsageError, match="owns"):
        node.serve()


# -- leaving -------------------------------------------------------------------------------------


def test_a_lease_that_is_over_ends_a_session(owner: hc.Database, server: Server) -> None:
    with hc.connect(server.uri, server.token, options=OPTIONS) as db:
        bulk, old = db.begin(), db.begin()
        bulk.insert("t", pa.table({"id": range(1000, 1100), "v": range(100)}))
        assert owner._core.engine.jobs
        assert old.snapshot in owner._core.pins.values()
        server.reap(float("inf"))
        assert not owner._core.engine.jobs
        assert old.snapshot not in owner._core.pins.values()
        with pytest.raises(hc.ConflictError, match="job"):
            bulk.commit()
        # The next request has told the owner again what is still read here.
        assert old.snapshot in owner._core.pins.values()
        assert old.get("t", 1) == {"id": 1, "v": 1}
        with db.begin() as txn:
            txn.insert("t", {"id": 77, "v": 0})
        old.rollback()
    assert owner.table("t").count() == 6


def test_a_server_that_stops_ends_its_sessions(owner: hc.Database, server: Server) -> None:
    with hc.connect(server.uri, server.token, options=OPTIONS) as db:
        reads, drops = db.begin(), db.begin()
        drops.drop_table("t")
        assert owner._core.pins
        server.stop()
        assert not owner._core.pins
        owner.drop_table("t")  # nobody is dropping it any more
        owner.create_table("t", {"id": int, "v": int}, "id")
        del reads, drops


def test_the_next_server_gives_no_number_again(owner: hc.Database) -> None:
    """A transaction from before must not be taken for somebody else's."""
    owner.create_table("u", {"id": int}, "id")
    first = owner.serve(token="k" * 32)
    port = int(first.uri.rpartition(":")[2])
    with hc.connect(first.uri, first.token, options=OPTIONS) as one:
        mine = one.begin()
        mine.drop_table("t")
        again = owner.serve(port=port, token=first.token)
        with hc.connect(again.uri, again.token, options=OPTIONS) as two:
            theirs = two.begin()
            theirs.drop_table("u")
            with pytest.raises(hc.ConflictError, match="not open any more"):
                mine.commit()
            theirs.rollback()
            with one.begin() as txn, two.begin() as other:
                assert txn.get("t", 1) == other.get("t", 1) == {"id": 1, "v": 1}
                assert len(owner._core.pins) == 2
    assert owner.tables() == ["t", "u"]


def test_a_token_for_reading_opens_no_session_of_a_writer(
    owner: hc.Database, server: Server
) -> None:
    with hc.connect(server.uri, server.token, options=OPTIONS) as db:
        txn = db.begin()
        pins = dict(owner._core.pins)
        assert db._afar is not None
        number = db._afar._session
        ask(server, wire.PinSnapshot(NEVER), token=b"only looking", session=number)
        assert dict(owner._core.pins) == pins
        txn.rollback()


def test_a_pin_that_was_told_too_late_is_not_begun_with(
    owner: hc.Database, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server had forgotten us, and GC went on before it was told again what is read here."""
    owner.keep_for(0)
    with hc.connect(server.uri, server.token, options=OPTIONS) as db:
        with db.begin() as txn:
            txn.tables()
        tell = AfarPin.tell
        late: list[int] = []

        def tell_late(pin: AfarPin) -> None:
            if not late:
                late.append(1)
                for key in range(100, 105):
                    with owner.begin() as other:
                        other.insert("t", {"id": key, "v": 0})
                owner.gc()
            tell(pin)

        server.reap(float("inf"))
        monkeypatch.setattr(AfarPin, "tell", tell_late)
        with db.begin() as txn:
            assert txn.snapshot >= owner.floor
            txn.insert("t", {"id": 7, "v": 7})
        assert late
    assert owner.table("t").count() == 11


def test_a_server_that_is_gone(
    owner: hc.Database, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halocline.node.flight.FIND_S", 0.2)
    with hc.connect(server.uri, server.token, options=OPTIONS) as db:
        txn = db.begin()
        txn.insert("t", {"id": 50, "v": 0})
        server.stop()
        server.stop()
        with pytest.raises(hc.UnavailableError) as lost:
            txn.commit()
        assert lost.value.outcome in ("unknown", "not_committed")  # test_exchange.py: when which
        with pytest.raises(hc.UnavailableError, match="does not answer"):
            db.begin()


# -- strange calls -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["LOCK", "endpoint", "../x", "log/../endpoint", "/etc/passwd", "log", "objects/1/1-0.parquet"],
)
def test_no_other_file_is_given_out(server: Server, path: str) -> None:
    assert ask(server, wire.ReadFile(path, 0, 100)).kind == "UsageError"
    assert ask(server, wire.ReadObject(path, 0, 100)).kind == "UsageError"
    assert ask(server, wire.PutObject(path, b"x")).kind == "UsageError"


def test_a_file_of_a_job_of_somebody_else_is_not_written(
    owner: hc.Database, server: Server
) -> None:
    with hc.connect(server.uri, server.token, options=OPTIONS) as db:
        txn = db.begin()
        txn.insert("t", pa.table({"id": range(1000, 1100), "v": range(100)}))
        (job,) = owner._core.engine.jobs
        assert ask(server, wire.PutObject(f"1/{job}-9.parquet", b"x")).kind == "ConflictError"
        txn.rollback()


def test_random_and_mutated_calls_change_nothing(
    owner: hc.Database, server: Server, sim: bool
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    late = 1 << 40
    requests: list[Any] = [
        wire.Ping(),
        wire.Commit(late, 1, b"\0" * 40),
        wire.ReadFile("published", 0, 80),
        wire.ReadObject("1/1-0.parquet", 0, 80),
        wire.PutObject("1/1-0.parquet", b"x" * 50),
        wire.PinSnapshot(late),
        wire.ListLog(),
        wire.Subscribe(0, "t"),
        wire.ListCheckpoints(),
        wire.StartJob(77, 5),
        wire.CreateTable(9, "u", {"columns": [], "key": [], "last_id": 0}, "clustered"),
    ]
    token = server.token.encode()
    calls = [encode(Call(wire.VERSION, token, 0, encode(request))) for request in requests]
    before = owner.table("t").to_arrow().sort_by("id"), owner.tables(), owner.visible_ts
    for _ in range(10_000 if sim else 1000):
        call = bytearray(chance.choice(calls))
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(call))
            if chance.random() < 0.3:
                del call[at:]
                call += chance.randbytes(chance.randrange(30))
                break
            call[at] = chance.randrange(256)
        try:
            _reply(server, bytes(call))
        except msgspec.MsgspecError as error:
            pytest.fail(f"the answer makes no sense: {error}")
    server.reap(float("inf"))
    assert before == (owner.table("t").to_arrow().sort_by("id"), owner.tables(), owner.visible_ts)


def test_the_setting_of_grpc_is_there_for_its_first_use_only() -> None:
    """In a process of its own: gRPC is used once only."""
    program = """
import os
from halocline.node.grpc import direct_reads
seen = []
for given in (None, None):
    with direct_reads():
        seen.append(os.environ.get("GRPC_EXPERIMENTS", ""))
assert "event_engine" in seen[0] and not seen[1], seen
assert "GRPC_EXPERIMENTS" not in os.environ
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_setting_of_grpc_that_somebody_made_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_EXPERIMENTS", "mine")
    with direct_reads():
        assert os.environ["GRPC_EXPERIMENTS"] == "mine"
    assert os.environ["GRPC_EXPERIMENTS"] == "mine"
