"""One Spark session for the whole run; without Java the tests of this folder are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from halocline.errors import UnavailableError


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark")
    from halocline.spark.java import check_java
    from halocline.spark.session import session

    try:
        check_java()
    except UnavailableError as error:
        pytest.skip(str(error))
    started = session("local[2]", **{"spark.sql.shuffle.partitions": 2})
    yield started
    started.stop()
