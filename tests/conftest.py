"""Fixtures that every test may use, and the settings of the two kinds of run.

`make test` is short and the same every time. `make sim` sets HALOCLINE_SIM=1 and gives each case a
seed of its own, HALOCLINE_SEED: a failure prints what is needed to see it again (sim/runner.py).
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.watchdog import Watchdog

# A shell that starts us in the background ignores Ctrl-C for us, and tests send some.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SIM = os.environ.get("HALOCLINE_SIM", "") not in {"", "0"}
STARTED = time.monotonic()
SPARK = "tests/spark/"
MEMORY = Path("/dev/shm")

# A slow machine must not fail a test that is right, hence no deadline.
settings.register_profile(
    "test", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "sim",
    deadline=None,
    max_examples=5000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("sim" if SIM else "test")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--quick`, for `make quick`."""
    parser.addoption("--quick", action="store_true", help="a few cases of each test")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of Spark share a session, so one process runs them all, however many there are.

    pytest-xdist hands out the largest group first, so Spark does not begin when all else is done.
    Its own way, marks and `--dist loadgroup`, writes the group into an attribute that the nodes of
    this pytest no longer have: each process would start a Spark of its own.
    """
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class SparkTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith(SPARK) else nodeid

    return SparkTogether(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make quick` does not run."""
    if config.getoption("--quick"):
        kept = sample(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def sample(items: list[pytest.Item]) -> set[pytest.Item]:
    """The first case of each test, and every sixteenth after it."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return {item for some in cases.values() for item in some[::16]}


_watchdogs: list[Watchdog] = []


def pytest_configure() -> None:
    """Keep a way to the terminal: from now on pytest catches what goes to stderr."""
    if not _watchdogs:
        _watchdogs.append(Watchdog(os.dup(2)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that hangs ends the run."""
    _watchdogs[0].begin(item.nodeid)
    try:
        return (yield)
    finally:
        _watchdogs[0].end()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say when the run ended, just above pytest's own last line."""
    ended = time.strftime("%Y-%m-%d %H:%M:%S")
    kind = "sim run" if SIM else "test run"
    terminalreporter.write_line(f"{kind} ended {ended}, {time.monotonic() - STARTED:.0f} s")


@pytest.fixture
def sim() -> bool:
    """True in the long run of `make sim`."""
    return SIM


@pytest.fixture
def fresh_seed() -> int:
    """A seed that is another one each time; HALOCLINE_SEED=... gives an old one back.

    The case of a test that takes it is one of many: `make sim` runs it again and again.
    """
    seed = int(os.environ.get("HALOCLINE_SEED") or secrets.randbits(40))
    print(f"HALOCLINE_SEED={seed}")
    return seed


@pytest.fixture(scope="session")
def one_duck() -> Iterator[Any]:
    """A SQL engine for many databases, by its number of threads."""
    from halocline.read.duck import Duck

    start, started = Duck._start, {}

    def one(threads: int) -> Any:
        if threads not in started:
            started[threads] = start(Duck(256 << 20, threads))
        return started[threads].cursor()

    yield one
    for instance in started.values():
        instance.close()


@pytest.fixture
def shared_duck(one_duck: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases in memory share one SQL engine: starting and ending one takes 20 ms of work.

    Those on disk have their own, as always: each may look into its own folder only.
    """
    from halocline.read.duck import Duck

    start = Duck._start

    def cheap(self: Any) -> Any:
        return start(self) if self._folder or self._spill else one_duck(self._threads)

    monkeypatch.setattr(Duck, "_start", cheap)


@pytest.fixture
def tiny() -> Any:
    """Options so small that a handful of rows crosses every boundary."""
    from halocline import Options

    return Options(
        page_rows=4,
        bulk_rows=8,
        log_file_bytes=8192,
        log_file_bytes_first=4096,
        sequence_block=16,
        background=False,
    )


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, for tests that need real files but not a real disk.

    Most of their time would be spent waiting for it. Elsewhere: the usual directory.
    """
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="halocline-", dir=MEMORY))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def open_db(memory_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a database below the test's own directory: `open_db()`, `open_db("other", options=)`.

    Whatever is still open when the test ends is checked and closed.
    """
    import halocline

    opened: list[Any] = []

    def open_(name: str = "db", **arguments: Any) -> Any:
        db = halocline.open(memory_path / name, **arguments)
        opened.append(db)
        return db

    yield open_
    for db in opened:
        try:
            assert not db.check()
        except halocline.UsageError:
            continue  # The test has closed it.
        db.close()


@pytest.fixture
def db(open_db: Callable[..., Any]) -> Any:
    """An empty database with the default options."""
    return open_db()
