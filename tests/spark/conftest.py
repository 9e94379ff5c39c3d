"""One Spark session for the whole run; without Java the tests of this folder are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from halocline.errors import UnavailableError

SETTINGS = {
    "spark.sql.shuffle.partitions": 2,
    # Compiling a plan takes longer than running it over the few rows of a test.
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.adaptive.enabled": False,
}
# For the same reason Java compiles quickly rather than well; further drivers inherit it.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark")
    from halocline.spark.java import check_java
    from halocline.spark.job import FEW, LEAST
    from halocline.spark.sessions import session

    try:
        check_java()
    except UnavailableError as error:
        pytest.skip(str(error))
    FEW[LEAST] = "1"  # the few rows of a test make as many tasks as there are cores
    started = session("local[2]", **SETTINGS)
    yield started
    started.stop()
