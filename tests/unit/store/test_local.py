"""The real disk: modes, short writes, syncs of macOS, locks across processes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from halocline.errors import UnavailableError, UsageError
from halocline.store import LocalFiles, LockedError
from halocline.store import local as local_module
from halocline.store.local import LocalFile


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    files = LocalFiles(tmp_path / "deep" / "er" / "db")
    files.makedirs("")
    return files


def _mode(path: str | Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_nothing_is_touched_before_the_first_call(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "db")
    assert files.list("") == []
    assert not files.exists("LOCK")
    assert list(tmp_path.iterdir()) == []


def test_directories_are_0700_and_files_0600(files: LocalFiles) -> None:
    mask = os.umask(0)
    try:
        files.makedirs("a/b")
        files.create("a/b/created", 10).close()
        files.write("a/written", b"x")
        files.page("mapped", 8, writable=True)
        files.lock("LOCK", b"me").release()
    finally:
        os.umask(mask)
    root = Path(files.root)
    for directory in (root, root / "a", root / "a/b"):
        assert _mode(directory) == 0o700
    for file in ("a/b/created", "a/written", "mapped", "LOCK"):
        assert _mode(root / file) == 0o600


def test_created_files_have_real_blocks(files: LocalFiles) -> None:
    files.create("log", 1 << 20).close()
    assert os.stat(f"{files.root}/log").st_blocks * 512 >= 1 << 20


def test_the_root_is_synced_in_its_parent_even_if_it_exists(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(local_module, "_sync_directory", synced.append)
    files.makedirs("")
    assert synced == [str(Path(files.root).parent)]
    synced.clear()
    LocalFiles(f"{files.root}/x/y").makedirs("")
    assert synced == [str(Path(files.root).parent), files.root, f"{files.root}/x"]


def test_a_closed_parent_directory_does_not_stop_the_root(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "no", path)

    monkeypatch.setattr(local_module, "_sync_directory", refuse)
    files.makedirs("")


def test_symbolic_links_are_not_followed(files: LocalFiles, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    os.symlink(outside, f"{files.root}/link")
    for call in (files.open, files.open_read, files.read):
        with pytest.raises(OSError, match="symbolic links") as caught:
            call("link")
        assert caught.value.errno == errno.ELOOP
    with pytest.raises(FileExistsError):
        files.create("link")
    files.write("link", b"replaced")
    assert outside.read_bytes() == b"secret"
    assert files.read("link") == b"replaced"


def test_windows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UsageError, match="Linux and macOS"):
        LocalFiles(tmp_path)


def test_macos_flushes_the_drive(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, what: calls.append(("full", what)))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append(("fsync", 0)))
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append(("fdatasync", 0)))
    files.create("file", 1).close()
    assert calls == [("full", 51), ("full", 51)]


@pytest.mark.parametrize(("number", "falls_back"), [(errno.ENOTSUP, True), (errno.EIO, False)])
def test_macos_network_volumes_get_a_plain_fsync(
    number: int, falls_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, what: int) -> None:
        raise OSError(number, "no")

    synced: list[int] = []
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", synced.append)
    if falls_back:
        local_module._full_sync(7)
        assert synced == [7]
    else:
        with pytest.raises(OSError, match="no"):
            local_module._full_sync(7)
        assert synced == []


def _short(limit: int, calls: list[int]) -> Callable[[int, bytes, int], int]:
    whole = os.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        calls.append(len(data))
        return whole(fd, memoryview(data)[:limit], offset)

    return pwrite


def test_short_writes_are_finished(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    file = files.create("file")
    calls: list[int] = []
    monkeypatch.setattr(os, "pwrite", _short(4, calls))
    for data in (b"0123456789", bytearray(b"0123456789"), memoryview(b"0123456789")):
        file.pwrite(data, 5)
        assert file.pread(20, 0) == bytes(5) + b"0123456789"
        assert calls == [10, 6, 2]
        calls.clear()
        file.truncate(0)
    file.close()


def test_a_disk_that_takes_no_bytes_is_an_error_not_a_loop(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = files.create("file")
    monkeypatch.setattr(os, "pwrite", _short(0, []))
    with pytest.raises(OSError, match="no more bytes"):
        file.pwrite(b"data", 0)
    file.close()


def test_short_reads_are_finished_and_end_at_the_end(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write("file", b"0123456789")
    file = files.open_read("file")
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: whole(fd, min(size, 3), at))
    assert file.pread(8, 0) == b"01234567"
    assert file.pread(100, 4) == b"456789"
    file.close()


def test_an_absurd_size_is_not_allocated(files: LocalFiles) -> None:
    files.write("file", b"0123456789")
    file = files.open_read("file")
    assert file.pread(1 << 60, 4) == b"456789"
    assert file.pread(1 << 60, 40) == b""
    file.close()


def test_enospc_on_the_real_disk_leaves_nothing_behind(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if offset + len(data) > 1 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(fd, data, offset)

    files.write("kept", b"old")
    before = set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()
    monkeypatch.setattr(os, "pwrite", full)
    for call in (
        lambda: files.create("log", 3 << 20),
        lambda: files.write("kept", bytes(3 << 20)),
    ):
        with pytest.raises(OSError, match="No space left") as caught:
            call()
        assert caught.value.errno == errno.ENOSPC
    assert os.listdir(files.root) == ["kept"]
    assert files.read("kept") == b"old"
    if sys.platform == "linux":
        assert set(os.listdir("/proc/self/fd")) == before


def test_a_forgotten_file_closes_its_descriptor(files: LocalFiles) -> None:
    files.write("file", b"x")
    fd = os.open(f"{files.root}/file", os.O_RDONLY)
    file = LocalFile(fd)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


# Locks: real processes, synchronised by pipes.

_CHILD = """
import sys
from halocline.store import LocalFiles, LockedError
files = LocalFiles(sys.argv[1])
try:
    lock = files.lock("LOCK", b"child 42")
except LockedError as error:
    print("locked by", error.holder.decode(), flush=True)
else:
    print("taken", flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "release":
        lock.release()
        print("released", flush=True)
        sys.stdin.readline()
"""


def _child(files: LocalFiles, ending: str = "exit") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, files.root, ending],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(local_module.__file__).parents[2])},
    )


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_a_lock_keeps_other_processes_out_and_names_its_holder(files: LocalFiles) -> None:
    lock = files.lock("LOCK", b"parent 7")
    with _child(files) as child:
        assert _line(child) == "locked by parent 7"
        child.communicate()
    lock.release()
    lock.release()
    with _child(files) as child:
        assert _line(child) == "taken"
        with pytest.raises(LockedError) as caught:
            files.lock("LOCK", b"parent 7")
        assert caught.value.holder == b"child 42"
        assert isinstance(caught.value, UnavailableError)
        assert "child 42" in str(caught.value)
        child.communicate("\n")
    files.lock("LOCK", b"parent again").release()


def test_a_released_lock_is_free_while_its_process_lives(files: LocalFiles) -> None:
    with _child(files, "release") as child:
        assert _line(child) == "taken"
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        assert _line(child) == "released"
        files.lock("LOCK", b"parent").release()
        child.communicate("\n")


def test_a_killed_process_leaves_no_lock(files: LocalFiles) -> None:
    with _child(files) as child:
        assert _line(child) == "taken"
        child.kill()
        child.communicate()
    files.lock("LOCK", b"parent").release()


def test_two_locks_in_one_process_exclude_each_other(files: LocalFiles) -> None:
    lock = files.lock("LOCK", b"a longer first holder")
    with pytest.raises(LockedError) as caught:
        LocalFiles(files.root).lock("LOCK", b"second")
    assert caught.value.holder == b"a longer first holder"
    lock.release()
    lock = LocalFiles(files.root).lock("LOCK", b"second")
    assert files.read("LOCK") == b"second"
    lock.release()


@pytest.mark.parametrize("way", ["abandon", "release"])
def test_a_forked_child_cannot_take_the_lock_away(files: LocalFiles, way: str) -> None:
    lock = files.lock("LOCK", b"parent")
    pid = os.fork()
    if pid == 0:
        # Never return into pytest from here: the child only lets go and leaves.
        try:
            getattr(lock, way)()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with _child(files) as child:
        assert _line(child) == "locked by parent"
        child.communicate()
    lock.release()


def test_release_frees_the_lock_even_if_a_forked_child_has_its_descriptor(
    files: LocalFiles,
) -> None:
    lock = files.lock("LOCK", b"parent")
    hold = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hold[1])
            os.read(hold[0], 1)
            os._exit(0)
        finally:
            os._exit(1)
    lock.release()
    try:
        files.lock("LOCK", b"next").release()
    finally:
        for fd in hold:
            os.close(fd)
        status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_child_that_abandoned_does_not_keep_the_lock_alive(files: LocalFiles) -> None:
    lock = files.lock("LOCK", b"parent")
    ready, hold = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hold[1])
            lock.abandon()
            os.write(ready[1], b"r")
            os.read(hold[0], 1)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.read(ready[0], 1) == b"r"
    # Closing without unlocking is what the death of the parent does.
    lock.abandon()
    files.lock("LOCK", b"next").release()
    for fd in (*ready, *hold):
        os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_lock_file_that_was_removed_meanwhile_is_taken_anew(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = local_module._take
    removals = [True]

    def remove_first(fd: int) -> None:
        if removals:
            removals.pop()
            os.unlink(f"{files.root}/pin")
        take(fd)

    monkeypatch.setattr(local_module, "_take", remove_first)
    lock = files.lock("pin", b"reader")
    assert files.read("pin") == b"reader"
    with pytest.raises(LockedError):
        files.lock("pin", b"other")
    lock.release()
