"""Channel: one connected socket, frames in and frames out. For one thread at a time.

Bytes are taken from the socket in pieces of at most PIECE_BYTES, so that a length nobody honours
costs nothing. A frame that is too long, or whose CRC is wrong, ends the connection: after it nobody
knows where the next one begins.
"""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from typing import Final
from zlib import crc32

from halocline.node.wire import HEAD, frame

PIECE_BYTES: Final = 1 << 18


class BrokenChannelError(ConnectionError):
    """The other side is gone, or does not speak our language."""


class Channel:
    """Frames over a stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._left = b""
        """Bytes that came together with the frame before."""

    def send(self, message: object) -> None:
        """All of it, or OSError."""
        self.sock.sendall(frame(message))

    def receive(self, bytes_max: int) -> bytes | None:
        """The body of the next frame; None when the other side has closed between two frames."""
        data = self._left or self.sock.recv(PIECE_BYTES)
        if not data:
            return None
        while len(data) < HEAD.size:
            data += self._more()
        size, crc = HEAD.unpack_from(data)
        if size > bytes_max:
            raise BrokenChannelError(f"a frame of {size} bytes is longer than {bytes_max}")
        end = HEAD.size + size
        if len(data) < end:
            pieces, have = [data], len(data)
            while have < end:
                pieces.append(self._more())
                have += len(pieces[-1])
            data = b"".join(pieces)
        body, self._left = data[HEAD.size : end], data[end:]
        if crc32(body) != crc:
            raise BrokenChannelError("a frame was damaged on its way")
        return body

    def is_open(self) -> bool:
        """Nobody has closed the other end; for a channel on which no reply is due. 1 us."""
        try:
            self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # closed, or it says something that nobody has asked for

    def wait(self, seconds: float) -> bool:
        """Is there something to read, within that time?"""
        if self._left:
            return True
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        """Let go. In a forked child too: the parent's connection stays."""
        with suppress(OSError):
            self.sock.close()

    def _more(self) -> bytes:
        data = self.sock.recv(PIECE_BYTES)
        if not data:
            raise BrokenChannelError("the connection ended inside a frame")
        return data
