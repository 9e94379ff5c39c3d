"""Which names are allowed, and which are the same."""

from __future__ import annotations

from typing import Any

import pytest

from halocline.catalog.names import check_name, name_key
from halocline.errors import AlreadyExistsError, UsageError
from tests.unit.catalog.driver import Driver, make, names


@pytest.mark.parametrize(
    "name",
    [
        "m",
        "Orders 2024",
        "select",
        "a_b",
        "tables",
        "bestellungen_für_größe",
        "表",
        "a" * 255,
        "é" * 127,
    ],
)
def test_a_printable_name_of_up_to_255_bytes_is_allowed(name: str) -> None:
    driver = Driver()
    entry = driver.create(name)
    assert driver.catalog.table(name, driver.now) == entry
    driver.check()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("_m", "reserved"),
        ("_tables", "reserved"),
        ("a\nb", "cannot be printed"),
        ("a\x00", "cannot be printed"),
        ("a\u200b", "cannot be printed"),
        ("a\ud800", "cannot be printed"),
        ("a" * 256, "longer than 255 bytes"),
        ("é" * 128, "longer than 255 bytes"),
        (7, "must be a string"),
        (None, "must be a string"),
        (b"m", "must be a string"),
    ],
)
def test_other_names_are_a_usage_error_and_the_transaction_goes_on(name: Any, reason: str) -> None:
    sub = Driver().begin()
    with pytest.raises(UsageError, match=reason):
        make(sub, name)
    with pytest.raises(UsageError, match=reason):
        check_name("table", name)
    assert sub.nodes() == []
    make(sub, "m")
    assert names(sub.tables()) == ["m"]


@pytest.mark.parametrize("other", ["orders", "ORDERS", "oRDERS"])
def test_names_are_unique_without_regard_to_case(other: str) -> None:
    driver = Driver()
    entry = driver.create("Orders")
    with pytest.raises(AlreadyExistsError) as caught:
        make(driver.begin(), other)
    assert caught.value.name == other
    assert driver.catalog.table(other, 1) == driver.catalog.table("Orders", 1) == entry
    assert driver.begin().table(other) == entry
    assert entry.name == "Orders", "the spelling of its creator is kept"


def test_a_name_can_be_replaced_in_another_spelling() -> None:
    driver = Driver()
    driver.create("Straße")
    sub = driver.begin()
    sub.drop_table("STRASSE")
    make(sub, "strasse")
    driver.commit(sub)
    assert names(driver.catalog.tables(1)) == ["Straße"]
    assert names(driver.catalog.tables(2)) == ["strasse"]
    assert driver.catalog.table("Straße", 2) == driver.catalog.table("strasse", 2)
    driver.check()


def test_the_key_of_a_key_is_itself() -> None:
    every = map(chr, range(0x110000))
    assert all(name_key(name_key(char)) == name_key(char) for char in every)


def test_looking_up_something_that_is_no_name_is_a_usage_error() -> None:
    driver = Driver()
    driver.create("m")
    for ts in (0, 1):
        with pytest.raises(UsageError, match="must be a string"):
            driver.catalog.table(5, ts)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be a string"):
        driver.begin().drop_table(None)  # type: ignore[arg-type]
