"""Channel: one connected socket, frames in and frames out. For one thread at a time.

The socket is that of a process of this machine, or one of TCP, with TLS on it (tls.py) or without.

Bytes are taken from the socket in pieces of at most PIECE_BYTES, so that a length nobody honours
costs nothing. A frame that is too long, or whose CRC is wrong, ends the connection: after it nobody
knows where the next one begins.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from struct import pack
from typing import TYPE_CHECKING, Final
from zlib import crc32

from halocline.node.spin import Spin
from halocline.node.wire import HEAD, frame

if TYPE_CHECKING:
    from halocline.node.tls import TlsSocket

PIECE_BYTES: Final = 1 << 18
FIRST_BYTES: Final = 1 << 14
"""Room for the beginning of a frame, mostly all of it. 256 KiB come from the system each time."""
_AT_ONCE: Final = int(socket.MSG_DONTWAIT)
_LOOK: Final = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)


class BrokenChannelError(ConnectionError):
    """The other side is gone, or does not speak our language."""


class Channel:
    """Frames over a stream socket, with or without TLS."""

    def __init__(self, sock: socket.socket | TlsSocket) -> None:
        self.sock = sock
        self._limits: tuple[float, float] | None = None
        self._pieces: list[bytes] = []
        self._have = 0
        """Bytes that have come and were not used yet."""

    def send(self, message: object) -> None:
        """All of it, or OSError."""
        self.sock.sendall(frame(message))

    def try_send(self, data: bytes) -> bytes:
        """As much of a frame as goes at once; returns the rest, mostly nothing. Not with TLS."""
        assert isinstance(self.sock, socket.socket)
        try:
            sent = self.sock.send(data, _AT_ONCE)
        except BlockingIOError:
            sent = 0
        return data[sent:]

    def receive(self, bytes_max: int, spin: Spin | None = None) -> bytes | None:
        """The body of the next frame; None when the other side has closed between two frames.

        BlockingIOError when nothing came in time; it may then be called again.
        """
        if not self._have:
            data = None if spin is None else spin.wait(self._look)
            if data is None:
                data = self.sock.recv(FIRST_BYTES)
            body = self._whole(data)
            if body is not None or not data:
                return body
        while (size := self.due) < 0 or self._have < size:
            if size > HEAD.size + bytes_max:
                raise BrokenChannelError(f"a frame of {size} bytes is longer than {bytes_max}")
            if not self._more(0):
                self._check_end()
                return None
        return self._cut(size, bytes_max)

    def take(self, bytes_max: int) -> bytes | None:
        """`receive` for those who cannot wait: BlockingIOError until the frame is whole, and for
        one that is longer than `bytes_max`; `due` tells."""
        if not self._have:
            data = self.sock.recv(FIRST_BYTES, _AT_ONCE)
            body = self._whole(data)
            if body is not None or not data:
                return body
        while (size := self.due) < 0 or self._have < size <= HEAD.size + bytes_max:
            if not self._more(_AT_ONCE):
                self._check_end()
                return None
        if size > HEAD.size + bytes_max:
            raise BlockingIOError("a long frame")
        return self._cut(size, bytes_max)

    @property
    def has_more(self) -> bool:
        """Has something come behind the frame that was taken last?"""
        return self._have > 0

    @property
    def due(self) -> int:
        """Bytes of the frame that has begun, its head included; -1 when that is not known yet."""
        if self._have < HEAD.size:
            return -1
        if len(self._pieces) > 1 and len(self._pieces[0]) < HEAD.size:
            self._pieces = [b"".join(self._pieces)]
        return HEAD.size + int(HEAD.unpack_from(self._pieces[0])[0])

    def is_open(self) -> bool:
        """The other end is open; for a channel on which no reply is due. 1 us."""
        try:
            self.sock.recv(1, _LOOK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # closed, or it says something that nobody has asked for

    def limit(self, receive_s: float, send_s: float) -> None:
        """Longest time for one step of receiving and of sending, 0 for none: BlockingIOError then.

        The socket's own limits: those of Python cost two more system calls a frame.
        """
        if self._limits == (receive_s, send_s):
            return
        self.sock.settimeout(None)
        for option, seconds in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
            whole, part = divmod(round(seconds * 1e6), 1_000_000)
            self.sock.setsockopt(socket.SOL_SOCKET, option, pack("ll", whole, part))
        self._limits = receive_s, send_s

    def close(self) -> None:
        """Let go. In a forked child too: the parent's connection stays."""
        with suppress(OSError):
            self.sock.close()

    def _look(self) -> bytes | None:
        try:
            return self.sock.recv(FIRST_BYTES, _AT_ONCE)
        except BlockingIOError:
            return None

    def _whole(self, data: bytes) -> bytes | None:
        """The body if this is exactly one frame, as it nearly always is; otherwise it is kept."""
        if len(data) >= HEAD.size:
            size, crc = HEAD.unpack_from(data)
            body = data[HEAD.size :]
            if len(body) == size and crc32(body) == crc:
                return body
        if data:
            self._pieces.append(data)
            self._have = len(data)
        return None

    def _cut(self, size: int, bytes_max: int) -> bytes:
        """The body of a frame that is whole."""
        if size > HEAD.size + bytes_max:
            raise BrokenChannelError(f"a frame of {size} bytes is longer than {bytes_max}")
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        body, left = data[HEAD.size : size], data[size:]
        self._pieces, self._have = [left] if left else [], len(left)
        if crc32(body) != HEAD.unpack_from(data)[1]:
            raise BrokenChannelError("a frame was damaged on its way")
        return body

    def _more(self, flags: int) -> bool:
        """Take what is there; False at the end."""
        data = self.sock.recv(PIECE_BYTES if self._have else FIRST_BYTES, flags)
        if data:
            self._pieces.append(data)
            self._have += len(data)
        return bool(data)

    def _check_end(self) -> None:
        if self._have:
            raise BrokenChannelError("the connection ended inside a frame")
