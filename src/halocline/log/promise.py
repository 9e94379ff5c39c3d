"""A promise: for two milliseconds nobody else's commit becomes visible.

    client, far away              owner
    ----------------              -----
    sends a commit  ------------> has it in hand: `since`
                                  logs it, syncs it, publishes it
                    <------------ its timestamp, what is new of the log, and a promise
    begin: no question asked      whoever else wants to log anything waits until since + 2 ms
    sent + 1.8 ms: it is over
                                  since + 2 ms: it is over

A transaction that begins far away must see whatever anybody was told is committed; only the owner
knows that, so it is asked. A process that commits again and again is told beforehand: what came
with the answer is the newest there is, and for a moment it stays so.

Why nobody misses anything
- A promise is given when all that was ever logged is published, and comes with all of that.
- Whatever enters the log, of whatever kind, reserves its room first, under the commit lock, and
  there (`keep`) waits for the end of a promise to somebody else. So it is not even logged before.
- The holder is one exchange (node/exchange.py), told by the thread that answers it. Through it one
  request follows another, and the client forgets the promise before it sends the next. All other
  connections are others, those of the same process too.
- The client's two milliseconds begin before it sends, the owner's when the request is there; the
  client takes off a tenth, for clocks that do not run at the same speed.
- The next owner. A promise is given for a commit that was logged in answer to its request, so the
  old owner has looked at the claim (published.py) after the request was sent, and found it its own.
  Two milliseconds after the next owner has made its claim, all promises of the old one are over;
  before that it logs nothing for anybody (`start_owner` in database/opening.py). What it recovers
  is no news: all but a commit of the holder itself was published before the promise was given.

What it costs others: nothing, unless the last STREAK entries of the log were all the holder's. Then
the first of them waits, 2 ms at most, and there is no promise for REST_S: 4 % of its time.

Not here: who gives one (node/promising.py), and who relies on it (node/trust.py, node/afar.py).
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from threading import Lock
from typing import Final

from halocline.clock import Clock

PROMISE_S: Final = 0.002
TRUSTED: Final = 0.9
"""The part of it that a client relies on: one clock may be a tenth faster than the other."""
WORTH_S: Final = PROMISE_S / 2
"""What must be left of it when it is given, or a slow disk has eaten it up."""
STREAK: Final = 8
REST_S: Final = 0.05
NOBODY: Final = 0


class Promise:
    """At most one at a time. `keep` is called with the commit lock held, the rest take it."""

    def __init__(self, clock: Clock, lock: Lock, settled: Callable[[], bool]) -> None:
        """`settled`: is all that was ever logged published? Asked under the lock."""
        self._clock = clock
        self._lock = lock
        self._settled = settled
        self._holder = NOBODY
        self._until = 0.0
        self._rests_until = 0.0
        self._last = NOBODY
        self._streak = 0
        """So many entries in a row were logged by the same thread, the last one."""
        self.entries = 0
        """Entries that were let into the log."""
        self.given = 0

    def keep(self) -> None:
        """This thread is about to log something: wait, if somebody was promised that it will not.

        With the lock held: all but the holder would have to wait anyway, and the holder, who may
        be held up here, relies on nothing any more once it has sent its next commit.
        """
        thread = get_ident()
        if thread == self._last:
            self._streak += 1
        else:
            self._last, self._streak = thread, 1
        if self._until and thread != self._holder:
            self._wait()
        self.entries += 1

    def _wait(self) -> None:
        left = self._until - self._clock.monotonic()
        if left > 0:
            self._clock.sleep(left)
            self._rests_until = self._clock.monotonic() + REST_S
        self._until = 0.0

    def give(self, since: float, entries: int) -> bool:
        """Promise it to whomever this thread speaks for, if it has earned it.

        It has had the request since then, on the monotonic clock, when there were so many entries.
        """
        thread, until = get_ident(), since + PROMISE_S
        with self._lock:
            # The newest entry is ours, and it was logged in answer to this request.
            if self._last != thread or self.entries <= entries or self._streak < STREAK:
                return False
            now = self._clock.monotonic()
            if now < self._rests_until or until - now < WORTH_S or not self._settled():
                return False
            self._holder, self._until = thread, until
            self.given += 1
            return True

    def leave(self) -> None:
        """This thread speaks for somebody else from now on. What was promised is kept."""
        thread = get_ident()
        with self._lock:
            if self._last == thread:
                self._last = NOBODY
            if self._holder == thread:
                self._holder = NOBODY
