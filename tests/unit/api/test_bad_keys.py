"""Keys that cannot be keys: wrong type, wrong number of parts, null, NaN, too long.

A key is refused in the same way wherever it is given: to get, get_many, range, update and delete.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc


def _everywhere(txn: Any, table: str, key: Any) -> list[Any]:
    """The calls that take this key."""
    return [
        lambda: txn.get(table, key),
        lambda: txn.get_many(table, [key]),
        lambda: txn.update(table, key, {"n" if table == "lines" else "qty": 1}),
        lambda: txn.delete(table, key),
        lambda: txn.range(table, key, None),
        lambda: txn.range(table, None, key),
    ]


def _refused(txn: Any, table: str, key: Any, named: str) -> None:
    open_end = 4 if key is None else 6  # None leaves an end of a range open.
    for call in _everywhere(txn, table, key)[:open_end]:
        with pytest.raises(hc.UsageError) as error:
            call()
        assert named in str(error.value)


def test_a_key_of_another_type_is_refused(txn: Any) -> None:
    nonsense = ["3", b"3", 3.5, True, (3,), [3], {3}, 2**63, object(), pa.scalar(3)]
    for key in [None, float("nan"), Decimal("NaN"), *nonsense]:
        _refused(txn, "orders", key, "'id'")


def test_a_key_that_is_the_same_number_in_another_type_is_the_same_key(txn: Any) -> None:
    for key in (3, 3.0, Decimal("3.00"), {"id": 3}, {"ID": 3}):
        assert txn.get("orders", key)["id"] == 3


def test_a_composite_key_wants_all_its_parts(txn: Any) -> None:
    key: Any
    for key in (1, "a", (1,), (1, "a", 2), (), [], {"id": 1}, {"id": 1, "sku": "a", "n": 1}):
        _refused(txn, "lines", key, "(id, sku)")
    for key in ((1, None), (None, "a"), ("a", 1), (1, 2), {"id": 1, "sku": None}):
        _refused(txn, "lines", key, "column")
    _refused(txn, "lines", {"id": 1, "suk": "a"}, "did you mean 'sku'")


def test_a_composite_key_may_be_a_tuple_a_list_or_a_dict(txn: Any) -> None:
    for key in ((1, "a"), [1, "a"], {"sku": "a", "id": 1}, {"ID": 1, "Sku": "a"}):
        assert txn.get("lines", key) == {"id": 1, "sku": "a", "n": 1}


def test_one_bad_key_among_many_refuses_the_whole_call(txn: Any) -> None:
    with pytest.raises(hc.SchemaError):
        txn.get_many("orders", [1, 2, "3"])


def test_get_many_wants_a_list_of_keys(txn: Any) -> None:
    for keys in (5, None, 1.5):
        with pytest.raises(hc.UsageError, match="keys"):
            txn.get_many("orders", keys)


def test_get_many_takes_no_text_for_a_list_of_keys(own_db: Any) -> None:
    own_db.create_table("words", {"w": str}, primary_key="w")
    with own_db.begin() as txn:
        txn.insert("words", {"w": "a"})
        with pytest.raises(hc.UsageError):
            txn.get_many("words", "abc")


def test_floats_lists_and_structs_cannot_be_keys(txn: Any) -> None:
    """NaN has no place in an order, so no float can be a key."""
    floats = ["float32", "float64", "real", float, pa.float64()]
    for type in [*floats, "int[]", "struct<a: int>"]:
        for key in ("k", ["n", "k"]):
            with pytest.raises(hc.SchemaError, match="cannot be a primary key") as error:
                txn.create_table("t", {"k": type, "n": int}, primary_key=key)
            assert error.value.column == "k"


def test_nan_in_a_decimal_key_is_refused(own_db: Any) -> None:
    own_db.create_table("prices", {"p": "decimal(10,2)", "n": int}, primary_key="p")
    with own_db.begin() as txn:
        txn.insert("prices", {"p": Decimal("1.50")})
        for value in (Decimal("NaN"), Decimal("sNaN"), float("nan"), Decimal("Infinity")):
            with pytest.raises(hc.SchemaError, match="'p'"):
                txn.insert("prices", {"p": value})
            with pytest.raises(hc.UsageError, match="'p'"):
                txn.get("prices", value)
        assert txn.get("prices", 1.5) == {"p": Decimal("1.50"), "n": None}


@pytest.fixture
def words(own_db: Any) -> Any:
    """Tables whose keys are texts, bytes, and a text beside a number."""
    own_db.create_table("words", {"w": str, "n": int}, primary_key="w")
    own_db.create_table("blobs", {"b": bytes}, primary_key="b")
    own_db.create_table("pairs", {"id": int, "w": str}, primary_key=["id", "w"])
    return own_db


@pytest.mark.parametrize(
    ("table", "column", "fits"),
    [
        ("words", "w", "x" * 1024),
        ("words", "w", "é" * 512),
        ("words", "w", "\0" * 1024),
        ("blobs", "b", b"\0" * 1024),
    ],
    ids=["ascii", "two bytes", "zeros", "blob"],
)
def test_a_key_of_1024_bytes_fits_and_1025_do_not(
    words: Any, table: str, column: str, fits: Any
) -> None:
    with words.begin() as txn:
        assert txn.insert(table, {column: fits}) == 1
        assert txn.get(table, fits)[column] == fits
        for call in (
            lambda: txn.insert(table, {column: fits + fits[:1]}),
            lambda: txn.insert(table, [{column: fits + fits[:1]}]),
            lambda: txn.insert(table, pa.table({column: [fits[:2]] * 9 + [fits * 2]})),
            lambda: txn.get(table, fits + fits[:1]),
            lambda: txn.delete(table, fits + fits[:1]),
            lambda: txn.update(table, fits, {column: fits * 2}),
        ):
            with pytest.raises(hc.SchemaError, match="at most 1024 are allowed") as error:
                call()
            assert error.value.column == column
    assert words.table(table).count() == 1


def test_in_a_composite_key_all_parts_count(words: Any) -> None:
    """Eight bytes for the number, two to end the text, and an escape for every zero byte."""
    with words.begin() as txn:
        assert txn.insert("pairs", {"id": 1, "w": "x" * 1014}) == 1
        assert txn.insert("pairs", {"id": 1, "w": "\0" * 507}) == 1
        for text in ("x" * 1015, "\0" * 508):
            for rows in ({"id": 2, "w": text}, pa.table({"id": [2], "w": [text]})):
                with pytest.raises(hc.SchemaError, match="at most 1024"):
                    txn.insert("pairs", rows)
        with pytest.raises(hc.SchemaError, match="at most 1024"):
            txn.update("pairs", where="id = 1", set={"w": "x" * 1015})


def test_the_longest_key_is_an_option(tmp_path: Any) -> None:
    options = hc.Options(key_bytes_max=8)
    for life in range(2):
        with hc.open(tmp_path / "db", options=options) as db:
            db.create_table("words", {"w": str}, primary_key="w", if_not_exists=True)
            with db.begin() as txn:
                assert txn.insert("words", {"w": f"{life}2345678"}) == 1
                with pytest.raises(hc.SchemaError, match="at most 8"):
                    txn.insert("words", {"w": f"{life}23456789"})
            assert not db.check()


def test_the_empty_text_and_the_empty_blob_are_keys(words: Any) -> None:
    with words.begin() as txn:
        txn.insert("words", {"w": "", "n": 1})
        txn.insert("blobs", {"b": b""})
    with words.begin() as txn:
        assert txn.get("words", "") == {"w": "", "n": 1}
        assert txn.get("blobs", b"") == {"b": b""}
        assert txn.range("words", "").num_rows == 1
