"""Scans, SQL and changes by predicate on tables whose rows are in memory and in objects."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import halocline as hc
from halocline import Database
from halocline.errors import CorruptionError, UsageError
from tests.store.faulty import FaultyFiles
from tests.unit.read import moving
from tests.unit.rows.rig import seeds

COLUMNS: dict[str, Any] = {"id": "bigint not null", "s": str, "n": int, "l": "int[]"}
KEYS = {"keyed": "id", "pair": ["s", "id"], "heap": None}


def opened(where: str, path: Path) -> Database:
    if where == "memory":
        return Database(FaultyFiles(), "db", options=moving.TINY, retention="1d")
    return hc.open(path / "db", options=moving.TINY, durability="async")


class Model:
    """A table beside a plain dict, driven by chance."""

    def __init__(self, db: Database, seed: int, kind: str) -> None:
        self.db = db
        self.rng = random.Random(seed)
        self.kind = kind
        self.rows: dict[int, tuple[Any, ...]] = {}
        self.past: dict[int, dict[int, tuple[Any, ...]]] = {}
        self.next = 0
        db.create_table("t", COLUMNS, primary_key=KEYS[kind])

    def write(self, txn: Any, rows: dict[int, tuple[Any, ...]]) -> None:
        """One change, to the transaction and to the dict."""
        chance = self.rng.random()
        low = self.rng.randrange(self.next + 1)
        if chance < 0.5 or not rows:
            fresh = [self._row() for _ in range(self.rng.choice([1, 3, 20]))]
            given = [dict(zip(COLUMNS, row, strict=True)) for row in fresh]
            assert txn.insert("t", given if len(given) > 1 else given[0]) == len(fresh)
            rows.update({row[0]: row for row in fresh})
        elif chance < 0.7:
            high = low + self.rng.choice([0, 2, 30])
            hit = [key for key in rows if low <= key <= high]
            found = txn.delete("t", where="id between ? and ?", params=[low, high])
            assert found == len(hit)
            for key in hit:
                del rows[key]
        elif chance < 0.9:
            n = self.rng.randrange(10)
            hit = [key for key, row in rows.items() if row[2] == n and key >= low]
            text = "t.n = ? and id >= ?"
            found = txn.update("t", where=text, params=[n, low], set={"n": n + 1, "l": [n]})
            assert found == len(hit)
            rows.update({key: (key, rows[key][1], n + 1, [n]) for key in hit})
        elif self.kind == "keyed":
            key = self.rng.choice(list(rows))
            txn.update("t", key, {"s": "single"})
            rows[key] = (key, "single", *rows[key][2:])

    def step(self) -> None:
        with self.db.begin() as txn:
            for _ in range(self.rng.choice([1, 1, 3])):
                self.write(txn, self.rows)
                if self.rng.random() < 0.3:
                    self.look(txn, self.rows)
        self.past[self.db.visible_ts] = dict(self.rows)
        chance = self.rng.random()
        if chance < 0.3:
            moving.move(self.db, "t")
        elif chance < 0.5:
            moving.flush(self.db, "t")
        elif chance < 0.6:
            moving.merge(self.db, "t")
        if self.rng.random() < 0.3:
            moving.let_go(self.db, "t")

    def look(self, txn: Any, rows: dict[int, tuple[Any, ...]]) -> None:
        """Everything that reads must show the rows of the dict."""
        wanted = sorted(rows.values())
        whole = txn.scan("t")
        assert whole.schema == self.schema
        assert tuples(whole) == wanted
        assert tuples(txn.scan("t", stream=True).read_all()) == wanted
        n = self.rng.randrange(10)
        few = txn.scan("t", where="n >= ? and id < 40", params=[n], columns=["s", "id"])
        assert few.schema == pa.schema([self.schema.field("s"), self.schema.field("id")])
        assert tuples(few) == sorted((r[1], r[0]) for r in wanted if r[2] >= n and r[0] < 40)
        ordered = txn.scan("t", order="n desc, id", where="id > 3", limit=7, stream=True)
        assert ordered.schema == self.schema
        best = sorted((row for row in wanted if row[0] > 3), key=lambda r: (-r[2], r[0]))[:7]
        assert [row[0] for row in tuples(ordered.read_all(), as_is=True)] == [r[0] for r in best]
        assert txn.scan("t", limit=3).num_rows == min(3, len(wanted))
        text = "select count(*), sum(n), max(id) from t where id <= ?"
        (line,) = tuples(txn.sql(text, [30]))
        kept = [row for row in wanted if row[0] <= 30]
        total = sum(row[2] for row in kept) if kept else None
        assert line == (len(kept), total, max((r[0] for r in kept), default=None))
        joined = "select count(*) as c from t a join t b on a.id = b.id where a.n = ?"
        assert txn.sql(joined, [n]).to_pylist() == [{"c": sum(r[2] == n for r in wanted)}]

    def look_everywhere(self) -> None:
        """Now and at points in the past."""
        table = self.db.table("t")
        for ts in [None, *self.rng.sample(list(self.past), min(3, len(self.past)))]:
            rows = self.rows if ts is None else self.past[ts]
            with self.db.begin(at=ts) as txn:
                self.look(txn, rows)
            assert table.count(at=ts) == len(rows)
            assert tuples(table.to_arrow(at=ts)) == sorted(rows.values())
            assert all(Path(path).is_absolute() or "/" in path for path in table.files(at=ts))
        assert tuples(pa.table(table)) == sorted(self.rows.values())

    @property
    def schema(self) -> Any:
        return self.db.table("t").schema

    def _row(self) -> tuple[Any, ...]:
        self.next += 1
        n = self.rng.randrange(10)
        return (self.next, f"s{n}", n, [n, None] if n % 3 else None)


def tuples(table: Any, *, as_is: bool = False) -> list[tuple[Any, ...]]:
    rows = list(zip(*[column.to_pylist() for column in table.columns], strict=True))
    return rows if as_is else sorted(rows, key=lambda row: row[:2])


@pytest.mark.parametrize("where", ["disk", "memory"])
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("seed", seeds(1, 25))
def test_every_way_to_read_shows_the_same_rows(
    seed: int, kind: str, where: str, tmp_path: Path
) -> None:
    db = opened(where, tmp_path)
    model = Model(db, seed, kind)
    for number in range(18):
        model.step()
        if number % 6 == 5:
            model.look_everywhere()
    assert db.table("t").files(), "nothing has moved"
    assert not db.check()
    db.close()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """40 rows in three objects, four more in memory, one dead in each tier."""
    db = hc.open(
        tmp_path / "db",
        options=replace(moving.TINY, sql_threads=1),
        durability="async",
        retention=0,
    )
    db.create_table("t", COLUMNS, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", [{"id": n, "s": f"s{n}", "n": n, "l": [n]} for n in range(40)])
    moving.move(db, "t")
    with db.begin() as txn:
        txn.insert("t", [{"id": n, "s": f"s{n}", "n": n, "l": [n]} for n in range(40, 44)])
    with db.begin() as txn:
        txn.delete("t", 7)
        txn.delete("t", 41)
    yield db
    if all(Path(path).exists() for path in db.table("t").files()):
        assert not db.check()
    db.close()


def test_count_reads_no_clean_object(db: Database) -> None:
    table = db.table("t")
    assert table.count() == 42
    (first, *others) = table.files()
    assert len(others) == 2
    Path(others[0]).unlink()
    Path(others[1]).unlink()
    assert table.count() == 42
    Path(first).unlink()
    with pytest.raises(CorruptionError, match=Path(first).name):
        table.count()


def test_r02_a_selective_query_opens_only_the_objects_it_needs(db: Database) -> None:
    first, *others = db.table("t").files()
    for path in others:
        Path(path).unlink()
    with db.begin() as txn:
        assert txn.scan("t", where="id < 10").num_rows == 9
        assert txn.sql("select count(*) as c from t where id in (3, 43)").to_pylist() == [{"c": 2}]
        assert txn.sql("select s from t x where x.id = ?", [5]).to_pylist() == [{"s": "s5"}]
        assert txn.update("t", where="id <= 2", set={"n": 0}) == 3
        assert txn.delete("t", where="id between 41 and 42") == 1
        assert txn.scan("t", where="id < 10 and n = 0").num_rows == 3
        with pytest.raises(CorruptionError):
            txn.scan("t")
        txn.rollback()
    Path(first).unlink()


def test_files_are_those_of_the_snapshot_and_plain_parquet(db: Database) -> None:
    files = db.table("t").files()
    assert all(Path(path).is_absolute() for path in files)
    assert sum(pq.read_metadata(path).num_rows for path in files) == 40
    before = db.visible_ts
    moving.merge(db, "t")
    after = db.table("t").files()
    assert set(after).isdisjoint(files)
    assert set(db.table("t").files(at=before)) == set(files)


def test_a_stream_holds_its_snapshot(db: Database) -> None:
    core = db.core

    def open_one(number: int) -> Any:
        if number == 0:
            return db.sql("select * from t", stream=True)
        with db.begin() as txn:
            if number == 1:
                return txn.scan("t", stream=True)
            return txn.scan("t", where="n >= 0", order="id", stream=True)

    for number in range(3):
        assert not core.pins
        reader = open_one(number)
        assert list(core.pins.values()) == [db.visible_ts], "it is held, transaction or not"
        assert all(key < 0 for key in core.pins), "it holds back no writer"
        assert reader.read_all().num_rows == 42
        assert not core.pins, "read to the end"
        reader = open_one(number)
        del reader
        gc.collect()
        assert not core.pins, "dropped"


def test_a_stream_is_not_disturbed_by_what_comes_after(db: Database) -> None:
    readers = [db.sql("select * from t", stream=True), db.table("t").__arrow_c_stream__()]
    with db.begin() as txn:
        readers.append(txn.scan("t", stream=True))
    with db.begin() as txn:
        txn.delete("t", where="id < 30")
    moving.move(db, "t")
    moving.flush(db, "t")
    moving.merge(db, "t")
    moving.let_go(db, "t")
    db.gc()
    for reader in readers:
        table = pa.RecordBatchReader.from_stream(_Capsule(reader)).read_all()
        assert sorted(table.column("id").to_pylist()) == [n for n in range(44) if n not in (7, 41)]


class _Capsule:
    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        if hasattr(self.stream, "__arrow_c_stream__"):
            return self.stream.__arrow_c_stream__(requested_schema)
        return self.stream


def test_sql_without_at_is_a_reader(db: Database) -> None:
    assert db.sql("select count(*) as c from t").to_pylist() == [{"c": 42}]
    seen: list[int] = []
    real = dict(db.core.pins)
    reader = db.sql("select 1 from t", stream=True)
    seen.extend(key for key in db.core.pins if key not in real)
    assert seen
    assert all(key < 0 for key in seen)
    del reader


def test_the_files_of_the_database_are_out_of_reach_for_sql(db: Database) -> None:
    (path, *_) = db.table("t").files()
    for text in (
        f"select * from read_parquet('{path}')",
        f"select * from '{path}'",
        f"copy t to '{path}'",
        f"select * from t, read_parquet('{path}')",
        f"attach '{path}'",
        "select * from _memory_0",
        "select * from _dead_0",
    ):
        with pytest.raises(hc.HaloclineError):
            db.sql(text)
    with pytest.raises(UsageError):
        db.sql("select _rowid from t")


def test_columns_with_odd_names(tmp_path: Path) -> None:
    names = ["a b", 'q"q', "x.y", "select", "ä", "it's", "at", "a;b", "?", "$1"]
    with hc.open(tmp_path / "db", options=moving.TINY) as db:
        db.create_table("odd table", pa.schema([(name, pa.int64()) for name in names]), "a b")
        with db.begin() as txn:
            txn.insert("odd table", [dict.fromkeys(names, n) for n in range(5)])
        moving.move(db, "odd table")
        with db.begin() as txn:
            txn.insert("odd table", dict.fromkeys(names, 9))
            whole = txn.scan("odd table")
            assert whole.column_names == names
            for name in names:
                quoted = '"' + name.replace('"', '""') + '"'
                found = txn.scan("odd table", where=f"{quoted} >= ?", params=[3], columns=[name])
                assert sorted(found.column(name).to_pylist()) == [3, 4, 9]
                text = f'select sum({quoted}) as s from "odd table" where {quoted} < ?'
                assert txn.sql(text, [4]).to_pylist() == [{"s": 6}]
                assert txn.delete("odd table", where=f"{quoted} = 77") == 0


def test_a_read_only_opener_scans_the_same_files(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=moving.TINY) as db:
        db.create_table("t", COLUMNS, primary_key="id")
        with hc.open(db.path, read_only=True, options=moving.TINY) as other:
            for turn in range(4):
                with db.begin() as txn:
                    txn.insert("t", [{"id": turn * 20 + n, "n": n} for n in range(20)])
                    txn.delete("t", turn * 15)
                if turn % 2:
                    db.flush("t")
                assert other.table("t").count() == 19 * (turn + 1)
                assert tuples(other.table("t").to_arrow()) == tuples(db.table("t").to_arrow())
                assert other.sql("select count(*) as c from t where id < 9").to_pylist() == [
                    {"c": 8}
                ]
                assert other.table("t").files() == db.table("t").files()
        assert not db.check()


@pytest.mark.parametrize("name", ["a/../db", "a b/it's", "year=2024", "star*", "link/db"])
def test_a_database_may_be_anywhere(name: str, tmp_path: Path) -> None:
    for folder in ("a", "a b", "real", "stark"):
        (tmp_path / folder).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with hc.open(f"{tmp_path}/{name}", options=moving.TINY) as db:
        db.create_table("t", COLUMNS, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", [{"id": n, "n": n} for n in range(20)])
        db.flush()
        assert all(Path(path).exists() for path in db.table("t").files())
        assert db.sql("select sum(n)::bigint as s from t where id > 9").to_pylist() == [{"s": 145}]
        assert db.table("t").to_arrow().column_names == list(COLUMNS)
        assert not db.check()
