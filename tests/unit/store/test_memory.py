"""What a power loss may leave of one file and of one directory: never more, and no less."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.store import File
from tests.store.faulty import FaultyFiles
from tests.store.memory import SECTOR

SEEDS = range(60)


def _images(files: FaultyFiles, path: str, seeds: range = SEEDS) -> set[bytes]:
    return {files.crash_image(seed).read(path) for seed in seeds}


def _sector(content: bytes, number: int) -> bytes:
    return content[number * SECTOR : (number + 1) * SECTOR].ljust(SECTOR, b"\0")


_WRITES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2500), st.integers(1, 1500)),
        st.tuples(st.just("sync"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=8,
)


@given(script=_WRITES, seed=st.integers(0, 1 << 32))
def test_every_sector_is_the_synced_content_or_one_written_since(
    script: list[tuple[str, int, int]], seed: int
) -> None:
    files = FaultyFiles()
    file = files.create("file", 4096)
    moments = [bytes(4096)]
    for turn, (kind, offset, size) in enumerate(script):
        if kind == "sync":
            file.sync()
            moments = moments[-1:]
        else:
            file.pwrite(bytes([turn + 1]) * size, offset)
            moments.append(files.read("file"))
    image = files.crash_image(seed).read("file")
    assert len(image) == 4096
    for number in range(8):
        assert _sector(image, number) in {_sector(moment, number) for moment in moments}
    assert files.crash_image(none=True).read("file") == moments[0]
    assert files.crash_image(all=True).read("file") == moments[-1]
    assert files.crash_image(seed).read("file") == image


@given(
    script=st.lists(
        st.tuples(
            st.sampled_from(["write", "truncate", "sync"]),
            st.integers(0, 2500),
            st.integers(1, 900),
        ),
        min_size=1,
        max_size=8,
    ),
    seed=st.integers(0, 1 << 32),
)
def test_with_truncations_a_sector_is_the_start_of_one_of_its_moments(
    script: list[tuple[str, int, int]], seed: int
) -> None:
    files = FaultyFiles()
    file = files.create("file", 1024)
    moments = [bytes(1024)]
    for turn, (kind, offset, size) in enumerate(script):
        if kind == "sync":
            file.sync()
            moments = moments[-1:]
        elif kind == "truncate":
            file.truncate(offset)
            moments.append(files.read("file"))
        else:
            file.pwrite(bytes([turn + 1]) * size, offset)
            moments.append(files.read("file"))
    image = files.crash_image(seed).read("file")
    assert min(map(len, moments)) <= len(image) <= max(map(len, moments))
    assert files.crash_image(none=True).read("file") == moments[0]
    assert files.crash_image(all=True).read("file") == moments[-1]
    for number in range(len(image) // SECTOR + 1):
        sector = image[number * SECTOR : (number + 1) * SECTOR]
        start = sector.rstrip(b"\0")
        assert any(_sector(moment, number).startswith(start) for moment in moments)


def test_sectors_of_one_write_are_lost_independently() -> None:
    files = FaultyFiles()
    file = files.create("file", 4 * SECTOR)
    file.pwrite(b"n" * 4 * SECTOR, 0)
    seen = {
        tuple(image[at] == ord("n") for at in range(0, len(image), SECTOR))
        for image in _images(files, "file", range(300))
    }
    assert len(seen) == 16


def test_an_overwritten_sector_may_keep_the_write_between() -> None:
    files = FaultyFiles()
    file = files.create("file", SECTOR)
    for letter in b"abc":
        file.pwrite(bytes([letter]) * SECTOR, 0)
    assert {image[:1] for image in _images(files, "file")} == {b"\0", b"a", b"b", b"c"}


def test_a_sector_never_mixes_what_was_never_together() -> None:
    files = FaultyFiles()
    file = files.create("file", SECTOR)
    file.pwrite(b"a" * 10, 0)
    file.pwrite(b"b" * 10, 10)
    seen = {image[:20] for image in _images(files, "file")}
    assert seen == {bytes(20), b"a" * 10 + bytes(10), b"a" * 10 + b"b" * 10}


def test_synced_content_always_survives() -> None:
    files = FaultyFiles()
    file = files.create("file", 2048)
    file.pwrite(b"safe" * 100, 700)
    file.sync()
    expected = files.read("file")
    file.pwrite(b"?" * 100, 0)
    for image in _images(files, "file"):
        assert image[SECTOR:] == expected[SECTOR:]


def test_growth_may_lose_data_below_a_size_that_was_kept_and_the_other_way_round() -> None:
    files = FaultyFiles()
    file = files.create("file")
    file.pwrite(b"n" * 1024, 0)
    seen = _images(files, "file", range(300))
    assert {b"", bytes(1024), b"n" * 1024, b"n" * 512, bytes(512) + b"n" * 512} <= seen


def test_a_truncation_happens_or_not() -> None:
    files = FaultyFiles()
    files.write("file", b"o" * 1024)
    files.open("file").truncate(100)
    assert _images(files, "file") == {b"o" * 1024, b"o" * 100}


def test_what_was_written_after_a_lost_truncation_is_not_mixed_with_what_it_cut() -> None:
    files = FaultyFiles()
    files.write("file", b"o" * 1024)
    file = files.open("file")
    file.truncate(0)
    file.pwrite(b"n" * 600, 0)
    for image in _images(files, "file", range(200)):
        assert len(image) == 1024 or b"o" not in image
        assert len(image) != 1024 or b"n" not in image


def test_a_failed_sync_is_not_repaired_by_the_next_one() -> None:
    files = FaultyFiles()
    file = files.create("file", 1024)
    file.pwrite(b"n" * 1024, 0)
    files.fail(1, errno.EIO, kind="sync")
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.sync()
    assert files.read("file") == b"n" * 1024
    assert files.crash_image(none=True).read("file") == bytes(1024)
    assert {bytes(1024), b"n" * 1024} <= _images(files, "file")


def test_after_a_failed_sync_only_what_is_written_again_becomes_durable() -> None:
    files = FaultyFiles()
    file = files.create("file", 1024)
    file.pwrite(b"n" * 1500, 0)
    files.fail(1, errno.EIO, kind="sync")
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.pwrite(b"again", 512)
    file.sync()
    synced = files.crash_image(none=True).read("file")
    assert synced == bytes(512) + b"again" + b"n" * 507 + bytes(476)
    file.pwrite(files.read("file"), 0)
    file.sync()
    assert files.crash_image(none=True).read("file") == files.read("file")
    assert _images(files, "file") == {files.read("file")}


def test_a_failed_sync_survives_the_death_of_its_process() -> None:
    files = FaultyFiles()
    file = files.create("file", 512)
    file.pwrite(b"n" * 512, 0)
    files.fail(1, errno.EIO, kind="sync")
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    next_process = files.crash_image(all=True)
    assert next_process.read("file") == b"n" * 512
    next_process.open("file").sync()
    assert next_process.crash_image(none=True).read("file") == bytes(512)


# Names. The steps of the disk itself, without the syncs that DurableFiles adds.


def _contents(files: FaultyFiles, directory: str = "") -> tuple[tuple[str, bytes], ...]:
    start = f"{directory}/" if directory else ""
    names = [name for name in files._disk.list(directory) if files._names.seen[start + name]]
    return tuple((name, _read(files, start + name)) for name in sorted(names))


def _read(files: FaultyFiles, path: str) -> bytes:
    file = files._disk.open(path, writable=False)
    return file.pread(file.size(), 0)


def _synced_file(files: FaultyFiles, path: str, content: bytes) -> File:
    file = files._disk.create(path)
    file.pwrite(content, 0)
    file.sync()
    return file


def test_changes_of_one_directory_happen_in_order() -> None:
    files = FaultyFiles()
    disk = files._disk
    files.write("kept", b"0")
    states = [_contents(files)]
    steps: list[Callable[[], object]] = [
        lambda: _synced_file(files, "a", b""),
        lambda: disk.rename("a", "b"),
        lambda: disk.remove("kept"),
        lambda: _synced_file(files, "kept", b""),
        lambda: disk.rename("b", "kept"),
        lambda: _synced_file(files, "b", b""),
    ]
    for step in steps:
        step()
        states.append(_contents(files))
    images = {_contents(files.crash_image(seed)) for seed in range(200)}
    assert images == set(states)
    disk.sync_dir("")
    assert {_contents(files.crash_image(seed)) for seed in SEEDS} == {states[-1]}


def test_directories_lose_their_changes_independently() -> None:
    files = FaultyFiles()
    files.makedirs("a")
    files.makedirs("b")
    for name in ("a/1", "b/1", "a/2", "b/2"):
        _synced_file(files, name, b"")
    images = [files.crash_image(seed) for seed in range(200)]
    seen = {(len(image.list("a")), len(image.list("b"))) for image in images}
    assert seen == {(a, b) for a in range(3) for b in range(3)}
    assert all(image.list("a") in ([], ["1"], ["1", "2"]) for image in images)


def test_a_rename_between_directories_happens_in_both_or_in_neither() -> None:
    files = FaultyFiles()
    files.makedirs("a")
    files.makedirs("b")
    _synced_file(files, "a/x", b"content")
    files._disk.sync_dir("a")
    _synced_file(files, "b/before", b"")
    files._disk.rename("a/x", "b/y")
    places = set()
    for seed in range(100):
        image = files.crash_image(seed)
        places.add((tuple(image.list("a")), tuple(image.list("b"))))
    assert places == {
        (("x",), ()),
        (("x",), ("before",)),
        ((), ("before", "y")),
    }
    # Syncing one end drags along what must have happened before at the other.
    files._disk.sync_dir("a")
    assert files.crash_image(none=True).list("b") == ["before", "y"]


def test_nothing_that_followed_a_lost_rename_happens_in_either_directory() -> None:
    files = FaultyFiles()
    files.makedirs("a")
    files.makedirs("b")
    _synced_file(files, "a/x", b"content")
    files._disk.sync_dir("a")
    files._disk.rename("a/x", "b/y")
    _synced_file(files, "a/after", b"")
    _synced_file(files, "b/after", b"")
    places = set()
    for seed in range(200):
        image = files.crash_image(seed)
        places.add((tuple(image.list("a")), tuple(image.list("b"))))
    assert places == {
        (("x",), ()),
        ((), ("y",)),
        (("after",), ("y",)),
        ((), ("after", "y")),
        (("after",), ("after", "y")),
    }


def test_a_file_in_a_lost_directory_is_lost_even_if_synced() -> None:
    files = FaultyFiles()
    files._disk.mkdir("dir")
    _synced_file(files, "dir/file", b"synced")
    files._disk.sync_dir("dir")
    lists = {(tuple(i.list("")), tuple(i.list("dir"))) for i in map(files.crash_image, SEEDS)}
    assert lists == {((), ()), (("dir",), ("file",))}


def test_a_synced_file_without_a_synced_name_may_vanish_and_a_name_may_lack_its_content() -> None:
    files = FaultyFiles()
    _synced_file(files, "synced", b"content")
    assert files.crash_image(none=True).list("") == []
    other = FaultyFiles()
    other._disk.create("named").pwrite(b"content", 0)
    other._disk.sync_dir("")
    assert other.crash_image(none=True).read("named") == b""


def test_a_removed_file_may_come_back_with_its_content() -> None:
    files = FaultyFiles()
    files.write("file", b"old")
    files._disk.remove("file")
    _synced_file(files, "file", b"new")
    seen = {_contents(files.crash_image(seed)) for seed in SEEDS}
    assert seen == {(("file", b"old"),), (), (("file", b"new"),)}


def test_an_open_file_outlives_its_name() -> None:
    files = FaultyFiles()
    file = files.create("file", 4)
    files.remove("file")
    file.pwrite(b"data", 0)
    assert file.pread(4, 0) == b"data"
    assert files.crash_image(all=True).list("") == []
