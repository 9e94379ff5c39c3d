"""Serving other machines: who is let in, what happens when somebody leaves, strange requests."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline.clock import SystemClock
from halocline.ids import NEVER
from halocline.node import Server, wire
from halocline.node import server as server_module
from halocline.node.certificate import make_certificate, own_certificate
from halocline.node.channel import Channel
from halocline.node.link import FIND_S
from halocline.node.remote_files import RemotePin
from halocline.node.wire import HEAD, HELLO_BYTES_MAX, Hello, encode
from tests.node.handles import ask, dialing, greet, port_of, put, survives, until
from tests.node.handles import far as connect
from tests.node.pelting import bad_frame

OPTIONS = hc.Options(background=False, object_rows_min=50, bulk_rows=10)
ROWS = 5
Certificate = tuple[str, str]


# -- who is let in -------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_reach_needs_tls_and_a_token(
    owner: hc.Database, certificate: Certificate, host: str
) -> None:
    for named in ({}, {"token": "secret"}, {"tls": certificate}):
        with pytest.raises(hc.UsageError, match=r"tls=.*token="):
            owner.serve(host, **named)


def test_a_client_without_tls_is_told_at_once_that_it_is_wanted(server: Any) -> None:
    began = SystemClock().monotonic()
    with pytest.raises(hc.UsageError, match="wants TLS: pass tls_roots="):
        hc.connect(server.uri, server.token)
    assert SystemClock().monotonic() - began < FIND_S / 2


def test_a_wrong_token_is_refused(
    owner: hc.Database, server: Server, certificate: Certificate
) -> None:
    for token in ("", "wrong", server.token + "x"):
        with pytest.raises(hc.UsageError, match="token"):
            connect(server, certificate, token=token)


def test_another_release_is_told_so(server: Server) -> None:
    failed = ask(server, wire.Ping(), tls=True, version=wire.VERSION + 1)
    assert failed.kind == "UsageError"
    assert "same release" in failed.fields["text"]


def test_the_token_is_compared_before_anything_else(server: Server) -> None:
    failed = ask(server, wire.Ping(), tls=True, token=b"wrong", version=wire.VERSION + 1)
    assert "token" in failed.fields["text"]


@pytest.mark.parametrize("uri", ["", "host:1", "http://host:1", "halocline://", "halocline://a", 7])
def test_an_address_that_is_none(uri: Any) -> None:
    with pytest.raises(hc.UsageError, match="halocline://host:port"):
        hc.connect(uri, "token")


@pytest.mark.parametrize("scheme", ["grpc", "grpc+tls"])
def test_an_address_of_an_older_version_is_told_the_new_form(scheme: str) -> None:
    with pytest.raises(hc.UsageError, match="'halocline://host:7400' now"):
        hc.connect(f"{scheme}://host:7400", "token")


def test_a_token_for_reading_reads(
    owner: hc.Database, server: Server, certificate: Certificate
) -> None:
    named = {"token": "only looking", "options": OPTIONS}
    with connect(server, certificate, read_only=True, **named) as db:
        assert db.role == "reader"
        assert db.table("t").count() == 5
        with pytest.raises(hc.UsageError):
            db.create_table("u", {"a": int})
    with connect(server, certificate, **named) as db:
        with pytest.raises(hc.UsageError, match="reading only"), db.begin() as txn:
            txn.insert("t", {"id": 50, "v": 0})
        with pytest.raises(hc.UsageError, match="reading only"):
            db.gc()
        assert db.sql("select count(*) as n from t").to_pylist() == [{"n": 5}]
    assert owner.table("t").count() == 5


# -- TLS -----------------------------------------------------------------------------------------


def test_a_certificate_is_pinned_whatever_the_name(
    owner: hc.Database, certificate: Certificate
) -> None:
    """A certificate that signs itself is believed by those who have it, and by nobody else."""
    for host in ("127.0.0.1", "localhost"):
        server = owner.serve(host, token="secret", tls=certificate)
        assert server.uri.startswith(f"halocline://{host}:")
        with connect(server, certificate, options=OPTIONS) as db:
            assert db.table("t").count() == 5


def test_another_certificate_is_not_believed(
    owner: hc.Database, server: Server, tmp_path: Path
) -> None:
    other = own_certificate(tmp_path)
    with pytest.raises(hc.UsageError, match=r"not to be trusted.*tls_roots"):
        connect(server, other)


def test_a_certificate_that_was_signed_by_one_of_the_roots(
    owner: hc.Database, tmp_path: Path
) -> None:
    """The name counts then: a certificate for one host is not believed of another."""
    root, cert, key = _signed(tmp_path, "localhost")
    server = owner.serve("localhost", token="secret", tls=(cert, key))
    with connect(server, (root, ""), options=OPTIONS) as db:
        assert db.table("t").count() == 5
    uri = server.uri.replace("localhost", "127.0.0.1")
    with pytest.raises(hc.UsageError, match="not to be trusted"):
        hc.connect(uri, "secret", tls_roots=root)


def _signed(folder: Path, name: str) -> tuple[str, str, str]:
    """A root, and a certificate with its key that the root has signed for a name."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.now(UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in ("root", name)]
    made = []
    for number in range(2):
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[number])
            .issuer_name(names[0])
            .public_key(keys[number].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=not number, path_length=None), critical=True)
        )
        alternative = x509.SubjectAlternativeName([x509.DNSName(name)])
        signed = builder.add_extension(alternative, critical=False).sign(keys[0], hashes.SHA256())
        made.append(signed.public_bytes(serialization.Encoding.PEM))
    secret = keys[1].private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    paths = [folder / "root.pem", folder / "cert.pem", folder / "key.pem"]
    for path, data in zip(paths, (*made, secret), strict=True):
        path.write_bytes(data)
    return str(paths[0]), str(paths[1]), str(paths[2])


def test_a_certificate_of_ones_own_is_made_once(tmp_path: Path) -> None:
    first = own_certificate(tmp_path)
    made = Path(first[0]).read_bytes()
    assert own_certificate(tmp_path) == first
    assert Path(first[0]).read_bytes() == made
    assert Path(first[1]).stat().st_mode & 0o777 == 0o600
    assert Path(first[1]).parent.stat().st_mode & 0o777 == 0o700
    assert make_certificate()[0] != made


def test_files_that_are_no_certificates(
    owner: hc.Database, certificate: Certificate, tmp_path: Path
) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for path in (str(junk), str(empty)):
        with pytest.raises(hc.UsageError, match="tls_roots"):
            hc.connect("halocline://127.0.0.1:1", "token", tls_roots=path)
        with pytest.raises(hc.UsageError, match="no certificate and its key"):
            owner.serve(tls=(path, certificate[1]))
    for tls in ((str(tmp_path / "missing"), certificate[1]), "self-signed", (certificate[0],)):
        with pytest.raises(hc.UsageError):
            owner.serve(tls=tls)  # type: ignore[arg-type]
    with pytest.raises(hc.UnavailableError):
        hc.connect("halocline://127.0.0.1:1", "token", tls_roots=str(tmp_path / "missing"))


def test_only_tls_1_3_is_spoken(owner: hc.Database, server: Server) -> None:
    import socket
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", port_of(server)), 30) as sock,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(sock)
    with socket.create_connection(("127.0.0.1", port_of(server)), 30) as sock:
        context.maximum_version = ssl.TLSVersion.MAXIMUM_SUPPORTED
        with context.wrap_socket(sock) as tls:
            assert tls.version() == "TLSv1.3"


@pytest.mark.parametrize("with_tls", [True, False])
def test_one_side_that_speaks_tls_and_one_that_does_not(
    owner: hc.Database, certificate: Certificate, with_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halocline.node.link.FIND_S", 0.0)
    server = owner.serve(tls=certificate if with_tls else None)
    refused = (hc.UsageError, "wants TLS") if with_tls else (hc.UnavailableError, "does not answer")
    with pytest.raises(refused[0], match=refused[1]):
        connect(server, None if with_tls else certificate)


def test_a_port_that_is_taken(owner: hc.Database, server: Server, tmp_path: Path) -> None:
    port = port_of(server)
    with (
        hc.open(tmp_path / "other", options=OPTIONS) as other,
        pytest.raises(hc.UnavailableError, match=f"{port} cannot be listened on"),
    ):
        other.serve(port=port)


def test_who_forgets_to_close_leaves_no_files(server: Server, certificate: Certificate) -> None:
    script = f"""
import halocline as hc
db = hc.connect({server.uri!r}, {server.token!r}, tls_roots={certificate[0]!r})
with db.begin() as txn:
    txn.insert("t", [{{"id": key, "v": 0}} for key in range(100, 200)])
db.flush()
assert db.sql("select count(*) as n from t").to_pylist() == [{{"n": 105}}]
print(db._setting.shelf.objects.folder)
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


def test_a_lease_that_is_over_ends_a_session(
    owner: hc.Database, server: Server, far: hc.Database
) -> None:
    bulk, old = far.begin(), far.begin()
    bulk.insert("t", pa.table({"id": range(1000, 1100), "v": range(100)}))
    assert owner.core.engine.jobs
    assert old.snapshot in owner.core.pins.values()
    server.reap(float("inf"))
    assert not owner.core.engine.jobs
    assert old.snapshot not in owner.core.pins.values()
    with pytest.raises(hc.ConflictError, match="job"):
        bulk.commit()
    # The next request has told the owner again what is still read here.
    assert old.snapshot in owner.core.pins.values()
    assert old.get("t", 1) == {"id": 1, "v": 1}
    put(far, 77)
    old.rollback()
    assert owner.table("t").count() == 6


def test_threads_that_come_back_at_once_share_a_session(
    owner: hc.Database, server: Server, far: hc.Database
) -> None:
    """Each of them finds out that it was forgotten; one session is left, with what is read."""
    for number in range(10):
        old = far.begin()
        server.reap(float("inf"))
        ready = threading.Barrier(4)

        def read(keys: range, ready: threading.Barrier = ready) -> None:
            ready.wait()
            for key in keys:
                put(far, key)

        starts = range(10_000 + 100 * number, 10_100 + 100 * number, 25)
        threads = [threading.Thread(target=read, args=(range(n, n + 5),)) for n in starts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert old.snapshot in owner.core.pins.values()
        assert old.get("t", 1) == {"id": 1, "v": 1}
        old.rollback()
    assert owner.table("t").count() == 5 + 10 * 4 * 5


def test_a_server_that_stops_ends_its_sessions(
    owner: hc.Database, server: Server, far: hc.Database
) -> None:
    reads, drops = far.begin(), far.begin()
    drops.drop_table("t")
    assert owner.core.pins
    server.stop()
    assert not owner.core.pins
    owner.drop_table("t")  # nobody is dropping it any more
    owner.create_table("t", {"id": int, "v": int}, "id")
    del reads, drops


def test_the_next_server_gives_no_number_again(owner: hc.Database) -> None:
    """A transaction from before must not be taken for somebody else's."""
    owner.create_table("u", {"id": int}, "id")
    first = owner.serve(token="k" * 32)
    with connect(first, options=OPTIONS) as one:
        mine = one.begin()
        mine.drop_table("t")
        again = owner.serve(port=port_of(first), token=first.token)
        with connect(again, options=OPTIONS) as two:
            theirs = two.begin()
            theirs.drop_table("u")
            with pytest.raises(hc.ConflictError, match="not open any more"):
                mine.commit()
            theirs.rollback()
            with one.begin() as txn, two.begin() as other:
                assert txn.get("t", 1) == other.get("t", 1) == {"id": 1, "v": 1}
                assert len(owner.core.pins) == 2
    assert owner.tables() == ["t", "u"]


def test_a_token_for_reading_opens_no_session_of_a_writer(
    owner: hc.Database, server: Server, far: hc.Database
) -> None:
    txn = far.begin()
    pins = dict(owner.core.pins)
    (number,) = server._sessions
    request = wire.PinSnapshot(NEVER)
    done = ask(server, request, tls=True, token=b"only looking", session=number)
    assert isinstance(done, wire.Done)
    assert dict(owner.core.pins) == pins
    txn.rollback()


def test_a_pin_that_was_told_too_late_is_not_begun_with(
    owner: hc.Database, server: Server, far: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server had forgotten us, and GC went on before it was told again what is read here."""
    owner.keep_for(0)
    with far.begin() as txn:
        txn.tables()
    renew = RemotePin.renew
    late: list[int] = []

    def renew_late(pin: RemotePin) -> int:
        if not late:
            late.append(1)
            for key in range(100, 105):
                put(owner, key)
            owner.gc()
        return renew(pin)

    server.reap(float("inf"))
    monkeypatch.setattr(RemotePin, "renew", renew_late)
    with far.begin() as txn:
        assert txn.snapshot >= owner.floor
        txn.insert("t", {"id": 7, "v": 7})
    assert late
    assert owner.table("t").count() == 11


def test_a_server_that_is_gone(
    server: Server, far: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halocline.node.link.FIND_S", 0.2)
    txn = far.begin()
    txn.insert("t", {"id": 50, "v": 0})
    server.stop()
    server.stop()
    with pytest.raises(hc.UnavailableError) as lost:
        txn.commit()
    assert lost.value.outcome == "not_committed"
    with pytest.raises(hc.UnavailableError, match="does not answer"):
        far.begin()


# -- strange requests ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "LOCK",
        "endpoint",
        "../x",
        "log/../endpoint",
        "/etc/passwd",
        "log",
        "objects/1/1-0.parquet",
        "tls/key.pem",
    ],
)
def test_no_other_file_is_given_out(server: Server, path: str) -> None:
    for request in (
        wire.ReadFile(path, 0, 100),
        wire.ReadObject(path, 0, 100),
        wire.PutObject(path, b"x"),
    ):
        assert ask(server, request, tls=True).kind == "UsageError"


def test_a_file_of_a_job_of_somebody_else_is_not_written(
    owner: hc.Database, server: Server, far: hc.Database
) -> None:
    txn = far.begin()
    txn.insert("t", pa.table({"id": range(1000, 1100), "v": range(100)}))
    (job,) = owner.core.engine.jobs
    stolen = ask(server, wire.PutObject(f"1/{job}-9.parquet", b"x"), tls=True)
    assert stolen.kind == "ConflictError"
    txn.rollback()


@pytest.mark.parametrize("tls", [False, True])
def test_random_and_mutated_frames_change_nothing(
    owner: hc.Database, certificate: Certificate, tls: bool, sim: bool
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    late = 1 << 40
    server = owner.serve(tls=certificate if tls else None)
    hello = encode(Hello(wire.VERSION, server.token.encode(), 1, 0))
    good: list[bytes] = [
        hello,
        *map(
            encode,
            [
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
                wire.CallCatalog("create_table", 9, "u", {"columns": []}, "clustered"),
            ],
        ),
    ]
    before = owner.table("t").to_arrow().sort_by("id"), owner.tables(), owner.visible_ts
    left = 10_000 if sim else 1000
    while left:
        with dialing(server, tls=tls) as channel:
            # The greeting itself is damaged now and then.
            going = chance.randrange(10) > 0 and greet(channel, server.token.encode())
            left -= 1
            while survives(channel, bad_frame(chance, chance.choice(good), 0)) and going and left:
                left -= 1
    server.reap(float("inf"))
    assert before == (owner.table("t").to_arrow().sort_by("id"), owner.tables(), owner.visible_ts)


def test_nothing_is_answered_before_the_token(server: Server) -> None:
    with dialing(server, tls=True) as channel:
        channel.send(wire.Command("gc"))
        assert channel.receive(100) is None
    with dialing(server, tls=True) as channel, suppress(ConnectionError):
        channel.sock.sendall(HEAD.pack(HELLO_BYTES_MAX + 1, 0) + bytes(100))
        assert not channel.sock.recv(100)


def test_who_does_not_say_hello_is_hung_up_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of TLS, before it, and behind it; a byte now and then does not help."""
    monkeypatch.setattr(server_module, "HELLO_S", 0.3)
    with dialing(server) as silent, dialing(server) as slow, dialing(server, tls=True) as mute:
        slow.sock.sendall(b"\x16")
        until(lambda: not _is_there(slow, b"\x03"))
        until(lambda: not _is_there(silent))
        until(lambda: not _is_there(mute))
    until(lambda: not server._peers)


def _is_there(channel: Channel, byte: bytes = b"") -> bool:
    try:
        if byte:
            channel.sock.sendall(byte)
    except OSError:
        return False
    return channel.is_open()


def test_strangers_take_no_places(
    owner: hc.Database, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever says nothing is in nobody's way: the oldest of them goes."""
    monkeypatch.setattr(server_module, "STRANGERS_MAX", 4)
    server = owner.serve(tls=certificate)
    with ExitStack() as stack:
        silent = [stack.enter_context(dialing(server)) for _ in range(12)]
        with connect(server, certificate, options=OPTIONS) as db:
            put(db, 50)
        until(lambda: sum(one.is_open() for one in silent) <= 4)


def test_a_server_that_is_full_hangs_up(
    owner: hc.Database, far: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(far, 50)
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 1)
    with dialing(far.path) as channel, suppress(ConnectionError):
        assert channel.sock.recv(1) == b""
    put(far, 51)
    assert owner.table("t").count() == 7
