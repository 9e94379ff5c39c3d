"""Checks on every way in: random writes against a plain model, in memory and as objects.

one write, by whatever call --> the model says whether a row would break a check
                                yes: CheckError, nothing has changed    no: both are the same
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import halocline as hc
from tests.unit.txn.blindjobs import begin_job, between_rounds

COLUMNS = {"id": int, "a": int, "b": int, "s": str}
PLAIN = {"order": "a < b", "small": "a between -3 and 3 or s = 'big'"}
SLOW = {"order": "a + 0 < b", "small": "abs(a) <= 3 or trim(s) = 'big'"}
Rows = dict[int, dict[str, Any]]
NUMBERS = st.sampled_from([None, -4, -1, 0, 1, 2, 3, 9])
VALUES = st.fixed_dictionaries(
    {}, optional={"a": NUMBERS, "b": NUMBERS, "s": st.sampled_from([None, "x", "big"])}
)
KEYS = st.integers(0, 5)
SINGLY = ["update", "update where", "add", "expr", "move"]
INSERTS = ["insert", "insert many", "insert table", "reject", "reject upsert"]
UPSERTS = ["upsert", "upsert many", "upsert table", "update rows", "delete"]
WRITES = st.sampled_from([*INSERTS, *UPSERTS, *SINGLY])


def obeys(row: dict[str, Any]) -> bool:
    """The model: does a row break no check?"""
    a, b = row["a"], row["b"]
    if a is None:
        return True
    return (b is None or a < b) and (abs(a) <= 3 or row["s"] == "big" or row["s"] is None)


def whole(key: int, values: dict[str, Any]) -> dict[str, Any]:
    return {"id": key, "a": None, "b": None, "s": None} | values


class Twin:
    """A table, and what should be in it."""

    def __init__(self, db: hc.Database) -> None:
        self.db = db
        self.rows: Rows = {}

    def write(self, kind: str, given: dict[int, dict[str, Any]]) -> None:
        """One transaction; then table and model are the same."""
        wanted, good = self._wanted(kind, given)
        txn = self.db.begin()
        try:
            if good:
                self._call(txn, kind, given)
                self.rows = wanted
            else:
                before = txn.scan("t", order="id")
                with pytest.raises(hc.CheckError) as caught:
                    self._call(txn, kind, given)
                assert not obeys(whole(0, caught.value.values))
                assert txn.scan("t", order="id") == before
        finally:
            txn.commit()
        found = self.db.sql("select * from t order by id").to_pylist()
        assert found == [self.rows[key] for key in sorted(self.rows)]

    def _wanted(self, kind: str, given: dict[int, dict[str, Any]]) -> tuple[Rows, bool]:
        rows = dict(self.rows)
        if kind == "delete":
            return {key: row for key, row in rows.items() if key not in given}, True
        if kind.startswith("insert") or kind == "reject":
            fresh = {key: whole(key, values) for key, values in given.items() if key not in rows}
        elif "upsert" in kind:
            fresh = {key: rows.get(key, whole(key, {})) | v for key, v in given.items()}
        elif kind == "move":
            moved = {key: row for key, row in rows.items() if key not in given}
            fresh = {k + 10: rows[k] | v | {"id": k + 10} for k, v in given.items() if k in rows}
            if any(key in moved for key in fresh):
                return rows, True
            rows = moved
        elif kind in ("add", "expr"):
            fresh = {key: self._added(rows[key], kind) for key in given if key in rows}
        else:
            fresh = {key: rows[key] | values for key, values in given.items() if key in rows}
        good = {key: row for key, row in fresh.items() if obeys(row)}
        if kind.startswith("reject"):
            return rows | good, True
        return rows | fresh, len(good) == len(fresh)

    @staticmethod
    def _added(row: dict[str, Any], kind: str) -> dict[str, Any]:
        if kind == "add":
            return row | {"a": None if row["a"] is None else row["a"] + 1}
        return row | {"b": None if row["a"] is None else row["a"]}

    def _call(self, txn: hc.Transaction, kind: str, given: dict[int, dict[str, Any]]) -> None:
        rows = [{"id": key} | values for key, values in given.items()]
        there = {row["id"]: row for row in rows if row["id"] in self.rows}
        fresh = [whole(row["id"], row) for row in rows if row["id"] not in self.rows]
        table = pa.Table.from_pylist(fresh, schema=pa.schema(self.db.table("t").schema))
        same = all(row.keys() == rows[0].keys() for row in rows)
        if kind == "insert":
            for row in fresh if len(fresh) == 1 else [fresh] * bool(fresh):
                txn.insert("t", row)
        elif kind == "insert many":
            txn.insert("t", fresh)
        elif kind == "insert table":
            txn.insert("t", table)
        elif kind == "reject":
            found: list[Any] = []
            txn.insert("t", fresh, reject=found, on_conflict="ignore")
            wrong = [row for row in fresh if not obeys(row)]
            assert [one["values"]["id"] for one in found] == [row["id"] for row in wrong]
            assert all("is broken" in one["reason"] for one in found)
        elif kind == "reject upsert":
            for row in rows:
                txn.insert("t", [row], reject=[], on_conflict="upsert")
        elif kind == "upsert":
            txn.upsert("t", rows[0] if len(rows) == 1 else rows)
        elif kind in ("upsert many", "upsert table"):
            if kind == "upsert table" and same:
                types = self.db.table("t").schema
                fields = [field for field in types if field.name in rows[0]]
                txn.upsert("t", pa.Table.from_pylist(rows, schema=pa.schema(fields)))
            else:
                txn.upsert("t", rows)
        elif kind == "move":
            self._move(txn, there)
        elif kind == "delete":
            txn.delete_many("t", list(given))
        else:
            self._update(txn, kind, there)

    @staticmethod
    def _move(txn: hc.Transaction, there: Rows) -> None:
        with_all = [key + 10 for key in there]
        if not any(txn.get("t", key) for key in with_all):
            for key, row in there.items():
                txn.update("t", key, row | {"id": key + 10})

    @staticmethod
    def _update(txn: hc.Transaction, kind: str, there: Rows) -> None:
        rows = list(there.values())
        if kind == "update rows" and rows and all(row.keys() == rows[0].keys() for row in rows):
            if len(rows[0]) > 1:
                types = {"id": pa.int64(), "a": pa.int64(), "b": pa.int64(), "s": pa.string()}
                fields = pa.schema([(name, types[name]) for name in rows[0]])
                txn.update("t", pa.Table.from_pylist(rows, schema=fields))
            return
        for key, row in there.items():
            values: dict[str, Any] = {name: row[name] for name in row if name != "id"}
            if kind == "add":
                values = {"a": hc.add(1)}
            elif kind == "expr":
                values = {"b": hc.expr("a")}
            if values and kind == "update where":
                txn.update("t", where="id = ?", params=[key], set=values)
            elif values:
                txn.update("t", key, values)


def tiny(**zeros: int) -> hc.Options:
    options = hc.Options(page_rows=4, object_rows=16, sql_threads=1, background=False)
    for name, value in zeros.items():
        object.__setattr__(options, name, value)
    return options


@pytest.mark.parametrize("checks", [PLAIN, SLOW], ids=["python", "duckdb"])
@pytest.mark.parametrize(
    "options",
    [tiny(), tiny(bulk_rows=0), tiny(bulk_rows=0, object_rows_min=0)],
    ids=["rows", "parts", "objects"],
)
@settings(max_examples=max(10, settings.default.max_examples // 50))
@given(
    writes=st.lists(
        st.tuples(WRITES, st.dictionaries(KEYS, VALUES, min_size=1, max_size=3)), max_size=12
    )
)
def test_no_way_in_lets_a_broken_row_pass(
    checks: dict[str, str],
    options: hc.Options,
    tmp_path_factory: pytest.TempPathFactory,
    writes: list[tuple[str, dict[int, dict[str, Any]]]],
) -> None:
    with hc.open(tmp_path_factory.mktemp("checks") / "db", options=options) as db:
        db.create_table("t", COLUMNS, "id", checks=checks)
        twin = Twin(db)
        for kind, given_rows in writes:
            # A part of a move may pass before another is refused: one row at a time.
            one = dict([next(iter(given_rows.items()))])
            alike = len({frozenset(row) for row in given_rows.values()}) == 1
            several = kind not in SINGLY and (alike or kind != "update rows")
            twin.write(kind, given_rows if several else one)
        assert not db.check()


def test_a_stream_names_the_row_of_the_whole_stream(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=tiny(object_rows_min=4, bulk_rows=4)) as db:
        db.create_table("t", COLUMNS, "id", checks=PLAIN)
        table = pa.table({"id": range(100), "a": [1] * 100, "b": [2] * 77 + [1] * 23})
        reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(10))
        with db.begin() as txn, pytest.raises(hc.CheckError) as caught:
            txn.insert("t", reader)
        assert (caught.value.row, caught.value.key) == (77, 77)
        assert db.table("t").count() == 0
        rejected: list[Any] = []
        with db.begin() as txn:
            assert txn.insert("t", table, reject=rejected) == 77
        assert [one["row"] for one in rejected] == list(range(77, 100))
        assert rejected[0]["reason"] == "check 'order' (a < b) is broken"


def test_rows_that_were_rejected_do_not_come_back(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=tiny(bulk_rows=1)) as db:
        db.create_table("t", COLUMNS, "id", checks=PLAIN)
        with db.begin() as txn:
            txn.insert("t", [{"id": n, "a": 0, "b": 2} for n in range(3)])
            rejected: list[Any] = []
            rows = pa.table({"id": [7, 2, 1, 0, 8], "a": [1, 9, 1, 9, -9]})
            found = txn.insert(
                "t", rows, on_conflict="upsert", reject=rejected, returning=["id", "a", "b"]
            )
        assert found.to_pylist() == [
            {"id": 7, "a": 1, "b": None},
            {"id": 1, "a": 1, "b": 2},
            {"id": 8, "a": -9, "b": None},
        ]
        assert sorted(one["row"] for one in rejected) == [1, 3]


def test_defaults_and_constraints_of_columns_come_first(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=tiny()) as db:
        columns = {"id": int, "a": hc.Column(int, default=5), "b": hc.Column(int, nullable=False)}
        db.create_table("t", columns, "id", checks={"order": "a < b"})
        with db.begin() as txn:
            with pytest.raises(hc.SchemaError, match="must not be null"):
                txn.insert("t", {"id": 1, "b": None})
            with pytest.raises(hc.CheckError, match="a=5, b=1"):
                txn.insert("t", {"id": 1, "b": 1})
            with pytest.raises(hc.CheckError, match="a=5, b=1"):
                txn.insert("t", pa.table({"id": [1], "b": [1]}))
            txn.insert("t", {"id": 1, "b": 6})


def test_a_column_of_a_check_is_not_dropped_and_may_be_renamed(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with hc.open(path, options=tiny()) as db:
        db.create_table("t", COLUMNS, "id", checks={"order": "a < b"})
        with pytest.raises(hc.SchemaError, match="used by check 'order'"):
            db.alter_table("t", drop=["s", "b"])
        db.alter_table("t", rename={"a": "b", "b": "order"}, drop=["s"])
        db.checkpoint()
    with hc.open(path, options=tiny()) as db:
        again = db.begin()
        with pytest.raises(hc.CheckError, match="b=3, order=2"):
            again.insert("t", {"id": 1, "b": 3, "order": 2})
    db = hc.open(path, read_only=True, options=tiny())
    assert db.begin().scan("t").num_rows == 0
    db.close()


@pytest.mark.parametrize("inside", [False, True], ids=["before the commit", "between its rounds"])
@pytest.mark.parametrize("checks", [PLAIN, SLOW], ids=["python", "duckdb"])
def test_a_blind_upsert_of_some_columns_is_asked_for_the_rows_of_its_commit(
    tmp_path: Path, checks: dict[str, str], inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hc.open(tmp_path / "db", options=tiny()) as db:
        db.create_table("t", COLUMNS, "id", checks=checks)
        db.run(lambda txn: txn.insert("t", [{"id": n, "a": 0, "b": 9} for n in range(10)]))
        some = pa.table({"id": range(20), "a": [2] * 20})
        for key, value in ((3, 7), (4, 2)):
            job = begin_job(db, "t", "upsert", some)

            def other(key: int = key, value: int = value) -> None:
                db.run(lambda txn: txn.update("t", key, {"b": value}))

            with monkeypatch.context() as patch:
                if inside:
                    between_rounds(db, patch, other)
                else:
                    other()
                if key == 3:
                    job.commit()
                    assert db.begin().get("t", 3) == whole(3, {"a": 2, "b": 7})
                    db.run(lambda txn: txn.update("t", where="true", set={"a": 0}))
                else:
                    with pytest.raises(hc.CheckError) as caught:
                        job.commit()
                    assert (caught.value.key, caught.value.values) == (4, {"a": 2, "b": 2})
        assert db.begin().get("t", 4) == whole(4, {"a": 0, "b": 2})
        assert not db.check()


def test_a_job_of_tasks_is_asked_before_it_commits(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=tiny()) as db:
        db.create_table("t", COLUMNS, "id", checks=PLAIN)
        db.run(lambda txn: txn.insert("t", [{"id": n, "a": 0, "b": 9} for n in range(10)]))
        for mode in ("error", "upsert", "ignore", "update"):
            first = 20 if mode in ("error", "ignore") else 0
            rows = pa.table({"id": range(first, first + 10), "a": [0] * 9 + [9], "b": [1] * 10})
            with pytest.raises(hc.CheckError, match="a=9, b=1"):
                begin_job(db, "t", mode, rows)
        assert db.table("t").count() == 10
