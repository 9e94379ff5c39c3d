"""Names and definitions that cannot be, and tables that are not there."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import halocline as hc

VERBS: list[tuple[str, tuple[Any, ...]]] = [
    ("insert", ({"id": 1},)),
    ("upsert", ({"id": 1},)),
    ("update", (1, {"n": 1})),
    ("delete", (1,)),
    ("get", (1,)),
    ("get_many", ([1],)),
    ("range", ()),
    ("scan", ()),
    ("drop_table", ()),
]


def test_an_unknown_table_is_not_found(txn: Any) -> None:
    for verb, arguments in VERBS:
        with pytest.raises(hc.NotFoundError, match="table 'ordres' does not exist") as error:
            getattr(txn, verb)("ordres", *arguments)
        assert (error.value.kind, error.value.name) == ("table", "ordres")
        with pytest.raises(hc.NotFoundError):
            getattr(txn, verb)("", *arguments)


def test_a_table_is_named_by_a_string(txn: Any) -> None:
    for verb, arguments in VERBS:
        for name in (5, None, b"orders", ["orders"], {"orders"}, ("orders",)):
            with pytest.raises(hc.UsageError, match=type(name).__name__):
                getattr(txn, verb)(name, *arguments)


def test_the_error_names_the_tables_there_are(txn: Any) -> None:
    for call in (lambda: txn.get("ordres", 1), lambda: txn.sql("select * from ordres")):
        with pytest.raises(hc.NotFoundError, match="orders"):
            call()


def test_among_many_tables_the_nearest_is_named(open_db: Any) -> None:
    db = open_db()
    with db.begin() as txn:
        for n in range(40):
            txn.create_table(f"a{n:02d}", {"id": int})
        txn.create_table("orders", {"id": int})
    for call in (lambda: db.table("ordres"), lambda: db.sql("from ordres")):
        with pytest.raises(hc.NotFoundError, match="orders"):
            call()


def test_the_database_says_the_same(own_db: Any) -> None:
    for call in (
        lambda: own_db.table("ordres"),
        lambda: own_db.drop_table("ordres"),
        lambda: own_db.changes("ordres", 0),
        lambda: own_db.sql("select * from ordres"),
    ):
        with pytest.raises(hc.NotFoundError, match="'ordres'"):
            call()
    for call in (lambda: own_db.table(["orders"]), lambda: own_db.changes(["orders"], 0)):
        with pytest.raises(hc.UsageError):
            call()
    own_db.drop_table("ordres", if_exists=True)


def test_a_handle_of_a_table_that_was_dropped_says_so(own_db: Any) -> None:
    table = own_db.table("lines")
    own_db.drop_table("lines")
    for ask in ("count", "to_arrow", "history", "files", "__arrow_c_stream__"):
        with pytest.raises(hc.NotFoundError, match="'lines'"):
            getattr(table, ask)()
    for ask in ("schema", "primary_key"):
        with pytest.raises(hc.NotFoundError, match="'lines'"):
            getattr(table, ask)


def test_reserved_and_unreadable_table_names_are_refused(txn: Any) -> None:
    for name, reason in (
        ("_t", "reserved"),
        ("_", "reserved"),
        ("", "empty"),
        ("a\nb", "cannot be printed"),
        ("a\0b", "cannot be printed"),
        ("\ud800", "cannot be printed"),
        ("x" * 256, "longer than 255 bytes"),
        ("é" * 128, "longer than 255 bytes"),
        (5, "string"),
        (None, "string"),
    ):
        with pytest.raises(hc.UsageError, match=reason):
            txn.create_table(name, {"id": int})


def test_names_that_differ_in_case_only_clash(txn: Any) -> None:
    for name in ("orders", "ORDERS", "Orders"):
        with pytest.raises(hc.AlreadyExistsError, match=f"table '{name}' already exists") as error:
            txn.create_table(name, {"id": int})
        assert (error.value.kind, error.value.name) == ("table", name)
        txn.create_table(name, {"id": int}, if_not_exists=True)
        assert txn.get(name, 3)["qty"] == 1


def test_clashes_beyond_ascii(own_db: Any) -> None:
    own_db.create_table("Straße", {"id": int})
    for name in ("STRASSE", "strasse", "STRAßE"):
        with pytest.raises(hc.AlreadyExistsError):
            own_db.create_table(name, {"id": int})
        assert own_db.table(name).name == "Straße"


def test_a_name_is_free_again_after_a_drop_or_a_rollback(own_db: Any) -> None:
    txn = own_db.begin()
    txn.create_table("t", {"id": int})
    txn.rollback()
    own_db.create_table("T", {"id": int})
    own_db.drop_table("t")
    own_db.create_table("t", {"other": str})
    assert own_db.table("T").schema.names == ["other"]


def test_definitions_that_make_no_table_are_refused(txn: Any) -> None:
    for definition, named in (
        ({}, "at least one column"),
        ({"a": "nope"}, "'nope' is not a type"),
        ({"a": None}, "None is not a type"),
        ({"a": dict}, "is not a type"),
        ({"a": "decimal(50,2)"}, "at most 38"),
        ({"a": "decimal(2,5)"}, "decimal(2,5)"),
        ({"_a": int}, "reserved"),
        ({"": int}, "empty"),
        ({"a\nb": int}, "printed"),
        ({"a" * 256: int}, "255 bytes"),
        ({5: int}, "string"),
        ({"a": int, "A": int}, "without regard to case"),
        ({"straße": int, "STRASSE": int}, "without regard to case"),
        (pa.schema([("a", pa.int64()), ("a", pa.string())]), "without regard to case"),
        (pa.schema([("a", pa.null())]), "'a'"),
        (pa.schema([("a", pa.map_(pa.string(), pa.int64()))]), "'a'"),
        (pa.schema([("a", pa.duration("us"))]), "'a'"),
        ({"a": pa.struct([("x", pa.int64()), ("X", pa.int64())])}, "'X'"),
        ("a int", "not str"),
        (["a"], "not list"),
        (None, "not NoneType"),
        (int, "a definition is"),
    ):
        with pytest.raises(hc.SchemaError) as error:
            txn.create_table("t", definition)
        assert named in str(error.value)


def test_primary_keys_that_are_none_are_refused(txn: Any) -> None:
    for key, named in (
        ("idd", "did you mean 'id'"),
        (["id", "zz"], "'zz'"),
        (["id", "ID"], "twice"),
        ([], "primary_key"),
        ((), "primary_key"),
        (5, "primary_key"),
        ({"id"}, "primary_key"),
        ([5], "string"),
    ):
        with pytest.raises(hc.SchemaError) as error:
            txn.create_table("t", {"id": int}, primary_key=key)
        assert named in str(error.value)


def test_a_key_longer_than_any_key_may_be_is_refused(txn: Any) -> None:
    with pytest.raises(hc.SchemaError, match="1024"):
        txn.create_table("t", {f"c{n}": int for n in range(129)}, [f"c{n}" for n in range(129)])


def test_an_unknown_layout_is_refused(txn: Any) -> None:
    for layout in ("rows", "", None, 5, "CLUSTERED", "heap"):
        with pytest.raises(hc.UsageError, match="layout"):
            txn.create_table("t", {"id": int}, layout=layout)
        assert "t" not in txn.tables()


def test_a_table_that_already_exists_keeps_its_definition(own_db: Any) -> None:
    table = own_db.create_table("orders", {"other": str}, if_not_exists=True)
    assert "qty" in table.schema.names
    with pytest.raises(hc.SchemaError):
        own_db.create_table("orders", {"other": "nope"}, if_not_exists=True)


NAMES = [
    "../escape",
    "a/b",
    ".",
    "..",
    "LOCK",
    "log",
    "x.log",
    "a b",
    'q"q',
    "q'q",
    "a;b",
    "%s",
    "é",
]


def test_names_never_become_paths(disk_db: Any, tmp_path: Any) -> None:
    before = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    with disk_db.begin() as txn:
        for name in NAMES:
            txn.create_table(name, {name: int, "n": int}, primary_key=name)
            txn.insert(name, {name: 1, "n": 7})
    after = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    assert after == before
    quoted = '"{}"'
    for name in NAMES:
        text = quoted.format(name.replace('"', '""'))
        assert disk_db.sql(f"select {text}, n from {text}").to_pylist() == [{name: 1, "n": 7}]
        with disk_db.begin() as txn:
            assert txn.scan(name, where=f"{text} = ?", params=[1], order=[name]).num_rows == 1
