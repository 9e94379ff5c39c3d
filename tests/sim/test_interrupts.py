"""Ctrl-C at any bytecode of a commit: never half a transaction, never a thread that hangs.

After each interrupt one of two things holds. The database goes on: other threads commit, its check
finds nothing, and the interrupted transaction is there whole or not at all. Or it has stopped, says
so, and holds the same two promises once it has been opened again.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline
from halocline import Options, UnavailableError
from tests.roles import owner_of
from tests.sim.interrupts import Mode, Strike, count, strike, without_interrupts

SMALL = Options(
    page_rows=4,
    bulk_rows=8,
    log_file_bytes=8192,
    log_file_bytes_first=4096,
    sequence_block=1000,
    background=False,
)
OPENINGS_MAX = 20
PARTS = 4
"""Every opcode is struck in one of so many parts of a long test."""
"""Each opening adds a log file; a new directory from time to time keeps recovery short."""

Work = Callable[[Any, int], None]


class Bench:
    """A database that is interrupted again and again, and what it has promised."""

    def __init__(self, root: Path, durability: str = "sync", options: Options = SMALL) -> None:
        self._root = root
        self._durability = durability
        self._options = options
        self._number = 0
        self._openings = 0
        self.acked: set[int] = set()
        self.maybe: set[int] = set()
        self.next = 1
        self.db: Any = None
        self._start()

    def _start(self) -> None:
        self._number += 1
        self._openings = 0
        self.acked, self.maybe = set(), set()
        self.db = self._open()
        for name in ("a", "b"):
            self.db.create_table(name, {"id": int, "text": str}, primary_key="id")

    def _open(self) -> Any:
        self._openings += 1
        return halocline.open(
            self._root / str(self._number),
            durability=self._durability,  # type: ignore[arg-type]
            options=self._options,
        )

    def take(self, count: int = 1) -> int:
        """Keys that nobody has used."""
        self.next += count
        return self.next - count

    def refresh(self) -> None:
        if self._openings > OPENINGS_MAX:
            self.db.close()
            self._start()

    def reopen(self, label: str) -> None:
        self.db.close()
        self.db = self._open()
        assert not self.db.check(), label
        found = self.keys(label)
        assert found >= self.acked, f"acknowledged and gone: {self.acked - found}: {label}"
        assert found <= self.acked | self.maybe, f"never committed: {label}"

    def keys(self, label: str) -> set[int]:
        """Keys of whole transactions: those that write to both tables have both halves."""
        with self.db.begin() as txn:
            a, b = (txn.scan(name).to_pylist() for name in ("a", "b"))
        halves = [{row["id"] for row in rows if row["text"] == "both"} for rows in (a, b)]
        assert halves[0] == halves[1], f"half a transaction: {label}"
        bulks = Counter(row["text"] for row in a if row["text"].startswith("bulk"))
        assert set(bulks.values()) <= {12}, f"part of a bulk insert: {label}"
        return {row["id"] for row in a}


def _in_another_thread(bench: Bench, label: str) -> str:
    """Commit from a thread that was not interrupted: "" or what the database says."""
    key = bench.take()
    said: list[tuple[str, str]] = []

    def commit() -> None:
        try:
            with bench.db.begin() as txn:
                txn.insert("a", {"id": key, "text": "other"})
            said.append(("", ""))
        except UnavailableError as error:
            said.append((error.outcome, str(error)))

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), f"another thread hangs: {label}"
    assert said, f"another thread failed: {label}"
    ((outcome, text),) = said
    assert outcome in ("", "not_committed"), f"{text}: {label}"
    if not outcome:
        bench.acked.add(key)
    return text


def _after(bench: Bench, hit: Strike, key: int, label: str) -> bool:
    """What must hold after an interrupt; returns whether the database had stopped."""
    (bench.acked if hit.returned else bench.maybe).add(key)
    said = _in_another_thread(bench, label)
    assert bench.keys(label) >= bench.acked or said, f"reads lost something: {label}"
    if said:
        bench.reopen(label)
    else:
        assert not bench.db.check(), label
        assert not bench.db.core.pins, f"a snapshot stays pinned: {label}"
    return bool(said)


def _one_row(txn: Any, key: int) -> None:
    txn.insert("a", {"id": key, "text": "one"})


def _update(txn: Any, key: int) -> None:
    txn.insert("a", {"id": key, "text": "one"})
    txn.update("a", key, {"text": "two"})
    for row in txn.range("a", limit=2).to_pylist():
        if row["text"] == "other":
            txn.update("a", row["id"], {"text": "updated"})


def _two_tables(txn: Any, key: int) -> None:
    txn.insert("a", {"id": key, "text": "both"})
    txn.insert("b", {"id": key, "text": "both"})


def _bulk(txn: Any, key: int) -> None:
    keys = list(range(key, key + 12))
    txn.insert("a", pa.table({"id": keys, "text": [f"bulk {key}"] * 12}))


def _definition(txn: Any, key: int) -> None:
    txn.create_table(f"t{key}", {"id": int}, "id")
    txn.insert(f"t{key}", {"id": key})
    txn.insert("a", {"id": key, "text": "both"})
    txn.insert("b", {"id": key, "text": "both"})


def _long(txn: Any, key: int) -> None:
    """So long that every other one needs another log file."""
    txn.insert("a", {"id": key, "text": "both"})
    txn.insert("b", {"id": key, "text": "both"})
    txn.insert("b", {"id": -key, "text": "x" * 1500})


def _interrupt_commit(bench: Bench, work: Work, mode: Mode, k: int) -> tuple[Strike, bool]:
    bench.refresh()
    key = bench.take(12)
    txn = bench.db.begin()
    work(txn, key)
    hit = strike(k, mode, txn.commit)
    label = f"{work.__name__}, {mode}, opcode {k}, raised at {hit.where or 'no place'}"
    del txn
    if work is _bulk:
        (bench.acked if hit.returned else bench.maybe).update(range(key, key + 12))
    return hit, _after(bench, hit, key, label)


@pytest.fixture
def bench(memory_path: Path) -> Iterator[Bench]:
    bench = Bench(memory_path)
    yield bench
    bench.reopen("at the end")
    bench.db.close()


@pytest.mark.parametrize("mode", ["signal", pytest.param("raise", marks=pytest.mark.more)])
def test_ctrl_c_at_every_opcode_of_a_single_row_commit(bench: Bench, mode: Mode) -> None:
    outcomes: Counter[bool] = Counter()
    k = 1
    while True:
        hit, stopped = _interrupt_commit(bench, _one_row, mode, k)
        if not hit.hit:
            break
        outcomes[stopped] += 1
        k += 1
    print(k - 1, "opcodes; went on, stopped:", outcomes[False], outcomes[True])
    assert k > (300 if mode == "signal" else 30)
    assert outcomes[True], "no interrupt fell into the short part that cannot be undone"
    assert outcomes[False]


@pytest.mark.parametrize("work", [_one_row, _two_tables])
def test_a_stopped_database_says_so_and_what_to_do(bench: Bench, work: Work) -> None:
    owner_of(bench.db).log.poison(KeyboardInterrupt())
    with bench.db.begin() as txn:
        assert txn.get("a", 1) is None
    txn = bench.db.begin()
    work(txn, bench.take())
    with pytest.raises(UnavailableError, match=r"stopped.*open it again") as raised:
        txn.commit()
    assert raised.value.outcome == "not_committed"
    with pytest.raises(UnavailableError, match=r"stopped.*open it again"):
        bench.db.create_table("c", {"id": int})


WORKS: list[Work] = [_update, _two_tables, _bulk, _definition, _long]


def _opcodes(bench: Bench, work: Work, mode: Mode) -> int:
    """How many opcodes such a commit takes: the most of three, as some roll the log."""
    most = 0
    for _ in range(3):
        key = bench.take(12)
        txn = bench.db.begin()
        work(txn, key)
        most = max(most, count(mode, txn.commit))
        bench.acked.update(range(key, key + 12) if work is _bulk else [key])
    return most


@pytest.mark.parametrize("mode", ["signal", "raise"])
@pytest.mark.parametrize("work", WORKS)
def test_ctrl_c_in_larger_commits(bench: Bench, work: Work, mode: Mode) -> None:
    opcodes = _opcodes(bench, work, mode)
    chance = random.Random(f"{work.__name__} {mode}")
    for k in sorted(chance.sample(range(1, opcodes), min(25, opcodes - 1))):
        _interrupt_commit(bench, work, mode, k)


@pytest.mark.sim
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("mode", ["signal", "raise"])
@pytest.mark.parametrize("work", WORKS)
def test_ctrl_c_at_every_opcode_of_larger_commits(
    memory_path: Path, work: Work, mode: Mode, durability: str, part: int
) -> None:
    bench = Bench(memory_path, durability)
    for k in range(1 + part, _opcodes(bench, work, mode) + 1, PARTS):
        _interrupt_commit(bench, work, mode, k)
    bench.reopen("at the end")
    bench.db.close()


def test_ctrl_c_anywhere_in_a_transaction(bench: Bench) -> None:
    """From begin to the end of the with block, a block of timestamps running out now and then."""

    def whole(key: int) -> None:
        with bench.db.begin() as txn:
            _two_tables(txn, key)

    def strike_at(k: int) -> None:
        bench.refresh()
        key = bench.take()
        hit = strike(k, "signal", lambda: whole(key))
        _after(bench, hit, key, f"transaction, opcode {k}, raised at {hit.where}")

    key = bench.take()
    opcodes = count("signal", lambda: whole(key))
    bench.acked.add(key)
    for k in sorted(random.Random(5).sample(range(1, opcodes), 120)):
        strike_at(k)


def test_ctrl_c_while_a_block_of_timestamps_is_extended(memory_path: Path) -> None:
    """Afterwards no timestamp is issued that the log has not promised to this epoch."""
    options = Options(
        log_file_bytes_first=4096, log_file_bytes=8192, sequence_block=3, background=False
    )
    bench = Bench(memory_path, options=options)
    key = bench.take()
    for k in range(1, 900, 7):
        bench.refresh()
        key = bench.take()
        txn = bench.db.begin()
        _one_row(txn, key)
        hit = strike(k, "signal", txn.commit)
        del txn
        label = f"extending, opcode {k}, raised at {hit.where}"
        if not _after(bench, hit, key, label):
            _check_ceilings(bench, label)
    bench.reopen("at the end")
    bench.db.close()


def _check_ceilings(bench: Bench, label: str) -> None:
    from halocline.log.record import EPOCH, decode_body, decode_record
    from halocline.log.recover import read_log
    from halocline.rows.system import EpochNode

    ceilings = [
        decode_body(payload, EpochNode)
        for record in map(decode_record, read_log(bench.db.files, bench.db.core.options).entries())
        for kind, payload in record.nodes
        if record.group == 3 and kind == EPOCH
    ]
    promised = max(node.ts_ceiling for node in ceilings)
    used = bench.db.core.committer.next_ts - 1
    assert used <= promised, f"timestamp {used} was issued, {promised} promised: {label}"
    rowids = max(node.rowid_ceiling for node in ceilings)
    taken = max(state.next_rowid - 1 for state in bench.db.core.engine.tables.values())
    assert taken <= rowids, f"RowID {taken} was issued, {rowids} promised: {label}"


def _interrupt_rolling(path: Path, mode: Mode, durability: str, step: int, first: int = 1) -> None:
    """Interrupt a change of log files; and a kill after it finds all that was acknowledged."""
    options = Options(log_file_bytes=4096, log_file_bytes_first=4096, background=False)
    bench = Bench(path / "lives", durability, options)
    k = first
    while True:
        bench.refresh()
        key = bench.take()
        txn = bench.db.begin()
        txn.insert("a", {"id": key, "text": "x" * 3000})
        hit = strike(k, mode, txn.commit, inside="_roll")
        del txn
        label = f"{mode}, {durability}, opcode {k} of _roll, raised at {hit.where or 'no place'}"
        _after(bench, hit, key, label)
        _check_killed(bench, path / "killed", label)
        if not hit.hit:
            break
        k += step
    print(k, "opcodes")
    assert k > (200 if mode == "signal" else 15)
    bench.reopen("at the end")
    bench.db.close()


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize(("mode", "step"), [("signal", 7), ("raise", 1)])
def test_ctrl_c_in_a_change_of_log_files(
    memory_path: Path, mode: Mode, step: int, durability: str
) -> None:
    _interrupt_rolling(memory_path, mode, durability, step)


@pytest.mark.sim
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_ctrl_c_at_every_opcode_of_a_change_of_log_files(
    memory_path: Path, durability: str, part: int
) -> None:
    _interrupt_rolling(memory_path, "signal", durability, PARTS, 1 + part)


def _check_killed(bench: Bench, path: Path, label: str) -> None:
    """What kill -9 would leave now: the files as the operating system has them."""
    shutil.copytree(bench.db.path, path)
    with halocline.open(path) as db:
        assert not db.check(), f"killed: {label}"
        with db.begin() as txn:
            found = set(txn.range("a").column("id").to_pylist())
        assert bench.acked <= found <= bench.acked | bench.maybe, f"killed: {label}"
    shutil.rmtree(path)


# -- real signals --------------------------------------------------------------------------------


class _Storm:
    """Real signals at the main thread, whenever it has said that it may be struck."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self.armed = False
        self.sent = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def handle(self, number: int, frame: object) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def _run(self) -> None:
        while not self._stop.wait(self._chance.uniform(0.0002, 0.004)):
            os.kill(os.getpid(), signal.SIGINT)
            self.sent += 1

    def __enter__(self) -> _Storm:
        self._before = signal.signal(signal.SIGINT, self.handle)
        self._hook = sys.unraisablehook
        sys.unraisablehook = without_interrupts(self._hook)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(20)
        signal.signal(signal.SIGINT, self._before)
        sys.unraisablehook = self._hook


def _commit_beside(bench: Bench, stop: threading.Event, first: int, failures: list[str]) -> None:
    key = first
    while not stop.is_set():
        key += 1
        try:
            with bench.db.begin() as txn:
                _two_tables(txn, key)
            bench.acked.add(key)
        except UnavailableError as error:
            if error.outcome == "unknown":
                bench.maybe.add(key)
            return
        except BaseException as error:
            failures.append(repr(error))
            return


def _weather(bench: Bench, storm: _Storm, seconds: float, first: int) -> int:
    """The main thread commits under fire beside three others, until it stops or time is up."""
    stop, failures = threading.Event(), list[str]()
    threads = [
        threading.Thread(
            target=_commit_beside, args=(bench, stop, first + n * 100_000, failures), daemon=True
        )
        for n in range(1, 4)
    ]
    for thread in threads:
        thread.start()
    interrupts, key = 0, first
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        key += 1
        try:
            storm.armed = True
            with bench.db.begin() as txn:
                _two_tables(txn, key)
            storm.armed = False
            bench.acked.add(key)
        except KeyboardInterrupt:
            bench.maybe.add(key)
            interrupts += 1
        except UnavailableError:
            storm.armed = False
            bench.maybe.add(key)
            break
    storm.armed = False
    stop.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a writer hangs"
    assert not failures
    return interrupts


def _ride_out(memory_path: Path, durability: str, seconds: float, seed: int) -> None:
    options = Options(log_file_bytes_first=64 * 1024, log_file_bytes=256 * 1024)
    bench = Bench(memory_path, durability, options)
    interrupts, lives = 0, 0
    ends = time.monotonic() + seconds
    with _Storm(seed) as storm:
        while (left := ends - time.monotonic()) > 0:
            lives += 1
            interrupts += _weather(bench, storm, left, lives * 1_000_000)
            bench.reopen(f"seed {seed}, life {lives}, after {interrupts} interrupts")
            bench.refresh()
    bench.db.close()
    print(f"{interrupts} interrupts in {lives} lives")
    assert interrupts >= 3


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_real_signals_beside_other_writers(memory_path: Path, durability: str) -> None:
    _ride_out(memory_path, durability, seconds=1.5, seed=1)


@pytest.mark.sim
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_real_signals_for_a_long_time(memory_path: Path, durability: str, fresh_seed: int) -> None:
    _ride_out(memory_path, durability, seconds=10, seed=fresh_seed)


def test_a_timer_that_interrupts_a_loop_of_commits(memory_path: Path) -> None:
    """setitimer: the signal comes from the kernel, at the main thread's own expense."""
    bench = Bench(memory_path)
    interrupts = 0

    def handle(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before, hook = signal.signal(signal.SIGALRM, handle), sys.unraisablehook
    sys.unraisablehook = without_interrupts(hook)
    try:
        for round_ in range(120):
            bench.refresh()
            key = bench.take()
            returned = False
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + (round_ % 40) * 0.00003)
                try:
                    with bench.db.begin() as txn:
                        _two_tables(txn, key)
                    returned = True
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
            txn = None
            label = f"timer, round {round_}"
            _after(bench, Strike(True, returned, ""), key, label)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook
    bench.reopen("at the end")
    bench.db.close()
    print(interrupts, "interrupts")
