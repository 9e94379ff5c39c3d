"""A Spark session with settings that fit the engine.

    hs.session()                      the one that runs, or local[*] started here
    hs.session("spark://host:7077")   a cluster, with the same settings

Settings of the machine (memory, Java options, logging) only count for a Java process that starts
now. What queries depend on is set on every session we are given, by `prepare`: the listing
threshold (a thousand paths: 0.3 s to plan instead of 3-7 s), the TIME type, and one optimizer rule
less: it fails with a NoSuchElementException on a scalar subquery in the SELECT list over a union,
which a table with dead rows or rows in memory is.

Not here: which session a DataFrame of the caller's belongs to (the DataFrame knows).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from halocline.errors import UsageError
from halocline.spark.datasource import children_like_us, mark_streams, module_path
from halocline.spark.java import check_java
from halocline.spark.trouble import reason_of, told
from halocline.version import __version__

LOGGING = Path(__file__).with_name("log4j2.properties")
MEMORY_SHARE = 0.4
MEMORY_MIB_MAX = 8192
MEMORY_MIB_MIN = 1024
ASKED_MAX: Final = 8
_checked: set[tuple[str, str]] = set()

_DEFAULTS: dict[str, str] = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Batches of 10,000 rows, which is Spark's own default, make write jobs some percent slower.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timeType.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
}
_ALWAYS = ("spark.sql.timeType.enabled", "spark.sql.sources.parallelPartitionDiscovery.threshold")
# Every error would be on the terminal as a hundred lines of JSON before it reaches the caller.
_LOUD = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_NO_CONNECT = "Spark Connect sessions cannot read files of this machine or run the engine's code"
_EXCLUDED = "spark.sql.optimizer.excludedRules"
_BROKEN_RULE = "org.apache.spark.sql.catalyst.optimizer.PushProjectionThroughUnion"


def session(master: str | None = None, **conf: Any) -> SparkSession:
    """A session ready for the engine: the running one, or a new one on `master` (local[*]).

    Settings may be given with dots as underscores (`spark_sql_shuffle_partitions=8`) or as
    `**{"spark.sql.shuffle.partitions": 8}`.
    """
    given = {_dotted(name): _text(value) for name, value in conf.items()}
    found = running()
    if found is not None:
        if master is not None and found.sparkContext.master != master:
            raise UsageError(
                f"a Spark session on {found.sparkContext.master} is running: stop it first, "
                f"or leave master out to use it"
            )
        for name, value in given.items():
            _set(found, name, value)
        mark_streams()
        return prepare(found)
    if os.environ.get("SPARK_REMOTE"):
        raise UsageError(f"SPARK_REMOTE is set, but {_NO_CONNECT}: unset it")
    check_java()
    for name in _LOUD:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    where = master or os.environ.get("SPARK_MASTER") or "local[*]"
    builder = SparkSession.builder.master(where).appName("halocline")
    for name, value in {**_DEFAULTS, **_of_the_machine(where), **given}.items():
        builder = builder.config(name, value)
    with told(f"Spark on {where} cannot be started"), children_like_us(where.startswith("local")):
        started = builder.getOrCreate()
    mark_streams()
    return prepare(started)


def prepare(session: SparkSession) -> SparkSession:
    """Check a session of the caller's and set what reading objects depends on."""
    check_session(session)
    context = session.sparkContext
    if str(context.master).startswith("local") and not os.environ.get("PYSPARK_PYTHON"):
        context.pythonExec = sys.executable  # Spark would take whatever `python3` is
    for name in _ALWAYS:
        if session.conf.get(name, "") != _DEFAULTS[name]:
            session.conf.set(name, _DEFAULTS[name])
    excluded = session.conf.get(_EXCLUDED, "") or ""
    if _BROKEN_RULE not in excluded:
        session.conf.set(_EXCLUDED, ",".join(filter(None, [excluded, _BROKEN_RULE])))
    return session


def clone(session: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A session with the views and settings of another, and some of its own; the other stays."""
    own = SparkSession(session.sparkContext, session._jsparkSession.cloneSession())
    for name, value in settings.items():
        own.conf.set(name, value)
    return own


def check_session(session: object) -> None:
    """UsageError for anything that is not a classic Spark session that runs."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise UsageError(f"{_NO_CONNECT}: use a classic one, e.g. halocline.spark.session()")
    if not isinstance(session, SparkSession):
        raise UsageError(f"expected a SparkSession, not {type(session).__name__}")
    if session.sparkContext._jsc is None:
        raise UsageError("this Spark session has been stopped: start another one")


def check_workers(session: SparkSession) -> None:
    """UsageError unless the executors have this very version of the package.

    Write jobs run the engine's own writer there. Spark would say so late, from inside a task, after
    the input has been read and sorted; so a job of its own asks first, once per application.
    """
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


def running() -> SparkSession | None:
    """The session of this process, if there is one that runs; nothing is started."""
    # The active one belongs to a thread: another thread, or one that has called newSession, has
    # none. The one that was made first is that of the process; asked for the active one, PySpark
    # makes another object that stands for the same session.
    found = SparkSession._instantiatedSession
    if found is not None and found.sparkContext._jsc is None:
        found = None
    active = SparkSession.getActiveSession()
    if active is not None and active.sparkContext._jsc is not None:
        known = found is not None and active._jsparkSession.equals(found._jsparkSession)
        found = found if known else active
    if found is not None:
        check_session(found)
    return found


def _of_the_machine(master: str) -> dict[str, str]:
    settings = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{LOGGING}",
    }
    if master.startswith("local"):
        # Workers of this machine run the very code that this process runs.
        settings["spark.executorEnv.PYTHONPATH"] = module_path()
        settings["spark.driver.memory"] = f"{_memory_mib()}m"
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
    return settings


def _memory_mib() -> int:
    """Four tenths of the machine: the rest belongs to this process and to Python workers."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024)
    return int(min(MEMORY_MIB_MAX, max(MEMORY_MIB_MIN, total * MEMORY_SHARE)))


def _set(found: SparkSession, name: str, value: str) -> None:
    try:
        found.conf.set(name, value)
    except Exception as error:
        if found.conf.isModifiable(name):
            raise UsageError(f"{name} cannot be {value!r}: {reason_of(str(error))}") from error
        raise UsageError(
            f"{name} can only be set before Spark starts: stop the running session first"
        ) from error


def _dotted(name: str) -> str:
    return name if "." in name else name.replace("_", ".")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
