"""A disk that says no: failing syncs, a full disk, writes that stop half-way.

    commit --reserve--> no room: not_committed, nothing has happened, try again later
           --pwrite, sync--> failed: unknown; the database refuses writes until it is opened again

Four writers commit at once, and the n-th operation fails, for every n. Each commit ends up in one
of three heaps, acknowledged, unknown, or not committed; afterwards the database must hold all of
the first, none of the third, and of the second a prefix in commit order.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import halocline
from halocline import Database, HaloclineError, Options, UnavailableError
from tests.roles import owner_of
from tests.sim.history import TINY, Life, open_on, read_state, script
from tests.store.faulty import FaultyFiles

WRITERS = 4
COMMITS = 5
SCHEMA = {"id": int, "owner": str, "balance": int}


def _row(key: int) -> dict[str, Any]:
    return {"id": key, "owner": "w" * (key % 80), "balance": key}


def _long_row(key: int) -> dict[str, Any]:
    return {"id": key, "owner": "f" * 200, "balance": key}


class Heaps:
    """What the writers were told."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.unknown: set[int] = set()
        self.refused: set[int] = set()
        self.errors: list[BaseException] = []
        self.busy = 0
        self.lock = threading.Lock()


def _write(db: Any, writer: int, heaps: Heaps) -> None:
    for n in range(COMMITS):
        key = writer * 1000 + n
        try:
            with db.begin() as txn:
                txn.insert("accounts", _row(key))
            heaps.acked.add(key)
        except UnavailableError as error:
            (heaps.unknown if error.outcome == "unknown" else heaps.refused).add(key)
            break
        except BaseException as error:
            heaps.errors.append(error)
            break
    with heaps.lock:
        heaps.busy -= 1


def _run_writers(db: Any, heaps: Heaps, label: str) -> None:
    heaps.busy = WRITERS
    threads = [
        threading.Thread(target=_write, args=(db, writer, heaps), daemon=True)
        for writer in range(1, WRITERS + 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), f"a writer hangs: {label}"
    assert not heaps.errors, f"{heaps.errors}: {label}"


def _until_all_wait(db: Any, heaps: Heaps) -> Callable[[], None]:
    """Holds an operation back until every busy writer has a commit in the log, if they can."""
    engine = db.core.engine
    start = engine.last_ts

    def wait() -> None:
        ends = time.monotonic() + 0.05
        while engine.last_ts - start < len(heaps.acked) + heaps.busy and time.monotonic() < ends:
            time.sleep(0.0002)

    return wait


def _order(db: Any) -> list[int]:
    """Keys in commit order, also of commits that nobody was told of."""
    state = next(iter(db.core.engine.tables.values()))
    return [
        page.row(rowid)[0]
        for page, count in state.shape.counted()
        for rowid in page.rowid_array(count).tolist()
    ]


def _keys(db: Any) -> set[int]:
    with db.begin() as txn:
        return set(txn.scan("accounts").column("id").to_pylist())


def _prepared(durability: str) -> tuple[FaultyFiles, Any]:
    files = FaultyFiles()
    with open_on(files) as db:
        db.create_table("accounts", SCHEMA, primary_key="id")
    return files, open_on(files, durability)


def _is_allocation(files: FaultyFiles, number: int) -> bool:
    """Whether this operation belongs to the making of a log file, rather than to a commit."""
    struck = files.operations[number - 1]
    before = [one for one in files.operations[: number - 1] if one.path == struck.path]
    if struck.kind == "sync":
        return not any(one.kind == "sync" for one in before)
    return not any(one.kind == "write" for one in before)


Plan = Callable[[FaultyFiles, int], None]


def _sync_fails(files: FaultyFiles, n: int) -> None:
    files.fail(n, errno.EIO, kind="sync", path="log/")


def _write_fails(files: FaultyFiles, n: int) -> None:
    files.fail(n, errno.EIO, kind="write", path="log/")


def _write_is_short(files: FaultyFiles, n: int) -> None:
    files.tear(n, 7 * n, errno.ENOSPC, kind="write", path="log/")


FAULTS: dict[str, tuple[str, Plan]] = {
    "sync EIO": ("sync", _sync_fails),
    "write EIO": ("write", _write_fails),
    "write short, then ENOSPC": ("write", _write_is_short),
}


def _fail_once(fault: str, durability: str, n: int) -> bool:
    """One run with a fault at the n-th operation of its kind; False when there was no n-th."""
    label = f"{fault} at number {n}, {durability}"
    kind, plan = FAULTS[fault]
    files, db = _prepared(durability)
    heaps = Heaps()
    struck: list[int] = []
    wait = _until_all_wait(db, heaps)

    def note() -> None:
        wait()
        struck.append(len(files.operations) + 1)

    files.delay(n, note, kind=kind, path="log/")
    plan(files, n)
    _run_writers(db, heaps, label)
    if not struck:
        files.clear()
        db.close()
        return False
    order = _order(db)
    stopped = owner_of(db).log.failed is not None
    if stopped:
        _check_stopped(db, heaps, durability, label)
    else:
        # Making a spare file may fail in silence, and making one that is needed refuses one commit.
        assert _is_allocation(files, _struck(files, kind, struck[0])), label
        assert not heaps.unknown, label
        with db.begin() as txn:
            txn.insert("accounts", _row(1))
        order.append(1)
        heaps.acked.add(1)
    images = [files.crash_image(seed) for seed in range(3)] + [files.crash_image(none=True)]
    for image in images:
        _check_reopened(image, heaps, order, durability, label, may_lose=durability == "async")
    _check_reopened(files.crash_image(all=True), heaps, order, durability, label, may_lose=False)
    files.clear()
    _close(db, stopped)
    # The same process opens it again: the kernel shows bytes that are not on the disk.
    _check_reopened(files, heaps, order, durability, label, may_lose=False)
    return True


def _struck(files: FaultyFiles, kind: str, near: int) -> int:
    """Others may have overtaken the operation between its delay and its number."""
    return next(one.number for one in files.operations[near - 1 :] if one.kind == kind)


def _close(db: Any, stopped: bool) -> None:
    try:
        db.close()
    except HaloclineError:
        assert stopped


def _check_stopped(db: Any, heaps: Heaps, durability: str, label: str) -> None:
    assert heaps.unknown or heaps.refused or durability == "async", label
    txn = db.begin()
    txn.insert("accounts", _row(2))
    with pytest.raises(UnavailableError) as refused:
        txn.commit()
    assert refused.value.outcome == "not_committed", label
    with pytest.raises(UnavailableError):
        db.create_table("more", SCHEMA)
    # Reading goes on, and shows what was promised; nothing that a crash could take back.
    if durability == "sync":
        assert _keys(db) == heaps.acked, label
    else:
        assert _keys(db) >= heaps.acked, label
    for key in heaps.acked:
        assert db.begin().get("accounts", key) == _row(key), label
    assert not db.check(), label


def _check_reopened(
    files: FaultyFiles,
    heaps: Heaps,
    order: list[int],
    durability: str,
    label: str,
    *,
    may_lose: bool,
) -> None:
    with open_on(files, durability) as db:
        assert not db.check(), label
        found = _keys(db)
        served = files.crash_image(none=True)
        assert found == set(order[: len(found)]), f"not a prefix in commit order: {label}"
        assert may_lose or found >= heaps.acked, f"acknowledged and gone: {label}"
        assert not found & heaps.refused, f"not_committed, yet there: {label}"
        assert found <= heaps.acked | heaps.unknown, f"from nowhere: {label}"
    with open_on(served, durability) as db:
        assert _keys(db) == found, f"what was shown after opening is lost: {label}"


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_operation_of_four_writers(fault: str, durability: str) -> None:
    n = 1
    while _fail_once(fault, durability, n):
        n += 1
    assert n > (5 if durability == "sync" or fault != "sync EIO" else 2)


@pytest.mark.sim
@pytest.mark.usefixtures("fresh_seed")  # how the threads interleave is new each time
@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_again_and_again(fault: str, durability: str) -> None:
    n = 1
    while _fail_once(fault, durability, n):
        n += 1


def test_a_failing_sync_fails_every_commit_that_waits_for_it() -> None:
    """Four commits in one group: all four are told that the outcome is unknown."""
    files = FaultyFiles()
    db = Database(files, "roomy", options=Options(log_file_bytes_first=1 << 16, background=False))
    db.create_table("accounts", SCHEMA, primary_key="id")
    heaps = Heaps()
    wait = _until_all_wait(db, heaps)
    # The first leader takes only its own commit along; the second takes the other three.
    for n in (1, 2):
        files.delay(n, wait, kind="sync", path="log/")
    files.fail(2, errno.EIO, kind="sync", path="log/")
    _run_writers(db, heaps, "one group")
    assert len(heaps.unknown) + len(heaps.refused) == WRITERS
    assert len(heaps.unknown) >= 2
    _close(db, True)


def test_the_flusher_that_fails_stops_the_database() -> None:
    """Async: nobody waits for the sync, so a later commit is told, and so is whoever closes."""
    files = FaultyFiles()
    options = Options(log_file_bytes_first=1 << 16, async_sync_ms=1, background=False)
    db = Database(files, "roomy", durability="async", options=options)
    db.create_table("accounts", SCHEMA, primary_key="id")
    files.fail(1, errno.EIO, kind="sync", path="log/")
    acked: set[int] = set()
    ends = time.monotonic() + 20
    refused = None
    while refused is None:
        assert time.monotonic() < ends
        txn = db.begin()
        txn.insert("accounts", _row(len(acked)))
        try:
            txn.commit()
            acked.add(len(acked))
        except UnavailableError as error:
            refused = error
        time.sleep(0.001)
    unknown = {len(acked)} if refused.outcome == "unknown" else set()
    assert acked <= _keys(db) <= acked | unknown
    with pytest.raises(UnavailableError):
        db.close()
    # The process lives, and so does what it gave to the operating system.
    with Database(files, "roomy", options=options) as db:
        assert acked <= _keys(db) <= acked | unknown
        assert not db.check()


# -- opening and closing -------------------------------------------------------------------------


def _lived() -> Life:
    life = Life(FaultyFiles())
    assert life.play(script)
    life.files = life.files.crash_image(3)
    return life


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_fault_at_every_operation_of_opening(number: int) -> None:
    """Opening fails with a typed error, loses nothing, and works once the disk does."""
    life = _lived()
    probe = life.files.crash_image(all=True)
    open_on(probe).close()
    for n in range(1, len(probe.operations) + 1):
        files = life.files.crash_image(all=True)
        files.fail(n, number)
        try:
            open_on(files).close()
        except UnavailableError:
            pass
        operation = files.operations[n - 1]
        label = f"{os.strerror(number)} at {operation}"
        files.clear()
        with open_on(files) as db:
            assert read_state(db) == life.states[-1], label
            assert not db.check(), label


def test_a_failing_close_says_so_and_lets_go_of_the_lock() -> None:
    files, db = _prepared("sync")
    with db.begin() as txn:
        txn.insert("accounts", _row(1))
    files.fail(1, errno.EIO, kind="sync", path="log/")
    with pytest.raises(UnavailableError):
        db.close()
    with open_on(files) as db:
        assert _keys(db) == {1}


# -- a full disk ---------------------------------------------------------------------------------


def _fill(db: Any, life: set[int], first: int) -> int:
    """Commit until there is no room; returns the key that was refused."""
    for key in range(first, first + 200):
        txn = db.begin()
        txn.insert("accounts", _long_row(key))
        refused = None
        try:
            txn.commit()
        except UnavailableError as error:
            refused = error
        if refused is not None:
            assert refused.outcome == "not_committed"
            assert "space" in str(refused)
            return key
        life.add(key)
    raise AssertionError("the disk never got full")


def _no_new_names(files: FaultyFiles) -> None:
    files.fail(1, errno.ENOSPC, kind="create", path="log/", times=1 << 30)


def _no_new_bytes(files: FaultyFiles) -> None:
    for number in range(1, 100):
        path = f"log/{number:08d}.log"
        if not files.exists(path):
            files.fail(1, errno.ENOSPC, kind="write", path=path, times=1 << 30)


def _few_new_bytes(files: FaultyFiles) -> None:
    for number in range(1, 100):
        path = f"log/{number:08d}.log"
        if not files.exists(path):
            for nth in range(1, 100):
                files.tear(nth, 700, errno.ENOSPC, path=path)


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("full", [_no_new_names, _no_new_bytes, _few_new_bytes])
def test_a_full_disk_refuses_commits_and_goes_on_when_there_is_room(
    full: Callable[[FaultyFiles], None], durability: str
) -> None:
    files, db = _prepared(durability)
    acked: set[int] = set()
    for round_ in range(1, 4):
        full(files)
        names = files.list("log")
        refused = _fill(db, acked, round_ * 1000)
        for _ in range(3):
            with pytest.raises(UnavailableError, match="space") as error:
                db.run(lambda txn, key=refused: txn.insert("accounts", _long_row(key)))
            assert error.value.outcome == "not_committed"
        assert _keys(db) == acked
        assert not db.check()
        leftovers = set(files.list("log")) - set(names)
        assert len(leftovers) <= 1, "a file that could not be made was left behind"
        files.clear()
        with db.begin() as txn:
            txn.insert("accounts", _row(refused))
        acked.add(refused)
    assert _keys(db) == acked
    db.close()
    with open_on(files, durability) as db:
        assert _keys(db) == acked
        assert not db.check()


def test_a_commit_too_large_for_the_disk_leaves_room_for_small_ones() -> None:
    files, db = _prepared("sync")
    _no_new_names(files)
    txn = db.begin()
    txn.insert("accounts", {"id": 1, "owner": "large" * 2000, "balance": 0})
    with pytest.raises(UnavailableError, match="space") as error:
        txn.commit()
    assert error.value.outcome == "not_committed"
    with db.begin() as txn:
        txn.insert("accounts", _row(2))
    assert _keys(db) == {2}
    files.clear()
    with db.begin() as txn:
        txn.insert("accounts", {"id": 1, "owner": "large" * 2000, "balance": 0})
    db.close()
    with open_on(files) as db:
        assert _keys(db) == {1, 2}
        assert not db.check()


def test_a_full_disk_never_lets_timestamps_pass_what_the_log_has_promised() -> None:
    """The block of timestamps ends while there is no room to log another one."""
    files, db = _prepared("sync")
    acked: set[int] = set()
    for round_ in range(1, 12):
        with db.begin() as txn:
            txn.insert("accounts", {"id": round_, "owner": "s" * 150, "balance": 0})
        acked.add(round_)
        _no_new_names(files)
        _fill(db, acked, round_ * 1000)
        files.clear()
        image = files.crash_image(none=True)
        with open_on(image) as again:
            assert again.core.committer.next_ts > db.core.committer.next_ts - 1
            assert _keys(again) == acked
    db.close()


# -- short writes --------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 7, 513])
def test_a_disk_that_writes_only_some_bytes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """pwrite may write less than it was given; the rest follows, and nobody notices."""
    write = os.pwrite
    options = Options(
        page_rows=4,
        bulk_rows=8,
        log_file_bytes=TINY.log_file_bytes,
        log_file_bytes_first=TINY.log_file_bytes_first,
    )
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, bytes(data[:most]), at))
    with halocline.open(tmp_path / "db", options=options) as db:
        db.create_table("accounts", SCHEMA, primary_key="id")
        for key in range(20):
            with db.begin() as txn:
                txn.insert("accounts", _row(key))
        assert not db.check()
    monkeypatch.undo()
    with halocline.open(tmp_path / "db", options=options) as db:
        assert _keys(db) == set(range(20))
        assert not db.check()


def test_a_disk_that_accepts_no_more_bytes_stops_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = halocline.open(tmp_path / "db")
    db.create_table("accounts", SCHEMA, primary_key="id")
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    txn = db.begin()
    txn.insert("accounts", _row(1))
    with pytest.raises(UnavailableError) as error:
        txn.commit()
    assert error.value.outcome == "unknown"
    monkeypatch.undo()
    _close(db, True)
    with halocline.open(tmp_path / "db") as db:
        assert _keys(db) == set()
        assert not db.check()
