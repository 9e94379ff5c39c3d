"""Greeting: what is said on a connection before anything else, by the owner's side.

    --Hello: version, token, session--> `check_hello` --> role --> Welcome, or why not

Nothing longer than HELLO_BYTES_MAX is read before the token has been compared, in constant time;
nothing else is looked at before, and nothing else is answered.
"""

from __future__ import annotations

import hmac
import socket
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from halocline.clock import SystemClock
from halocline.errors import HaloclineError, UsageError
from halocline.node.channel import BrokenChannelError, Channel
from halocline.node.faults import to_wire
from halocline.node.wire import HELLO_BYTES_MAX, VERSION, Hello, decode_hello

HELLO_S: Final = 5
"""How long a new connection may take to say who it is."""
PAUSE_S: Final = 0.05


def check_hello(body: bytes, tokens: Mapping[str, bytes]) -> tuple[str, Hello]:
    """The role whose token was said, and what was said; UsageError for those who are not let in,
    BrokenChannelError for those who do not even say hello."""
    if len(body) > HELLO_BYTES_MAX:
        raise BrokenChannelError("a greeting is short")
    try:
        hello: Hello = decode_hello(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BrokenChannelError(str(error)) from error
    found = None
    for role, secret in tokens.items():
        if hmac.compare_digest(hello.token, secret):
            found = role
    if found is None:
        raise UsageError("the token is not that of this database")
    if hello.version != VERSION:
        raise UsageError(
            f"this process speaks protocol {hello.version}, the owner {VERSION}: "
            "processes that share a database must run the same release"
        )
    return found, hello


def refuse(channel: Channel, error: HaloclineError) -> None:
    """Tell the caller why it is not let in."""
    with suppress(OSError):
        channel.send(to_wire(error, lambda table: None))


class Door(Protocol):
    """Where connections come in."""

    stopping: bool

    def admit(self, sock: socket.socket) -> None:
        """Take a new connection."""

    def mend(self) -> None:
        """Look after the door: called now and then, between two connections."""


def accept(ref: weakref.ref[Door], listener: socket.socket) -> None:
    """Let connections in until the listener is closed. Between two of them no door is held."""
    while True:
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            door = ref()
            if door is None:
                return
            door.mend()
            del door
            continue
        except OSError:
            door = ref()
            if door is None or door.stopping:
                return
            del door  # no more file numbers, perhaps: whoever waits is taken in later
            SystemClock().sleep(PAUSE_S)
            continue
        door = ref()
        if door is None:
            sock.close()
            return
        door.admit(sock)
        del door
