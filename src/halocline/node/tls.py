"""TLS for the frames between machines: the `ssl` of Python, version 1.3 and nothing older.

    Channel --bytes--> TlsSocket --SSLObject--> records --> the plain socket under it

`TlsSocket` looks like a socket as far as a Channel needs one. It does its own reading and writing:
`ssl.SSLSocket` knows no flags, so nobody could look for an answer without waiting for it, and no
limits of the socket.

Whom a client believes. A server that shows a certificate which stands in `tls_roots`, byte by byte,
is believed by whatever name it was reached: the handshake has proved that it holds the key. That is
how a self-signed certificate is pinned. Any other certificate must be signed by one in `tls_roots`,
or by an authority that this machine trusts if there are none, and must be for the host's name.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from halocline.errors import UsageError

PIECE_BYTES: Final = 1 << 18
"""So much is encrypted at a time: a long frame is not held twice."""
_PEEK: Final = int(socket.MSG_PEEK)
_PEM: Final = re.compile(
    r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL | re.ASCII
)


class TlsSocket:
    """A connected socket with TLS on it. For one thread at a time, but for `shutdown`."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, **named: Any) -> None:
        """Shake hands; OSError when the other side does not, or is not believed."""
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, **named)
        self.fileno, self.shutdown, self.close = sock.fileno, sock.shutdown, sock.close
        self.settimeout, self.setsockopt = sock.settimeout, sock.setsockopt
        try:
            while not self._tried(self._tls.do_handshake):
                self._flush()
                if not self._fetch(0):
                    raise ConnectionResetError("the other side hung up before TLS was agreed on")
        except ssl.SSLError:
            with suppress(OSError):  # tell the other side why
                self._flush()
            raise
        self._flush()

    def certificate(self) -> bytes:
        """What the other side has shown."""
        return self._tls.getpeercert(binary_form=True) or b""

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Bytes that have come; b"" at the end. The flags are those of the socket."""
        if flags & _PEEK:  # only asked for when nothing is due
            return self._sock.recv(size, flags)
        while True:
            try:
                return self._tls.read(size)
            except ssl.SSLWantReadError:
                if not self._fetch(flags):
                    return b""
            except ssl.SSLZeroReturnError:
                return b""

    def sendall(self, data: bytes) -> None:
        """All of it, or OSError: then the other side cannot have got all of it."""
        if len(data) <= PIECE_BYTES:
            self._tls.write(data)
            self._sock.sendall(self._outgoing.read())
            return
        view = memoryview(data)
        for at in range(0, len(data), PIECE_BYTES):
            self._tls.write(view[at : at + PIECE_BYTES])
            self._flush()

    def _tried(self, step: Callable[[], Any]) -> bool:
        try:
            step()
        except ssl.SSLWantReadError:
            return False
        return True

    def _fetch(self, flags: int) -> bool:
        """Take what has come from the socket; False at its end."""
        data = self._sock.recv(PIECE_BYTES, flags)
        self._incoming.write(data)
        return bool(data)

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._sock.sendall(self._outgoing.read())


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """The context of a server; the paths are those of PEM files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nothing comes on a connection that nobody has asked for
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except (OSError, ValueError, TypeError) as error:
        text = f"{certificate} and {key} are no certificate and its key: {error}"
        raise UsageError(text) from error
    return context


class Believer:
    """Decides, for one client, whether a server is the one that it wants to talk to."""

    def __init__(self, host: str, roots: str | None) -> None:
        """`roots` is the text of a PEM file with the certificates to trust."""
        self._host = host
        try:
            self._pins = frozenset(map(ssl.PEM_cert_to_DER_cert, _PEM.findall(roots or "")))
            if roots is not None and not self._pins:
                raise ValueError("there is none in it")
            self._signed = ssl.create_default_context(cadata=roots)
        except (ValueError, OSError) as error:
            text = f"tls_roots= names a file with certificates: {error}"
            raise UsageError(text) from error
        self._pinned = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._pinned.check_hostname = False
        self._pinned.verify_mode = ssl.CERT_NONE  # `wrap` compares it byte by byte
        for context in (self._signed, self._pinned):
            context.minimum_version = ssl.TLSVersion.TLSv1_3

    def wrap(self, connect: Callable[[], socket.socket]) -> TlsSocket:
        """A connection to a server that is believed; UsageError for one that is not."""
        if self._pins:
            tls = self._shake(connect(), self._pinned)
            if tls.certificate() in self._pins:
                return tls
            tls.close()  # nothing has been said yet
        try:
            return self._shake(connect(), self._signed)
        except ssl.SSLCertVerificationError as error:
            raise UsageError(
                f"the certificate of {self._host} is not to be trusted: {error.verify_message}; "
                "tls_roots= names the file with the one that it should show"
            ) from error

    def _shake(self, sock: socket.socket, context: ssl.SSLContext) -> TlsSocket:
        try:
            return TlsSocket(sock, context, server_hostname=self._host)
        except BaseException:
            sock.close()
            raise


def speaks_tls(sock: socket.socket) -> bool:
    """Does the other side shake hands? It is not believed, and told nothing. Closes the socket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        TlsSocket(sock, context)
    except OSError:
        return False
    finally:
        sock.close()
    return True


def _refuse_password() -> str:
    raise UsageError("the key is encrypted: give one that needs no password")
