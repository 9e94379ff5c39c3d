"""Lenient inserts, on_conflict and reject, against a model; updates by frames."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import halocline as hc
from halocline.txn.lenient import TAKEN, TWICE

OPTIONS = hc.Options(background=False, object_rows_min=40, object_rows=16, bulk_rows=4)
TYPES = {"id": int, "n": "int8 not null", "s": "enum('a', 'b')"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with hc.open(
        tmp_path_factory.mktemp("lenient") / "db", durability="async", options=OPTIONS
    ) as db:
        yield db
        assert not db.check()


@pytest.fixture
def db(home: Any) -> Any:
    home.drop_table("t", if_exists=True)
    home.create_table("t", TYPES, primary_key="id")
    return home


def _row(number: int, **given: Any) -> dict[str, Any]:
    return {"id": number, "n": 1, "s": "a", **given}


def _rows(db: Any) -> list[dict[str, Any]]:
    return db.table("t").to_arrow().sort_by("id").to_pylist()


def _insert(db: Any, rows: Any, **named: Any) -> int:
    return db.run(lambda txn: txn.insert("t", rows, **named))


def _arrow(rows: list[dict[str, Any]]) -> pa.Table:
    """Types that a careless frame has: numbers as floats, texts that are anything."""
    fields = [("id", pa.float64()), ("n", pa.int64()), ("s", pa.string())]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


FORMS = {
    "dicts": lambda rows: rows,
    "arrow": _arrow,
    "stream": lambda rows: _arrow(rows).to_reader(7),
    "polars": lambda rows: pl.from_arrow(_arrow(rows)),
    "lazy": lambda rows: pl.from_arrow(_arrow(rows)).lazy(),
}


def _model(
    before: dict[int, Any], rows: list[dict[str, Any]], on_conflict: str
) -> tuple[dict[int, Any], dict[int, str]]:
    """The table after it, and the number of each rejected row with its column."""
    after, seen, rejected = dict(before), set(), dict[int, str]()
    for at, row in enumerate(rows):
        if row["id"] is None or row["id"] != int(row["id"]):
            rejected[at] = "id"
        elif row["n"] is None or not -128 <= row["n"] <= 127:
            rejected[at] = "n"
        elif row["s"] not in ("a", "b", None):
            rejected[at] = "s"
        elif (row["id"] in seen and on_conflict != "ignore") or (
            row["id"] in after and on_conflict == "error"
        ):
            rejected[at] = "id"
        elif row["id"] not in after or on_conflict == "upsert":
            after[row["id"]] = row
            seen.add(row["id"])
    return after, rejected


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(0, 60) | st.sampled_from([None, 1.5]),
            "n": st.integers(-3, 3) | st.sampled_from([None, 500]),
            "s": st.sampled_from(["a", "b", None, "c"]),
        }
    ),
    max_size=70,
)


@settings(max_examples=30, deadline=None)
@given(
    rows=ROWS,
    before=st.sets(st.integers(0, 60), max_size=20),
    on_conflict=st.sampled_from(["error", "ignore", "upsert"]),
    form=st.sampled_from(sorted(FORMS)),
    flush=st.booleans(),
    own=st.booleans(),
)
def test_the_same_rows_as_a_model(
    home: Any, rows: Any, before: set[int], on_conflict: Any, form: str, flush: bool, own: bool
) -> None:
    home.drop_table("t", if_exists=True)
    home.create_table("t", TYPES, primary_key="id")
    known = {number: _row(number) for number in before}
    with home.begin() as txn:
        txn.insert("t", list(known.values()))
        if not own:
            txn.commit()
            if flush:
                home.flush()
            txn = home.begin()
        bad: list[Any] = ["left from before"]
        count = txn.insert("t", FORMS[form](rows), on_conflict=on_conflict, reject=bad)
        expected, rejected = _model(known, rows, on_conflict)
        assert sorted(txn.scan("t").to_pylist(), key=lambda row: row["id"]) == sorted(
            ({**row, "id": int(row["id"])} for row in expected.values()), key=lambda row: row["id"]
        )
        if txn is not None and not own:
            txn.commit()
    assert {one["row"]: one["column"] for one in bad} == rejected
    if on_conflict != "ignore":
        assert count == len(rows) - len(rejected)
    else:
        assert count == len(expected) - len(known)
    for one in bad:
        assert set(one) == {"row", "column", "reason", "values"}
        assert one["values"]["n"] == rows[one["row"]]["n"]


def test_a_taken_key_and_one_that_comes_twice_are_told_apart(db: Any) -> None:
    _insert(db, _row(1))
    bad: list[Any] = []
    assert _insert(db, [_row(1, n=7), _row(2), _row(2, n=9)], reject=bad) == 1
    assert [(one["row"], one["reason"]) for one in bad] == [(2, TWICE), (0, TAKEN)]
    assert bad[0]["values"] == _row(2, n=9)
    assert _rows(db) == [_row(1), _row(2)]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_ignore_keeps_the_first_of_each_key(db: Any, form: str) -> None:
    _insert(db, _row(1))
    rows = [_row(1, n=2), _row(3, n=3), _row(3, n=4), _row(2)]
    assert _insert(db, FORMS[form](rows), on_conflict="ignore") == 2
    assert _rows(db) == [_row(1), _row(2), _row(3, n=3)]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_upsert_as_a_conflict_rule_is_upsert(db: Any, form: str) -> None:
    _insert(db, [_row(1), _row(2)])
    assert _insert(db, FORMS[form]([_row(2, n=5), _row(3)]), on_conflict="upsert") == 2
    assert _rows(db) == [_row(1), _row(2, n=5), _row(3)]


def test_without_reject_what_does_not_fit_fails_all(db: Any) -> None:
    for rows in ([_row(1), _row(2, n=500)], _arrow([_row(1), _row(2, n=500)])):
        with db.begin() as txn, pytest.raises(hc.SchemaError) as error:
            txn.insert("t", rows, on_conflict="ignore")
        assert (error.value.column, error.value.row) == ("n", 1)
    with db.begin() as txn, pytest.raises(hc.DuplicateKeyError, match="more than once"):
        txn.insert("t", _arrow([_row(1), _row(1)]), on_conflict="upsert")
    assert _rows(db) == []


def test_a_row_of_a_later_chunk_is_named_by_its_number(db: Any) -> None:
    rows = [_row(number) for number in range(100)]
    rows[77]["n"] = 500
    with db.begin() as txn, pytest.raises(hc.SchemaError) as error:
        txn.insert("t", _arrow(rows).to_reader(7), on_conflict="ignore")
    assert error.value.row == 77
    bad: list[Any] = []
    assert _insert(db, _arrow(rows).to_reader(7), reject=bad) == 99
    assert [one["row"] for one in bad] == [77]


def test_an_error_half_way_leaves_nothing_and_the_list_alone(db: Any) -> None:
    def batches() -> Any:
        yield from _arrow([_row(number) for number in range(50)]).to_batches()
        raise ValueError("the source is gone")

    source = pa.RecordBatchReader.from_batches(_arrow([]).schema, batches())
    bad = ["untouched"]
    with db.begin() as txn:
        with pytest.raises(hc.SchemaError, match="the source is gone"):
            txn.insert("t", source, reject=bad)
        assert txn.scan("t").num_rows == 0
        txn.insert("t", _row(1))
    assert bad == ["untouched"]
    assert _rows(db) == [_row(1)]


def test_whole_columns_that_do_not_fit_fail_all(db: Any) -> None:
    with db.begin() as txn:
        with pytest.raises(hc.SchemaError, match="no such column"):
            txn.insert("t", pa.table({"id": [1], "n": [1], "colour": ["red"]}), reject=[])
        with pytest.raises(hc.SchemaError, match="cannot be stored"):
            txn.insert("t", pa.table({"id": [1], "n": [True]}), reject=[])
        with pytest.raises(hc.SchemaError, match="no value is given"):
            txn.insert("t", pa.table({"id": [1]}), reject=[])


@pytest.mark.parametrize("named", [{"on_conflict": "replace"}, {"reject": {}}, {"reject": "bad"}])
def test_wrong_arguments_are_told(db: Any, named: Any) -> None:
    with db.begin() as txn, pytest.raises(hc.UsageError, match=next(iter(named))):
        txn.insert("t", _row(1), **named)


def test_a_key_that_is_too_long_is_rejected(home: Any) -> None:
    home.create_table("long", {"k": str}, primary_key="k", if_not_exists=True)
    bad: list[Any] = []
    data = pa.table({"k": ["a", "x" * 100_000, "b"]})
    assert home.run(lambda txn: txn.insert("long", data, reject=bad)) == 2
    assert "bytes" in bad[0]["reason"]


def test_a_table_without_a_key_rejects_what_does_not_fit(home: Any) -> None:
    home.create_table("plain", {"n": "int8"}, if_not_exists=True)
    bad: list[Any] = []
    data = pa.table({"n": [1, 500, 1]})
    assert home.run(lambda txn: txn.insert("plain", data, on_conflict="ignore", reject=bad)) == 2
    assert [one["row"] for one in bad] == [1]
    with home.begin() as txn, pytest.raises(hc.UsageError, match="no primary key"):
        txn.insert("plain", data, on_conflict="upsert", reject=bad)


@pytest.mark.slow
def test_lines_of_a_csv_file_are_rejected_with_their_reason(db: Any, tmp_path: Path) -> None:
    lines = [f"{number},1,a" for number in range(25_000)]
    lines += ["25000,many,a", "25001,1,a,b,c", "25002,1,z", "25003,,b", "x,1,b", "25004,1,b"]
    path = tmp_path / "dirty.csv"
    path.write_text("\n".join(["id,n,s", *lines]))
    bad: list[Any] = []
    assert _insert(db, path, reject=bad) == 25_001
    text = [one["reason"] for one in bad]
    assert len(text) == 5
    assert sum("dirty.csv, line 25003" in one for one in text) == 1
    assert any("'z' is not one of" in one for one in text)
    assert "must not be null" in text
    assert db.table("t").count() == 25_001
    with db.begin() as txn, pytest.raises(hc.SchemaError):
        txn.insert("t", path, on_conflict="ignore")


def test_texts_of_a_csv_file_are_parsed_or_rejected(home: Any, tmp_path: Path) -> None:
    types = {"id": int, "price": "decimal(9,2)", "day": dt.date}
    table = home.create_table("prices", types, primary_key="id")
    path = tmp_path / "prices.csv"
    lines = ["1,1.50,2026-01-31", "2,n/a,2026-01-01", "3, 7 ,2026-02-30", "4,1e3,"]
    path.write_text("\n".join(["id,price,day", *lines, "5,1.505,2026-01-01"]))
    bad: list[Any] = []
    assert home.run(lambda txn: txn.insert("prices", str(path), reject=bad)) == 2
    assert [(one["row"], one["column"]) for one in bad] == [(1, "price"), (2, "day"), (4, "price")]
    assert bad[0]["values"] == {"id": "2" if isinstance(bad[0]["values"]["id"], str) else 2} | {
        "price": "n/a",
        "day": bad[0]["values"]["day"],
    }
    assert [str(row["price"]) for row in table] == ["1.50", "1000.00"]


def test_serializable_remembers_the_keys_that_were_taken(db: Any) -> None:
    _insert(db, _row(1))
    txn = db.begin(isolation="serializable")
    txn.insert("t", [_row(1), _row(2)], on_conflict="ignore")
    db.run(lambda other: other.delete("t", 1))
    with pytest.raises(hc.ConflictError):
        txn.commit()


def test_a_key_that_is_inserted_meanwhile_conflicts(db: Any) -> None:
    txn = db.begin()
    txn.insert("t", [_row(1), _row(2)], on_conflict="ignore", reject=[])
    _insert(db, _row(1, n=5))
    with pytest.raises(hc.ConflictError):
        txn.commit()
    assert _insert(db, [_row(1), _row(2)], on_conflict="ignore") == 1


def test_a_run_that_is_repeated_lists_a_reject_once(db: Any) -> None:
    bad: list[Any] = []
    tries: list[int] = []

    def load(txn: Any) -> None:
        txn.insert("t", [_row(1), _row(2, n=500)], on_conflict="ignore", reject=bad)
        if not tries:
            tries.append(1)
            _insert(db, _row(1, n=5))

    db.run(load)
    assert len(bad) == 1
    assert _rows(db) == [_row(1, n=5)]


CHILD = """
import sys, pyarrow as pa, halocline as hc
with hc.open(sys.argv[1]) as db:
    assert db.role == "node"
    row = lambda number, **given: {"id": number, "n": 1, "s": "a", **given}
    bad = []
    with db.begin() as txn:
        print(txn.insert("t", row(1, n=9), on_conflict="ignore"))
        print(txn.insert("t", [row(3), row(4, n=500)], reject=bad), len(bad))
        many = pa.Table.from_pylist([row(n) for n in range(200)] + [row(0), row(999, s="z")])
        print(txn.insert("t", many, reject=bad), len(bad))
        print(txn.insert("t", many, on_conflict="ignore", reject=bad), len(bad))
        print(txn.update("t", pa.table({"id": list(range(100)), "n": [7] * 100})))
"""


@pytest.mark.slow
def test_another_process_does_all_of_it(db: Any) -> None:
    _insert(db, _row(1))
    command = [sys.executable, "-c", CHILD, db.path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1", "1", "198", "4", "0", "1", "100"]
    rows = _rows(db)
    assert len(rows) == 200
    assert sum(row["n"] for row in rows) == 100 * 7 + 100


# Updates by frames.


@pytest.mark.parametrize("count", [1, 3, 30, 300])
@pytest.mark.parametrize("flush", [False, True])
def test_a_frame_updates_the_rows_with_its_keys(db: Any, count: int, flush: bool) -> None:
    _insert(db, [_row(number) for number in range(400)])
    if flush:
        db.flush()
    changed = [{"N": 2 + number % 100, "id": number} for number in reversed(range(count))]
    for form in (lambda rows: rows, pa.Table.from_pylist, pd.DataFrame, pl.DataFrame):
        assert db.run(lambda txn, form=form: txn.update("t", form(changed))) == count
    expected = [_row(n, n=2 + n % 100) if n < count else _row(n) for n in range(400)]
    assert _rows(db) == expected


def test_own_rows_are_updated_too(db: Any) -> None:
    _insert(db, [_row(number) for number in range(50)])
    with db.begin() as txn:
        txn.insert("t", [_row(number) for number in range(50, 60)])
        txn.update("t", 3, {"s": "b"})
        frame = pa.table({"id": list(range(60)), "n": [9] * 60})
        assert txn.update("t", frame) == 60
    expected = [_row(n, n=9, s="b" if n == 3 else "a") for n in range(60)]
    assert _rows(db) == expected


def test_one_dict_updates_one_row(db: Any) -> None:
    _insert(db, _row(1))
    assert db.run(lambda txn: txn.update("t", {"id": 1, "s": "b"})) == 1
    assert _rows(db) == [_row(1, s="b")]


@pytest.mark.parametrize("count", [2, 30])
def test_an_absent_key_fails_all(db: Any, count: int) -> None:
    _insert(db, [_row(number) for number in range(count)])
    frame = pa.table({"id": [*range(count), 999], "n": [9] * (count + 1)})
    with db.begin() as txn:
        with pytest.raises(hc.NotFoundError, match="999"):
            txn.update("t", frame)
        assert txn.get("t", 0) == _row(0)
    assert _rows(db) == [_row(number) for number in range(count)]


def test_wrong_frames_are_told(db: Any) -> None:
    _insert(db, [_row(1), _row(2)])
    with db.begin() as txn:
        with pytest.raises(hc.DuplicateKeyError, match="more than once"):
            txn.update("t", [{"id": 1, "n": 1}, {"id": 1, "n": 2}])
        with pytest.raises(hc.SchemaError, match="primary key"):
            txn.update("t", pa.table({"n": [1]}))
        with pytest.raises(hc.UsageError, match="other columns"):
            txn.update("t", pa.table({"id": [1]}))
        with pytest.raises(hc.UsageError, match="update"):
            txn.update("t", 7)
        with pytest.raises(hc.SchemaError):
            txn.update("t", pa.table({"id": [1], "n": [500]}))
    assert _rows(db) == [_row(1), _row(2)]
