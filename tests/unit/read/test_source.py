"""Files and memory as one table for DuckDB: the same rows as a scan, read no more than needed."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from halocline.catalog import TableEntry
from halocline.errors import CorruptionError, UsageError
from halocline.ids import ColumnId, TableId
from halocline.objects import ObjectFile, Shelf
from halocline.objects.shelf import object_key
from halocline.options import Options
from halocline.read import mask
from halocline.read.duck import Duck, as_schema
from halocline.read.plan import NONE
from halocline.read.predicate import compile_where
from halocline.read.scan import memory_table, take_plan
from halocline.read.source import Source, literal, source_of
from halocline.rows.nodes import Append
from halocline.rows.reshape import Reshape, new_entry
from halocline.rows.state import TableState
from halocline.schema.schema import Schema
from halocline.store.objects import PyarrowObjects
from tests.unit.objects.files import write_data
from tests.unit.read.rig import Tiers
from tests.unit.rows.rig import KEYED, seeds
from tests.unit.schema.pools import few, same, tables


def local_shelf(folder: Path) -> Shelf:
    return Shelf(PyarrowObjects.open(str(folder)), memory_bytes=64 << 20, root=str(folder))


def on_disk(tiers: Tiers, folder: Path) -> Tiers:
    """The same story with its objects in a folder."""
    tiers.live.shelf = local_shelf(folder)
    return tiers


def source_at(state: TableState, ts: int, where: str = "", *, rowids: bool = False) -> Source:
    predicate = compile_where(where, [], state.schema) if where else None
    plan = take_plan(state, ts, predicate)
    memory = memory_table(state.schema, plan, rowids=rowids)
    return source_of(state.shelf, state.schema, plan, memory, rowids=rowids)


@pytest.fixture
def duck(tmp_path: Path) -> Iterator[Duck]:
    duck = Duck(memory_bytes=64 << 20, threads=1, folder=str(tmp_path))
    yield duck
    duck.close()


@pytest.mark.parametrize("way", ["remote", "join", "bits", "listed"])
@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", seeds(1, 20))
def test_r03_duckdb_sees_the_rows_of_every_snapshot(
    kind: str, seed: int, way: str, tmp_path: Path, duck: Duck, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = Tiers(seed, kind)
    local = way != "remote"
    if way in ("bits", "listed"):
        monkeypatch.setattr(mask, "ROWS_MIN", 1)
        monkeypatch.setattr(mask, "LISTED_MAX", 0 if way == "bits" else 64)
    if local:
        on_disk(tiers, tmp_path)
    for _ in range(20):
        tiers.step()
        ts = tiers.rng.choice([tiers.ts, tiers.rng.randrange(tiers.ts + 1)])
        wanted = {v.rowid: v.row for v in tiers.versions.values() if v.began <= ts < v.ended}
        source = source_at(tiers.live, ts, rowids=True)
        assert bool(source.files) <= local
        found = duck.query("select * from t", [], {"t": source})
        assert found.column_names == ["id", "name", "n", "_rowid"]
        assert {row[3]: row[:3] for row in zip(*found.to_pydict().values(), strict=True)} == wanted
        assert found.num_rows == len(wanted)
        pruned = source_at(tiers.live, ts, "id < 9 and n > 20")
        text = "select count(*) as n, sum(id) as s from t where id < 9 and n > 20"
        kept = [row for row in wanted.values() if row[0] < 9 and row[2] > 20]
        assert duck.query(text, [], {"t": pruned}).to_pylist() == [
            {"n": len(kept), "s": sum(row[0] for row in kept) if kept else None}
        ]


# What DuckDB plans.


def full_of_everything(tmp_path: Path) -> Source:
    """Clean, dirty and late objects and rows in memory."""
    tiers = on_disk(Tiers(1, "int"), tmp_path)
    for _ in range(4):
        for _ in range(6):
            tiers.step()
        for ts in range(tiers.ts, 0, -1):
            source = source_at(tiers.live, ts)
            if source.clean and source.dirty and source.late:
                # What is late is newer than ts, and L0 is newer still: its rows come from us.
                return replace(source, memory=tiers.schema.to_table([(1, "x", 2), (2, "y", 3)]))
    raise AssertionError("the story never has everything")


def test_projection_and_filter_reach_every_scan(tmp_path: Path, duck: Duck) -> None:
    source = full_of_everything(tmp_path)
    text = "explain select name from t where n < 50"
    (shown,) = duck.query(text, [], {"t": source}).column("explain_value").to_pylist()
    assert shown.count("READ_PARQUET") == 3
    assert (shown.count("Filters:"), shown.count("n < 50")) == (3, 4), shown
    assert len(re.findall(r"Join Type: (RIGHT_)?ANTI", shown)) == 2
    assert not re.search(r"Projections: [^│]*\bid\b", shown), "a column that nobody asked for"
    assert duck.query("select count(*) as n from t", [], {"t": source}).num_rows == 1


def test_filters_reach_a_scan_behind_a_mask(
    tmp_path: Path, duck: Duck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask, "ROWS_MIN", 1)
    tiers = on_disk(Tiers(1, "int"), tmp_path)
    # More than one file: the statistics of a single one would decide about the filter.
    while not (masks := (source := source_at(tiers.live, tiers.ts)).masks) or not all(
        len(found.entries) > 1 for found in masks
    ):
        tiers.step()
    assert not source.dirty
    source = replace(source, clean=(), late=(), memory=tiers.schema.to_table([]))
    text = "explain select name from t where n < 50"
    (shown,) = duck.query(text, [], {"t": source}).column("explain_value").to_pylist()
    assert shown.count("READ_PARQUET") == len(source.masks)
    assert shown.count("Filters:") == len(source.masks)
    # With a second condition it would be hashed.
    conditions = re.findall(r"Conditions: *│\s*│ ([^│]*?) *│", shown)
    assert conditions == ["__internal_barrier((_rowid >> 6)) = _word"] * len(masks), shown


def dirty_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiers:
    """A table that has a mask now."""
    monkeypatch.setattr(mask, "ROWS_MIN", 1)
    tiers = on_disk(Tiers(1, "int"), tmp_path)
    while not source_at(tiers.live, tiers.ts).masks:
        tiers.step()
    return tiers


def test_words_of_queries_that_run_at_once_do_not_meet(
    tmp_path: Path, duck: Duck, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = dirty_for_long(tmp_path, monkeypatch)
    source = source_at(tiers.live, tiers.ts)
    found = duck.query("select * from t", [], {"t": source})
    assert found.num_rows == len(tiers.rows_at(tiers.ts))
    # Two of one table in a query, and one whose reader has more to read.
    stream = duck.stream("select * from t", [], {"t": source})
    twice = duck.query("select count(*) as n from t, u", [], {"t": source, "u": source})
    assert twice.to_pylist() == [{"n": found.num_rows**2}]
    assert stream.read_all() == found
    # What the words are in goes with the query.
    left = "select count(*) as n from duckdb_tables()"
    assert duck.query(left, [], {}).to_pylist() == [{"n": 0}]


def test_an_instance_that_starts_anew_makes_its_own_words(
    tmp_path: Path, duck: Duck, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = dirty_for_long(tmp_path, monkeypatch)
    source = source_at(tiers.live, tiers.ts)
    before = duck.query("select * from t", [], {"t": source})
    stream = duck.stream("select * from t", [], {"t": source})
    duck._restart()
    assert duck.query("select * from t", [], {"t": source}) == before
    assert stream.read_all() == before


def test_a_clean_table_is_read_without_a_join(tmp_path: Path, duck: Duck) -> None:
    tiers = on_disk(Tiers(2, "int"), tmp_path)
    tiers.bulk()
    source = source_at(tiers.live, tiers.ts)
    assert (len(source.clean), source.memory.num_rows) == (1, 0)
    (shown,) = duck.query("explain from t", [], {"t": source}).column("explain_value").to_pylist()
    assert "READ_PARQUET" in shown
    assert "Join" not in shown
    assert "Union" not in shown


# Files that are not what they were.


HARMS = ["missing", "cut", "flipped"]


def damaged(tmp_path: Path) -> tuple[Tiers, Path, str]:
    tiers = on_disk(Tiers(2, "int"), tmp_path)
    tiers.bulk()
    (entry,) = tiers.live.shape.tier.data
    return tiers, tmp_path / entry.key, entry.key


@pytest.mark.parametrize(
    ("harm", "known"),
    [("longer", False), *((harm, known) for harm in HARMS for known in (False, True))],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_damaged_file_is_named(
    harm: str, known: bool, stream: bool, tmp_path: Path, duck: Duck
) -> None:
    tiers, path, key = damaged(tmp_path)

    def read() -> Any:
        tables = {"t": source_at(tiers.live, tiers.ts)}
        if stream:
            return duck.stream("select * from t", [], tables).read_all()
        return duck.query("select * from t", [], tables)

    if known:  # verified before, and read: what happens to it later is found when it shows
        assert read().num_rows
    data = bytearray(path.read_bytes())
    if harm == "missing":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(data[:-20])
    elif harm == "longer":
        path.write_bytes(bytes(data) + b"x")
    else:
        data[4:40] = bytes(36)
        path.write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        read()
    assert key in str(caught.value)


def test_an_error_of_the_query_is_not_blamed_on_the_files(tmp_path: Path, duck: Duck) -> None:
    tiers, _, _ = damaged(tmp_path)
    source = source_at(tiers.live, tiers.ts)
    for text in ("select name::int from t", "select nope from t", "select error(name) from t"):
        with pytest.raises(UsageError):
            duck.query(text, [], {"t": source})
        with pytest.raises(UsageError):
            duck.stream(text, [], {"t": source}).read_all()
    assert duck.query("select count(*) as n from t", [], {"t": source}).num_rows == 1


# Names.


@pytest.mark.parametrize(
    "name",
    ["plain", "year=2024", "it's", 'q"q', "a b;c", "sp*ce", "what?", "se[t]", "ä$%#", "a\\b"],
)
def test_any_folder_will_do(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name / "objects"
    folder.mkdir(parents=True)
    (tmp_path / "spece" / "objects" / "1").mkdir(parents=True)
    tiers = on_disk(Tiers(2, "int"), folder)
    tiers.bulk()
    duck = Duck(memory_bytes=64 << 20, threads=1, folder=str(folder))
    found = duck.query("select * from t", [], {"t": source_at(tiers.live, tiers.ts)})
    assert found.column_names == ["id", "name", "n"]
    assert sorted(found.column("id").to_pylist()) == sorted(r[0] for r in tiers.rows_at(tiers.ts))
    duck.close()


def test_table_names_are_only_names(tmp_path: Path, duck: Duck) -> None:
    tiers, _, _ = damaged(tmp_path)
    source = source_at(tiers.live, tiers.ts)
    for name in ('we"ird', "select", "a b", "_memory_0", "Tab;le"):
        quoted = '"' + name.replace('"', '""') + '"'
        found = duck.query(f"select count(*) as n from {quoted}", [], {name: source})
        assert found.to_pylist() == [{"n": len(tiers.rows_at(tiers.ts))}]
    assert literal("it's") == "'it''s'"


def test_the_sandbox_opens_objects_and_nothing_else(tmp_path: Path, duck: Duck) -> None:
    outside = tmp_path.parent / "outside.parquet"
    pa.parquet.write_table(pa.table({"a": [1]}), outside)
    for text in (
        f"from read_parquet({literal(str(outside))})",
        f"from read_parquet({literal(str(tmp_path / '..' / 'outside.parquet'))})",
        f"from read_text({literal(str(outside))})",
        f"from glob({literal(str(tmp_path.parent / '*'))})",
    ):
        with pytest.raises(UsageError, match="Permission"):
            duck.query(text, [], {})
    closed = Duck(memory_bytes=64 << 20, threads=1)
    with pytest.raises(UsageError, match="Permission"):
        closed.query(f"from read_parquet({literal(str(outside))})", [], {})
    closed.close()


# Types.


def written(schema: Schema, rows: list[tuple[Any, ...]], folder: Path) -> TableState:
    """A table without a key that has these rows in one object."""
    entry = TableEntry(
        id=TableId(7),
        name="t",
        schema=schema,
        layout="clustered",
        options={},
        next_column_id=ColumnId(99),
    )
    state = TableState(entry, page_rows=4, shelf=local_shelf(folder))
    table = schema.to_table(rows)
    table = table.append_column("_rowid", pa.array(np.arange(1, len(rows) + 1)))
    key = object_key(7, 1, 0)
    options = Options(page_rows=4, row_group_rows=8)
    stats = write_data(state.shelf.objects, key, table, schema, options=options)
    state.reshape(Reshape(7, [new_entry(ObjectFile(key, stats))]), 1)
    return state


@pytest.mark.slow
@few()
@given(tables())
def test_every_type_comes_back_from_files_as_it_was(
    made: tuple[Schema, list[tuple[Any, ...]]],
) -> None:
    schema, rows = made
    if not rows:
        return
    with tempfile.TemporaryDirectory() as folder:
        state = written(schema, rows, Path(folder))
        duck = Duck(memory_bytes=64 << 20, threads=1, folder=folder)
        source = source_at(state, 1)
        assert len(source.files) == 1
        found = as_schema(duck.query("select * from t", [], {"t": source}), schema.arrow)
        assert found.schema == schema.arrow
        assert same(schema.from_table(found), rows)
        state.fold(Append(state.table_id, rows, first_rowid=100), 2)
        both = duck.query("select * from t", [], {"t": source_at(state, 2)})
        both = as_schema(both, schema.arrow)
        assert same(schema.from_table(both), [*rows, *rows]), "files and memory side by side"
        duck.close()


def test_r09_cached_rows_are_not_changed_by_leaving_some_out(tmp_path: Path, duck: Duck) -> None:
    tiers = on_disk(Tiers(4, "int"), tmp_path)
    for _ in range(20):
        tiers.step()
    ts = tiers.ts
    first = duck.query("select * from t", [], {"t": source_at(tiers.live, ts)})
    plan = take_plan(tiers.live, ts, without=np.arange(1, 40))
    memory = memory_table(tiers.schema, plan, np.arange(1, 40))
    duck.query(
        "select * from t", [], {"t": source_of(tiers.live.shelf, tiers.schema, plan, memory)}
    )
    again = duck.query("select * from t", [], {"t": source_at(tiers.live, ts)})
    assert again == first
    assert not len(NONE)
