"""Workers: can the Python processes of a session run the engine's code?

Reading needs none: executors read Parquet in Java. Write jobs run the engine's own writer there, so
a cluster needs the package. Spark would say so late, from inside a task, after the input has been
read and sorted. So a job of its own asks first, once per Spark application.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from pyspark.sql import SparkSession

from halocline.errors import UsageError
from halocline.version import __version__

ASKED_MAX: Final = 8
_checked: set[tuple[str, str]] = set()


def check_workers(session: SparkSession) -> None:
    """UsageError unless the executors have this very version of the package."""
    context = session.sparkContext
    key = (str(context.applicationId), str(context.pythonExec))
    if key in _checked:
        return
    count = min(ASKED_MAX, max(1, context.defaultParallelism))
    answers = context.parallelize(range(count), count).mapPartitions(_question()).collect()
    for version, problem in answers:
        if problem:
            raise UsageError(
                f"the executors of this Spark session cannot import halocline ({problem}): install "
                f"'halocline[spark]' {__version__} there, or set spark.pyspark.python to a Python "
                f"that has it"
            )
        if version != __version__:
            raise UsageError(
                f"the executors of this Spark session have halocline {version}, this process has "
                f"{__version__}: install the same version there"
            )
    _checked.add(key)


def _question() -> Callable[[Iterable[Any]], Iterable[tuple[str, str]]]:
    """A function that travels by value: where the package is missing its module is missing too."""

    def ask(_: Iterable[Any]) -> Iterable[tuple[str, str]]:
        try:
            import halocline.spark.task  # noqa: F401 (is it there?)
            from halocline.version import __version__ as found
        except ImportError as error:
            return [("", str(error) or type(error).__name__)]
        return [(found, "")]

    return ask
