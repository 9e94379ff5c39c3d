"""Streams: how a subscription reaches its subscriber.

    Feed            in this very process, the owner's       (push.py)
    ChannelStream   through a connection of its own, to the owner of this machine or to a server

The owner's side of a connection is `push`: what a Feed gives, frame after frame.

Each gives Pushed after Pushed until `stop` is called, from any thread, or an error ends it: one of
errors.py when the owner has said so, OSError when the way to it is lost. A slow reader holds
back its sender alone.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from halocline.errors import HaloclineError
from halocline.node.channel import Channel
from halocline.node.faults import SchemaOf, from_wire, to_wire
from halocline.node.push import Feed
from halocline.node.wire import FRAME_BYTES_MAX, Failed, Pushed, Subscribe, decode_reply, done

PUSH_S: Final = 30
"""How long a subscriber may take nothing of what it is sent."""
_decode_pushed = msgspec.msgpack.Decoder(Pushed).decode


class Stream(Protocol):
    """One Pushed after another."""

    def __iter__(self) -> Iterator[Pushed]: ...

    def stop(self) -> None: ...


class ChannelStream:
    """A connection on which nothing else is said."""

    def __init__(self, channel: Channel, request: Subscribe, schema_of: SchemaOf) -> None:
        self._channel = channel
        self._request = request
        self._schema_of = schema_of

    def __iter__(self) -> Iterator[Pushed]:
        channel = self._channel
        try:
            channel.send(self._request)
            while (body := channel.receive(FRAME_BYTES_MAX)) is not None:
                yield _pushed(body, self._schema_of)
        finally:
            channel.close()
        raise ConnectionResetError("the owner is gone")

    def stop(self) -> None:
        with suppress(OSError):
            self._channel.sock.shutdown(socket.SHUT_RDWR)


def push(channel: Channel, feed: Feed, schema_of: SchemaOf) -> None:
    """Send what is committed, until the subscriber hangs up or it cannot go on."""
    channel.limit(0, PUSH_S)
    try:
        for pushed in feed:
            channel.sock.sendall(done(pushed))
    except HaloclineError as error:
        channel.send(to_wire(error, schema_of))
    finally:
        feed.close()


def _pushed(body: bytes, schema_of: SchemaOf) -> Pushed:
    try:
        reply = decode_reply(body)
        if isinstance(reply, Failed):
            raise from_wire(reply, schema_of)
        return _decode_pushed(reply.value)
    except msgspec.MsgspecError as error:
        raise ConnectionResetError(str(error)) from error
