"""Idempotency tokens: a second commit with a known token is a no-op with the first one's result.

A token is a string, remembered for `token_retention`, or an (application, version) pair: of each
application only the newest version is kept, for ever, and a version that is not above it counts as
known. The pair is what a stream sink uses (query id, batch id).

A serial does the same for a commit that another process has sent and whose answer was lost. Nobody
chooses it: the sender counts its commits, and has one on its way in each of its sequences.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from halocline.errors import UsageError
from halocline.log.record import Serial

Token = str | tuple[str, int]
TOKEN_BYTES_MAX = 1024
SEQUENCES_MAX = 4096
"""More than there can be connections, so a sequence in use is not forgotten."""


def check_token(token: object) -> Token | None:
    """The caller's token in canonical form; UsageError when it is neither of the two."""
    if token is None:
        return None
    if isinstance(token, str):
        text = token
    elif (
        isinstance(token, (tuple, list))
        and len(token) == 2
        and isinstance(token[0], str)
        and type(token[1]) is int
        and 0 <= token[1] < 1 << 63
    ):
        text = token[0]
    else:
        raise UsageError("a token is a string or an (application, version) pair")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError("a token must be valid text") from None
    if not 1 <= size <= TOKEN_BYTES_MAX:
        raise UsageError(f"a token has 1 to {TOKEN_BYTES_MAX} bytes")
    return token if isinstance(token, str) else (token[0], token[1])


class Serials:
    """The last commit of each sequence that other processes have sent, those of late first.

    A sequence has one commit on its way, so the last one is all that anybody can ask for. Changed
    under the commit lock; `find` may be called in any thread.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def find(self, serial: Serial) -> int:
        """The commit_ts of the commit with this serial, else 0."""
        number, commit_ts = self._last.get(serial[0], (0, 0))
        return commit_ts if serial[1] <= number else 0

    def add(self, serial: Serial, commit_ts: int) -> None:
        sequence, number = serial
        if sequence:
            self._last[sequence] = number, commit_ts
            self._last.move_to_end(sequence)
            if len(self._last) > SEQUENCES_MAX:
                self._last.popitem(last=False)

    def written_down(self) -> list[tuple[int, int, int]]:
        """All of them (sequence, number, commit_ts), oldest first. Needs no lock, as for tokens."""
        return [(sequence, *found) for sequence, found in list(self._last.items())]

    def restore(self, written: Iterable[tuple[int, int, int]]) -> None:
        """What `written_down` gave."""
        for sequence, number, commit_ts in written:
            self.add((sequence, number), commit_ts)


class Tokens:
    """Tokens of committed transactions and the timestamps they got."""

    __slots__ = ("_plain", "_versions")

    def __init__(self) -> None:
        self._plain: dict[str, tuple[int, int]] = {}
        self._versions: dict[str, tuple[int, int]] = {}

    def find(self, token: Token) -> int:
        """The commit_ts of a known token, else 0."""
        if isinstance(token, str):
            return self._plain.get(token, (0, 0))[0]
        version, commit_ts = self._versions.get(token[0], (-1, 0))
        return commit_ts if token[1] <= version else 0

    def add(self, token: Token, commit_ts: int, wall_us: int) -> None:
        if isinstance(token, str):
            self._plain[token] = (commit_ts, wall_us)
        else:
            self._versions[token[0]] = (token[1], commit_ts)

    def written_down(self) -> tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]:
        """All tokens (text, commit_ts, wall clock), all versions (application, version, commit_ts).

        Needs no lock: list() of a dict view copies without giving up the interpreter.
        """
        plain = [(token, *found) for token, found in list(self._plain.items())]
        return plain, [(name, *found) for name, found in list(self._versions.items())]

    def restore(
        self, plain: Iterable[tuple[str, int, int]], versions: Iterable[tuple[str, int, int]]
    ) -> None:
        """What `written_down` gave."""
        self._plain = {token: (ts, wall_us) for token, ts, wall_us in plain}
        self._versions = {name: (version, ts) for name, version, ts in versions}

    def expire(self, before_us: int) -> int:
        """Forget plain tokens of commits before that wall clock; returns how many."""
        old = [token for token, (_, wall_us) in self._plain.items() if wall_us < before_us]
        for token in old:
            del self._plain[token]
        return len(old)
