"""Write jobs given what users give: other collations, conditions that fail, tasks that repeat."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import halocline as hc
from halocline import spark as hs
from halocline.errors import DuplicateKeyError, SchemaError, UnavailableError, UsageError
from halocline.objects import JobWriter, SharedJob
from halocline.objects.shelf import FILES_PER_JOB
from halocline.schema.schema import Schema
from halocline.spark.task import ATTEMPTS_MIN, ORDINALS_MIN, PARTITIONS_MAX, shares
from halocline.spark.worker import attempt_of
from halocline.store import PyarrowObjects

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
    monkeypatch.setattr("halocline.spark.job.start", lambda *_: pytest.fail("a job started"))
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


def test_a_name_that_another_attempt_has_taken_is_passed_over(tmp_path: Path) -> None:
    """Two attempts of one task that came to the same number, as after a stage was run again."""
    rows = pa.table({"id": [1, 2]})
    schema = Schema.define({"id": int}, "id")
    job = SharedJob(options=hc.Options(), table_id=3, job_id=9, ordinals=5, attempts=8)

    def attempt() -> JobWriter:
        return job.writer(PyarrowObjects.open(tmp_path), schema, 1, 7)

    one, other = attempt(), attempt()
    assert one.new_rows(rows).key == "3/9-47.parquet"
    before = (tmp_path / "3/9-47.parquet").read_bytes()
    assert other.new_rows(rows.slice(1)).key == "3/9-40.parquet"
    assert (tmp_path / "3/9-47.parquet").read_bytes() == before
    for _ in range(6):
        attempt().new_rows(rows)
    with pytest.raises(UnavailableError, match="names"):
        attempt().new_rows(rows)
    assert one.new_rows(rows).key == "3/9-55.parquet"


def test_keys_that_come_often_are_named_once(spark: Any, db: hc.Database) -> None:
    # Most copies of "a" fill several chunks of 64 rows.
    texts = "explode(concat(array_repeat('a', 300), split('b b c c c d', ' ')))"
    rows = spark.sql(f"select {texts} as word, 1L as n")
    for mode in ("error", "upsert"):
        with pytest.raises(DuplicateKeyError) as caught:
            hs.load(rows, db, "words", on_conflict=mode)
        assert sorted(caught.value.keys) == ["a", "b", "c"]
        assert caught.value.total == 3
        assert caught.value.inside_input
    report = hs.load(rows, db, "words", on_conflict="ignore")
    assert report.inserted == 4
    # As DELETE ... WHERE word IN (...) would.
    keys = spark.sql("select explode(split('a a b b b x x', ' ')) as word")
    assert hs.delete(keys, db, "words").deleted == 2
    assert [row["word"] for row in db.sql("select word from words order by 1").to_pylist()] == [
        "c",
        "d",
    ]
    with pytest.raises(DuplicateKeyError):
        hs.merge(keys, db, "words", when_matched="delete", when_not_matched="ignore",
                 condition="target.n = 1")  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("select 'x' as word, raise_error('lost') as n", "lost"),
        ("select 'x' as word, cast(word as bigint) as n from values ('y') t(word)", "CAST_INVALID"),
        ("select 'x' as word, bigint(1 / (id - 1)) as n from range(3)", "DIVIDE_BY_ZERO"),
    ],
)
def test_input_that_cannot_be_computed(spark: Any, db: hc.Database, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        hs.load(spark.sql(text), db, "words")
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, (PySparkException, Py4JError))
    assert db.table("words").count() == 0


def test_a_function_of_the_callers_that_fails(spark: Any, db: hc.Database) -> None:
    # Without annotations, of which Spark would make more than it should.
    def fail(word):
        raise ValueError("not a number, " + word)

    def lose(word):
        raise OSError(5, "the disk is gone")

    for function, kind, said in (
        (fail, UsageError, "ValueError: not a number, x"),
        (lose, UnavailableError, "the disk is gone"),
    ):
        rows = spark.sql("select 'x' as word").withColumn("n", F.udf(function, "bigint")("word"))
        with pytest.raises(kind) as caught:
            hs.load(rows, db, "words")
        assert said in str(caught.value)
        assert len(str(caught.value)) < 400


def test_files_that_are_gone(spark: Any, db: hc.Database, tmp_path: Path) -> None:
    folder = tmp_path / "input"
    spark.sql("select 'x' as word, 1L as n").write.parquet(str(folder))
    rows = spark.read.parquet(str(folder))
    for file in folder.glob("*.parquet"):
        file.unlink()
    with pytest.raises(hc.HaloclineError) as caught:
        hs.load(rows, db, "words")
    assert "parquet" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_tables_without_rows_whatever_their_types(spark: Any, db: hc.Database) -> None:
    columns = {"id": int, "tags": pa.list_(pa.string()), "pair": pa.struct([("a", pa.int64())])}
    db.create_table("nested", columns, primary_key="id")
    text = "select * from nested where id > 9"
    try:
        with hs.attach(spark, db, prefix="odd_"):
            assert spark.sql("select tags, pair.a from odd_nested").collect() == []
        assert db.sql(text, engine="spark").equals(db.sql(text))
        with db.begin() as txn:
            txn.insert("nested", [{"id": 1, "tags": ["x"], "pair": {"a": 1}}])
        db.flush("nested")
        # Zonemaps leave no file.
        assert hs.table(spark, db, "nested", where="id > 9").collect() == []
        assert db.sql(text, engine="spark").equals(db.sql(text))
    finally:
        hs.release(spark, db)


def test_early_days_are_not_shifted(spark: Any, db: hc.Database) -> None:
    """Sessions that read files of old Sparks may be set to; these files are none."""
    columns = {"id": int, "day": "date", "at": "timestamp", "zoned": "timestamptz"}
    db.create_table("early", columns, primary_key="id")
    moment = datetime(1066, 10, 14)
    given = {"day": moment.date(), "at": moment, "zoned": moment.replace(tzinfo=UTC)}
    with db.begin() as txn:
        txn.insert("early", {"id": 1, **given})
    db.flush("early")
    setting = "spark.sql.parquet.datetimeRebaseModeInRead"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "LEGACY")
    try:
        found = hs.table(spark, db, "early").toArrow().to_pylist()
        assert found == db.sql("select * from early").to_pylist()
        assert db.sql("select * from early", engine="spark").to_pylist() == found
    finally:
        spark.conf.set(setting, before)
        hs.release(spark, db)


def test_what_cannot_be_meant_is_a_usage_error(spark: Any, db: hc.Database) -> None:
    with pytest.raises(UsageError, match="not a boolean"):
        hs.table(spark, db, "words", where="n + 1")
    endless = spark.readStream.format("rate").load().selectExpr("'x' as word", "value as n")
    with pytest.raises(UsageError, match="foreach_batch"):
        hs.load(endless, db, "words")
    with pytest.raises(UsageError, match=r"halocline\.open"):
        hs.load(spark.range(1), db.path, "words")
    for nothing in (None, db):
        with pytest.raises(UsageError, match="SparkSession"):
            hs.release(nothing)


def test_a_session_under_another_object_releases_its_pins(spark: Any, db: hc.Database) -> None:
    hs.table(spark, db, "words")
    other = type(spark)(spark.sparkContext, spark._jsparkSession)
    assert hs.release(other, db) == 1
    assert hs.release(spark, db) == 0
