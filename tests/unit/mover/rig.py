"""A small database whose rows move only when a test says so, and a dict that knows what it holds.

Shop(open_db) --commits--> db and `rows`, `history`     what each snapshot must see
              --look-->    every snapshot, read from L0 and from files, against the dict
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import halocline as hc
from halocline.objects.columns import COMMIT_TS, ROWID, SUCCESSOR, tombstone_schema
from halocline.rows.state import TableState

TINY = hc.Options(
    page_rows=4,
    bulk_rows=8,
    object_rows=16,
    row_group_rows=8,
    background=False,
    sql_threads=1,
)
COLUMNS = {"id": int, "name": str, "n": int}
KEYS: dict[str, Any] = {"int": "id", "text": "name", "pair": ["name", "id"], "none": None}
Row = tuple[int, str, int]


class Shop:
    """One table `t` and what it must hold."""

    def __init__(self, db: Any, key: str = "int", seed: int = 0) -> None:
        self.db = db
        self.key = key
        self.random = random.Random(seed)
        db.create_table("t", COLUMNS, primary_key=KEYS[key])
        self.rows: dict[int, Row] = {}
        self.history: dict[int, dict[int, Row]] = {}

    @property
    def state(self) -> TableState:
        state: TableState = self.db.core.state_of("t", self.db.visible_ts)
        return state

    def commit(self, change: Callable[[Any, dict[int, Row]], None]) -> int:
        rows = dict(self.rows)
        with self.db.begin() as txn:
            change(txn, rows)
        self.rows = rows
        ts: int = txn.commit_ts
        self.history[ts] = rows
        return ts

    def insert(self, *numbers: int) -> int:
        def change(txn: Any, rows: dict[int, Row]) -> None:
            new = {number: (number, f"k{number:03d}", 0) for number in numbers}
            txn.insert("t", [dict(zip(COLUMNS, row, strict=True)) for row in new.values()])
            rows.update(new)

        return self.commit(change)

    def update(self, *numbers: int) -> int:
        n = self.random.randrange(1, 1000)

        def change(txn: Any, rows: dict[int, Row]) -> None:
            for number in numbers:
                if self.key == "none":
                    txn.update("t", where="id = ?", params=[number], set={"n": n})
                else:
                    txn.update("t", self._key(rows[number]), {"n": n})
                rows[number] = (*rows[number][:2], n)

        return self.commit(change)

    def delete(self, *numbers: int) -> int:
        def change(txn: Any, rows: dict[int, Row]) -> None:
            for number in numbers:
                if self.key == "none":
                    txn.delete("t", where="id = ?", params=[number])
                else:
                    txn.delete("t", self._key(rows[number]))
                del rows[number]

        return self.commit(change)

    def _key(self, row: Row) -> Any:
        return {"int": row[0], "text": row[1], "pair": (row[1], row[0])}[self.key]

    def work(self, commits: int, numbers: int = 40) -> None:
        """Random commits of one to twelve rows."""
        for _ in range(commits):
            living, free = sorted(self.rows), sorted(set(range(numbers)) - set(self.rows))
            verb = self.random.choice(["insert", "insert", "update", "delete"])
            pool = free if verb == "insert" else living
            if pool:
                count = min(len(pool), self.random.choice([1, 1, 2, 12]))
                getattr(self, verb)(*self.random.sample(pool, count))

    def look(self, since: int = 0) -> None:
        """Snapshots from `since` on, a random dozen, see the rows they must, by scan and by key."""
        known = [ts for ts in self.history if ts >= since]
        for ts in {*known[-2:], *self.random.sample(known, min(10, len(known)))}:
            rows = self.history[ts]
            with self.db.begin(at=ts) as txn:
                seen = txn.scan("t").to_pylist()
                assert sorted(tuple(row.values()) for row in seen) == sorted(rows.values()), ts
                if self.key == "int":
                    for number in (*list(rows)[:3], 999):
                        row = txn.get("t", number)
                        assert (tuple(row.values()) if row else None) == rows.get(number), ts


def data_rows(state: TableState) -> list[list[tuple[Any, ...]]]:
    """(row, RowID, commit_ts) of every data object, read back and verified."""
    found = []
    for entry in state.shape.tier.data:
        assert entry.file is not None
        table = state.shelf.reader.read(entry.file, state.schema, hidden=[ROWID, COMMIT_TS])
        found.append([tuple(row.values()) for row in table.to_pylist()])
    return found


def tombstones(state: TableState) -> list[tuple[Any, ...]]:
    """(RowID, commit_ts, successor) of every tombstone object."""
    found: list[tuple[Any, ...]] = []
    for entry in state.shape.tier.tombstones:
        assert entry.file is not None
        schema = tombstone_schema(state.schema)
        hidden = [ROWID, COMMIT_TS]
        table = state.shelf.reader.read(entry.file, schema, columns=[SUCCESSOR], hidden=hidden)
        found += [
            tuple(table.column(name)[at].as_py() for name in (*hidden, SUCCESSOR))
            for at in range(table.num_rows)
        ]
    return found


def l0_rowids(state: TableState) -> list[int]:
    return [rowid for page, n in state.shape.counted() for rowid in page.rowid_array(n).tolist()]
