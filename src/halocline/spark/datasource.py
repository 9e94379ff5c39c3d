"""The data source `halocline` in a session: found by the Python processes that Spark starts.

    start     Spark's Java process starts with the interpreter and the module path of this process:
              planners of the data source are children of it, and it never asks again
    register  for a session that was started otherwise; workers must then have the package

Spark asks a source for its columns without saying whether a stream wants them, and a stream of
ours has two more (`_change`, `_commit_ts`). So `readStream.format("halocline")` says it: the option
`changes` is set there. Where neither `session` nor `register` of this room was called, the caller
has to set it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

PACKAGE = Path(__file__).resolve().parents[2]
NAME = "halocline"
_format = DataStreamReader.format


def register(session: SparkSession) -> SparkSession:
    """Make the data source known to a session under its name."""
    from halocline.spark.sessions import prepare
    from pyspark_halocline import DefaultSource

    prepare(session)
    session.dataSource.register(DefaultSource)
    mark_streams()
    return session


def module_path() -> str:
    """PYTHONPATH for processes that run the very code that this one runs."""
    return os.pathsep.join([str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])])


@contextmanager
def children_like_us(local: bool) -> Iterator[None]:
    """While Spark's Java process starts: what it hands on to the Python processes it starts."""
    wanted = {"PYTHONPATH": module_path()}
    if local and not os.environ.get("PYSPARK_PYTHON"):
        wanted["PYSPARK_PYTHON"] = sys.executable  # Spark would take whatever `python3` is
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def mark_streams() -> None:
    """From now on a stream of this source says that it is one."""
    DataStreamReader.format = _marked  # type: ignore[method-assign]


def _marked(self: DataStreamReader, source: str) -> Any:
    reader = _format(self, source)
    if isinstance(source, str) and source.lower() == NAME:
        reader = reader.option("changes", "true")
    return reader
