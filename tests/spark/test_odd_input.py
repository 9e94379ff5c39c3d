"""Write jobs given what users give: other collations, conditions that fail, tasks that repeat."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline import spark as hs
from halocline.errors import DuplicateKeyError, SchemaError, UsageError
from halocline.objects.shelf import FILES_PER_JOB
from halocline.spark.task import ATTEMPTS_MIN, ORDINALS_MIN, PARTITIONS_MAX, attempt_of, shares

OPTIONS = hc.Options(page_rows=64, object_rows=64, row_group_rows=64, bulk_rows=50)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "shop", options=OPTIONS) as db:
        db.create_table("words", {"word": str, "n": int}, primary_key="word")
        yield db
        assert db.check() == []


def test_attempts_that_may_live_at_once_have_different_numbers() -> None:
    for attempts in (8, ATTEMPTS_MIN, 256):
        # A task, its copies and its repetitions: their ids may be any number of tasks apart.
        for apart in (1, attempts, 4 * attempts, 1000):
            ids = [attempt_of(number, 7 + number * apart, attempts) for number in range(4)]
            assert len(set(ids)) == 4
            assert max(ids) < attempts
        # The same task in the next attempt of its stage.
        assert attempt_of(0, 7, attempts) != attempt_of(0, 8, attempts)


@pytest.mark.parametrize("partitions", [1, 2, 63, 64, 500, 513, 4095, PARTITIONS_MAX])
def test_the_files_of_a_job_have_room(partitions: int) -> None:
    ordinals, attempts = shares(partitions)
    assert ordinals >= ORDINALS_MIN
    assert attempts >= ATTEMPTS_MIN
    assert partitions * ordinals * attempts <= FILES_PER_JOB


def test_more_than_sixteen_objects_in_a_partition(spark: Any, db: hc.Database) -> None:
    rows = spark.range(4000).selectExpr("cast(id as string) as word", "id as n")
    assert hs.load(rows, db, "words").inserted == 4000
    assert db.sql("select count(*) as c, sum(n) as s from words").to_pylist() == [
        {"c": 4000, "s": 4000 * 3999 // 2}
    ]


def test_keys_with_a_collation_are_sorted_by_their_bytes(spark: Any, db: hc.Database) -> None:
    words = ["b", "A", "a", "B", "c", "C"]
    text = ", ".join(f"('{word}', {n}L)" for n, word in enumerate(words))
    rows = spark.sql(
        f"select collate(word, 'UTF8_LCASE') as word, n from values {text} as t(word, n)"
    )
    assert hs.load(rows, db, "words").inserted == 6
    found = db.sql("select word, n from words order by n").to_pylist()
    assert [row["word"] for row in found] == words
    with pytest.raises(DuplicateKeyError):
        hs.load(rows.unionAll(rows), db, "words", on_conflict="upsert")


def test_a_condition_that_fails_on_a_row(spark: Any, db: hc.Database) -> None:
    rows = spark.sql("select 'x' as word, 1L as n")
    hs.load(rows, db, "words")
    with pytest.raises(UsageError, match=r"(?i)convert"):
        hs.merge(rows, db, "words", condition="cast(source.word as int) > target.n")


def test_keys_to_delete_are_checked_before_a_job_starts(
    spark: Any, db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = import_module("halocline.spark.load")  # the room's name for it is the function
    monkeypatch.setattr(load, "write", lambda *_: pytest.fail("a job started"))
    with pytest.raises(SchemaError, match="word"):
        hs.delete(spark.sql("select 7 as word"), db, "words")


def test_a_filter_on_columns_that_are_not_shown(spark: Any, db: hc.Database) -> None:
    with db.begin() as txn:
        txn.insert("words", [{"word": f"w{n}", "n": n} for n in range(20)])
    db.flush("words")
    with db.begin() as txn:
        txn.delete("words", where="n = 3")
        txn.insert("words", [{"word": "new", "n": 30}])
    try:
        shown = hs.table(spark, db, "words", columns=["WORD"], where="n < 5 or n > 29")
        assert shown.columns == ["word"]
        found = {row.word for row in shown.collect()}
        assert found == {"w0", "w1", "w2", "w4", "new"}
        plan = shown.select("word")._jdf.queryExecution().executedPlan().toString()
        assert "PushedFilters: [Or(LessThan(n,5),GreaterThan(n,29))" in plan, plan
        keys = hs.table(spark, db, "words", columns=["n"], where="n < 5")
        scans = keys._jdf.queryExecution().executedPlan().toString()
        assert "word:string" not in scans, "only the column that is needed is read"
    finally:
        hs.release(spark, db)
