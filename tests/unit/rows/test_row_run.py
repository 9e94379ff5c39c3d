"""Rows folded in runs leave what the general fold leaves: rows, keys, stamps, errors.

a real log --read_entries--> decode_record --> fold_record     the general way
                         '--> RowRun                            followers
                         '--> Replay                            recovery
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import astuple
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import halocline as hc
from halocline.checkpoint.load import Replay
from halocline.errors import CorruptionError
from halocline.log import Follower
from halocline.log.format import AC, COMMITS, SECTOR, Entry, decode_file_header, file_seed
from halocline.log.frame import frame
from halocline.log.names import log_numbers, path_of
from halocline.log.published import read_published
from halocline.log.record import NODE, NODES_AT, STAMP_AT, decode_record, encode_commit, stamp
from halocline.log.scan import Cursor, read_entries
from halocline.rows.engine import EngineState
from halocline.rows.nodes import FIRST_ROWID_AT, HEAD, Append, encode_node
from halocline.rows.row_run import RowRun
from halocline.store import LocalFiles
from tests.roles import committer_of
from tests.unit.rows.rig import commit_together, contents, seeds, tombstones

SEEDS = seeds(3)
ROWID_AT = NODES_AT + NODE.size + FIRST_ROWID_AT
BODY_AT = NODES_AT + NODE.size + HEAD.size
OPTIONS = hc.Options(
    background=False, page_rows=4, log_file_bytes_first=1 << 17, log_file_bytes=1 << 17
)
NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("day", pa.date32()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("inner", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float64()))])),
    ]
)
TABLES: dict[str, tuple[Any, Any]] = {
    "plain": ({"id": int, "text": str}, "id"),
    "nested": (NESTED, "id"),
    "pair": ({"name": str, "id": int, "data": bytes}, ["name", "id"]),
    "keyless": ({"id": int, "text": str}, None),
}


class History:
    """A database at work: mostly single rows, and everything else a log may hold between them."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.chance = random.Random(seed)
        self.db = hc.open(path, options=OPTIONS)
        for name, (columns, key) in TABLES.items():
            self.db.create_table(name, columns, key)
        self.living: dict[str, list[Any]] = {name: [] for name in TABLES}
        self.last = 0
        self.numbers = [0] * 6
        """Of the serials that each sequence has given."""

    def work(self, steps: int) -> None:
        for _ in range(steps):
            chosen = self.chance.random()
            table = self.chance.choice(sorted(TABLES))
            if chosen < 0.6:
                for _ in range(self.chance.choice([1, 2, 3, 9])):
                    self.insert(table, 1)
            elif chosen < 0.7 and table != "keyless":
                self.insert_together(table, self.chance.choice([2, 3, 5, 15, 16, 40]))
            elif chosen < 0.75:
                self.insert(table, 3)
            elif chosen < 0.85:
                self.update(table)
            elif chosen < 0.95:
                self.delete(table)
            else:
                self.rare()

    def insert(self, table: str, count: int) -> None:
        rows = [self._row(table) for _ in range(count)]
        with self.db.begin() as txn:
            txn.insert(table, rows if count > 1 else rows[0])
        if table != "keyless":
            names = TABLES[table][1]
            names = names if isinstance(names, list) else [names]
            keys = [tuple(row[name] for name in names) for row in rows]
            self.living[table] += [key if len(key) > 1 else key[0] for key in keys]

    def _serial(self) -> tuple[int, int]:
        """The next one of some sequence, or none."""
        sequence = self.chance.randrange(6)
        self.numbers[sequence] += 1
        return (sequence, self.numbers[sequence]) if sequence else (0, 0)

    def insert_together(self, table: str, count: int) -> None:
        """As the owner does with the rows that several processes bring at one moment."""
        core = self.db.core
        (state,) = [one for one in core.engine.tables.values() if one.entry.name == table]
        assert state.key_of is not None
        rows = [state.schema.row(self._row(table)) for _ in range(count)]
        serials = [self._serial() for _ in rows] if self.chance.random() < 0.7 else []
        stamps = commit_together(self.db, state, rows, serials=serials)
        assert all(stamps)
        committer_of(core).sync()
        self.living[table] += map(state.key_of, rows)

    def update(self, table: str) -> None:
        if self.living[table]:
            name = {"plain": "text", "nested": "tags", "pair": "data"}[table]
            with self.db.begin() as txn:
                key = self.chance.choice(self.living[table])
                txn.update(table, key, {name: self._row(table)[name]})

    def delete(self, table: str) -> None:
        if self.living[table]:
            key = self.living[table].pop(self.chance.randrange(len(self.living[table])))
            with self.db.begin() as txn:
                assert txn.delete(table, key)

    def rare(self) -> None:
        match self.chance.randrange(4):
            case 0:
                self.db.flush("plain")
            case 1:  # a new epoch: RowIDs leave a gap
                self.db.close()
                self.db = hc.open(self.path, options=OPTIONS)
            case 2:
                self.db.create_table("brief", {"id": int}, "id", if_not_exists=True)
                with self.db.begin() as txn:
                    txn.insert("brief", {"id": 1})
                self.db.drop_table("brief")
            case _:
                with self.db.begin(token=f"t{self.last}") as txn:
                    txn.insert("keyless", {"id": self.last, "text": None})

    def _row(self, table: str) -> dict[str, Any]:
        chance = self.chance
        self.last += 1
        if table in ("plain", "keyless"):
            return {"id": self.last, "text": "x" * chance.choice([0, 3, 40, 700])}
        if table == "pair":  # long zeros are masked in the log
            data = chance.choice([None, b"", bytes(600), chance.randbytes(30)])
            return {"name": f"n{self.last % 3}", "id": self.last, "data": data}
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(10**15))
        return {
            "id": self.last,
            "price": chance.choice([None, Decimal(chance.randrange(-(10**11), 10**11)) / 100]),
            "at": at,
            "day": date(2026, 1, 1),
            "tags": chance.choice([None, [], ["a", None, "b" * 50]]),
            "inner": chance.choice([None, {"a": None, "b": [1.5, None]}, {"a": 7, "b": None}]),
        }


@pytest.fixture
def history(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[History]:
    made = History(tmp_path / "db", request.param)
    yield made
    assert not made.db.check()
    made.db.close()


def picture(engine: EngineState) -> Any:
    """All that a fold changes."""
    tables = {}
    for state in engine.tables.values():
        keys = [state.key_of(row) for row, _ in contents(state).values()] if state.key_of else []
        tables[state.table_id] = (
            contents(state),
            [(page.start, count, _marks(page)) for page, count in state.shape.counted()],
            tombstones(state),
            [list(state.tree.versions(key)) for key in keys],
            state.tree.range(None, None),
            (state.next_rowid, state.last_ts, state.moved_rowid, state.flushed_ts, state.owes),
        )
    numbers = (engine.last_ts, engine.wall_us, engine.epoch, engine.ts_ceiling, engine.first_rowid)
    times = (engine.times.stamps.tolist(), engine.times.walls.tolist())
    serials = engine.serials.written_down()
    return tables, numbers, times, serials, sorted(engine.jobs), engine.floor


def _marks(page: Any) -> Any:
    return page.marks.offsets, page.marks.stamps


# -- whole logs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("history", "seed"), [(s, s) for s in range(3)], indirect=["history"])
def test_a_follower_and_a_recovery_have_what_the_general_fold_has(
    history: History, seed: int
) -> None:
    chance = random.Random(seed)
    files = LocalFiles(history.path)
    general, fast, recovered = (EngineState(OPTIONS) for _ in range(3))
    slowly, quickly = Follower(files), Follower(files)
    replay = Replay(recovered)
    together = 0

    class Counting(RowRun):
        """Counts the entries that were folded with others."""

        def flush(self) -> None:
            nonlocal together
            together += max(len(self._entries) - 1, 0)
            super().flush()

    for _ in range(40):
        history.work(chance.choice([1, 1, 3, 10]))
        for entry in slowly.poll():
            general.fold_record(decode_record(entry))
            replay.fold(entry)
        run = Counting(fast)
        for entry in quickly.poll(run.flush):
            assert not quickly.is_current(), "told before all is folded"
            run.fold(entry)
        assert quickly.is_current()
        assert picture(fast) == picture(general)
    assert replay.settle() == general.last_ts
    assert picture(recovered) == picture(general)
    assert together > 20
    slowly.close()
    quickly.close()


@pytest.mark.parametrize("history", [0], indirect=True)
def test_rows_of_other_tables_and_behind_gaps_are_not_taken_for_neighbours(
    history: History,
) -> None:
    """(table, RowID) of rows that were inserted one after the other."""
    image, limit, begin = _first_file(history)
    tables = {state.entry.name: state for state in history.db.core.engine.tables.values()}
    first = tables["plain"].next_rowid
    entries = list(read_entries(image, 0, limit, Cursor(*astuple(begin))))
    for places in (
        [("plain", 0), ("pair", 1), ("plain", 1), ("pair", 2), ("plain", 2)],
        [("plain", 0), ("plain", 1), ("plain", 5), ("plain", 6), ("plain", 20)],
        [("plain", 3), ("keyless", 4), ("plain", 4), ("nested", 5)],
    ):
        grown = list(entries)
        for ts, (name, place) in enumerate(places, 1000):
            row = tuple(history._row(name).values())
            state = tables[name]
            node = encode_node(Append(state.table_id, [row]), state.schema)
            payload = encode_commit(ts, 1, [node])
            stamp(payload, STAMP_AT, ts, ts)
            payload[ROWID_AT : ROWID_AT + 8] = (first + place).to_bytes(8, "little")
            grown.append(entries[-1]._replace(group=COMMITS, type=AC, payload=bytes(payload)))
        data, end = _sealed(image, begin, grown, -1, history.chance)
        expected = _outcome(_fold_generally, data, end, begin)
        assert len(expected.picture[2][0]) >= len(places), "nothing was folded"
        assert not expected.error
        for most in (1, 64):
            assert _outcome(partial(_fold_fast, most), data, end, begin) == expected


# -- damage --------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a fold has come to: the state, the place, and why it went no further."""

    picture: Any
    cursor: Any
    error: str


def _fold_generally(image: bytes, limit: int, cursor: Cursor, engine: EngineState) -> None:
    for entry in read_entries(image, 0, limit, cursor):
        engine.fold_record(decode_record(entry))


def _fold_fast(most: int, image: bytes, limit: int, cursor: Cursor, engine: EngineState) -> None:
    """In runs of so many entries at most."""
    run = RowRun(engine)
    for number, entry in enumerate(read_entries(image, 0, limit, cursor), 1):
        run.fold(entry)
        if not number % most:
            run.flush()
    run.flush()


def _outcome(fold: Callable[..., None], image: bytes, limit: int, begin: Cursor) -> Outcome:
    engine = EngineState(OPTIONS)
    cursor = Cursor(*astuple(begin))
    error = ""
    try:
        fold(image, limit, cursor, engine)
    except CorruptionError as found:
        error = str(found)
    # A run is decoded behind its last entry: where an error was met is not told.
    return Outcome(picture(engine), None if error else astuple(cursor), error)


def _first_file(history: History) -> tuple[bytes, int, Cursor]:
    """The image of the first file of the log, its end, and its beginning."""
    files = LocalFiles(history.path)
    published = read_published(files)
    assert published is not None
    number = log_numbers(files)[0]
    image = (history.path / path_of(number)).read_bytes()
    header = decode_file_header(image[:SECTOR], path_of(number))
    assert header is not None
    end = published.offset if published.file == number else len(image)
    return image, end, Cursor.begin(header)


@pytest.mark.parametrize("history", SEEDS, indirect=True)
def test_damaged_bytes_are_folded_by_nobody(history: History) -> None:
    for _ in range(30):
        name = history.chance.choice(sorted(TABLES))
        for _ in range(history.chance.randrange(1, 5)):
            history.insert(name, 1)
        if name != "keyless":
            history.insert_together(name, history.chance.randrange(2, 7))
        history.update(name)
        history.delete(name)
    image, limit, begin = _first_file(history)
    for number in range(60):
        damaged = bytearray(image)
        if number:
            damaged[history.chance.randrange(SECTOR, limit)] ^= 1 << history.chance.randrange(8)
        data = bytes(damaged)
        expected = _outcome(_fold_generally, data, limit, begin)
        for most in (1, 64):
            assert _outcome(partial(_fold_fast, most), data, limit, begin) == expected
        if not number:
            assert len(expected.picture[2][0]) > 60, "nothing was folded"


@pytest.mark.parametrize("history", SEEDS, indirect=True)
def test_rows_that_make_no_sense_are_the_same_error(history: History) -> None:
    """Bytes that were changed before they were sealed: every checksum holds."""
    for name in sorted(TABLES) * 2:
        for _ in range(12):
            history.insert(name, 1)
        if name != "keyless":
            history.insert_together(name, 5)
            history.insert_together(name, 20)
        history.update(name)
    image, limit, begin = _first_file(history)
    entries = list(read_entries(image, 0, limit, Cursor(*astuple(begin))))
    rows = [place for place, entry in enumerate(entries) if len(entry.payload) > BODY_AT]
    errors = 0
    for _ in range(60):
        changed = history.chance.choice(rows[len(rows) // 2 :])
        data, end = _sealed(image, begin, entries, changed, history.chance)
        expected = _outcome(_fold_generally, data, end, begin)
        for most in (1, 64):
            assert _outcome(partial(_fold_fast, most), data, end, begin) == expected
        errors += bool(expected.error)
    assert errors > 10


def _sealed(
    image: bytes, begin: Cursor, entries: list[Entry], changed: int, chance: random.Random
) -> tuple[bytes, int]:
    """The same file with another payload in one of its entries, and where it ends."""
    at, out = Cursor(*astuple(begin)), bytearray(image[:SECTOR])
    for place, entry in enumerate(entries):
        payload = bytearray(entry.payload)
        if place == changed:
            where = chance.choice([chance.randrange(BODY_AT, len(payload)), len(payload) - 1])
            payload[where] = chance.choice([payload[where] ^ 1 << chance.randrange(8), 0, 0x91])
            if chance.random() < 0.2:
                del payload[-1]
        data, at.crc = frame(at, file_seed(at.number), 0, entry.group, entry.type, bytes(payload))
        out += data
        at.order, at.offset = at.order + 1, at.offset + len(data)
        at.lsns[entry.group] += 1
    return bytes(out), len(out)
