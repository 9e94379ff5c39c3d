"""Domains: uuid, json and enum, by value and by array, and through every way into a table."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import halocline as hc
from halocline.errors import SchemaError
from halocline.schema.domains import Domain, read_domain
from halocline.schema.schema import Schema
from halocline.schema.values import Unfit

ONE = "6f1c0d9e-2f9b-4c8e-9b7f-1f1f1f1f1f1f"


class Status(enum.Enum):
    NEW = "new"
    PAID = "paid"


STATUS = Domain("enum", ("new", "paid"))
DOMAINS = [Domain("uuid"), Domain("json"), STATUS]


@pytest.mark.parametrize(
    ("written", "domain", "nullable"),
    [
        ("uuid", Domain("uuid"), True),
        (" UUID not null", Domain("uuid"), False),
        ("json null", Domain("json"), True),
        ("enum('new', 'paid')", STATUS, True),
        ("ENUM ('new','paid') NOT NULL", STATUS, False),
        ("enum('it''s', ',', '')", Domain("enum", ("it's", ",", "")), True),
        (uuid.UUID, Domain("uuid"), True),
        (Status, STATUS, True),
        (pa.uuid(), Domain("uuid"), True),
        (pa.json_(), Domain("json"), True),
    ],
)
def test_a_domain_is_read(written: Any, domain: Domain, nullable: bool) -> None:
    assert read_domain(written, "x") == (domain, nullable)
    assert read_domain(str(domain), "x") == (domain, True)


@pytest.mark.parametrize("written", ["uuid4", "int", int, pa.int64(), None, str, "enumerate"])
def test_other_types_have_no_domain(written: Any) -> None:
    assert read_domain(written, "x") is None


@pytest.mark.parametrize(
    "written", ["enum()", "enum('a', 'a')", "enum(a)", "enum('a' 'b')", "enum('a',,'b')", "enum(1)"]
)
def test_a_bad_list_is_refused(written: str) -> None:
    with pytest.raises(SchemaError, match="enum lists"):
        Schema.define({"x": written})


def test_an_enum_of_numbers_is_refused() -> None:
    with pytest.raises(SchemaError, match="enum lists texts"):
        Schema.define({"x": enum.Enum("Number", [("ONE", 1)])})


def test_a_schema_with_domains_is_written_down_and_read_back() -> None:
    schema = Schema.define({"id": "uuid", "doc": "json", "s": "enum('it''s', 'b')"}, "id")
    again = Schema.from_wire(schema.to_wire())
    assert again == schema
    assert [column.type_name for column in again.columns] == ["uuid", "json", "enum('it''s', 'b')"]
    assert again.arrow.types == [pa.string()] * 3


@pytest.mark.parametrize(
    ("domain", "value", "text"),
    [
        (Domain("uuid"), uuid.UUID(ONE), ONE),
        (Domain("uuid"), ONE.upper(), ONE),
        (Domain("json"), ' {"a": [1, null]} ', ' {"a": [1, null]} '),
        (Domain("json"), {"a": [1, None, "ä"]}, '{"a": [1, null, "ä"]}'),
        (Domain("json"), [], "[]"),
        (STATUS, "new", "new"),
        (STATUS, Status.PAID, "paid"),
    ],
)
def test_a_value_becomes_its_text(domain: Domain, value: Any, text: str) -> None:
    assert domain.check(value) == text


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (Domain("uuid"), ONE[:-1]),
        (Domain("uuid"), ONE + "\n"),
        (Domain("uuid"), "{" + ONE + "}"),
        (Domain("uuid"), 7),
        (Domain("json"), "{"),
        (Domain("json"), "NaN"),
        (Domain("json"), {"a": float("nan")}),
        (Domain("json"), {"a": object()}),
        (Domain("json"), "[" * 100_000),
        (Domain("json"), 7),
        (STATUS, "NEW"),
        (STATUS, 7),
        (STATUS, ""),
    ],
)
def test_a_value_outside_is_refused(domain: Domain, value: Any) -> None:
    with pytest.raises(Unfit):
        domain.check(value)


TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from([ONE, ONE.upper(), "new", "paid", "NEW", "{}", "[1,2", "1,2", " 1 ", "null"]),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
        max_leaves=5,
    ).map(json.dumps),
)


@given(texts=st.lists(st.none() | TEXTS, max_size=6), domain=st.sampled_from(DOMAINS))
@example(texts=["[1", "2]", "1,2"], domain=Domain("json"))
def test_values_and_arrays_agree(texts: list[str | None], domain: Domain) -> None:
    try:
        expected = [None if text is None else domain.check(text) for text in texts]
    except Unfit:
        with pytest.raises(Unfit):
            domain.fit(pa.array(texts, pa.string()))
        return
    assert domain.fit(pa.array(texts, pa.string())).to_pylist() == expected


@given(st.lists(st.none() | st.uuids(), max_size=6), st.integers(0, 3))
def test_uuids_of_arrow_become_texts(values: list[uuid.UUID | None], start: int) -> None:
    array = pa.array([None if one is None else one.bytes for one in values], pa.uuid())[start:]
    expected = [None if one is None else str(one) for one in values[start:]]
    assert Domain("uuid").fit(array).to_pylist() == expected


@pytest.fixture
def db(tmp_path: Path) -> Any:
    options = hc.Options(background=False, object_rows_min=100, bulk_rows=8)
    with hc.open(tmp_path / "db", options=options) as db:
        yield db
        assert not db.check()


def _row(number: int, **given: Any) -> dict[str, Any]:
    return {"id": str(uuid.UUID(int=number)), "doc": "{}", "status": "new", **given}


def _table(db: Any) -> Any:
    types = {"id": uuid.UUID, "doc": "json", "status": Status}
    return db.create_table("t", types, primary_key="id")


WRONG = [{"id": "x"}, {"doc": "{"}, {"status": "old"}]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: next(iter(wrong)))
@pytest.mark.parametrize("count", [1, 3, 50, 500])
def test_every_way_in_is_checked(db: Any, count: int, wrong: dict[str, str]) -> None:
    """A row, a few, a batch, objects: as dicts, as Arrow, as a stream, inserted and upserted."""
    table = _table(db)
    rows = [_row(number) for number in range(count)]
    rows[-1] |= wrong
    column = next(iter(wrong))
    arrow = pa.Table.from_pylist(rows)
    ways = [rows, arrow, arrow.to_reader(7), *([rows[0]] if count == 1 else [])]
    for data in ways:
        with db.begin() as txn, pytest.raises(SchemaError) as error:
            txn.insert("t", data)
        assert error.value.column == column
        assert error.value.row in (count - 1, None)
    for data in ways[:2]:
        with db.begin() as txn, pytest.raises(SchemaError):
            txn.upsert("t", data)
    assert table.count() == 0


def test_updates_are_checked(db: Any) -> None:
    _table(db)
    with db.begin() as txn:
        txn.insert("t", [_row(number) for number in range(200)])
        for wrong in WRONG:
            with pytest.raises(SchemaError):
                txn.update("t", uuid.UUID(int=1), wrong)
            with pytest.raises(SchemaError):
                txn.update("t", where="true", set=wrong)
        txn.update("t", uuid.UUID(int=1), {"status": Status.PAID, "doc": [1]})
        assert txn.get("t", uuid.UUID(int=1)) == _row(1, status="paid", doc="[1]")


@pytest.mark.slow
def test_another_process_checks_too(db: Any) -> None:
    table = _table(db)
    code = (
        "import halocline as hc, sys\n"
        "with hc.open(sys.argv[1]) as db:\n"
        "    assert db.role == 'node'\n"
        "    for wrong in ({'id': 'x'}, {'doc': '{'}, {'status': 'old'}):\n"
        "        row = {'id': '" + ONE + "', 'doc': '{}', 'status': 'new'} | wrong\n"
        "        for rows in (row, [row] * 2):\n"
        "            try:\n"
        "                db.run(lambda txn: txn.insert('t', rows))\n"
        "            except hc.SchemaError:\n"
        "                print('refused')\n"
        "    db.run(lambda txn: txn.insert('t', {'id': '" + ONE.upper() + "', 'status': 'paid'}))\n"
    )
    command = [sys.executable, "-c", code, db.path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused"] * 6
    assert table.to_arrow().to_pylist() == [{"id": ONE, "doc": None, "status": "paid"}]


def test_the_table_says_what_it_takes_and_keeps_it(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db") as db:
        shown = repr(_table(db))
        assert "uuid" in shown
        assert "enum('new', 'paid')" in shown
        db.run(lambda txn: txn.insert("t", [_row(number) for number in range(3)]))
        db.checkpoint()
    with hc.open(tmp_path / "db") as db, db.begin() as txn:
        for wrong in WRONG:
            with pytest.raises(SchemaError):
                txn.insert("t", _row(9, **wrong))
        found = txn.sql(
            "select count(*) n from t where id = ? and doc::json is not null", [_row(1)["id"]]
        )
        assert found.to_pylist() == [{"n": 1}]


def test_a_frame_with_types_of_arrow_makes_a_table_with_domains(db: Any) -> None:
    frame = pa.table(
        {
            "id": pa.array([uuid.UUID(ONE).bytes], pa.uuid()),
            "doc": pa.array(['{"a": 1}'], pa.json_()),
        }
    )
    table = db.create_table("t", frame, primary_key="id")
    db.run(lambda txn: txn.insert("t", frame))
    assert table.to_arrow().to_pylist() == [{"id": ONE, "doc": '{"a": 1}'}]
    with db.begin() as txn, pytest.raises(SchemaError, match="not JSON"):
        txn.insert("t", {"id": str(uuid.UUID(int=1)), "doc": "a"})
