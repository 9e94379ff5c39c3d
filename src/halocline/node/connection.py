"""Connection: one of those that the request loop serves, wherever its request is worked on."""

from __future__ import annotations

from halocline.node.channel import Channel
from halocline.node.session import Session


class Connection:
    """A connection, and who sits there once that is known."""

    __slots__ = ("channel", "gone", "here", "number", "session", "since")

    def __init__(self, channel: Channel, since: float) -> None:
        self.channel = channel
        self.number = channel.sock.fileno()
        self.session: Session | None = None
        self.since = since
        self.here = False
        """At the desk, and not aside, or on its way back."""
        self.gone = False
        """Something went wrong aside: it cannot be gone on with."""
