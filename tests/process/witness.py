"""Witnesses: processes that read and write registers through bad connections, and write it down.

    witness --transactions, each with a token--> database
       '---- one line before each commit, one after it ----> journal, a file of its own
    test: journals, and the tokens of the database at the end --> records --> check_sessions

A witness may be killed, paused or cut off at any moment. What it has written down before a commit,
and the token, tell afterwards what became of it: nothing stays unknown. The board is shared memory:
every witness shows there the newest commit that it has been told of, so that each knows, when it
begins, a timestamp that its snapshot must not be older than.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

import halocline as hc
from halocline.node import link, routes
from halocline.node.certificate import own_certificate
from tests.concurrency.registers import Record, Recorder
from tests.roles import node_of

TINY = hc.Options(page_rows=8, bulk_rows=1, log_file_bytes=1 << 16)
SLOTS = 4096
SLOT = struct.Struct("<q")
TOKEN = "nobody guesses this one"


class Board:
    """The newest commit that each witness has been told of."""

    def __init__(self, folder: str) -> None:
        path = Path(folder, "board")
        with path.open("ab") as file:
            file.truncate(SLOTS * SLOT.size)
        with path.open("r+b") as file:
            self._slots = mmap.mmap(file.fileno(), SLOTS * SLOT.size)

    def show(self, number: int, ts: int) -> None:
        SLOT.pack_into(self._slots, number * SLOT.size, ts)

    def of(self, number: int) -> int:
        return int(SLOT.unpack_from(self._slots, number * SLOT.size)[0])

    def newest(self) -> int:
        return max(ts for (ts,) in SLOT.iter_unpack(self._slots))

    def close(self) -> None:
        self._slots.close()


# -- in a child ----------------------------------------------------------------------------------


def watch_near(path: str, proxy: str, folder: str, number: int) -> None:
    """A process of the owner's machine; what it says to an owner passes through the proxy."""
    routes.PATIENCE_S = 1  # type: ignore[misc]
    find = routes.read_endpoint  # type: ignore[attr-defined]

    def through_the_proxy(root: str) -> Any:
        endpoint = find(root)
        return endpoint and msgspec.structs.replace(endpoint, socket=proxy)

    connect = link.Link.connect

    def as_without_it(self: link.Link) -> Any:
        try:
            return connect(self)
        except hc.UsageError as error:
            # The proxy leads to the owner of this moment, which may be a newer one than we have
            # read of, and knows another token. Without it there would be nobody at the socket.
            raise ConnectionRefusedError(str(error)) from error

    routes.read_endpoint = through_the_proxy  # type: ignore[attr-defined]
    link.Link.connect = as_without_it  # type: ignore[method-assign]
    _watch(lambda: hc.open(path, options=TINY), folder, number)


def watch_afar(port: int, roots: str, folder: str, number: int) -> None:
    """A process that is connected with TLS, through a proxy."""
    routes.CALL_S = 1.0  # type: ignore[misc]
    tempfile.tempdir = folder  # it will be killed, and leave its cache
    uri = f"halocline://127.0.0.1:{port}"
    _watch(lambda: hc.connect(uri, TOKEN, tls_roots=roots, options=TINY), folder, number)


def serve_afar(output: int, path: str) -> None:
    """The owner: says at which port it serves, and has nothing else to do."""
    db = hc.open(path, options=TINY)
    server = db.serve(token=TOKEN, tls=own_certificate(path))
    os.write(output, server.uri.rpartition(":")[2].encode() + b"\n")
    while True:
        signal.pause()


def _watch(open_: Callable[[], hc.Database], folder: str, number: int) -> None:
    journal = os.open(Path(folder, f"{number}.journal"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        try:
            db = open_()
            break
        except hc.UnavailableError:
            continue  # each try takes its time
    witness = Witness(db, Board(folder), number, journal)
    chance = random.Random(number)
    try:
        while True:
            witness.testify(chance)
            time.sleep(0.002)  # others have something to say, too
    except BaseException as error:
        witness.say(crash=repr(error))
        raise


class Witness(Recorder):
    """Transactions whose records go into a journal."""

    def __init__(self, db: hc.Database, board: Board, number: int, journal: int) -> None:
        # Not that of Recorder: the table is there.
        self.db = db
        self._board = board
        self._number = number
        self._journal = journal
        self._values = count(number * 1_000_000 + 1)
        self._tokens = count(1)

    def say(self, **facts: Any) -> None:
        os.write(self._journal, json.dumps(facts).encode() + b"\n")

    def testify(self, chance: random.Random) -> None:
        """One transaction."""
        token = f"{self._number}-{next(self._tokens)}"
        known = self._board.newest()
        try:
            txn = self.db.begin(token=token)
        except hc.UnavailableError:
            return
        record = Record(txn.snapshot, False, known)
        if txn.snapshot < known:
            self.say(stale=txn.snapshot, known=known, why=_position(self.db))
        try:
            for _ in range(chance.randint(1, 6)):
                self._step(txn, record, chance)
        except (hc.ConflictError, hc.UnavailableError) as error:
            self._say_before(token, record)
            self.say(token=token, failed=repr(error))
            txn.rollback()
            return
        self._say_before(token, record)
        try:
            ts = txn.commit()
        except (hc.ConflictError, hc.UnavailableError) as error:
            lost = getattr(error, "outcome", "") == "unknown"
            self.say(token=token, **{"lost" if lost else "failed": repr(error)})
            return
        self.say(token=token, ts=ts)
        if ts:
            self._board.show(self._number, ts)

    def _say_before(self, token: str, record: Record) -> None:
        self.say(
            token=token,
            snapshot=record.snapshot,
            known=record.acknowledged,
            reads=record.reads,
            writes=list(record.writes.items()),
            adds=list(record.adds.items()),
        )


def _position(db: hc.Database) -> str:
    """What is known of the log here, and what could be known by now."""
    if db.role == "owner":
        return f"owner, {db.visible_ts} visible"
    follower = node_of(db).replica._follower
    now = None if follower._page is None else follower._page.read()
    return f"{db.role}, read up to position {follower._sequence}, now {now}"


# -- in the test ---------------------------------------------------------------------------------


def read_journal(path: Path, find: Callable[[str], int]) -> list[Record]:
    """What a witness has seen, in its order; `find` gives the commit_ts of a token, 0 for none."""
    records: dict[str, Record] = {}
    ends: dict[str, dict[str, Any]] = {}
    *lines, _ = path.read_bytes().split(b"\n")  # behind the last one there may be half a line
    for line in lines:
        facts = json.loads(line)
        assert "crash" not in facts, facts["crash"]
        assert "stale" not in facts, f"an acknowledged commit was not seen: {facts}"
        token = facts["token"]
        if "snapshot" in facts:
            record = records[token] = Record(facts["snapshot"], False, facts["known"])
            record.reads = [(key, value) for key, value in facts["reads"]]
            record.writes = dict(facts["writes"])
            record.adds = dict(facts["adds"])
        else:
            ends[token] = facts
    for token, record in records.items():
        found, end = find(token) or None, ends.get(token, {"lost": "killed"})
        record.commit_ts, record.told = found, "ts" in end
        if "failed" in end:
            assert found is None, f"{token} was told {end['failed']}, and is there"
        elif "ts" in end:
            assert (end["ts"] or None) == found, f"{token} was told {end['ts']}, it is {found}"
    return list(records.values())
