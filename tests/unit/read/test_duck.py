"""DuckDB as executor: the sandbox of every cursor, errors in our own words, results as Arrow."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from halocline.errors import UnavailableError, UsageError
from halocline.read.duck import Duck, as_schema


@pytest.fixture(scope="module")
def duck() -> Iterator[Duck]:
    """One instance for all tests of this file."""
    duck = Duck(memory_bytes=64 << 20, threads=1)
    yield duck
    duck.close()


SETTINGS = {
    "enable_external_access": False,
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "lock_configuration": True,
    "TimeZone": "UTC",
    "threads": 1,
    "temp_directory": "",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_cursor_is_in_the_sandbox(duck: Duck, name: str) -> None:
    """Some settings belong to a session, and each cursor is one."""
    for _ in range(2):
        found = duck.query(f"select current_setting('{name}') as v", [], {})
        assert found.to_pylist() == [{"v": SETTINGS[name]}]


def test_tables_are_handed_in_for_one_query_only(duck: Duck) -> None:
    table = pa.table({"a": [1, 2]})
    assert duck.query("select sum(a) as s from x", [], {"x": table}).to_pylist() == [{"s": 3}]
    for name in ("x", "table", "duck"):
        with pytest.raises(UsageError):
            duck.query(f"select * from {name}", [], {})
    names = {'we"ird ; name': table, "select": table}
    text = 'select count(*) as n from "we""ird ; name", "select"'
    assert duck.query(text, [], names).to_pylist() == [{"n": 4}]


def test_nothing_of_a_table_is_copied_or_changed(duck: Duck) -> None:
    table = pa.table({"a": [3, 1, 2]})
    before = table.column("a").chunk(0).buffers()[1].address
    duck.query("select * from x order by a", [], {"x": table})
    assert table.column("a").to_pylist() == [3, 1, 2]
    assert table.column("a").chunk(0).buffers()[1].address == before


def test_the_quoted_text_is_tried_when_the_first_does_not_parse(duck: Duck) -> None:
    tables = {"x": pa.table({"at": [1, 2]})}
    text = "select at from x where at > 1"
    with pytest.raises(UsageError, match="Parser Error"):
        duck.query(text, [], tables)
    quoted = 'select "at" from "x" where "at" > ?'
    assert duck.query(text, [1], tables, quoted).to_pylist() == [{"at": 2}]
    assert duck.stream(text, [1], tables, quoted).read_all().to_pylist() == [{"at": 2}]
    with pytest.raises(UsageError):
        duck.query("select nope nope nope", [], tables, "select nope nope nope")


def test_errors_tell_what_to_do(duck: Duck) -> None:
    for text in ("select nope", "select 'a'::int", "selct", "select error('x')"):
        with pytest.raises(UsageError):
            duck.query(text, [], {})
        with pytest.raises(UsageError):
            duck.stream(text, [], {}).read_all()
    with pytest.raises(UnavailableError, match="memory") as error:
        duck.query("select list(i) from range(30000000) t(i)", [], {})
    assert error.value.outcome == "not_committed"
    assert duck.query("select 1 as one", [], {}).to_pylist() == [{"one": 1}]


def test_a_stream_keeps_its_tables_alive(duck: Duck) -> None:
    def opened() -> pa.RecordBatchReader:
        table = pa.table({"a": list(range(200_000))})
        return duck.stream("select a from x where a % 2 = 0", [], {"x": table})

    reader = opened()
    gc.collect()
    assert reader.read_all().num_rows == 100_000


def test_closing_twice_is_fine_and_a_query_starts_it_again() -> None:
    duck = Duck(memory_bytes=64 << 20)
    duck.close()
    assert duck.query("select 1 as one", [], {}).num_rows == 1
    duck.close()
    duck.close()


def test_an_empty_table_keeps_its_types(duck: Duck) -> None:
    schema = pa.schema(
        [("a", pa.int32()), ("l", pa.list_(pa.string())), ("d", pa.decimal128(9, 2))]
    )
    found = duck.query("select * from x", [], {"x": schema.empty_table()})
    assert (found.num_rows, found.schema) == (0, schema)


def test_an_instance_that_failed_is_replaced(duck: Duck) -> None:
    before = duck.query("select 1 as one", [], {})
    error = duck._translate(duckdb.FatalException("the database has been invalidated"), {})
    assert isinstance(error, UsageError)
    assert duck._instance is None
    assert duck.query("select 1 as one", [], {}) == before


def test_nested_values_come_back_under_the_types_that_are_asked_for() -> None:
    inner = pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())])
    wanted = pa.schema(
        [("l", pa.list_(pa.field("item", inner, nullable=False))), ("s", inner), ("n", pa.int8())]
    )
    loose = pa.struct([("a", pa.int32()), ("b", pa.string())])
    rows = pa.table(
        {
            "l": pa.array([[{"a": 1, "b": "x"}], None, []], pa.list_(pa.field("l", loose))),
            "s": pa.StructArray.from_arrays(
                [pa.array([1, None, 3], pa.int32()), pa.array(["x", None, "z"])],
                fields=list(loose),
                mask=pa.array([False, True, False]),
            ),
            "n": pa.array([1, 2, None], pa.int8()),
        }
    )
    for part in (rows, rows.slice(1), rows.slice(2, 1), rows.slice(0, 0)):
        found = as_schema(part, wanted)
        found.validate(full=True)
        assert found.schema.equals(wanted, check_metadata=True)
        assert found.to_pylist() == part.to_pylist()


@pytest.mark.parametrize("stream", [False, True])
def test_ctrl_c_stays_ctrl_c(duck: Duck, stream: bool) -> None:
    """DuckDB makes an error of its own of an interrupt that strikes while it asks Python."""

    class Struck:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise KeyboardInterrupt

    tables: Any = {"x": Struck()}
    with pytest.raises(KeyboardInterrupt):
        (duck.stream if stream else duck.query)("select * from x", [], tables)
    assert duck.query("select 1 as a", [], {}).to_pylist() == [{"a": 1}]


CROSS = "from range(150000) a, range(150000) b where hash(a.range * b.range) = 1"
"""Minutes of work."""


def of_pyspark(number: int, frame: object) -> None:
    """As PySpark's handler: it ends the jobs of Spark, then raises."""
    raise KeyboardInterrupt


of_pyspark.__module__ = "pyspark.core.context"


@pytest.fixture(params=[signal.default_int_handler, of_pyspark], ids=["python", "pyspark"])
def ctrl_c(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Sends a real signal in a moment; another test may have left a session of Spark."""
    before = signal.signal(signal.SIGINT, request.param)
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    yield timer.start
    timer.join()
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_stops_a_long_query(duck: Duck, ctrl_c: Callable[[], None]) -> None:
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 the signal must not come before it
        ctrl_c()
        duck.query(f"select count(*) {CROSS}", [], {})
    assert signal.set_wakeup_fd(-1) == -1
    assert duck.query("select 1 as a", [], {}).to_pylist() == [{"a": 1}]


def test_ctrl_c_stops_a_stream_in_the_middle(duck: Duck, ctrl_c: Callable[[], None]) -> None:
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 the signal must not come before it
        ctrl_c()
        list(duck.stream(f"select a.range {CROSS}", [], {}))
    assert duck.query("select 1 as a", [], {}).to_pylist() == [{"a": 1}]


def test_signals_that_a_program_handles_itself_stop_nothing(duck: Duck) -> None:
    text = "select count(*) as n from range(10000) a, range(10000) b where a.range + b.range >= 0"
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    try:
        assert duck.query(text, [], {}).to_pylist() == [{"n": 100_000_000}]
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert came


def test_the_descriptor_of_an_event_loop_is_left_to_it(duck: Duck) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno())
        duck.query("select 1 as a", [], {})
        assert signal.set_wakeup_fd(-1) == theirs.fileno()
    signal.signal(signal.SIGINT, before)
