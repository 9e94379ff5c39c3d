"""Word tables: the masks of recent queries, which one DuckDB instance keeps for the next ones.

    Mask --Loan.words--> a table of the instance, made when no kept one says the same
                         |
          query ends     '--> the loan is given back; least recently used tables go when there are
                              too many, never one that is on loan

A table is found by what it says, range and dead RowIDs compared one by one, and never changes. So
this file need not hear of commits, moves or compaction: a query that sees other dead rows finds
no table that says so, and makes one. Making and handing over the words of 10 M rows takes 6 to 8
ms, finding them 0.2 to 0.9 ms; a query over these rows takes 90 to 180.

Invariants
- A table on loan is not dropped.
- Kept tables take at most `bytes_max` together, but for those on loan. One that would take more
  than a quarter of that lives and dies with its query.
- Giving back takes no lock: a stream that is dropped does so in the middle of anything.

Not here: what is in the words (mask.py), the query around them (source.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import pyarrow as pa

from halocline.read.mask import Mask, words_of

if TYPE_CHECKING:
    import duckdb


@dataclass(slots=True, kw_only=True, eq=False)
class _Kept:
    mask: Mask
    table: str
    test: str
    size_bytes: int
    loans: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WordTable:
    """Where a query finds the words, and the condition that holds for rows alive."""

    table: str
    test: str


class WordTables:
    """The kept tables of one DuckDB instance."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._kept: list[_Kept] = []  # the one used last is last
        self._returned: deque[_Kept] = deque()
        self._made = 0

    def lend(self, cursor: duckdb.DuckDBPyConnection, mask: Mask) -> tuple[WordTable, _Kept | None]:
        """The words of a mask, and what to give back."""
        with self._lock:
            self._settle()
            latest = reversed(self._kept)
            kept = next((kept for kept in latest if kept.mask.says_the_same(mask)), None)
            if kept is None:
                words = words_of(mask)
                rows = words.table()
                size_bytes = rows.nbytes + mask.dead.nbytes
                self._made += 1
                if size_bytes > self._bytes_max // 4:
                    table = _make(cursor, f"temp.main._words_{self._made}", rows)
                    return WordTable(table=table, test=words.test), None
                kept = _Kept(
                    mask=mask._replace(entries=()),  # objects that are gone need not be remembered
                    table=_make(cursor, f"memory.main._words_{self._made}", rows),
                    test=words.test,
                    size_bytes=size_bytes,
                )
            else:
                self._kept.remove(kept)
            self._kept.append(kept)
            kept.loans += 1
            try:
                self._shrink(cursor)
            except BaseException:  # Ctrl-C: nobody will give it back
                kept.loans -= 1
                raise
            return WordTable(table=kept.table, test=kept.test), kept

    def give_back(self, kept: _Kept) -> None:
        """One query less needs the table."""
        self._returned.append(kept)

    def _settle(self) -> None:
        while self._returned:
            self._returned.popleft().loans -= 1

    def _shrink(self, cursor: duckdb.DuckDBPyConnection) -> None:
        size_bytes = sum(kept.size_bytes for kept in self._kept)
        for kept in [kept for kept in self._kept if not kept.loans]:
            if size_bytes <= self._bytes_max:
                return
            cursor.execute(f"drop table if exists {kept.table}")
            self._kept.remove(kept)
            size_bytes -= kept.size_bytes


class Loan:
    """What one query has in hand. Not for several threads."""

    def __init__(self, tables: WordTables, cursor: duckdb.DuckDBPyConnection) -> None:
        self._tables = tables
        self._cursor = cursor
        self._held: list[_Kept] = []

    def words(self, mask: Mask) -> WordTable:
        """A table with the words of a mask, until `close`."""
        table, kept = self._tables.lend(self._cursor, mask)
        if kept is not None:
            self._held.append(kept)
        return table

    def close(self) -> None:
        """The query is over."""
        while self._held:
            self._tables.give_back(self._held.pop())

    def __del__(self) -> None:
        # A stream of which nobody has read a batch is dropped without a word.
        self.close()


def _make(cursor: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> str:
    """A table of its own, not Arrow: DuckDB knows the bounds of its columns."""
    cursor.register("_words", rows)
    temp = "temp" if table.startswith("temp.") else ""
    cursor.execute(f"create {temp} table {table} as select * from _words")
    cursor.unregister("_words")
    return table
