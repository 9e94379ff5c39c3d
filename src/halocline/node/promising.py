"""Promising: a commit and the next look in one request, and nothing new for a moment.

    CommitLook --> the commit, as any other --> CommitLooked: its answer, and if all is quiet
                                                a promise, with what is new of the log

Why a promise is kept: log/promise.py. The commit comes first and its answer counts, whatever
becomes of the look.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from halocline.clock import Clock
from halocline.log.promise import PROMISE_S, Promise
from halocline.node.notes import U63, Message
from halocline.node.wire import CommitLook, Look, Looked, encode

if TYPE_CHECKING:
    from halocline.node.answers import Answers
    from halocline.node.session import Session
    from halocline.txn import Committer

PROMISE_US: Final = round(PROMISE_S * 1e6)
_logger = logging.getLogger("halocline")


class CommitLooked(Message, frozen=True):
    """The answer to the Commit, and how long nobody else's commit will become visible.

    Counted from the moment in which the request was sent; 0, and no look, when nothing is promised.
    """

    answer: msgspec.Raw
    promise_us: U63 = 0
    page: bytes = b""
    data: bytes = b""


decode_looked: Final = msgspec.msgpack.Decoder(CommitLooked).decode


def promise_of(committer: Committer, clock: Clock) -> Promise:
    """The log's; from now on everybody who logs something keeps what was promised."""
    log = committer.log

    def settled() -> bool:
        position, here = log.published()[1], log.places.here()
        return position is not None and position[3:5] == (here.number, here.offset)

    with committer.lock:
        if log.promise is None:
            log.promise = Promise(clock, committer.lock, settled)
        return log.promise


def commit_look(
    answers: Answers, session: Session, request: CommitLook, promise: Promise, since: float
) -> CommitLooked:
    """Commit, then promise if one may. The request has been here since then."""
    entries = promise.entries
    answer = msgspec.Raw(encode(answers.answer(session, request.commit)))
    try:
        if promise.give(since, entries):
            # Not before: what is promised is that nothing comes behind what this look finds.
            looked: Looked = answers.answer(session, Look(request.path, request.offset))
            return CommitLooked(answer, PROMISE_US, looked.page, looked.data)
    except Exception as error:  # noqa: BLE001 the commit has happened
        _logger.warning("a commit was answered without a look: %s", error)
    return CommitLooked(answer)
