"""Where a row is makes no difference: random histories of writes, moves, flushes and merges.

    writes --> model: what the table held at every timestamp
    background work, by hand, in any order --> get, get_many, range and changes at every timestamp
                                               that may be read say what the model says

Every step of background work is also checked at once: the whole feed before it and after it must
be the same table, row for row.
"""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest

from halocline import Database
from halocline.read import ranges
from halocline.read.point import find
from tests.clock import ManualClock
from tests.store.faulty import FaultyFiles
from tests.unit.read import moving
from tests.unit.rows.rig import seeds

Model = dict[Any, dict[str, Any]]
KEYS = 24

SCHEMAS: dict[str, tuple[dict[str, Any], Any]] = {
    "int": ({"id": int, "a": int, "b": str}, "id"),
    "text": ({"id": str, "a": int, "b": str}, "id"),
    "pair": ({"k": int, "id": str, "a": int, "b": str}, ["k", "id"]),
    "date": ({"id": "date", "a": int, "b": str}, "id"),
}


class Story:
    """A database, and what it held after every commit."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self.rng = random.Random(seed)
        self.files = FaultyFiles()
        self.clock = ManualClock(1)
        self.db = self._open()
        columns, key = SCHEMAS[kind]
        self.db.create_table("t", columns, primary_key=key)
        self.schema = self.db.table("t").schema
        self.states: dict[int, Model] = {self.db.visible_ts: {}}

    def _open(self) -> Database:
        return Database(self.files, "tiers", options=moving.TINY, clock=self.clock, retention="1d")

    # Keys and rows.

    def key(self, number: int) -> Any:
        """The n-th key, in key order."""
        if self.kind == "text":
            return f"key {number:03}"
        if self.kind == "pair":
            return (number // 5, f"k{number % 5}")
        if self.kind == "date":
            return dt.date(2020, 1, 1) + dt.timedelta(number)
        return number

    def row(self, number: int) -> dict[str, Any]:
        key = self.key(number)
        named = {"k": key[0], "id": key[1]} if self.kind == "pair" else {"id": key}
        return {**named, "a": self.rng.randrange(5), "b": self.rng.choice("xyz")}

    def key_of(self, row: dict[str, Any]) -> Any:
        return (row["k"], row["id"]) if self.kind == "pair" else row["id"]

    # Writing.

    @property
    def now(self) -> Model:
        """The model after the last commit, to be changed by the next."""
        return dict(self.states[max(self.states)])

    def write(self) -> None:
        rng, now = self.rng, self.now
        with self.db.begin() as txn:
            for _ in range(rng.choice([1, 1, 1, 2, 3])):
                self._write(txn, now)
        self._note(now)

    def _write(self, txn: Any, now: Model) -> None:
        rng = self.rng
        number = rng.randrange(KEYS)
        key, row = self.key(number), self.row(number)
        verb = rng.choice(["insert", "insert", "upsert", "update", "delete", "many", "sweep"])
        if verb == "insert" and key not in now:
            txn.insert("t", row)
            now[key] = row
        elif verb == "upsert":
            txn.upsert("t", row)
            now[key] = row
        elif verb == "update" and key in now:
            txn.update("t", key, {"a": 7})
            now[key] = {**now[key], "a": 7}
        elif verb == "delete":
            assert txn.delete("t", key) == (key in now)
            now.pop(key, None)
        elif verb == "many":
            rows = [self.row(one) for one in rng.sample(range(KEYS), 10)]
            txn.upsert("t", pa.Table.from_pylist(rows, schema=self.schema))
            now.update({self.key_of(row): row for row in rows})
        elif verb == "sweep":
            for one in rng.sample(range(KEYS), 3):
                txn.delete("t", self.key(one))
                now.pop(self.key(one), None)

    def _note(self, now: Model) -> None:
        last = max(self.states)
        for ts in range(last + 1, self.db.visible_ts):
            self.states[ts] = self.states[last]
        self.states[self.db.visible_ts] = now

    def bulk(self) -> None:
        """A commit that brings objects."""
        rng, now = self.rng, self.now
        state = moving.state_of(self.db, "t")
        absent = [one for one in range(KEYS) if self.key(one) not in now]
        moved = [key for key in now if self._is_moved(state, key)]
        verb = rng.choice(["insert", "delete", "truncate"])
        if verb == "insert" and absent:
            rows = [self.row(one) for one in rng.sample(absent, rng.randrange(len(absent)) + 1)]
            moving.bulk_insert(self.db, "t", rows)
            now.update({self.key_of(row): row for row in rows})
        elif verb == "delete" and moved:
            keys = rng.sample(moved, rng.randrange(len(moved)) + 1)
            moving.bulk_delete(self.db, "t", keys)
            now = {key: row for key, row in now.items() if key not in keys}
        elif verb == "truncate" and rng.random() < 0.5:
            moving.move(self.db, "t")
            moving.truncate(self.db, "t")
            now = {}
        self._note(now)

    def _is_moved(self, state: Any, key: Any) -> bool:
        return state.row(find(state, key, self.db.visible_ts)) is None

    # Background work: changes nothing.

    def background(self) -> None:
        before = self.feed()
        rng, db = self.rng, self.db
        verb = rng.choice(["move", "move", "flush", "let go", "merge", "reopen"])
        if verb == "move":
            ends = [page.end for page in moving.state_of(db, "t").shape.pages]
            moving.move(db, "t", *rng.sample(ends, min(1, len(ends))))
        elif verb == "flush":
            moving.flush(db, "t")
        elif verb == "let go":
            moving.let_go(db, "t", rng.randrange(db.visible_ts) + 1)
        elif verb == "merge":
            moving.merge(db, "t")
        else:
            db.close()
            self.db = self._open()
        self._note(self.now)
        after = self.feed()
        assert after.equals(before), verb
        self.check(rng.choice(sorted(self.states)))

    # Reading.

    def feed(self) -> pa.Table:
        return self.db.changes("t", min(self.states))

    def check(self, ts: int) -> None:
        rng, model = self.rng, self.states[ts]
        with self.db.begin(at=ts) as txn:
            for number in range(KEYS):
                key = self.key(number)
                assert txn.get("t", key) == model.get(key), (ts, key)
            keys = [self.key(rng.randrange(KEYS)) for _ in range(rng.randrange(1, 30))]
            wanted = [model[key] for key in keys if key in model]
            assert txn.get_many("t", keys).to_pylist() == wanted, ts
            low, high = sorted(rng.sample(range(KEYS + 1), 2))
            inside = [self.key(number) for number in range(low, high)]
            rows = [model[key] for key in inside if key in model]
            found = txn.range("t", self.key(low), self.key(high))
            assert found.to_pylist() == rows, (ts, low, high)
            limit = rng.randrange(6)
            found = txn.range("t", self.key(low), self.key(high), reverse=True, limit=limit)
            assert found.to_pylist() == rows[::-1][:limit], (ts, low, high, limit)

    def check_feed(self) -> None:
        stamps = sorted(self.states)
        for _ in range(12):
            since, until = sorted(self.rng.choices(stamps, k=2))
            feed = self.db.changes("t", since, until)
            assert self.replay(self.states[since], feed) == self.states[until], (since, until)
            whole = self.feed()
            inside = [since < ts <= until for ts in whole.column("_commit_ts").to_pylist()]
            assert feed.equals(whole.filter(pa.array(inside, pa.bool_())))

    def replay(self, start: Model, feed: pa.Table) -> Model:
        """Apply events one by one; each must fit what is there."""
        model = dict(start)
        for event in feed.to_pylist():
            change, _ = event.pop("_change"), event.pop("_commit_ts")
            key = self.key_of(event)
            if change in ("insert", "update_after"):
                assert key not in model, (change, event)
                model[key] = event
            else:
                assert model.pop(key) == event, (change, event)
        return model


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("kind", sorted(SCHEMAS))
def test_r01_d23_every_read_says_what_the_history_says(
    kind: str, seed: int, sim: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "SLACK", 0)  # windows as small as the limit
    story = Story(kind, seed)
    for _ in range(80 if sim else 40):
        step = story.rng.random()
        if step < 0.55:
            story.write()
        elif step < 0.7:
            story.bulk()
        else:
            story.background()
    for ts in sorted(story.states):
        story.check(ts)
    story.check_feed()
    assert not story.db.check()
    story.db.close()
