"""Random DDL histories of interleaved transactions, against a model and against replay.

The model is a list of (name, id, created, dropped) and, per open transaction, a plain dict: what it
saw at its start plus what it did since. It knows nothing of nodes, chains or owners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from halocline.catalog import CatalogTxn
from halocline.errors import AlreadyExistsError, ConflictError, HaloclineError, NotFoundError
from halocline.ids import NEVER
from tests.unit.catalog.driver import Driver, assert_equal, make

NAMES = ["a", "A", "b", "B", "c"]
SLOTS = 3

T = TypeVar("T")


@dataclass
class Life:
    """One committed table."""

    name: str
    id: int
    created: int
    dropped: int = NEVER


@dataclass
class Open:
    """An open transaction, as the model sees it."""

    sub: CatalogTxn
    start: int
    view: dict[str, int]
    reads: set[str] = field(default_factory=set)
    scanned: bool = False
    created: dict[str, list[int]] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    spelled: dict[int, str] = field(default_factory=dict)


def attempt(act: Callable[[], T]) -> tuple[T | None, HaloclineError | None]:
    """What came of it: a result or an error."""
    try:
        return act(), None
    except HaloclineError as error:
        return None, error


class World:
    """A driver and its model, moved by the same steps."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.lives: list[Life] = []
        self.open: dict[int, Open] = {}
        self.floor = 0

    def at(self, ts: int) -> dict[str, Life]:
        return {
            life.name.casefold(): life for life in self.lives if life.created <= ts < life.dropped
        }

    def changes(self, key: str) -> list[int]:
        """When commits touched a name."""
        found = [life for life in self.lives if life.name.casefold() == key]
        stamps = [life.created for life in found] + [life.dropped for life in found]
        return [stamp for stamp in stamps if stamp < NEVER]

    def others(self, slot: int) -> list[Open]:
        return [txn for number, txn in self.open.items() if number != slot]

    def txn(self, slot: int) -> Open:
        if slot not in self.open:
            now = self.driver.now
            view = {key: life.id for key, life in self.at(now).items()}
            self.open[slot] = Open(self.driver.begin(), now, view)
        return self.open[slot]

    # Each step predicts the outcome first, then compares.

    def create(self, slot: int, name: str) -> None:
        txn, key = self.txn(slot), name.casefold()
        expected: type[HaloclineError] | None = None
        winner = 0
        if key in txn.view:
            expected = AlreadyExistsError
        elif any(key in other.created for other in self.others(slot)):
            expected = ConflictError
        elif max(self.changes(key), default=0) > txn.start:
            expected, winner = ConflictError, max(self.changes(key))
        txn.reads.add(key)
        entry, error = attempt(lambda: make(txn.sub, name))
        assert (type(error) if error else None) is expected
        assert getattr(error, "winner_ts", 0) == winner
        if entry is None:
            return
        txn.view[key] = entry.id
        txn.created.setdefault(key, []).append(entry.id)
        txn.spelled[entry.id] = name

    def drop(self, slot: int, name: str) -> None:
        txn, key = self.txn(slot), name.casefold()
        expected: type[HaloclineError] | None = None
        winner = 0
        target = txn.view.get(key)
        life = next((life for life in self.lives if life.id == target), None)
        if target is None:
            expected = NotFoundError
        elif any(target in other.dropped for other in self.others(slot)):
            expected = ConflictError
        elif life is not None and life.dropped < NEVER:
            expected, winner = ConflictError, life.dropped
        txn.reads.add(key)
        entry, error = attempt(lambda: txn.sub.drop_table(name))
        assert (type(error) if error else None) is expected
        assert getattr(error, "winner_ts", 0) == winner
        if entry is None:
            return
        assert entry.id == target
        txn.dropped.add(txn.view.pop(key))

    def read(self, slot: int, name: str) -> None:
        txn, key = self.txn(slot), name.casefold()
        txn.reads.add(key)
        entry = txn.sub.table(name)
        assert (entry and entry.id) == txn.view.get(key)

    def scan(self, slot: int, name: str) -> None:
        txn = self.txn(slot)
        txn.scanned = True
        assert {entry.name.casefold(): entry.id for entry in txn.sub.tables()} == txn.view

    def commit(self, slot: int, name: str) -> None:
        txn = self.txn(slot)
        del self.open[slot]
        keys = {life.name.casefold() for life in self.lives} if txn.scanned else txn.reads
        later = {ts for key in keys for ts in self.changes(key) if ts > txn.start}
        commit_ts, error = attempt(lambda: self.driver.commit(txn.sub))
        assert (error is not None) == bool(later)
        if commit_ts is None:
            assert isinstance(error, ConflictError)
            assert error.winner_ts in later
            return
        for life in self.lives:
            if life.id in txn.dropped:
                life.dropped = commit_ts
        for table_id in {number for numbers in txn.created.values() for number in numbers}:
            if table_id not in txn.dropped:
                self.lives.append(Life(txn.spelled[table_id], table_id, commit_ts))

    def rollback(self, slot: int, name: str) -> None:
        self.txn(slot).sub.rollback()
        del self.open[slot]

    def compact(self, slot: int, name: str) -> None:
        """Hard-delete as far as the open transactions allow."""
        self.floor = min([self.driver.now, *(txn.start for txn in self.open.values())])
        gone = self.driver.catalog.compact(self.floor)
        assert all(entry.dropped_at <= self.floor for entry in gone)

    def check(self) -> None:
        """Model, live catalog and replayed catalog agree at every timestamp that is left."""
        catalog, replayed = self.driver.catalog, self.driver.replayed()
        for ts in range(self.floor, self.driver.now + 2):
            want = {(life.name, life.id) for life in self.at(ts).values()}
            for found in (catalog.tables(ts), replayed.tables(ts)):
                assert {(entry.name, entry.id) for entry in found} == want
            for name in NAMES:
                life = self.at(ts).get(name.casefold())
                entry = catalog.table(name, ts)
                assert (entry and entry.id) == (life and life.id)
        replayed.compact(self.floor)
        assert_equal(catalog, replayed, self.driver.now)
        for life in self.lives:
            entry = catalog.table_by_id(life.id)
            if life.dropped > self.floor:
                assert entry is not None
                assert (entry.created_at, entry.dropped_at) == (life.created, life.dropped)
            else:
                assert entry is None


ACTIONS = ["create", "create", "drop", "drop", "read", "scan", "commit", "commit", "rollback"]
steps = st.lists(
    st.tuples(
        st.sampled_from([*ACTIONS, "compact"]),
        st.integers(0, SLOTS - 1),
        st.sampled_from(NAMES),
    ),
    min_size=20,
    max_size=80,
)


@given(steps)
def test_c01_histories_agree_with_a_model_and_with_their_replay(
    steps: list[tuple[str, int, str]],
) -> None:
    world = World()
    for action, slot, name in steps:
        getattr(world, action)(slot, name)
    for txn in world.open.values():
        txn.sub.rollback()
    world.open.clear()
    # All that is left is what committed; nothing of the abandoned stays in the index.
    versions = world.driver.catalog.versions
    rows = [row for key in versions.name_keys() for row in versions.generations(key)]
    assert all(row.owner is None and row.created_at < NEVER for row in rows)
    world.check()
