"""Histories: what may happen to a database, thought up step by step and played as it goes.

    Hypothesis --choices--> Author --Step--> Twin
                              ^---- what the model knows -----'

The author knows the model, so that most steps have something to act on: tables that are there,
rows that can be updated, keys that are free, transactions with something to commit. The rest aims
past the mark on purpose. Each history has a mood: some are all about updates, some about DDL, some
about closing and opening.

When the two sides disagree, Hypothesis turns every step it can do without into a pause, makes the
others as plain as it can, and prints what is left as a little program of calls to a Twin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from itertools import product
from random import Random
from typing import Any, TypeVar

from hypothesis import note

from tests.model.model import Txn, same
from tests.model.shapes import (
    AGGREGATES,
    ORDERS,
    PLACES,
    SHAPES,
    WHERES,
    Input,
    Key,
    Row,
    Shape,
    Where,
)
from tests.model.twin import EPOCH, SLOTS, Disk, Memory, Twin

T = TypeVar("T")

STEPS = 60
"""Per history. Some are pauses and some take two or three calls, so all in all it is more."""
PASSER_BY = SLOTS - 1
"""A slot whose transactions commit after one step, under the noses of the others."""
NAMES = ("num", "pair", "bare", "temp", "NUM")
TOKENS = ("once", "twice", ("app", 1), ("app", 2), ("app", 3))


def _partials() -> list[Row]:
    """Values of some columns. Those with `c` come first: without it a row can only be an update."""
    values = {"a": (0, 1, 2, None), "b": ("x", "y", None), "c": (0, 1, 2)}
    found: list[Row] = []
    for names in (("c",), ("a", "c"), ("b", "c"), ("a", "b", "c"), ("a",), ("b",), ("a", "b")):
        picks = product(*(values[name] for name in names))
        found += [dict(zip(names, picked, strict=True)) for picked in picks]
    return found


PARTIALS = _partials()
SINGLE = [values for values in PARTIALS if len(values) == 1]
FULL = [values for values in PARTIALS if "c" in values]
WRONG: list[Row] = [{"c": None}, {"a": 1, "b": "x"}]
"""As a new row these lack what must not be null."""
AMOUNTS: list[dict[str, int]] = [{"c": 1}, {"c": -1}, {"c": 2}, {"a": 1}, {"a": 1, "c": -2}]
KEPT = ("first", "second")
"""Names of snapshots."""
BROAD = WHERES[:2]
"""Predicates that hold for many rows."""


class Author:
    """Thinks up steps. Of the choices for one thing the first is the plainest."""

    def __init__(self, random: Random, twin: Twin) -> None:
        self.random = random
        self.twin = twin
        self.taken = 0
        self.model = twin.model
        mood = MOODS[self.pick(list(MOODS))]
        self.kinds = [getattr(self, kind) for kind in ("pause", *mood.split())]
        self.slots = (0, 1, 0, 1, 2, PASSER_BY, PASSER_BY)
        self.focus = self.pick(("num", "pair", "bare", None))
        """The table that most steps are about, if any."""
        self.serializable_share = self.pick((0, 1, 3))
        self.hot = (self.place(), self.place())
        """Two rows that everybody wants."""

    def step(self) -> None:
        """Think up a step, print it, take it."""
        self.pick(self.kinds)()

    def take(self, call: str, **arguments: Any) -> None:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        note(f"twin.{call}({given})")
        self.taken += 1
        getattr(self.twin, call)(**arguments)

    # Choices.

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.random.randrange(len(choices))]

    def chance(self, one_in: int) -> bool:
        return self.random.randrange(one_in) == one_in - 1

    def place(self) -> int:
        return self.random.randrange(PLACES)

    def ago(self) -> int:
        """A timestamp: mostly one that happened lately, now and then one in the future."""
        return max(0, self.model.now - self.pick((0, 1, 2, 3, 4, 6, 9, 14, -1)))

    def txn(self) -> tuple[int, Txn]:
        """A slot and the transaction in it, which begins now if there is none."""
        slot = self.pick(self.slots)
        if self.twin.slots[slot] is None:
            share = self.serializable_share
            self.take("begin", slot=slot, serializable=bool(share and self.chance(4 - share)))
        pair = self.twin.slots[slot]
        assert pair is not None
        return slot, pair[1]

    def table(self, txn: Txn, *, keyed: bool = False) -> tuple[str, Shape, list[Row]]:
        """A table, mostly one that the transaction sees, with the rows it sees there."""
        seen = self.model.peek(txn)
        fit = sorted(name for name, (shape, _) in seen.items() if shape.key or not keyed)
        if self.focus in fit and not self.chance(4):
            name = self.focus
        else:
            name = self.pick(fit if fit and not self.chance(10) else NAMES)
        here = next((other for other in seen if same(other, name)), None)
        return (name, *seen[here]) if here else (name, SHAPES[0], [])

    def key(self, shape: Shape, rows: list[Row]) -> Key:
        """A key, mostly of a row that is there. A table without keys gets something like one."""
        if not shape.key:
            return 1
        if self.chance(2):
            return shape.key_of(shape.key_values(self.pick(self.hot)))
        values = self.pick(rows) if rows and not self.chance(4) else shape.key_values(self.place())
        return shape.key_of(values)

    def values(self, shape: Shape) -> Row:
        """Columns to update; now and then the key among them, or a null where none may be."""
        pool = WRONG[:1] if self.chance(16) else SINGLE if self.chance(2) else PARTIALS
        values = self.pick(pool)
        if self.chance(6):
            moved = shape.key_values(self.place())
            name = self.pick(list(moved))
            values = {**values, **(moved if self.chance(2) else {name: moved[name]})}
        return values

    def where(self) -> Where:
        return self.pick(WHERES if self.chance(2) else BROAD)

    def input(self, shape: Shape, rows: list[Row], pool: list[Row], *, free: bool) -> Input:
        """One row or several in one of three forms; `free`: mostly with keys that are not there."""
        form = self.pick(("dict", "list", "arrow"))
        count = 1 if form == "dict" else self.pick((1, 3, 6, 2, 4, 9, 0, 12))
        first = self.pick(self.hot) if self.chance(2) else self.place()
        stride = self.pick((1, 5, 7))
        places = [(first + i * stride) % PLACES for i in range(PLACES)]
        keys = [shape.key_values(place) for place in places]
        if shape.key and free and not self.chance(6):
            there = {shape.key_of(row) for row in rows}
            keys = [key for key in keys if shape.key_of(key) not in there] or keys
        if self.chance(16):
            keys = [keys[0], *keys]
        values = [self.pick(pool), self.pick(pool)]
        if self.chance(16):
            values[1] = self.pick(WRONG)
        found = zip(keys[:count], values * PLACES, strict=False)
        made = tuple({**key, **value} for key, value in found)
        return Input(form, made, shape.columns)

    # Kinds of steps: transactions.

    def pause(self) -> None:
        """Nothing happens."""

    def begin(self) -> None:
        """Begin in a slot, unless there is work in it that would be lost."""
        self._begin(None)

    def begin_token(self) -> None:
        self._begin(self.pick(TOKENS))

    def _begin(self, token: Any) -> None:
        slot = self.pick((0, 1, 2))
        pair = self.twin.slots[slot]
        if pair is None or not pair[1].wrote():
            self.take("begin", slot=slot, serializable=self.chance(2), token=token)

    def begin_at(self) -> None:
        self.take("begin_at", slot=self.pick((2, 1, 0)), at=self.ago())

    def begin_at_moment(self) -> None:
        """At the wall clock of a commit, or just before it."""
        wall_us = self.pick(self.model.walls[-9:]) - self.pick((0, 1))
        moment = EPOCH + timedelta(microseconds=wall_us)
        self.take("begin_at", slot=self.pick((2, 1, 0)), at=moment)

    def commit(self) -> None:
        self._end("commit")

    def rollback(self) -> None:
        self._end("rollback")

    def _end(self, call: str) -> None:
        """End a transaction, one that has written something if there is any."""
        taken = [(slot, pair[1]) for slot, pair in enumerate(self.twin.slots) if pair is not None]
        slots = [slot for slot, txn in taken if txn.wrote()] or [slot for slot, _ in taken]
        if slots:
            self.take(call, slot=self.pick(slots))

    def use_ended(self) -> None:
        self.take("use_ended", choice=self.pick((0, 1, 2, 3)))

    # Kinds of steps: writing.

    def insert(self) -> None:
        slot, txn = self.txn()
        name, shape, rows = self.table(txn)
        self._write("insert", slot, name=name, rows=self.input(shape, rows, FULL, free=True))

    def upsert(self) -> None:
        slot, txn = self.txn()
        name, shape, rows = self.table(txn, keyed=True)
        pool = PARTIALS if rows else FULL
        self._write("upsert", slot, name=name, rows=self.input(shape, rows, pool, free=False))

    def update(self) -> None:
        slot, txn = self.txn()
        name, shape, rows = self.table(txn, keyed=True)
        key = self.key(shape, rows)
        self._write("update", slot, name=name, key=key, values=self.values(shape))

    def add(self) -> None:
        slot, txn = self.txn()
        name, shape, rows = self.table(txn, keyed=True)
        amounts, values = self.pick(AMOUNTS), self.pick(({}, {}, {"b": "x"}))
        key = self.key(shape, rows)
        self._write("add", slot, name=name, key=key, amounts=amounts, values=values)

    def update_where(self) -> None:
        slot, txn = self.txn()
        name, shape, _ = self.table(txn)
        self._write("update_where", slot, name=name, where=self.where(), values=self.values(shape))

    def delete(self) -> None:
        slot, txn = self.txn()
        name, shape, rows = self.table(txn, keyed=True)
        self._write("delete", slot, name=name, key=self.key(shape, rows))

    def delete_where(self) -> None:
        slot, txn = self.txn()
        name, _, _ = self.table(txn)
        self._write("delete_where", slot, name=name, where=self.where())

    def truncate(self) -> None:
        slot, txn = self.txn()
        self._write("truncate", slot, name=self.table(txn)[0])

    def replace(self) -> None:
        """Delete rows, insert some of their keys again among others, and look."""
        slot, txn = self.txn()
        name, shape, rows = self.table(txn, keyed=True)
        where = self.where()
        self.take("delete_where", slot=slot, name=name, where=where)
        gone = [shape.key_of(row) for row in rows if where.holds(row)] if shape.key else []
        if gone:
            kept = {shape.key_of(row) for row in rows} - set(gone)
            keys = [shape.key_values(place) for place in range(PLACES)]
            free = [key for key in keys if shape.key_of(key) not in kept]
            free.sort(key=lambda key: shape.key_of(key) not in gone)
            form, values = self.pick(("dict", "list", "arrow")), self.pick(FULL)
            count = 1 if form == "dict" else self.pick((1, 4, 9))
            fresh = tuple({**key, **values} for key in free[:count])
            self.take("insert", slot=slot, name=name, rows=Input(form, fresh))
            self._write("get", slot, name=name, key=gone[0])

    def create(self) -> None:
        slot, _ = self.txn()
        lenient, name, shape = self.chance(4), self.pick(NAMES), self.pick(SHAPES)
        self._write("create", slot, name=name, shape=shape, lenient=lenient)

    def drop(self) -> None:
        slot, txn = self.txn()
        self._write("drop", slot, name=self.table(txn)[0], lenient=self.chance(4))

    def _write(self, call: str, slot: int, **arguments: Any) -> None:
        self.take(call, slot=slot, **arguments)
        if slot == PASSER_BY or self.chance(10):
            self.take("commit", slot=slot)

    # Kinds of steps: reading.

    def get(self) -> None:
        slot, txn = self.txn()
        name, shape, rows = self.table(txn, keyed=True)
        self.take("get", slot=slot, name=name, key=self.key(shape, rows))

    def get_many(self) -> None:
        slot, txn = self.txn()
        name, shape, rows = self.table(txn, keyed=True)
        keys = [self.key(shape, rows) for _ in range(self.pick((2, 0, 5)))]
        self.take("get_many", slot=slot, name=name, keys=keys)

    def range(self) -> None:
        slot, txn = self.txn()
        name, shape, rows = self.table(txn, keyed=True)
        low, high = (None if self.chance(3) else self.key(shape, rows) for _ in "lh")
        limit, reverse = self.pick((None, 2, 0, 5)), self.chance(2)
        self.take("range", slot=slot, name=name, low=low, high=high, reverse=reverse, limit=limit)

    def scan(self) -> None:
        slot, txn = self.txn()
        name = self.table(txn)[0]
        if self.chance(2):
            self.take("scan", slot=slot, name=name)
            return
        self.take(
            "scan",
            slot=slot,
            name=name,
            where=self.where() if self.chance(2) else None,
            order=self.pick(ORDERS) if self.chance(2) else None,
            limit=self.pick((None, 2, 0, 5)),
            stream=self.chance(3),
        )

    def aggregate(self) -> None:
        slot, txn = self.txn()
        name, other = self.table(txn)[0], self.table(txn)[0]
        query = self.pick(AGGREGATES)
        self.take("aggregate", slot=slot, name=name, other=other, query=query)

    def tables(self) -> None:
        self.take("tables", slot=self.txn()[0])

    def count(self) -> None:
        at = self.ago() if self.chance(2) else None
        self.take("count", name=self.pick(NAMES), at=at)

    def changes(self) -> None:
        until = self.ago() if self.chance(2) else None
        name = self.focus if self.focus and not self.chance(4) else self.pick(NAMES)
        self.take("changes", name=name, since=self.ago(), until=until)

    # Kinds of steps: the database.

    def gc(self) -> None:
        self.take("gc")

    def keep(self) -> None:
        self.take("keep", name=self.pick(KEPT))

    def forget(self) -> None:
        self.take("forget", name=self.pick(KEPT))

    def begin_named(self) -> None:
        self.take("begin_at", slot=self.pick((2, 1, 0)), at=self.pick(KEPT))

    def turn_clock(self) -> None:
        self.take("turn_clock", seconds=self.pick((1, 3, 10, -2)))

    def reopen(self) -> None:
        """Now and then with another retention time."""
        power_loss = self.place() if self.chance(2) else None
        retention_s = self.pick((0, 3, 1000)) if self.chance(3) else None
        self.take("reopen", power_loss=power_loss, retention_s=retention_s)

    def do_chore(self, chore: str) -> None:
        if chore != "flush":
            getattr(self, chore)()
            return
        # A row by itself stays in memory, however few rows make an object.
        seen = self.model.tables_at(self.model.now)
        for table in [table for table in seen if not table.shape.key][:1]:
            row = {**table.shape.key_values(self.place()), "c": 1}
            self.take("insert", slot=PASSER_BY, name=table.name, rows=Input("dict", (row,)))
            self.take("commit", slot=PASSER_BY)
        self.take("flush", name=None)

    def flush(self) -> None:
        self.take("flush", name=self._some_table())

    def compact(self) -> None:
        self.take("compact", name=self._some_table())

    def _some_table(self) -> str | None:
        return None if self.chance(2) else self.focus or self.pick(NAMES)

    def checkpoint(self) -> None:
        self.take("checkpoint")

    def background(self) -> None:
        self.take("background")

    def crash_in(self) -> None:
        work = self.pick(("flush", "compact", "checkpoint", "gc"))
        operation = 1 + self.random.randrange(9 if work == "gc" else 24)
        self.take("crash_in", work=work, operation=operation, seed=self.place())

    def follow(self) -> None:
        self.take("follow")


ENDS = "begin commit commit commit rollback"
ROWS = "insert upsert update add add update_where delete delete_where replace"
UPDATES = "update update add add upsert update_where"
READS = "get get_many range scan aggregate tables"
NAMED = "keep forget begin_named"
BASE = "begin_at begin_at_moment use_ended create drop gc turn_clock reopen follow count changes"
UPKEEP = "flush background compact"
MOODS = {
    "everything": f"{ENDS} {ROWS} {ROWS} truncate {READS} {BASE} {NAMED} {UPKEEP} begin_token"
    " checkpoint crash_in",
    "rows": f"{ENDS} {ROWS} {ROWS} truncate {READS} flush background",
    "updates": f"{ENDS} {UPDATES} {UPDATES} update delete get scan changes {UPKEEP}",
    "bulk": f"{ENDS} {ROWS} truncate insert insert upsert upsert update_where scan get range gc"
    " compact",
    "large": f"{ENDS} insert insert upsert update_where update_where delete_where update scan flush"
    " compact changes add",
    "serializable": f"{ENDS} begin truncate insert upsert update delete create drop {READS} flush"
    " add",
    "tokens": "begin begin_token begin_token commit commit commit insert upsert create reopen"
    " checkpoint",
    "ddl": f"{ENDS} create create create drop drop insert update tables get scan gc changes"
    " flush checkpoint",
    "past": f"{ROWS} commit begin_at begin_at_moment turn_clock gc gc {NAMED} count changes scan"
    f" {UPKEEP}",
    "restarts": f"{ENDS} {ROWS} create drop gc reopen follow follow changes keep use_ended {UPKEEP}"
    " checkpoint crash_in",
    "upkeep": f"{ENDS} {ROWS} {ROWS} {UPKEEP} {UPKEEP} checkpoint gc turn_clock changes range get"
    " reopen crash_in",
    "objects": f"commit commit {ROWS} {ROWS} flush flush compact compact gc turn_clock changes get",
}


CHORES = ("flush", "checkpoint", "gc", "reopen")
"""What happens in every history, whatever its mood."""


def play(random: Random, store: Memory | Disk) -> tuple[int, Counter[str]]:
    """Think up a history and play it; AssertionError where the two sides differ.

    Returns how many steps it took, and how often each chore was done.
    """
    bulk_rows, retention_s = 2 + random.randrange(4), 5 * (random.randrange(4) == 3)
    sizes = {
        "bulk_rows": bulk_rows,
        "object_rows_min": 2 + 4 * random.randrange(2),
        "object_rows": 4 + 12 * random.randrange(2),
        "checkpoint_log_bytes": (1 << 20) >> (8 * random.randrange(2)),
    }
    given = ", ".join(f"{name}={value}" for name, value in sizes.items())
    note(f"twin = Twin({type(store).__name__}(), {given}, retention_s={retention_s})")
    twin = Twin(store, **sizes, retention_s=retention_s)
    try:
        author = Author(random, twin)
        _open_with_rows(author)
        due = {chore: random.randrange(STEPS) for chore in CHORES}
        for number in range(STEPS):
            for chore in [chore for chore, at in due.items() if at == number]:
                author.do_chore(chore)
            author.step()
        author.take("finish")
    finally:
        twin.abandon()
    return author.taken, twin.done


def _open_with_rows(author: Author) -> None:
    """The three tables, each with some rows at first, or with none."""
    for shape in SHAPES:
        author.take("create", slot=0, name=shape.name, shape=shape)
        count, values = author.pick((0, 5, 5, 12)), author.pick(FULL)
        if count:
            rows = tuple({**shape.key_values(place), **values} for place in range(count))
            author.take("insert", slot=0, name=shape.name, rows=Input("arrow", rows, shape.columns))
    author.take("commit", slot=0)
