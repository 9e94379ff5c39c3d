"""The examples of streams run, in the session that the tests share, and do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "streams"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.more
def test_a_stream_into_a_table_that_is_queried_meanwhile(spark: Any, tmp_path: Path) -> None:
    seen = example("sink_and_query").main(tmp_path)
    spark.catalog.dropTempView("clicks")
    assert seen == [200, 200, 400, 400, 600, 600]


@pytest.mark.more
def test_the_change_feed_as_parquet(spark: Any, tmp_path: Path) -> None:
    assert example("changes_to_parquet").main(tmp_path) == [
        (0, "new", "insert"),
        (1, "new", "insert"),
        (2, "new", "insert"),
        (1, "paid", "update_after"),
        (1, "new", "update_before"),
        (2, "new", "delete"),
    ]
