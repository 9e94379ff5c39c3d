"""One scripted life of a database, and what a crash may leave of it.

    Life(files).play(SCRIPT) --> states[0], states[1], ...   what the database holds after i commits
                                 acknowledged, durable       how many of them were promised
    verify(image, life)      --> opens what a crash left, and holds it against the promises

A state is a plain dict of sorted rows, kept by a model that knows nothing of the engine. Commits
run one after the other and all states differ, so "all acknowledged commits are there, whole, and
nothing else but whole commits, in order" is one question: which `states[i]` is this, and does `i`
lie between what was promised and what was begun?
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from halocline import Database, Options
from halocline.store import Files
from tests.clock import ManualClock
from tests.roles import committer_of
from tests.store.faulty import FaultyFiles
from tests.unit.rows import rig

TINY = Options(
    page_rows=4,
    bulk_rows=8,
    object_rows=16,
    row_group_rows=8,
    object_rows_min=11,
    compact_depth=1,
    log_file_bytes=4096,
    log_file_bytes_first=2048,
    sequence_block=16,
    # In async mode a full buffer is what syncs, not the flusher's clock, so that every run of the
    # script is the same.
    async_sync_ms=1_000_000_000,
    log_buffer_bytes=1500,
    background=False,
)

SCHEMAS: dict[str, tuple[dict[str, Any], list[str] | None]] = {
    "accounts": ({"id": int, "owner": str, "balance": int}, ["id"]),
    "ledger": ({"n": int, "note": str}, None),
    "notes": ({"a": int, "b": str, "data": "blob"}, ["a", "b"]),
    "later": ({"id": int, "text": str}, ["id"]),
}
KEY_COLUMNS = {"accounts": 1, "ledger": 1, "notes": 2, "later": 1}
"""How many leading columns tell the model's rows apart; the ledger has no primary key."""

State = dict[str, list[tuple[Any, ...]]]


class Change(NamedTuple):
    """One step of a transaction, for the engine and for the model."""

    verb: str
    table: str
    rows: Sequence[tuple[Any, ...]] = ()
    values: dict[str, Any] | None = None


def create(table: str) -> Change:
    return Change("create", table)


def drop(table: str) -> Change:
    return Change("drop", table)


def insert(table: str, *rows: tuple[Any, ...]) -> Change:
    return Change("insert", table, rows)


def bulk_insert(table: str, *rows: tuple[Any, ...]) -> Change:
    return Change("bulk_insert", table, rows)


def bulk_upsert(table: str, *rows: tuple[Any, ...]) -> Change:
    return Change("bulk_upsert", table, rows)


def bulk_delete(table: str, *keys: Any) -> Change:
    """By a predicate over the first column, which is a number."""
    return Change("bulk_delete", table, [_as_tuple(key) for key in keys])


def truncate(table: str) -> Change:
    return Change("truncate", table)


def update(table: str, key: Any, **values: Any) -> Change:
    return Change("update", table, [_as_tuple(key)], values)


def delete(table: str, *keys: Any) -> Change:
    return Change("delete", table, [_as_tuple(key) for key in keys])


def _as_tuple(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _names(table: str) -> list[str]:
    return list(SCHEMAS[table][0])


def apply_to_model(state: State, change: Change) -> None:
    """The same change on plain dicts."""
    table = change.table
    if change.verb == "create":
        state[table] = []
        return
    if change.verb == "drop":
        del state[table]
        return
    if change.verb == "truncate":
        state[table] = []
        return
    width = KEY_COLUMNS[table]
    rows = {row[:width]: row for row in state[table]}
    if change.verb in ("insert", "bulk_insert", "bulk_upsert"):
        rows |= {row[:width]: row for row in change.rows}
    elif change.verb == "update":
        assert change.values is not None
        (key,) = change.rows
        row = dict(zip(_names(table), rows[key], strict=True)) | change.values
        rows[key] = tuple(row.values())
    else:
        for key in change.rows:
            del rows[key]
    state[table] = sorted(rows.values())


def apply_to_engine(txn: Any, change: Change) -> None:
    """The same change in a transaction."""
    table = change.table
    if change.verb == "create":
        txn.create_table(table, *SCHEMAS[table])
    elif change.verb == "drop":
        txn.drop_table(table)
    elif change.verb == "truncate":
        txn.truncate(table)
    elif change.verb == "bulk_delete":
        listed = ", ".join(str(int(key[0])) for key in change.rows)
        assert txn.delete(table, where=f"{_names(table)[0]} in ({listed})") == len(change.rows)
    elif change.verb == "insert":
        txn.insert(table, [dict(zip(_names(table), row, strict=True)) for row in change.rows])
    elif change.verb in ("bulk_insert", "bulk_upsert"):
        columns = zip(_names(table), zip(*change.rows, strict=True), strict=True)
        data = pa.table({name: list(values) for name, values in columns})
        (txn.insert if change.verb == "bulk_insert" else txn.upsert)(table, data)
    elif change.verb == "update":
        (key,) = change.rows
        txn.update(table, key if len(key) > 1 else key[0], change.values)
    else:
        for key in change.rows:
            assert txn.delete(table, key if len(key) > 1 else key[0])


def read_state(db: Database, at: int | None = None) -> State:
    """Everything that a transaction sees: keyed tables in key order, others by scan."""
    state: State = {}
    with db.begin(at=at) as txn:
        for name in txn.tables():
            data = txn.range(name) if SCHEMAS[name][1] else txn.scan(name)
            state[name] = sorted(tuple(row.values()) for row in data.to_pylist())
    return state


class Life:
    """A database on one store: commits, and remembers what was promised."""

    def __init__(self, files: Any, durability: str = "sync", *, seed: int = 7) -> None:
        self.files = files
        """A FaultyFiles, or a real disk for a life that does not crash."""
        self.durability = durability
        self.clock = ManualClock(seed)
        self.db: Database | None = None
        self.states: list[State] = [{}]
        self.stamps: list[int] = [0]
        """commit_ts of the acknowledged commits; states may have more: the one that is being
        committed, or all that are so together."""
        self.acked_at: list[int] = [0]
        """How many operations had run when commit i was acknowledged."""
        self.tokens: dict[str, int] = {}
        """Token -> the commit that brought it."""
        self.rowids: dict[int, int] = {}
        """Table id -> first RowID that nobody can have seen."""
        self.floor = self.together = 0
        self.highest = 0
        """The newest timestamp that anybody has seen."""
        self.recovered = 0
        """The state that this store was opened with: durable since then."""

    @property
    def acknowledged(self) -> int:
        return len(self.stamps) - 1

    def open(self) -> None:
        self.clock.advance(1)
        self.db = open_on(self.files, self.durability, self.clock)

    def go_on(self, image: FaultyFiles) -> Life:
        """The life after a crash, until `reopen` tells what is left of it: the same promises."""
        after = copy.copy(self)
        after.files = image
        after.db = None
        for name in ("states", "stamps", "acked_at", "tokens", "rowids"):
            setattr(after, name, copy.copy(getattr(self, name)))
        after.recovered = self.durable()
        # No sync of the new store covers them before it has been opened: some may be lost.
        after.acked_at = [1 << 60] * len(self.acked_at)
        return after

    def reopen(self, label: str) -> None:
        """Open after a crash: from now on the state that is found is a promise too."""
        self.open()
        assert self.db is not None
        found = _which(self, read_state(self.db), self.recovered, label)
        self.recovered = found
        del self.states[found + 1 :]
        known, newest = self.stamps[:found], self.db.visible_ts if found else 0
        # Of those that were committed together, and not acknowledged, there may be several.
        self.stamps = [*known, *range(newest - (found - len(known)), newest + 1)]
        self.acked_at = [0] * (found + 1)
        self.tokens = {token: at for token, at in self.tokens.items() if at <= found}

    def close(self) -> None:
        assert self.db is not None
        self.db.close()
        self.db = None

    def stop(self) -> None:
        """End the threads of a database whose machine has stopped."""
        if self.db is not None:
            with contextlib.suppress(BaseException):
                self.db.close()

    def commit(self, *changes: Change, token: str | None = None) -> None:
        assert self.db is not None
        self.clock.advance(0.001)
        state = copy.deepcopy(self.states[-1])
        for change in changes:
            apply_to_model(state, change)
        self.states.append(state)
        if token:
            self.tokens[token] = len(self.states) - 1
        with self.db.begin(token=token) as txn:
            for change in changes:
                apply_to_engine(txn, change)
        assert txn.commit_ts is not None
        assert txn.commit_ts > self.highest, f"{txn.commit_ts} after {self.highest} was seen"
        self.highest = txn.commit_ts
        self.stamps.append(txn.commit_ts)
        self.acked_at.append(len(getattr(self.files, "operations", ())))
        self._note_rowids()

    def commit_together(self, table: str, *rows: tuple[Any, ...]) -> None:
        """A commit for each row, as the owner makes them of what others bring at one moment."""
        assert self.db is not None
        self.clock.advance(0.001)
        for row in rows:
            state = copy.deepcopy(self.states[-1])
            apply_to_model(state, insert(table, row))
            self.states.append(state)
        core = self.db.core
        (home,) = [one for one in core.engine.tables.values() if one.entry.name == table]
        made = [home.schema.row(dict(zip(_names(table), row, strict=True))) for row in rows]
        stamps = rig.commit_together(self.db, home, made)
        committer_of(core).wait()
        assert stamps == list(range(stamps[0], stamps[0] + len(rows)))
        assert stamps[0] > self.highest, f"{stamps[0]} after {self.highest} was seen"
        self.highest = stamps[-1]
        self.stamps += stamps
        self.acked_at += [len(getattr(self.files, "operations", ()))] * len(rows)
        self.together += 1
        self._note_rowids()

    def commit_again(self, token: str, *changes: Change) -> None:
        """A commit whose token is known: nothing may happen."""
        assert self.db is not None
        with self.db.begin(token=token) as txn:
            assert txn.already_committed
            for change in changes:
                apply_to_engine(txn, change)
        assert txn.commit_ts == self.stamps[self.tokens[token]]

    def roll_back(self, *changes: Change) -> None:
        assert self.db is not None
        txn = self.db.begin()
        for change in changes:
            apply_to_engine(txn, change)
        txn.rollback()

    def collect(self) -> None:
        """Raise the floor to what was committed more than a minute ago."""
        assert self.db is not None
        self.clock.advance(60)
        self.floor = max(self.floor, self.db.gc()["floor"])

    def play(self, script: Callable[[Life], None]) -> bool:
        """Run the script to its end, or to the crash that the store has planned: then False."""
        try:
            script(self)
        except BaseException:
            if not self.files.crashed:
                raise
            self.stop()
            return False
        return True

    def durable(self) -> int:
        """How many commits a power loss may not take away.

        Sync: what was acknowledged. Async: what some completed sync of the log has covered. The
        first sync of a log file only makes its zeros durable.
        """
        if self.durability == "sync":
            return max(self.recovered, self.acknowledged)
        allocated: set[str] = set()
        last_sync = 0
        done = self.files.operations[:-1] if self.files.crashed else self.files.operations
        for operation in done:
            if operation.kind == "sync" and operation.path.startswith("log/"):
                if operation.path in allocated:
                    last_sync = operation.number
                allocated.add(operation.path)
        return max(self.recovered, sum(at < last_sync for at in self.acked_at[1:]))

    def _note_rowids(self) -> None:
        assert self.db is not None
        for table_id, state in self.db.core.engine.tables.items():
            self.rowids[table_id] = max(self.rowids.get(table_id, 0), state.next_rowid)


def open_on(
    files: Files,
    durability: str = "sync",
    clock: ManualClock | None = None,
    options: Options = TINY,
) -> Any:
    return Database(
        files,
        "simulated",
        durability=durability,  # type: ignore[arg-type]
        retention="30s",
        options=options,
        clock=clock or ManualClock(seed=8, wall_us=1_800_000_000_000_000),
    )


def copy_of(files: FaultyFiles) -> FaultyFiles:
    """The same disk, with the same things not yet synced."""
    return files.crash_image(all=True)


def digest(files: FaultyFiles) -> bytes:
    """Equal for stores with equal content, synced and seen."""
    content = hashlib.blake2b(digest_size=16)
    for path, node in sorted(files._names.seen.items()):
        content.update(path.encode() + b"\0")
        for part in () if node is None else (node.data, node.disk):
            content.update(len(part).to_bytes(8, "little") + part)
    for key in files.objects.list():
        content.update(key.encode() + b"\0" + hashlib.blake2b(files.objects.read(key)).digest())
    return content.digest()


def script(life: Life) -> None:
    """A bit of everything: about 40 commits, three openings, a dozen log files."""
    text = "x" * 70
    life.open()
    life.commit(create("accounts"))
    life.commit(create("ledger"), create("later"))
    life.commit(insert("accounts", (1, "ann", 100)))
    life.commit(insert("accounts", (2, "bob", 100), (3, "eve", 0)), insert("ledger", (1, "first")))
    life.commit(update("accounts", 1, balance=60), update("accounts", 3, balance=40))
    life.commit(delete("accounts", 2), insert("ledger", (2, "bob left")))
    life.roll_back(insert("accounts", (99, "nobody", 0)), drop("ledger"))
    life.commit(bulk_insert("accounts", *[(n, f"bulk {n}", n) for n in range(10, 22)]))
    life.commit(create("notes"), insert("notes", (1, "a", b"\1"), (1, "b", bytes(600))))
    life.commit_together("notes", (3, "a", b"\1"), (3, "b", bytes(600)), (3, "c", b""))
    life.commit(insert("ledger", (3, "once")), token="load-1")
    life.commit_again("load-1", insert("ledger", (4, "never")))
    life.commit(bulk_upsert("accounts", *[(n, "changed", n) for n in range(15, 26)]))
    life.commit(drop("later"), update("notes", (1, "a"), data=b"\2" * 300))
    life.commit(insert("notes", (2, "large", bytes(range(1, 251)) * 20)))
    life.collect()
    for n in range(5, 15):
        life.commit(insert("ledger", (n, text)), update("accounts", 1, balance=n))
    life.commit(*[update("accounts", n, owner="many") for n in range(10, 22)])
    life.close()
    life.open()
    life.commit(insert("accounts", (2, "bob again", 5)))
    life.commit(create("later"), insert("later", (1, "reborn")), token="load-2")
    life.commit(delete("accounts", *range(10, 22)))
    life.commit_together("accounts", *[(n, f"together {n}", n) for n in range(30, 36)])
    life.commit_together("notes", (4, "a", b"x" * 900), (4, "b", b"y" * 900))
    life.collect()
    for n in range(15, 21):
        life.commit(insert("ledger", (n, text)), update("later", 1, text=str(n)))
    life.close()
    life.open()
    life.commit(delete("accounts", 1, 2), drop("notes"))
    life.commit(insert("later", (2, text), (3, text)), update("accounts", 3, owner=text))


def verify(files: FaultyFiles, life: Life, label: str, *, at_least: int, seed: int = 0) -> int:
    """Open what a crash left and hold it against what was promised; returns which state it is."""
    db = open_on(files, life.durability)
    try:
        found = _which(life, read_state(db), at_least, label)
        _check_promises(db, life, found, label, random.Random(seed))
        again = files.crash_image(none=True)
        _commit_more(db, life, label)
        expected = read_state(db) if seed % 4 == 0 else {}
    finally:
        db.close()
    # What recovery has shown to anyone must be durable by then.
    with open_on(again, life.durability) as db:
        assert read_state(db) == life.states[found], f"opening twice gives two states: {label}"
        # The same bytes were checked after the first opening, so every fourth is enough here.
        assert seed % 4 or not db.check(), f"after opening twice: {label}"
    if seed % 4 == 0:
        with open_on(files, life.durability) as db:
            assert read_state(db) == expected, f"closing and opening changed the state: {label}"
            _collect_files(db, files, label)
            assert read_state(db) == expected, f"GC changed the state: {label}"
            assert not db.check(), f"after closing and opening: {label}"
    return found


def _collect_files(db: Database, files: FaultyFiles, label: str) -> None:
    """GC removes what dead jobs have left, and nothing that anybody refers to."""
    db.gc()
    engine = db.core.engine
    tiers = [state.shape.tier for state in engine.tables.values()]
    known = {entry.key for tier in tiers for entry in tier.by_id.values()}
    assert set(files.objects.list()) == known | set(engine.kept_files), label


def _which(life: Life, state: State, at_least: int, label: str) -> int:
    fits = [i for i, candidate in enumerate(life.states) if candidate == state]
    assert fits, f"the state is none that any commit made: {label}\n{state}"
    (found,) = fits
    assert found >= at_least, (
        f"commits {found + 1} to {at_least} were promised and are gone: {label}"
    )
    return found


def _check_promises(
    db: Database, life: Life, found: int, label: str, chance: random.Random
) -> None:
    problems = db.check()
    assert not problems, f"{problems}: {label}"
    for token, commit in life.tokens.items():
        known = db.begin(token=token).already_committed
        assert known == (commit <= found), f"token {token!r} of commit {commit}: {label}"
    if life.durability == "sync":
        assert db.floor >= life.floor, f"the floor fell from {life.floor} to {db.floor}: {label}"
    engine = db.core.engine
    for table_id, seen in life.rowids.items():
        state = engine.tables.get(table_id)
        following = engine.first_rowid if state is None else state.next_rowid
        assert following >= seen, f"RowID {following} is issued twice, table {table_id}: {label}"
    past = [i for i in range(1, found + 1) if i < len(life.stamps) and life.stamps[i] >= db.floor]
    for i in chance.sample(past, min(2, len(past))):
        state_then = read_state(db, at=life.stamps[i])
        assert state_then == life.states[i], f"at={life.stamps[i]}: {label}"


def _commit_more(db: Database, life: Life, label: str) -> None:
    """The database goes on, with timestamps that nobody has seen."""
    with db.begin() as txn:
        if "accounts" not in txn.tables():
            apply_to_engine(txn, create("accounts"))
        apply_to_engine(txn, insert("accounts", (1000, "after the crash", 0)))
    assert txn.commit_ts is not None
    assert txn.commit_ts > life.highest, (
        f"timestamp {txn.commit_ts} after {life.highest} was seen: {label}"
    )
