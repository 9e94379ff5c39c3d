"""Following: only what is published, across files and restarts; the shared page; reading alone."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from halocline.clock import SystemClock
from halocline.errors import CorruptionError
from halocline.log import Follower
from halocline.log.follow import LogGone
from halocline.log.format import AC, CKP, SECTOR
from halocline.log.names import path_of
from halocline.log.published import (
    FencedError,
    PublishedPage,
    Publisher,
    claim,
    decode_page,
    read_published,
)
from halocline.log.recover import read_log
from halocline.store import LocalFiles
from tests.store.faulty import FaultyFiles
from tests.unit.log.rig import (
    ROOMY,
    commit,
    image,
    payload,
    payloads,
    places,
    put,
    recovered,
    start,
)

UUID = bytes(range(16))


def _orders(follower: Follower) -> list[int]:
    return [entry.order for entry in follower.poll()]


def test_a_follower_sees_what_was_synced_and_nothing_else() -> None:
    files = FaultyFiles()
    follower = Follower(files)
    assert _orders(follower) == []
    log, _ = start(files, ROOMY)
    assert _orders(follower) == []
    commit(log, payload(1), 10)
    log.reserve(100)
    order = log.append(1, AC, payload(2), 20)
    log._tape.write()
    assert [entry.payload for entry in follower.poll()] == [payload(1)]
    assert follower.visible_ts == 10
    log.wait(order)
    assert [entry.payload for entry in follower.poll()] == [payload(2)]
    assert follower.visible_ts == 20
    assert _orders(follower) == []


def test_async_commits_reach_followers_only_after_a_sync() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY, "async")
    follower = Follower(files)
    order = commit(log, payload(1), 5)
    assert (log.visible_ts, _orders(follower), follower.visible_ts) == (5, [], 0)
    log.sync(order)
    assert _orders(follower) == [1]
    assert follower.visible_ts == 5
    log.close()


@pytest.mark.parametrize("every", [1, 3, 100])
def test_a_follower_crosses_files_and_epochs(every: int) -> None:
    files = FaultyFiles()
    follower = Follower(files)
    seen: list[int] = []
    sent = 0
    for _epoch in (1, 2, 3):
        log, _ = start(files)
        for size in (100, 700, 0, 3000, 60, 60, 9000, 200) * 2:
            sent += 1
            commit(log, payload(sent, size), sent)
            if sent % every == 0:
                seen += _orders(follower)
                assert seen == list(range(1, sent + 1))
        log.close()
    seen += _orders(follower)
    assert seen == list(range(1, sent + 1))
    assert follower.visible_ts == sent
    follower.close()


def test_a_poll_that_is_left_goes_on_behind_the_last_entry() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    for number in range(1, 30):
        commit(log, payload(number, 200), number)
    follower = Follower(files)
    seen = []
    while True:
        entry = next(follower.poll(), None)
        if entry is None:
            break
        seen.append(entry.order)
        assert follower.visible_ts == 0 or len(seen) == 29
    assert seen == list(range(1, 30))


def test_a_restart_after_a_cut_never_takes_anything_back() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    commit(log, payload(1), 1)
    follower = Follower(files)
    assert _orders(follower) == [1]
    log.reserve(300)
    log.append(1, AC, payload(2, 300), 2)
    log._tape.write()
    begin, end = places(image(files, 1), 2)[1]
    put(files, 1, end - 1, b"\0")
    log, recovery = start(files, ROOMY)
    assert recovery.cut_bytes == end - 1 - begin
    commit(log, payload(9), 2)
    assert [(one.order, one.payload, one.epoch) for one in follower.poll()] == [(2, payload(9), 2)]


def test_a_follower_whose_next_file_is_gone_must_reload() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    commit(log, payload(1), 1)
    follower = Follower(files)
    assert _orders(follower) == [1]
    while log.places.file_of(1 << 62) < 4:
        commit(log, payload(2, 300))
    commit(log, b"checkpoint", group=3, type=CKP)
    log.truncate_before(4)
    with pytest.raises(LogGone) as caught:
        _orders(follower)
    assert caught.value.order == 2


def test_a_follower_can_begin_in_the_middle() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    for number in range(1, 40):
        commit(log, payload(number, 200), number)
    assert _orders(Follower(files, start_order=20)) == list(range(20, 40))
    assert _orders(Follower(files, start_order=40)) == []
    commit(log, b"checkpoint", group=3, type=CKP)
    log.truncate_before(3)
    first = recovered(files.crash_image(all=True)).first_order
    assert 1 < first < 40
    assert _orders(Follower(files, start_order=first)) == list(range(first, 41))
    assert _orders(Follower(files)) == list(range(first, 41))
    with pytest.raises(LogGone):
        _orders(Follower(files, start_order=first - 1))


def test_a_reader_goes_on_from_where_it_read_alone() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY, "async")
    for number in range(1, 6):
        commit(log, payload(number), number)
    killed = files.crash_image(all=True)
    looked = read_log(killed, ROOMY)
    assert payloads(looked) == [payload(number) for number in range(1, 6)]
    follower = Follower(killed, after=looked)
    assert _orders(follower) == []
    second, _ = start(killed, ROOMY)
    commit(second, payload(6), 6)
    assert _orders(follower) == [6]
    log.close()


def test_another_database_in_the_same_place_is_noticed() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    commit(log, payload(1))
    follower = Follower(files)
    assert _orders(follower) == [1]
    Publisher(files, UUID, 1).publish(1, 600, 1)
    with pytest.raises(LogGone):
        _orders(follower)


def test_damage_below_the_published_position_is_corruption() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    commit(log, payload(1))
    put(files, 1, SECTOR + 50, b"?")
    with pytest.raises(CorruptionError):
        _orders(Follower(files))


def test_a_reader_in_another_mapping_sees_the_writer(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    log, _ = start(files)
    follower = Follower(LocalFiles(tmp_path))
    for number in range(1, 40):
        commit(log, payload(number, 150), number)
        assert _orders(follower) == [number]
    log.close()
    follower.close()
    assert follower.visible_ts == 39


def test_following_beside_a_writer_is_gapless(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    log, _ = start(files)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(1, 151):
                commit(log, payload(number, 150), number)
        except BaseException as error:
            failures.append(error)
            raise

    writer = threading.Thread(target=write)
    writer.start()
    follower = Follower(LocalFiles(tmp_path))
    seen: list[int] = []
    while len(seen) < 150 and not failures:
        seen += _orders(follower)
        assert follower.visible_ts <= len(seen)
    writer.join()
    log.close()
    assert failures == []
    assert seen == list(range(1, 151))


def test_the_page_is_written_and_read(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.makedirs("")
    assert read_published(files) is None
    publisher = Publisher(files, UUID, 3)
    assert read_published(files) is None
    publisher.publish(7, 4096, 55)
    found = read_published(files)
    assert found is not None
    assert found[0] == UUID
    assert found[2:6] == (3, 7, 4096, 55)
    publisher.publish(7, 5000, 54)
    found = read_published(files)
    assert found is not None
    assert found[2:6] == (3, 7, 5000, 55)
    publisher.close()


def test_a_torn_page_is_no_position() -> None:
    files = FaultyFiles()
    publisher = Publisher(files, UUID, 1)
    publisher.publish(1, 600, 5)
    page = files.page("published", 160, writable=True)
    whole = bytes(page[8:84])
    publisher.publish(2, 700, 6)
    newer = bytes(page[8:84])
    assert decode_page(whole) is not None
    for cut in range(77):
        mixed = newer[:cut] + whole[cut:]
        found = decode_page(mixed)
        assert found is None or mixed in (whole, newer)
        if found is not None:
            assert (found.file, found.offset) in {(1, 600), (2, 700)}
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        assert decode_page(bytes(damaged)) is None
    page[8:84] = newer[:40] + whole[40:]
    page[84:160] = newer[:20] + whole[20:]
    assert PublishedPage(files).read() is None


class Stopped:
    """A page whose writer stops for ever after so many bytes of its next publication."""

    def __init__(self, page: Any, bytes_left: int) -> None:
        self._page = page
        self._left = bytes_left

    def keep(self, whole: bytes) -> None:
        """The first bytes of what the writer wrote, in its order; the rest as it was."""
        for at in (8, 84):
            part = min(self._left, 76)
            self._page[at : at + part] = whole[at : at + part]
            self._left -= part


@pytest.mark.parametrize("written", range(0, 153, 4))
def test_a_writer_that_stops_inside_the_page_hides_nothing(written: int) -> None:
    """What was published before is still there, whatever became of the next position."""
    files = FaultyFiles()
    publisher = Publisher(files, UUID, 1)
    publisher.publish(1, 600, 5)
    reader = PublishedPage(files)
    page = files.page("published", 160, writable=True)
    before = bytes(page[0:160])
    publisher.publish(2, 700, 6)
    after = bytes(page[0:160])
    page[0:160] = before
    Stopped(page, written).keep(after)
    found = reader.read()
    assert found is not None
    assert (found.file, found.offset) in {(1, 600), (2, 700)}
    if written >= 76:
        assert found.file == 2
    # The next writer goes on from there: neither number falls.
    again = Publisher(files, UUID, 2)
    again.publish(3, 800, 1)
    last = reader.read()
    assert last is not None
    assert last.sequence > found.sequence
    assert last.visible_ts == found.visible_ts


def test_no_epoch_uses_a_number_again_even_if_the_page_was_lost() -> None:
    """A follower that had come to number 3 would take the next writer's third for its own."""
    files = FaultyFiles()
    numbers = []
    for epoch in (1, 2):
        publisher = Publisher(files, UUID, epoch)
        for offset in (600, 700, 800):
            publisher.publish(1, offset, 5)
            position = publisher.copy()[1]
            assert position is not None
            numbers.append(position.sequence)
        page = files.page("published", 160, writable=True)
        page[8:160] = bytes(152)
    assert len(set(numbers)) == 6


def test_a_copy_of_the_page_says_nothing_to_readers_and_is_written_over(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.makedirs("")
    claim(files, SystemClock())
    publisher = Publisher(files, UUID, 3)
    publisher.publish(7, 4096, 55)
    old = PublishedPage(files)
    shutil.copy(tmp_path / "published", tmp_path / "copy")
    publisher.publish(7, 5000, 56)
    (tmp_path / "copy").rename(tmp_path / "published")
    assert PublishedPage(files).read() is None
    assert not old.is_there()
    publisher.mend()
    new, given_up = PublishedPage(files).read(), old.read()
    assert new is not None
    assert new[3:6] == (7, 5000, 56)
    assert given_up is not None
    assert given_up.file == 0
    publisher.publish(7, 6000, 57)
    publisher.close()


@pytest.mark.parametrize("size", [0, 1, 20, 100])
def test_a_page_that_was_cut_says_nothing_and_is_written_again(tmp_path: Path, size: int) -> None:
    files = LocalFiles(tmp_path)
    files.makedirs("")
    claim(files, SystemClock())
    publisher = Publisher(files, UUID, 3)
    publisher.publish(7, 4096, 55)
    reader = PublishedPage(files)
    os.truncate(tmp_path / "published", size)
    found = reader.read()
    assert found is None or found.offset == 4096
    publisher.mend()
    found = reader.read()
    assert found is not None
    assert found.offset == 4096
    claim(files, SystemClock())
    with pytest.raises(FencedError):
        publisher.publish(7, 5000, 56)
    publisher.close()


def test_a_reader_never_sees_a_mixture() -> None:
    files = FaultyFiles()
    files.makedirs("")
    publisher = Publisher(files, UUID, 1)
    reader = PublishedPage(files)
    done = threading.Event()

    def write() -> None:
        for number in range(1, 20_000):
            publisher.publish(number, number * 2, number * 3)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    last = 0
    while not done.is_set():
        found = reader.read()
        if found is not None:
            assert (found.offset, found.visible_ts) == (found.file * 2, found.file * 3)
            assert found.file >= last
            last = found.file
    writer.join()


def test_a_page_of_the_old_epoch_stays_true_until_the_new_one_speaks() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    commit(log, payload(1), 7)
    log.close()
    follower = Follower(files)
    assert _orders(follower) == [1]
    recovered(files)
    assert (follower.visible_ts, _orders(follower)) == (7, [])
    start(files)
    assert _orders(follower) == []
    assert follower.visible_ts == 7
    assert files.exists(path_of(2))
