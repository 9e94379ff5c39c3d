"""What one statement, one damaged file or one interrupt must not do to everything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline.errors import ConflictError, CorruptionError

TINY = hc.Options(
    page_rows=4,
    object_rows=64,
    row_group_rows=16,
    bulk_rows=2,
    object_rows_min=30,
    background=False,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


@pytest.fixture
def db(path: Path) -> Iterator[hc.Database]:
    with hc.open(path, retention="0s", options=TINY) as db:
        db.create_table("t", {"id": int, "v": float}, primary_key="id")
        yield db


def rows(*ids: int, value: float = 0.0) -> list[dict[str, Any]]:
    return [{"id": number, "v": value} for number in ids]


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("count", [1, 40])
def test_a_row_inserted_with_a_truncate_is_seen_by_whoever_inserts_the_same_key(
    db: hc.Database, flushed: bool, count: int
) -> None:
    db.run(lambda txn: txn.insert("t", rows(99)))
    if flushed:
        db.flush()
    loser, winner = db.begin(), db.begin()
    loser.insert("t", rows(1, value=1.0))
    winner.truncate("t")
    winner.insert("t", rows(*range(1, count + 1), value=2.0))
    winner.commit()
    with pytest.raises(ConflictError):
        loser.commit()
    assert db.table("t").count() == count
    assert db.check() == []


def test_nan_is_found_in_objects_as_in_memory(db: hc.Database) -> None:
    values = [float("nan") if number % 3 == 0 else float(number) for number in range(12)]
    db.run(lambda txn: txn.insert("t", [{"id": n, "v": v} for n, v in enumerate(values)]))
    tests = ("isnan(v)", "v > 11", "v = 'nan'", "v < 'nan'", "not v > 3", "v is null")

    def counts() -> list[int]:
        with db.begin() as txn:
            return [txn.scan("t", where=where).num_rows for where in tests]

    before = counts()
    assert before[:4] == [4, 4, 4, 8]
    db.flush()
    assert counts() == before
    assert db.run(lambda txn: txn.delete("t", where="isnan(v)")) == 4
    assert db.check() == []


def test_keys_of_truncated_rows_are_free_when_gc_has_taken_their_objects(db: hc.Database) -> None:
    writer = db.begin()  # keeps the keys of moved rows in memory
    db.run(lambda txn: txn.insert("t", rows(*range(5))))
    db.flush()
    writer.rollback()
    db.run(lambda txn: txn.truncate("t"))
    db.gc()
    with db.begin() as txn:
        assert txn.get_many("t", [0, 1]).num_rows == 0
        assert txn.insert("t", pa.table({"id": [0, 1, 2, 3], "v": [1.0] * 4})) == 4
    assert db.check() == []


def damaged(db: hc.Database) -> None:
    """Two tables that are owed a compaction; a file of the first is gone."""
    db.create_table("u", {"id": int}, primary_key="id")
    for part in range(8):
        with db.begin() as txn:
            txn.insert("t", rows(*range(part, 80, 8)))
            txn.insert("u", [{"id": part + 8 * number} for number in range(9)])
        db.flush()
    os.remove(db.table("t").files()[0])


def test_a_damaged_table_does_not_keep_others_from_being_compacted(db: hc.Database) -> None:
    damaged(db)
    before = len(db.table("u").files())
    with pytest.raises(CorruptionError):
        db.compact()
    assert len(db.table("u").files()) < before


def test_an_interrupted_checkpoint_leaves_no_job_behind(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run(lambda txn: txn.insert("t", rows(1, 2)))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("halocline.checkpoint.run.Checkpoints._write_root", interrupt)
        with pytest.raises(KeyboardInterrupt):
            db.checkpoint()
    assert db.core.engine.jobs == {}
    db.checkpoint()
    assert db.check() == []


def test_check_lists_a_checkpoint_that_cannot_be_read(db: hc.Database, path: Path) -> None:
    db.run(lambda txn: txn.insert("t", rows(1, 2)))
    db.checkpoint()
    (root,) = (path / "objects" / "0").glob("*.checkpoint")
    root.unlink()
    root.mkdir()
    problems = db.check()
    assert any(root.name in problem for problem in problems)
    root.rmdir()
