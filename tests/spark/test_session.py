"""A session has the settings we rely on; what cannot work is refused with a reason."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from halocline.errors import UnavailableError, UsageError
from halocline.spark import java, sessions
from halocline.spark.sessions import check_session, prepare, session
from halocline.spark.types import spark_schema

ALL_TYPES = pa.schema(
    [
        pa.field("flag", pa.bool_()),
        pa.field("i8", pa.int8()),
        pa.field("i16", pa.int16()),
        pa.field("i32", pa.int32()),
        pa.field("i64", pa.int64()),
        pa.field("f32", pa.float32()),
        pa.field("f64", pa.float64()),
        pa.field("money", pa.decimal128(38, 9)),
        pa.field("text", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("clock", pa.time64("us")),
        pa.field("naive", pa.timestamp("us")),
        pa.field("moment", pa.timestamp("us", "UTC")),
        pa.field("many", pa.list_(pa.int32())),
        pa.field("pair", pa.struct([("a", pa.string()), ("b", pa.decimal128(5, 2))])),
    ]
)


def test_a_running_session_is_used_again(spark: Any) -> None:
    assert session() is spark
    assert session("local[2]") is spark
    with pytest.raises(UsageError, match="is running"):
        session("local[7]")


def test_the_running_session_is_found_from_any_thread(spark: Any) -> None:
    spark.newSession().sql("select 1")  # after this nobody is active in the thread
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(session).result() is spark
    assert session() is spark


def test_executors_without_the_package_are_found_before_a_job_starts(
    spark: Any, tmp_path: Path
) -> None:
    sessions.check_workers(spark)
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o700)
    context = spark.sparkContext
    before, context.pythonExec = context.pythonExec, str(bare)
    try:
        with pytest.raises(UsageError, match="cannot import halocline"):
            sessions.check_workers(spark)
    finally:
        context.pythonExec = before


def test_settings_can_be_written_with_underscores(spark: Any) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    session(spark_sql_shuffle_partitions=3)
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    session(**{"spark.sql.shuffle.partitions": before})


def test_a_setting_that_is_refused_says_why(spark: Any) -> None:
    with pytest.raises(UsageError, match="cannot be 'many'"):
        session(spark_sql_shuffle_partitions="many")
    with pytest.raises(UsageError, match="before Spark starts"):
        session(spark_driver_memory="2g")


def test_what_reading_depends_on_is_set_on_any_session(spark: Any) -> None:
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "32")
    prepare(spark)
    assert spark.conf.get("spark.sql.sources.parallelPartitionDiscovery.threshold") == "1000000"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.parametrize("thing", [None, "local[2]", 7])
def test_anything_but_a_session_is_refused(thing: object) -> None:
    with pytest.raises(UsageError, match="SparkSession"):
        check_session(thing)


def test_spark_connect_is_refused_by_name() -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(UsageError, match="Connect"):
        check_session(connect())


def test_spark_connect_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(session.__globals__, "running", lambda: None)
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    with pytest.raises(UsageError, match="Connect"):
        session()


def test_a_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UnavailableError, match="apt-get install"):
        java.check_java()


def test_an_old_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    program.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UnavailableError, match="version 8"):
        java.check_java()


def test_every_type_has_a_counterpart_that_keeps_its_values(spark: Any) -> None:
    empty = ALL_TYPES.empty_table()
    frame = spark.createDataFrame(empty, schema=spark_schema(ALL_TYPES))
    back = frame.toArrow().schema
    assert back.names == ALL_TYPES.names
    for field in ALL_TYPES:
        if field.name not in ("clock", "many"):  # ns on the way out; Spark calls values "element"
            assert back.field(field.name).type == field.type
