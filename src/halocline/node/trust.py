"""Trust: the client's side of a promise (log/promise.py), between a link and those who follow.

    Commit --body--> CommitLook --owner--> CommitLooked --read--> its answer
                                                          '--> AfarFiles: what is new, until when

Invariants
- What came through an exchange is learnt before the exchange is given back, and forgotten
  (`doubt`) after it was taken and before anything is sent: so nothing that we send ourselves can
  become visible while we rely on a promise that was given to the same exchange.
"""

from __future__ import annotations

from typing import Final

import msgspec

from halocline.clock import Clock
from halocline.log.promise import TRUSTED
from halocline.node.afar import AfarFiles, Glance
from halocline.node.promising import PROMISE_US, decode_looked
from halocline.node.wire import Commit, CommitLook, encode

LOOKS_BYTES: Final = 1 << 16
"""A longer commit is sent without a look: it is not what follows one another in milliseconds."""
LATE_MAX: Final = 8
LATE_S: Final = 1.0
"""A line on which so many promises in a row were over when they came is too long for them: for so
many seconds none is asked for."""
From = tuple[str, int]
"""A log file, and the offset from which on it is wanted."""


class Trust:
    """Of one link. Thread-safe."""

    def __init__(self, files: AfarFiles, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self.late, self._late_at = 0, 0.0
        self.doubt = files.doubt

    def body(self, commit: Commit) -> tuple[bytes, From] | None:
        """A commit as it is sent, and from where on it looks; None for one that does not."""
        if self.late >= LATE_MAX and self._clock.elapsed() < self._late_at + LATE_S:
            return None
        look = self._files.here()
        body = encode(CommitLook(commit, *look))
        return (body, look) if len(body) <= LOOKS_BYTES else None

    def read(self, value: msgspec.Raw, look: From, sent: float) -> msgspec.Raw:
        """The answer to the commit, which was sent then; 0: not through an exchange.

        MsgspecError when it makes no sense.
        """
        looked = decode_looked(value)
        if looked.promise_us and sent:
            until = sent + min(looked.promise_us, PROMISE_US) / 1e6 * TRUSTED
            self._files.learn(Glance(looked.page, *look, looked.data), until)
            self.late = self.late + 1 if self._clock.elapsed() > until else 0
            self._late_at = sent
        return looked.answer
