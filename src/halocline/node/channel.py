"""Channel: one connected socket, frames in and frames out. For one thread at a time.

Bytes are taken from the socket in pieces of at most PIECE_BYTES, so that a length nobody honours
costs nothing. A frame that is too long, or whose CRC is wrong, ends the connection: after it nobody
knows where the next one begins.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from struct import pack
from typing import Final
from zlib import crc32

from halocline.node.wire import HEAD, frame

PIECE_BYTES: Final = 1 << 18
_LOOK: Final = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)


class BrokenChannelError(ConnectionError):
    """The other side is gone, or does not speak our language."""


class Channel:
    """Frames over a stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._pieces: list[bytes] = []
        self._have = 0
        """Bytes that have come and were not used yet."""

    def send(self, message: object) -> None:
        """All of it, or OSError."""
        self.sock.sendall(frame(message))

    def receive(self, bytes_max: int) -> bytes | None:
        """The body of the next frame; None when the other side has closed between two frames.

        BlockingIOError when nothing came in time; it may then be called again.
        """
        if not self._have and not self._more():
            return None
        while self._have < HEAD.size:
            self._rest()
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        size, crc = HEAD.unpack_from(self._pieces[0])
        if size > bytes_max:
            raise BrokenChannelError(f"a frame of {size} bytes is longer than {bytes_max}")
        end = HEAD.size + size
        while self._have < end:
            self._rest()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        body, left = data[HEAD.size : end], data[end:]
        self._pieces, self._have = [left] if left else [], len(left)
        if crc32(body) != crc:
            raise BrokenChannelError("a frame was damaged on its way")
        return body

    def is_open(self) -> bool:
        """Nobody has closed the other end; for a channel on which no reply is due. 1 us."""
        try:
            self.sock.recv(1, _LOOK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # closed, or it says something that nobody has asked for

    def limit(self, receive_s: int, send_s: int) -> None:
        """Longest time for one step of receiving and of sending, 0 for none: BlockingIOError then.

        The socket's own limits: those of Python cost two more system calls a frame.
        """
        self.sock.settimeout(None)
        for option, seconds in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
            self.sock.setsockopt(socket.SOL_SOCKET, option, pack("ll", seconds, 0))

    def close(self) -> None:
        """Let go. In a forked child too: the parent's connection stays."""
        with suppress(OSError):
            self.sock.close()

    def _more(self) -> bool:
        """Take what is there; False at the end."""
        data = self.sock.recv(PIECE_BYTES)
        if data:
            self._pieces.append(data)
            self._have += len(data)
        return bool(data)

    def _rest(self) -> None:
        if not self._more():
            raise BrokenChannelError("the connection ended inside a frame")
