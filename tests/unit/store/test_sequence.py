"""Faults strike the operation they were planned for, and nothing runs after a crash."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest

from halocline.store import LockedError
from tests.store.faulty import FaultyFiles, Operation, SimulatedCrash


def _file_with(content: bytes) -> FaultyFiles:
    files = FaultyFiles()
    files.write("file", content)
    return files


def test_every_operation_is_numbered_with_kind_path_offset_and_size() -> None:
    files = FaultyFiles()
    file = files.create("file", 600)
    file.pwrite(b"abc", 512)
    file.truncate(514)
    file.pread(2, 512)
    files.list("")
    files.objects.put("7/x", b"data")
    files.objects.read("7/x", 1, 2)
    files.objects.list()
    files.objects.delete("7/x")
    files.remove("file")
    assert files.operations == [
        Operation(1, "create", "file", 0, 0),
        Operation(2, "write", "file", 0, 600),
        Operation(3, "sync", "file", 0, 0),
        Operation(4, "sync_dir", "", 0, 0),
        Operation(5, "write", "file", 512, 3),
        Operation(6, "truncate", "file", 514, 0),
        Operation(7, "read", "file", 512, 2),
        Operation(8, "list", "", 0, 0),
        Operation(9, "put", "7/x", 0, 4),
        Operation(10, "read", "7/x", 1, 2),
        Operation(11, "list", "", 0, 0),
        Operation(12, "delete", "7/x", 0, 0),
        Operation(13, "remove", "file", 0, 0),
        Operation(14, "sync_dir", "", 0, 0),
    ]
    assert files.crash_points() == [1, 2, 3, 4, 5, 6, 9, 12, 13, 14]


def test_a_failed_operation_does_nothing_and_is_recorded() -> None:
    files = FaultyFiles()
    file = files.create("file", 10)
    files.fail(2, errno.EIO)
    file.pwrite(b"first", 0)
    with pytest.raises(OSError, match="Input/output error") as caught:
        file.pwrite(b"SECOND", 0)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, "file")
    file.pwrite(b"th", 0)
    assert file.pread(10, 0) == b"thrst" + bytes(5)
    assert [step.kind for step in files.operations[-4:]] == ["write", "write", "write", "read"]


def test_faults_count_only_the_kind_and_the_paths_they_name() -> None:
    files = FaultyFiles()
    files.makedirs("log")
    files.fail(2, errno.ENOSPC, kind="write", path="log/")
    for name in ("a", "b"):
        files.create(name, 5)
    files.create("log/1", 5)
    with pytest.raises(OSError, match="No space left"):
        files.create("log/2", 5)
    assert files.list("log") == ["1"]


def test_a_fault_may_strike_several_times_and_be_cleared() -> None:
    files = _file_with(b"x")
    file = files.open("file")
    files.fail(1, errno.ENOSPC, kind="write", times=3)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            file.pwrite(b"y", 0)
    files.clear()
    file.pwrite(b"y", 0)
    assert files.read("file") == b"y"


def test_reads_can_fail() -> None:
    files = _file_with(b"x")
    files.fail(1, errno.EIO, kind="read")
    with pytest.raises(OSError, match="Input/output error"):
        files.read("file")
    assert files.read("file") == b"x"


def test_a_torn_write_keeps_its_first_bytes() -> None:
    files = _file_with(b"0123456789")
    file = files.open("file")
    files.tear(1, 4, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        file.pwrite(b"abcdefgh", 1)
    assert files.read("file") == b"0abcd56789"


def test_a_delayed_operation_lets_others_overtake_it() -> None:
    files = _file_with(b"....")
    file = files.open("file")
    arrived, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        arrived.set()
        assert go_on.wait(60)

    files.delay(1, wait, kind="write")
    slow = threading.Thread(target=file.pwrite, args=(b"slow", 0))
    slow.start()
    assert arrived.wait(60)
    file.pwrite(b"fast", 0)
    assert files.read("file") == b"fast"
    go_on.set()
    slow.join()
    assert files.read("file") == b"slow"
    assert [step.number for step in files.operations] == list(range(1, len(files.operations) + 1))


def test_a_crash_before_inside_and_after_a_write() -> None:
    def left(when: str, keep: int | None = None) -> bytes:
        files = _file_with(b"0123456789")
        file = files.open("file")
        files.crash(1, when, keep=keep)  # type: ignore[arg-type]
        with pytest.raises(SimulatedCrash):
            file.pwrite(b"abcdefgh", 0)
        assert files.crashed
        return files.crash_image(all=True).read("file")

    assert left("before") == b"0123456789"
    assert left("inside") == b"abcd456789"
    assert left("inside", 7) == b"abcdefg789"
    assert left("after") == b"abcdefgh89"


def test_after_a_crash_every_operation_raises() -> None:
    files = _file_with(b"x")
    file = files.open("file")
    lock = files.lock("LOCK", b"me")
    files.crash(1)
    with pytest.raises(SimulatedCrash):
        file.sync()
    calls: list[Callable[[], object]] = [
        lambda: file.pread(1, 0),
        lambda: file.pwrite(b"y", 0),
        lambda: file.truncate(0),
        file.sync,
        file.size,
        lambda: files.open("file"),
        lambda: files.read("file"),
        lambda: files.create("new"),
        lambda: files.write("file", b"y"),
        lambda: files.exists("file"),
        lambda: files.list(""),
        lambda: files.remove("file"),
        lambda: files.rename("file", "other"),
        lambda: files.makedirs("dir"),
        lambda: files.sync_dir(""),
        lambda: files.lock("other", b""),
        lambda: files.page("map", 8, writable=True),
        lambda: files.objects.put("k", b""),
        lambda: files.objects.read("k"),
        lambda: files.objects.size("k"),
        files.objects.list,
        lambda: files.objects.delete("k"),
    ]
    count = len(files.operations)
    for call in calls:
        with pytest.raises(SimulatedCrash):
            call()
    assert len(files.operations) == count
    # Letting go is not an operation: clean-up code may always do it.
    file.close()
    lock.release()
    assert not issubclass(SimulatedCrash, Exception)


def test_a_crash_reaches_threads_that_were_delayed() -> None:
    files = _file_with(b"x")
    file = files.open("file")
    arrived, go_on = threading.Event(), threading.Event()
    outcome: list[BaseException] = []

    def wait() -> None:
        arrived.set()
        assert go_on.wait(60)

    def write() -> None:
        try:
            file.pwrite(b"late", 0)
        except SimulatedCrash as crash:
            outcome.append(crash)

    files.delay(1, wait, kind="write")
    thread = threading.Thread(target=write)
    thread.start()
    assert arrived.wait(60)
    files.crash(1)
    with pytest.raises(SimulatedCrash):
        file.sync()
    go_on.set()
    thread.join()
    assert len(outcome) == 1
    assert files.crash_image(all=True).read("file") == b"x"


def test_threads_share_one_gapless_sequence() -> None:
    files = FaultyFiles()
    start = threading.Barrier(4)

    def work(name: str) -> None:
        start.wait(60)
        file = files.create(name, 100)
        for turn in range(50):
            file.pwrite(bytes([turn]) * 10, turn)
            files.objects.put(f"{name}/{turn}", b"x")

    threads = [threading.Thread(target=work, args=(f"f{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = files.operations
    assert [step.number for step in steps] == list(range(1, 4 * (4 + 100) + 1))
    assert len(files.objects.list()) == 200
    for number in range(4):
        assert files.read(f"f{number}")[:50] == bytes(range(50))


def test_a_lock_in_memory_excludes_and_names_its_holder() -> None:
    files = FaultyFiles()
    lock = files.lock("LOCK", b"first")
    with pytest.raises(LockedError) as caught:
        files.lock("LOCK", b"second")
    assert caught.value.holder == b"first"
    assert files.read("LOCK") == b"first"
    image = files.crash_image(all=True)
    image.lock("LOCK", b"after the crash").release()
    lock.release()
    child = files.lock("LOCK", b"2nd")
    assert files.read("LOCK") == b"2nd"
    child.abandon()
    with pytest.raises(LockedError):
        files.lock("LOCK", b"third")
