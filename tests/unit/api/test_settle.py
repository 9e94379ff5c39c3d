"""Files that are the table: `files(exact=True)` says when they are, `settle` makes it so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from typer.testing import CliRunner

import halocline as hc
from halocline.cli import app
from halocline.errors import UnavailableError, UsageError

OPTIONS = hc.Options(
    page_rows=16, object_rows=256, row_group_rows=64, object_rows_min=100, background=False
)


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "n": int}, primary_key="id")
        yield db
        assert db.check() == []


def fill(db: hc.Database, first: int, count: int) -> None:
    with db.begin() as txn:
        txn.insert("t", pa.table({"id": range(first, first + count), "n": [0] * count}))


def raw(files: list[str]) -> list[tuple[int, int]]:
    """The rows of some files as any other tool sees them."""
    table = ds.dataset(files, format="parquet").to_table(columns=["id", "n"])
    return sorted(zip(*table.to_pydict().values(), strict=True))


def seen(db: hc.Database, at: int | None = None) -> list[tuple[int, int]]:
    return sorted((row["id"], row["n"]) for row in db.table("t").to_arrow(at).to_pylist())


def test_rows_in_memory_are_no_files(db: hc.Database) -> None:
    assert db.table("t").files(exact=True) == []
    fill(db, 0, 20)
    with pytest.raises(UnavailableError, match="20 of its rows are in memory; run ts"):
        db.table("t").files(exact=True)
    db.flush()
    assert raw(db.table("t").files(exact=True)) == seen(db)


def test_ended_rows_in_files_are_not_hidden(db: hc.Database) -> None:
    fill(db, 0, 1000)
    with db.begin() as txn:
        txn.delete("t", where="id % 100 = 7")  # one in a hundred: compaction would not bother
        txn.update("t", where="id < 3", set={"n": 1})
    db.flush()
    db.compact()
    assert len(raw(db.table("t").files())) > len(seen(db)), "what a raw read sees without exact"
    with pytest.raises(UnavailableError, match="rows in its files have ended"):
        db.table("t").files(exact=True)
    ts = db.settle("t")
    assert raw(db.table("t").files(at=ts, exact=True)) == seen(db)
    assert len(seen(db)) == 990
    assert db.settle() >= ts, "nothing is left to do"


def test_a_settled_moment_stays_exact_while_others_write(db: hc.Database) -> None:
    fill(db, 0, 300)
    with db.begin() as txn:
        txn.delete("t", 5)
    ts = db.settle("t")
    with db.begin() as txn:
        txn.delete("t", 6)
        txn.insert("t", {"id": 5000, "n": 1})
    assert raw(db.table("t").files(at=ts, exact=True)) == seen(db, ts)
    with pytest.raises(UnavailableError):
        db.table("t").files(exact=True)
    db.flush()
    assert raw(db.table("t").files(at=ts, exact=True)) == seen(db, ts)
    before = ts - 1
    with pytest.raises(UnavailableError, match="exact"):
        db.table("t").files(at=before, exact=True)


def test_gaps_in_rowids_are_not_taken_for_dead_rows(db: hc.Database) -> None:
    """Two objects whose RowIDs interlock: one has dead rows, the other none."""
    for part in range(2):
        with db.begin() as txn:
            for n in range(30):
                txn.insert("t", {"id": n * 2 + part, "n": 0})
    db.flush()
    with db.begin() as txn:
        txn.delete("t", where="id < 10")
    ts = db.settle("t")
    assert raw(db.table("t").files(at=ts, exact=True)) == seen(db)


def test_a_table_that_is_too_large_names_spark(db: hc.Database, tmp_path: Path) -> None:
    options = hc.Options(object_rows_min=100, background=False, compact_local_bytes=1)
    with hc.open(tmp_path / "large", options=options) as large:
        large.create_table("t", {"id": int, "n": int}, primary_key="id")
        fill(large, 0, 500)
        large.settle("t")
        with large.begin() as txn:
            txn.delete("t", 5)
        with pytest.raises(UnavailableError, match=r"hs\.settle\(session, db, 't'\)"):
            large.settle("t")
        assert len(seen(large)) == 499


def test_tables_without_a_key_settle_too(db: hc.Database) -> None:
    db.create_table("log", {"n": int})
    with db.begin() as txn:
        txn.insert("log", pa.table({"n": range(500)}))
        txn.insert("log", [{"n": 1000 + n} for n in range(20)])
    with db.begin() as txn:
        txn.delete("log", where="n % 50 = 3")
    ts = db.settle()
    files = db.table("log").files(at=ts, exact=True)
    found = ds.dataset(files, format="parquet").to_table(columns=["n"])
    assert sorted(found["n"].to_pylist()) == sorted(db.table("log").to_arrow()["n"].to_pylist())


def test_another_process_asks_the_owner(db: hc.Database) -> None:
    fill(db, 0, 300)
    with db.begin() as txn:
        txn.delete("t", 5)
    with hc.open(db.path, options=OPTIONS) as node:
        assert node.role == "node"
        ts = node.settle("t")
        assert raw(node.table("t").files(at=ts, exact=True)) == seen(db, ts)
        with pytest.raises(UsageError, match="settle: Spark works"):
            node.settle("t", runner=object())  # type: ignore[arg-type]
    with hc.open(db.path, read_only=True) as reader:
        assert raw(reader.table("t").files(at=ts, exact=True)) == seen(db, ts)
        with pytest.raises(UnavailableError, match="read-only"):
            reader.settle("t")


def test_the_command_prints_the_files(db: hc.Database) -> None:
    fill(db, 0, 300)
    with db.begin() as txn:
        txn.delete("t", 5)
    done = CliRunner().invoke(app, ["settle", db.path, "t"])
    assert done.exit_code == 0, done.output
    first, *files = done.output.split()[2:]
    assert first.isdecimal()
    assert raw(files) == seen(db)
    assert CliRunner().invoke(app, ["settle", db.path, "nothing"]).exit_code == 2


def read(db: hc.Database, ts: int) -> list[dict[str, Any]]:
    """What another tool sees in the exact files, by the names of the table's own columns."""
    names = db.table("t").to_arrow(ts).column_names
    files = db.table("t").files(at=ts, exact=True)
    rows: list[dict[str, Any]] = ds.dataset(files).to_table(columns=names).to_pylist()
    return rows


def test_a_column_that_took_the_name_of_another_makes_older_files_inexact(db: hc.Database) -> None:
    fill(db, 0, 3)
    before = db.settle("t")
    db.alter_table("t", drop=["n"])
    db.alter_table("t", add={"n": int})
    with pytest.raises(UnavailableError, match="columns of another version"):
        db.table("t").files(exact=True)
    assert read(db, db.settle("t")) == [{"id": n, "n": None} for n in range(3)]
    assert read(db, before) == [{"id": n, "n": 0} for n in range(3)]
    db.alter_table("t", rename={"id": "key"})
    with pytest.raises(UnavailableError, match="columns of another version"):
        db.table("t").files(exact=True)
    assert read(db, db.settle("t")) == [{"key": n, "n": None} for n in range(3)]


def test_paths_in_a_folder_that_was_replaced_are_not_given(tmp_path: Path) -> None:
    for name in ("shop", "other"):
        with hc.open(tmp_path / name, options=OPTIONS) as made:
            made.create_table("t", {"id": int, "n": int}, primary_key="id")
            fill(made, 0, 3)
            made.flush()
    with hc.open(tmp_path / "shop", options=OPTIONS) as db:
        table = db.table("t")
        (tmp_path / "shop").rename(tmp_path / "moved")
        for exact in (False, True):
            with pytest.raises(UnavailableError, match="moved"):
                table.files(exact=exact)
        (tmp_path / "other").rename(tmp_path / "shop")
        for exact in (False, True):
            with pytest.raises(UnavailableError, match="moved"):
                table.files(exact=exact)
        (tmp_path / "shop").rename(tmp_path / "other")
        (tmp_path / "moved").rename(tmp_path / "shop")
        assert len(table.files(exact=True)) == 1
