"""Appending: order, files that grow and roll, space, durability modes, truncation."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from halocline.errors import CorruptionError, UnavailableError, UsageError
from halocline.log import Log
from halocline.log.format import AC, CKP, PAYLOAD_BYTES_MAX, SECTOR
from halocline.log.names import log_numbers, path_of
from halocline.log.published import read_published
from halocline.log.recover import read_log
from halocline.options import Options
from halocline.store import LocalFiles
from tests.clock import ManualClock
from tests.store.faulty import FaultyFiles
from tests.unit.log.rig import (
    ROOMY,
    TINY,
    commit,
    entries_of,
    image,
    payload,
    payloads,
    recovered,
    start,
)


def _count(files: FaultyFiles, kind: str) -> int:
    return sum(operation.kind == kind for operation in files.operations)


def test_a_new_database_has_an_empty_log() -> None:
    recovery = recovered(FaultyFiles())
    assert (recovery.epoch, recovery.next_order, list(recovery.entries())) == (0, 1, [])
    assert len(recovery.uuid) == 16


def test_w01_l03_one_log_holds_commits_parts_and_system_entries() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    for group in (1, 2, 3, 1):
        commit(log, b"x", group=group)
    log.close()
    assert [entry.group for entry in entries_of(files)] == [1, 2, 3, 1]


def test_w07_lsns_are_gapless_per_group_and_orders_over_the_whole_log() -> None:
    files = FaultyFiles()
    groups = [1, 1, 2, 3, 2, 1, 3, 3, 2, 1] * 6
    for part in (groups[:25], groups[25:]):
        log, _ = start(files)
        for group in part:
            commit(log, payload(group, 90), group=group)
        log.close()
    found = entries_of(files)
    assert [entry.order for entry in found] == list(range(1, len(groups) + 1))
    for group in (1, 2, 3):
        lsns = [entry.lsn for entry in found if entry.group == group]
        assert lsns == list(range(1, groups.count(group) + 1))
    assert len(log_numbers(files)) > 3


def test_w07_lsns_go_on_after_the_files_that_held_them_are_gone() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    commit(log, b"part", group=2)
    while log.places.file_of(1 << 62) < 3:
        commit(log, payload(1, 200))
    commit(log, b"checkpoint", group=3, type=CKP)
    log.truncate_before(3)
    log.close()
    log, _ = start(files)
    commit(log, b"part", group=2)
    log.close()
    assert [entry.lsn for entry in entries_of(files) if entry.group == 2] == [2]


def test_w02_nothing_is_visible_before_it_is_durable() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    log.reserve(10)
    order = log.append(1, AC, b"x", 5)
    assert log.visible_ts == 0
    files.delay(1, lambda: seen.append(log.visible_ts), kind="sync")
    seen: list[int] = []
    log.wait(order)
    assert seen == [0]
    assert log.visible_ts == 5


def test_w02_an_entry_appended_while_the_leader_works_waits_for_the_next_sync() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    log.reserve(10)
    first = log.append(1, AC, b"first", 1)
    files.delay(1, lambda: log.append(1, AC, b"second", 2), kind="sync")
    log.wait(first)
    assert log.visible_ts == 1
    assert [entry.payload for entry in read_log(files, ROOMY).entries()] == [b"first"]
    log.wait(first + 1)
    assert log.visible_ts == 2


def test_w03_a_transaction_that_only_reserved_causes_no_io() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    before = len(files.operations)
    log.reserve(100)
    log.reserve(200)
    assert len(files.operations) == before


def test_w21_a_lone_commit_is_one_write_and_one_sync() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    before = len(files.operations)
    commit(log, payload(1))
    assert [one.kind for one in files.operations[before:]] == ["write", "sync"]


def test_w22_entries_have_one_total_order() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    orders = [commit(log, payload(number)) for number in range(10)]
    log.close()
    assert orders == list(range(1, 11))
    assert payloads(recovered(files)) == [payload(number) for number in range(10)]


def test_files_double_up_to_the_limit_and_every_epoch_starts_small_again() -> None:
    files = FaultyFiles()
    options = Options(log_file_bytes_first=2048, log_file_bytes=8192)
    log, _ = start(files, options)
    while log.places.file_of(1 << 62) < 5:
        commit(log, payload(1, 300))
    log.close()
    sizes = [len(image(files, number)) for number in log_numbers(files)]
    assert sizes == [2048, 4096, 8192, 8192, 8192]
    start(files, options)
    assert len(image(files, 6)) == 2048


@pytest.mark.parametrize("size", [1, 1400, 5000, 20_000, 300_000])
def test_an_entry_larger_than_a_file_gets_a_file_of_its_own_size(size: int) -> None:
    files = FaultyFiles()
    log, _ = start(files)
    wanted = [payload(1), payload(2, size), bytes(size), payload(3)]
    for one in wanted:
        commit(log, one)
    log.close()
    assert payloads(recovered(files)) == wanted
    assert payloads(recovered(files)) == wanted


def test_a_spare_that_is_too_small_is_passed_over() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    for number in range(3):
        commit(log, payload(number, 150))
    assert log_numbers(files) == [1, 2]  # The spare is there: the first file is half full.
    commit(log, payload(9, 30_000))
    commit(log, payload(10, 10))
    log.close()
    assert [entry.order for entry in entries_of(files)] == list(range(1, 6))
    assert len(image(files, 3)) > 30_000


def test_the_spare_is_made_ahead_and_given_back_at_close() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    assert log_numbers(files) == [1]
    for number in range(3):
        commit(log, payload(number, 150))
    assert log_numbers(files) == [1, 2]
    assert not any(image(files, 2))
    log.close()
    assert log_numbers(files) == [1]


def test_a_sealed_file_gives_its_unused_end_back() -> None:
    files = FaultyFiles()
    options = Options(log_file_bytes_first=1 << 18, log_file_bytes=1 << 18)
    for epoch in range(3):
        log, recovery = start(files, options)
        assert recovery.epoch == epoch
        commit(log, payload(epoch))
        log.close()
    assert [len(image(files, number)) for number in (1, 2, 3)] == [1024, 1024, 1 << 18]
    assert payloads(recovered(files)) == [payload(number) for number in range(3)]


def test_a_full_disk_fails_in_reserve_and_later_goes_on() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    files.fail(1, errno.ENOSPC, kind="create", times=10_000)
    number = 0
    while log._next.offset + 200 + 700 < 2048:
        commit(log, payload(number, 200), number + 1)
        number += 1
    for _ in range(3):
        with pytest.raises(UnavailableError) as caught:
            log.reserve(200)
        assert caught.value.outcome == "not_committed"
    assert log.failed is None
    assert log.visible_ts == number > 0
    assert log_numbers(files) == [1]
    files.clear()
    for more in range(number, number + 20):
        commit(log, payload(more, 200), more + 1)
    log.close()
    assert payloads(recovered(files)) == [payload(one, 200) for one in range(number + 20)]


@pytest.mark.parametrize("kind", ["write", "sync", "sync_dir"])
def test_a_file_that_cannot_be_made_leaves_nothing_behind(kind: str) -> None:
    files = FaultyFiles()
    log, _ = start(files)
    commit(log, payload(0))
    files.fail(1, errno.ENOSPC, kind=kind, path="log")
    with pytest.raises(UnavailableError, match="no room"):
        log.reserve(50_000)
    assert log_numbers(files) == [1]
    log.reserve(50_000)
    log.wait(log.append(1, AC, payload(1, 50_000)))
    log.close()
    assert payloads(recovered(files)) == [payload(0), payload(1, 50_000)]


def test_a_spare_that_cannot_be_made_is_no_error_until_it_is_needed() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    files.fail(1, errno.ENOSPC, kind="create")
    for number in range(20):
        commit(log, payload(number, 150))
    assert log.failed is None
    log.close()
    assert payloads(recovered(files)) == [payload(number, 150) for number in range(20)]


def test_reserve_leaves_room_for_one_system_entry() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    for number in range(60):
        log.reserve(137)
        log.append(3, AC, payload(number, 512))
        log.wait(log.append(1, AC, payload(number, 137)))
    log.close()
    assert len(entries_of(files)) == 120


def test_an_append_without_a_reservation_is_refused_and_harmless() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    with pytest.raises(UsageError, match="not reserved"):
        log.append(1, AC, bytes(5000))
    commit(log, b"x")
    log.close()
    assert [(one.order, one.payload) for one in entries_of(files)] == [(1, b"x")]


def test_payloads_are_bounded() -> None:
    log, _ = start(FaultyFiles())
    with pytest.raises(UsageError):
        log.reserve(PAYLOAD_BYTES_MAX + 1)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_copied(kind: type) -> None:
    files = FaultyFiles()
    log, _ = start(files)
    source = bytearray(b"abc")
    log.reserve(3)
    order = log.append(1, AC, kind(source))
    source[:] = b"xyz"
    log.wait(order)
    log.close()
    assert [entry.payload for entry in entries_of(files)] == [b"abc"]


def test_every_opening_is_a_new_epoch_in_a_new_file() -> None:
    files = FaultyFiles()
    for epoch in (1, 2, 3):
        log, recovery = start(files)
        assert (recovery.epoch, log.epoch) == (epoch - 1, epoch)
        commit(log, payload(epoch))
        log.close()
    assert [entry.epoch for entry in entries_of(files)] == [1, 2, 3]
    assert log_numbers(files) == [1, 2, 3]


def test_the_uuid_stays_and_a_log_that_was_only_looked_at_cannot_be_written() -> None:
    files = FaultyFiles()
    log, recovery = start(files)
    log.close()
    assert recovered(files).uuid == recovery.uuid == log.uuid
    with pytest.raises(UsageError, match="recover"):
        Log.start(files, read_log(files, TINY), options=TINY, clock=ManualClock())


def test_one_recovery_starts_one_log() -> None:
    files = FaultyFiles()
    _, recovery = start(files)
    with pytest.raises(UsageError, match="already"):
        Log.start(files, recovery, options=TINY, clock=ManualClock())


def test_a_full_disk_at_start_is_unavailable() -> None:
    files = FaultyFiles()
    recovery = recovered(files)
    files.fail(1, errno.ENOSPC, kind="create")
    with pytest.raises(UnavailableError):
        Log.start(files, recovery, options=TINY, clock=ManualClock())
    log, _ = start(files)
    commit(log, b"x")


def test_w16_restart_begins_at_the_last_checkpoint() -> None:
    """CKP at entry 11 covers 1..10: replay starts there."""
    files = FaultyFiles()
    log, _ = start(files)
    for number in range(1, 11):
        commit(log, payload(number))
    assert commit(log, b"covers up to 10", group=3, type=CKP) == 11
    for number in range(12, 15):
        commit(log, payload(number))
    log.close()
    recovery = recovered(files)
    assert recovery.checkpoint is not None
    assert (recovery.checkpoint.order, recovery.checkpoint.payload) == (11, b"covers up to 10")
    assert [one.order for one in recovery.entries(start_order=11)] == [11, 12, 13, 14]
    assert [one.order for one in recovery.entries(start_order=14)] == [14]
    assert list(recovery.entries(start_order=15)) == []


def test_w19_truncation_deletes_whole_files_oldest_first() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    while log.places.file_of(1 << 62) < 5:
        commit(log, payload(1, 200))
    last = commit(log, b"checkpoint", group=3, type=CKP)
    first_kept = next(order for order in range(1, 1000) if log.places.file_of(order) == 4)
    before = len(files.operations)
    log.truncate_before(4)
    removed = [one.path for one in files.operations[before:] if one.kind == "remove"]
    assert removed == [path_of(1), path_of(2), path_of(3)]
    assert log.places.file_of(1) == 4
    log.truncate_before(100)
    assert log_numbers(files)[0] == 5
    log.close()
    recovery = recovered(files)
    assert recovery.first_order > first_kept
    assert [one.order for one in recovery.entries()] == list(range(recovery.first_order, last + 1))
    with pytest.raises(CorruptionError, match="missing"):
        list(recovery.entries(start_order=1))


def test_w19_nothing_is_deleted_without_a_durable_checkpoint_behind_it() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    while log.places.file_of(1 << 62) < 3:
        commit(log, payload(1, 200))
    log.truncate_before(3)
    assert log_numbers(files)[0] == 1
    log.reserve(20)
    order = log.append(3, CKP, b"checkpoint")
    log.truncate_before(3)
    assert log_numbers(files)[0] == 1
    log.wait(order)
    while log.places.file_of(1 << 62) < 5:
        commit(log, payload(1, 200))
    log.truncate_before(5)
    assert log_numbers(files)[0] == log.places.file_of(order) < 5
    log.close()
    # The next epoch remembers the checkpoint.
    log, recovery = start(files)
    assert recovery.checkpoint is not None
    log.truncate_before(1000)
    assert log_numbers(files)[0] == log.places.file_of(order)


def test_w19_a_beginning_that_nobody_gave_up_is_a_lost_file() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    while log.places.file_of(1 << 62) < 3:
        commit(log, payload(1, 200))
    log.close()
    files.remove(path_of(1))
    with pytest.raises(CorruptionError, match="missing"):
        recovered(files)


def test_w20_several_databases_are_independent_log_spaces(tmp_path: Path) -> None:
    logs = [start(LocalFiles(tmp_path / name))[0] for name in ("a", "b")]
    for number in range(30):
        commit(logs[number % 2], payload(number), number + 1)
    logs[0].poison(RuntimeError("only a"))
    commit(logs[1], payload(30), 31)
    for log in logs:
        log.close()
    assert [log.visible_ts for log in logs] == [29, 31]
    for which, name in enumerate(("a", "b")):
        found = payloads(recovered(LocalFiles(tmp_path / name)))
        last = 30 + which
        assert found == [payload(number) for number in range(which, last, 2)] + (
            [payload(30)] if which else []
        )


def test_async_gives_every_commit_to_the_operating_system_without_a_sync() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY, "async")
    before = _count(files, "sync")
    for number in range(20):
        commit(log, payload(number), number + 1)
        assert log.visible_ts == number + 1
    assert _count(files, "sync") == before
    assert payloads(recovered(files.crash_image(all=True))) == [payload(n) for n in range(20)]
    published = read_published(files)
    assert published is not None
    assert (published.offset, published.visible_ts) == (SECTOR, 0)
    log.close()
    published = read_published(files)
    assert published is not None
    assert published.visible_ts == 20
    assert len(payloads(recovered(files.crash_image(none=True)))) == 20


def test_async_syncs_by_itself_soon() -> None:
    files = FaultyFiles()
    log, _ = start(files, Options(async_sync_ms=1), "async")
    order = commit(log, b"x", 1)
    # `sync` would do it too; the flusher must come without being asked.
    while log._tape.durable < order:
        assert log.failed is None
    assert len(payloads(recovered(files.crash_image(none=True)))) == 1
    log.close()


def test_async_makes_the_writer_sync_when_too_much_is_unsynced() -> None:
    files = FaultyFiles()
    log, _ = start(files, Options(async_sync_ms=10**9, log_buffer_bytes=1000), "async")
    before = _count(files, "sync")
    for number in range(20):
        commit(log, payload(number))
    assert 1 <= _count(files, "sync") - before <= 3
    log.close()


def test_async_can_be_made_durable_on_demand() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY, "async")
    order = commit(log, b"x", 1)
    log.sync(order)
    assert len(payloads(recovered(files.crash_image(none=True)))) == 1
    log.close()


def test_closing_twice_is_harmless_and_using_a_closed_log_is_refused() -> None:
    log, _ = start(FaultyFiles())
    log.close()
    log.close()
    with pytest.raises(UnavailableError, match="closed") as caught:
        log.reserve(1)
    assert caught.value.outcome == "not_committed"


def test_set_visible_is_published_and_never_shrinks() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    log.set_visible(50)
    assert log.visible_ts == 50
    commit(log, b"system", group=3)
    published = read_published(files)
    assert published is not None
    assert published.visible_ts == 50
    log.close()
    log, _ = start(files)
    published = read_published(files)
    assert published is not None
    assert (published.visible_ts, published.epoch) == (50, 2)


def test_async_a_thread_that_need_not_lead_any_more_hands_on_the_lead() -> None:
    """`wait_visible` waits for an order that is taken, and reached a moment later by its append."""
    files = FaultyFiles()
    log, _ = start(files, ROOMY, "async")
    line = log._line
    assert line.enter(0) is None, "this thread leads"
    reached = log._reached
    returned, ends = threading.Event(), threading.Event()

    def wait() -> None:
        log.wait(reached + 1)
        returned.set()
        ends.wait(60)  # its number is not given to the next thread before

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    while not line._waiting:  # until it has parked
        pass
    log.reserve(100)
    log.append(1, AC, payload(1), 1)
    line.leave(reached)  # what was reached when the leader looked: the other one is to lead
    assert returned.wait(60)
    closing = threading.Thread(target=log.close, daemon=True)
    closing.start()
    closing.join(60)
    ends.set()
    assert not closing.is_alive(), "nobody leads, and the next one waits for ever"
