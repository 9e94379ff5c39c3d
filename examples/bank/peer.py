"""The peer of chapter 2: the bank's journal and accounts in sqlite3, used as fast as Python can.

WAL mode with synchronous=FULL, which promises what our commit promises. To be fair to it:
- begin immediate, so that no transaction starts in vain, and a busy timeout should it wait;
- a connection for each thread, and texts that never change, so that statements are prepared once;
- an `integer primary key`, its fastest table shape;
- relative updates, which spare it a read that we need;
- threads queue at a lock in Python: SQLite's own busy handler sleeps between tries, starves some
  threads, and was a few percent slower where both were tried.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import TracebackType

from bank import tables
from bank.writers import Step

BUSY_SECONDS = 30
CREATE = """
create table accounts
    (id integer primary key, owner text, branch text, opening integer, balance integer);
create table transfers (id integer primary key, source integer, target integer, cents integer);
"""
READ = "select balance from accounts where id = ?"
GIVE = "update accounts set balance = balance - ? where id = ?"
TAKE = "update accounts set balance = balance + ? where id = ?"
NOTE = "insert into transfers values (?, ?, ?, ?)"


class Peer:
    """The bank in SQLite. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = threading.Lock()
        self._connections: dict[int, sqlite3.Connection] = {}
        first = self._connection(0)
        first.executescript(CREATE)
        first.execute("begin")
        rows = [tuple(row.values()) for row in tables.accounts()]
        first.executemany("insert into accounts values (?, ?, ?, ?, ?)", rows)
        first.execute("commit")

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    def transfers(self, numbers: Iterator[int], seed: int) -> Step:
        """A function that makes one durable transfer."""
        execute, turn, random = self._connection(seed).cursor().execute, self._turn, Random(seed)

        def step() -> int:
            number, (source, target, cents) = next(numbers), tables.draw(random)
            with turn:
                execute("begin immediate")
                cents = min(cents, execute(READ, (source,)).fetchone()[0])
                execute(GIVE, (cents, source))
                execute(TAKE, (cents, target))
                execute(NOTE, (number, source, target, cents))
                execute("commit")
            return 0

        return step

    def inserts(self, numbers: Iterator[int], seed: int) -> Step:
        """A function that inserts one row, durably."""
        execute, random = self._connection(seed).cursor().execute, Random(seed)

        def step() -> int:
            source, target, cents = tables.draw(random)
            row = (next(numbers), source, target, cents)
            execute("begin immediate")
            execute(NOTE, row)
            execute("commit")
            return 0

        return step

    def total(self) -> int:
        """The sum of all balances: the peer must have done the work, too."""
        found = self._connection(0).execute("select sum(balance) from accounts").fetchone()[0]
        return int(found)

    def _connection(self, thread: int) -> sqlite3.Connection:
        if thread not in self._connections:
            connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS
            )
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
            self._connections[thread] = connection
        return self._connections[thread]
