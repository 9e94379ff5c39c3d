"""Opening with sizes, durations, options and paths that cannot be; nothing is left behind."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.options import parse_duration, parse_size

HUGE = "9" * 400
SETTINGS: dict[str, list[Any]] = {
    "durability": ["fsync", "", None, "SYNC", True],
    "retention": ["1 fortnight", "", "d", "-1d", -1, True, [1], "1d2h", float("nan")],
    "memory": ["lots", "", "GB", "-1GB", 0, -5, None, True, 1.5, "0GB", "1 XB"],
    "objects": ["s3://bucket", "objects", ""],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_makes_no_sense_is_refused_before_anything_is_made(
    tmp_path: Path, name: str
) -> None:
    for value in SETTINGS[name]:
        with pytest.raises(hc.UsageError) as error:
            hc.open(tmp_path / "db", **{name: value})
        assert repr(value) in str(error.value) or name in str(error.value)
    assert not list(tmp_path.rglob("*.log"))
    with hc.open(tmp_path / "db") as db:
        assert not db.check()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention", float("inf")),
        ("retention", HUGE + "d"),
        ("memory", HUGE),
        ("memory", HUGE + "GB"),
        ("memory", "0.1"),
        ("memory", 1),
        ("options", {"page_rows": 4}),
        ("options", {}),
        ("options", 5),
        ("options", hc.Options),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_setting_out_of_all_bounds_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(hc.UsageError):
        hc.open(tmp_path / "db", **{name: value})
    with hc.open(tmp_path / "db") as db:
        assert not db.check()


@pytest.mark.parametrize(
    ("text", "size"),
    [(1, 1), ("512", 512), ("1KB", 1024), ("1 kib", 1024), ("1.5MB", 3 << 19), ("2gb", 2 << 30)],
)
def test_sizes_are_read_in_powers_of_1024(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (0, 0),
        (1.5, 1.5),
        ("90s", 90),
        ("250ms", 0.25),
        ("1D", 86400),
        ("2 w", 1209600),
        ("5m", 300),
    ],
)
def test_durations_have_a_unit_or_are_seconds(text: Any, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_every_size_has_a_lower_bound() -> None:
    for field in fields(hc.Options):
        if field.name == "token_retention":
            continue
        for value in (-1, 0):
            if field.name in ("sql_threads", "bulk_rows", "spark_bytes") and value == 0:
                continue
            with pytest.raises(hc.UsageError, match=f"option {field.name}"):
                hc.Options(**{field.name: value})


@pytest.mark.parametrize("value", ["4", 1.5, True, None, [4]], ids=repr)
def test_every_size_is_a_whole_number(value: Any) -> None:
    for field in fields(hc.Options):
        if field.name not in ("token_retention", "background", "serve"):
            with pytest.raises(hc.UsageError, match=field.name):
                hc.Options(**{field.name: value})


def test_log_files_are_whole_sectors() -> None:
    for name in ("log_file_bytes", "log_file_bytes_first"):
        for value in (512, 2047, 2049, 4095):
            with pytest.raises(hc.UsageError, match=name):
                hc.Options(**{name: value})
        assert getattr(hc.Options(**{name: 2048}), name) == 2048


def test_token_retention_is_a_duration() -> None:
    for value in ("long", "", -1, None):
        with pytest.raises(hc.UsageError, match="duration"):
            hc.Options(token_retention=value)


def test_an_option_that_does_not_exist_is_an_error_of_python() -> None:
    with pytest.raises(TypeError, match="page_size"):
        hc.Options(page_size=4)  # type: ignore[call-arg]


def test_a_file_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    for read_only in (False, True):
        with pytest.raises(hc.UsageError, match="file, not a database directory"):
            hc.open(tmp_path / "file", read_only=read_only)
    assert (tmp_path / "file").read_text() == "hello"


def test_a_directory_of_other_files_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("hello")
    with pytest.raises(hc.UsageError, match="not a Halocline database"):
        hc.open(tmp_path / "letters")
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["dear.txt"]


def test_reading_a_database_that_is_not_there_is_not_found_and_makes_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "empty"):
        with pytest.raises(hc.NotFoundError, match=name) as error:
            hc.open(tmp_path / name, read_only=True)
        assert error.value.kind == "database"
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize("path", ["", None, 5, "a\0b"], ids=repr)
def test_a_path_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hc.UsageError):
        hc.open(path)
    assert not list(tmp_path.iterdir())


def test_a_path_may_be_a_string_or_a_path_with_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("plain", Path("deeper/down"), tmp_path / "späces and 'quotes'"):
        with hc.open(path) as db:
            db.create_table("t", {"id": int})
            assert not db.check()
        with hc.open(str(path)) as db:
            assert db.tables() == ["t"]


def test_the_database_directory_is_private(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db") as db:
        db.create_table("t", {"id": int})
        assert (tmp_path / "db").stat().st_mode & 0o777 == 0o700
        for path in (tmp_path / "db").rglob("*"):
            allowed = 0o700 if path.is_dir() else 0o600
            assert path.stat().st_mode & 0o777 == allowed, path


def test_a_second_writer_is_told_who_holds_the_database(tmp_path: Path) -> None:
    import os

    with hc.open(tmp_path / "db", options=hc.Options(serve=False)) as db:
        with pytest.raises(hc.UnavailableError, match=f"process {os.getpid()}") as error:
            hc.open(tmp_path / "db")
        assert error.value.outcome == "not_committed"
        assert "read_only=True" in str(error.value)
        db.create_table("t", {"id": int})
        assert not db.check()
    with hc.open(tmp_path / "db") as db:
        assert db.tables() == ["t"]
