"""Every canonical type, in by every door and out by every other, the same to the last bit.

dict, list, Arrow, bulk Arrow --> workspace, commit, log, replay --> get, get_many, range, scan,
                                                                     sql, changes, to_arrow
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import halocline as hc
from halocline import Database
from halocline.schema.typenames import parse_type
from halocline.schema.types import kind
from tests.clock import ManualClock
from tests.store.faulty import FaultyFiles
from tests.unit.schema.pools import FIRST, LAST, LEAVES, maybe_null, same, types, values

UTC = dt.UTC
EDGES: dict[str, list[Any]] = {
    "bool": [True, False],
    "int8": [-128, 127, 0],
    "int16": [-32768, 32767],
    "int32": [-(2**31), 2**31 - 1],
    "int64": [-(2**63), 2**63 - 1, 0],
    "float32": [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 2.0**-149],
    "float64": [0.0, -0.0, 0.1, float("inf"), float("-inf"), float("nan"), 5e-324, 1.7e308],
    "decimal(12,2)": [Decimal("0.00"), Decimal("-9999999999.99"), Decimal("0.01")],
    "decimal(38,10)": [Decimal("9" * 28 + "." + "9" * 10), Decimal("-1E-10"), Decimal("0E-10")],
    "string": ["", "a", "é", "🙂", "\0", "a" * 5000, "'; drop table t; --", "\u2028", '"'],
    "binary": [b"", b"\0", bytes(range(256)), b"\xff" * 3000],
    "date": [dt.date.min, dt.date.max, dt.date(1970, 1, 1), dt.date(1969, 12, 31)],
    "time": [dt.time.min, dt.time.max, dt.time(12, 30, 15, 1)],
    "timestamp": [FIRST, LAST, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)],
    "timestamptz": [
        FIRST.replace(tzinfo=UTC),
        LAST.replace(tzinfo=UTC),
        dt.datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    ],
    "int[]": [[], [1], [None, 2**31 - 1], [0] * 500],
    "string[]": [[], [""], [None], ["a", None, "é"]],
    "timestamptz[]": [[dt.datetime(2026, 1, 1, tzinfo=UTC), None]],
    "decimal(10,2)[][]": [[[Decimal("1.50")], [], None]],
    "struct<a: int, b: string>": [{"a": 1, "b": None}, {"a": None, "b": ""}],
    "struct<a: struct<b: int[]>, c: binary>": [
        {"a": {"b": [1, None]}, "c": b"\0"},
        {"a": None, "c": b""},
    ],
    "struct<a: int not null, b: string[] not null>": [{"a": 1, "b": []}, None],
    "list<struct<k: string not null, v: decimal(20,4)>>": [
        [{"k": "x", "v": Decimal("1.0000")}],
        [],
    ],
}


def _memory(files: Any, bulk_rows: int) -> Any:
    options = hc.Options(page_rows=4, bulk_rows=bulk_rows, sql_threads=1, background=False)
    return Database(files, "types", options=options, clock=ManualClock(1))


class Doors:
    """Two databases, one where everything is bulk; a table for every type and door."""

    def __init__(self) -> None:
        self.files = {bulk_rows: FaultyFiles() for bulk_rows in (1, 1000)}
        self.dbs = {bulk_rows: _memory(files, bulk_rows) for bulk_rows, files in self.files.items()}
        self.names = count()
        self.filled: list[tuple[int, str, Any, list[tuple[Any, ...]]]] = []

    def round_trip(self, type: Any, cells: list[Any]) -> None:
        """Put the values in by every door; read them before the commit and after it."""
        for door in ("dict", "list", "arrow", "bulk", "upsert", "update", "bulk update"):
            bulk_rows = 1 if door.startswith("bulk") else 1000
            db, name = self.dbs[bulk_rows], f"t{next(self.names)}"
            db.create_table(name, pa.schema([("k", pa.int64()), ("c", type)]), primary_key="k")
            schema = db.begin().changes_of(name).schema
            rows = list(enumerate([*cells, None]))
            with db.begin() as txn:
                _enter(txn, name, schema, rows, door)
                _check_reads(txn, name, schema, rows, sql=door == "upsert")
            _check_doors(db, name, schema, rows, sql=door in ("list", "bulk update"))
            self.filled.append((bulk_rows, name, schema, rows))

    def replay(self) -> None:
        """Close both, open them again: every row of every table is read from the log."""
        for bulk_rows, db in self.dbs.items():
            assert not db.check()
            db.close()
            self.dbs[bulk_rows] = _memory(self.files[bulk_rows], bulk_rows)
        for bulk_rows, name, schema, rows in self.filled:
            _check_doors(self.dbs[bulk_rows], name, schema, rows, sql=False)
        for db in self.dbs.values():
            assert not db.check()
            db.close()


@pytest.fixture(scope="module")
def doors() -> Iterator[Doors]:
    """The databases of this file. When it ends all that went in is looked for after a replay."""
    doors = Doors()
    yield doors
    doors.replay()


def _same_rows(found: list[Any], wanted: list[Any]) -> bool:
    return len(found) == len(wanted) and all(
        same(left, right) for left, right in zip(found, wanted, strict=True)
    )


def _canonical(table: pa.Table, schema: Any) -> list[Any]:
    """The rows of a result as canonical Python values: pyarrow's own differ in zones and scales."""
    loose = pa.schema([(field.name, _loose(field.type)) for field in schema.arrow])
    return schema.from_table(table if table.schema == schema.arrow else table.cast(loose))


def _loose(type: Any) -> Any:
    """The type without `not null` inside: DuckDB does not know it."""
    if pa.types.is_list(type):
        return pa.list_(_loose(type.value_type))
    if pa.types.is_struct(type):
        return pa.struct([(field.name, _loose(field.type)) for field in type])
    return type


def _check_doors(
    db: Any, name: str, schema: Any, rows: list[tuple[Any, ...]], *, sql: bool = True
) -> None:
    """All ways out show these rows; `k` is the key."""
    names = list(schema.names)
    with db.begin() as txn:
        _check_reads(txn, name, schema, rows, sql=sql)
        for row in rows:
            got = txn.get(name, row[0])
            assert list(got) == names
            assert _same_rows([tuple(got.values())], [row])
    table = db.table(name)
    assert table.schema == table.to_arrow().schema == schema.arrow
    changes = db.changes(name, 0)
    assert changes.drop_columns(["_change", "_commit_ts"]).schema == schema.arrow
    kinds = changes.column("_change").to_pylist()
    assert kinds == ["insert"] * len(rows)
    assert _same_rows(_canonical(changes.sort_by("k").select(names), schema), rows)


def _check_reads(
    txn: Any, name: str, schema: Any, rows: list[tuple[Any, ...]], *, sql: bool = True
) -> None:
    found = [
        txn.scan(name).sort_by("k"),
        txn.scan(name, stream=True).read_all().sort_by("k"),
        txn.range(name),
        txn.get_many(name, [row[0] for row in rows]),
    ]
    if sql:
        found.append(txn.scan(name, where="k >= 0", order="k"))
        result = txn.sql(f"select * from {name} order by k")
        assert [_loose(t) for t in result.schema.types] == [_loose(t) for t in schema.arrow.types]
        assert _same_rows(_canonical(result, schema), rows)
    for table in found:
        table.validate(full=True)
        assert table.schema == schema.arrow
        assert _same_rows(_canonical(table, schema), rows)


def _enter(txn: Any, name: str, schema: Any, rows: list[tuple[Any, ...]], door: str) -> None:
    dicts = [dict(zip(schema.names, row, strict=True)) for row in rows]
    if door == "dict":
        for row in dicts:
            txn.insert(name, row)
    elif door == "list":
        txn.insert(name, dicts)
    elif door in ("arrow", "bulk"):
        txn.insert(name, schema.to_table(rows))
    elif door == "upsert":
        txn.upsert(name, dicts)
    elif door == "update":
        txn.insert(name, [{"k": row[0]} for row in rows])
        for k, value in rows:
            txn.update(name, k, {"c": value})
    else:
        txn.insert(name, pa.table({"k": [row[0] for row in rows]}))
        txn.upsert(name, schema.to_table(rows))


@pytest.mark.parametrize("text", EDGES)
def test_edge_values_of_a_type_survive_every_door(doors: Doors, text: str) -> None:
    doors.round_trip(parse_type(text)[0], EDGES[text])


def test_the_edges_cover_every_family() -> None:
    covered = {kind(parse_type(text)[0]) for text in EDGES}
    assert covered == {kind(type) for type in LEAVES} | {"list", "struct"}


@settings(max_examples=max(10, settings.default.max_examples // 20))
@given(st.data())
def test_any_value_of_any_type_survives_every_door(doors: Doors, data: st.DataObject) -> None:
    type = data.draw(types())
    doors.round_trip(type, data.draw(st.lists(maybe_null(values(type)), max_size=4)))


KEYS: dict[str, list[Any]] = {
    text: [value for value in cells if value is not None]
    for text, cells in EDGES.items()
    if not text.startswith(("float", "list", "struct")) and not text.endswith("[]")
}


@pytest.mark.parametrize("text", KEYS)
@pytest.mark.parametrize("bulk_rows", [1, 1000])
def test_edge_values_of_a_type_as_keys(text: str, bulk_rows: int) -> None:
    cells = [cell for cell in KEYS[text] if len(str(cell)) < 500]
    files = FaultyFiles()
    db = _memory(files, bulk_rows)
    db.create_table("t", {"k": text, "n": int}, primary_key="k")
    schema = db.begin().changes_of("t").schema
    with db.begin() as txn:
        txn.insert("t", schema.to_table([(cell, n) for n, cell in enumerate(cells)]))
    for life in range(2):
        with db.begin() as txn:
            for n, cell in enumerate(cells):
                assert same(txn.get("t", cell), {"k": cell, "n": n + 100 * life})
                with pytest.raises(hc.DuplicateKeyError):
                    txn.insert("t", {"k": cell})
            ordered = [row[0] for row in schema.from_table(txn.range("t"))]
            assert same(ordered, sorted(cells))
            for cell in cells:
                below = txn.range("t", None, cell).num_rows
                above = txn.range("t", cell, None).num_rows
                assert (below, above) == (sorted(cells).index(cell), len(cells) - below)
            found = txn.get_many("t", cells)
            assert same([row[0] for row in schema.from_table(found)], cells)
            for n, cell in enumerate(cells):
                assert txn.update("t", cell, {"n": n + 100}) == 1
        assert not db.check()
        db.close()
        db = _memory(files, bulk_rows)
    db.close()


@pytest.mark.parametrize("text", EDGES)
def test_one_value_for_many_rows(doors: Doors, text: str) -> None:
    """`update` by `where`, in bulk and row by row, of rows untouched and of rows just changed."""
    for bulk_rows, db in doors.dbs.items():
        name = f"t{next(doors.names)}"
        db.create_table(name, {"k": int, "c": text}, primary_key="k")
        schema = db.begin().changes_of(name).schema
        with db.begin() as txn:
            txn.insert(name, [{"k": n} for n in range(4)])
        values = [*EDGES[text][:2], None, EDGES[text][-1]]
        for value in values:
            with db.begin() as txn:
                assert txn.update(name, where="k < 3", set={"c": value}) == 3
                assert txn.update(name, where="k >= 0", set={"c": value}) == 4
        rows = [(n, values[-1]) for n in range(4)]
        with db.begin() as txn:
            _check_reads(txn, name, schema, rows, sql=False)
        feed = db.changes(name, 0)
        assert feed.num_rows == 4 + 2 * 4 * len(values)
        assert bulk_rows in (1, 1000)


def test_nested_values_that_are_handed_out_are_copies(own_db: Any) -> None:
    given_tags, given_dims = ["x", "y"], {"w": 1, "h": 2}
    row = {"id": 70, "qty": 1, "tags": given_tags, "dims": given_dims}
    for commits in (False, True):
        with own_db.begin() as txn:
            if not commits:
                txn.insert("orders", row)
                given_tags.append("given")
                given_dims["w"] = 99
            for _ in range(2):
                got = txn.get("orders", 70)
                assert (got["tags"], got["dims"]) == (["x", "y"], {"w": 1, "h": 2})
                got["tags"].append("z")
                got["dims"]["w"] = 7
                got["qty"] = 9
            txn.update("orders", 70, {"status": "touched"})
            assert txn.get("orders", 70)["tags"] == ["x", "y"]
    fresh = ["u"]
    with own_db.begin() as txn:
        txn.get("orders", 70)["tags"].append("z")
        txn.update("orders", 70, {"tags": fresh})
        fresh.append("v")
        assert txn.get("orders", 70)["tags"] == ["u"]
        txn.upsert("orders", [{"id": 70, "dims": given_dims}])
        given_dims["h"] = 0
    with own_db.begin() as txn:
        assert txn.get("orders", 70)["tags"] == ["u"]
        assert txn.get("orders", 70)["dims"] == {"w": 99, "h": 2}


def test_a_row_that_was_read_modified_and_written_back(own_db: Any) -> None:
    """The usual way: get, change the dict, upsert or update with it."""
    with own_db.begin() as txn:
        row = txn.get("orders", 3)
        row["tags"].append("more")
        row["status"] = "changed"
        txn.upsert("orders", row)
        assert txn.get("orders", 3) == row
    with own_db.begin() as txn:
        assert txn.get("orders", 3) == row
        row["tags"].append("again")
        assert txn.update("orders", row.pop("id"), row) == 1
    with own_db.begin() as txn:
        assert txn.get("orders", 3)["tags"] == ["a", "3", "more", "again"]
