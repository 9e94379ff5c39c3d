"""Torn or corrupt: what a crash may leave is cut, what it cannot leave is refused."""

from __future__ import annotations

import errno
import random

import pytest

from halocline.errors import CorruptionError
from halocline.log.format import AC, SECTOR, Entry
from halocline.log.names import log_numbers, path_of
from halocline.log.recover import _survey, read_log
from tests.store.faulty import FaultyFiles
from tests.unit.log.rig import (
    ROOMY,
    TINY,
    commit,
    entries_of,
    image,
    payload,
    payloads,
    places,
    put,
    recovered,
    start,
)

KINDS = (
    lambda draw: draw.randbytes(draw.randrange(20, 200)),
    lambda draw: draw.randbytes(draw.randrange(200, 900)),
    lambda draw: draw.randbytes(30) + bytes(draw.randrange(300, 1100)) + draw.randbytes(9),
)


def _content(draw: random.Random) -> bytes:
    return draw.choice(KINDS)(draw)


def _written(seed: int, count: int, *, close: bool = True) -> FaultyFiles:
    """A log of several files and epochs, all of it synced; nothing published to fall back on."""
    draw = random.Random(seed)
    files = FaultyFiles()
    for part in range(2):
        log, _ = start(files)
        for _ in range(count // 2):
            commit(log, _content(draw))
        if part or close:
            log.close()
    files.remove("published")
    return files


def _copy(files: FaultyFiles) -> FaultyFiles:
    return files.crash_image(none=True)


def _meaningful(files: FaultyFiles) -> dict[int, set[int]]:
    """Bytes of every file that carry meaning: all that is written, without padding."""
    recovery = read_log(files, TINY)
    found: dict[int, set[int]] = {}
    for position, span in enumerate(recovery.spans):
        rest = recovery.spans[position + 1 :]
        last = rest[0].header.first_order if rest else recovery.next_order
        number = span.header.number
        bytes_of = set(range(SECTOR))
        for begin, end in places(image(files, number), last - span.header.first_order):
            bytes_of.update(range(begin, end))
        assert max(bytes_of) < span.end
        found[number] = bytes_of
    return found


def _outcome(files: FaultyFiles) -> list[Entry] | None:
    try:
        # What `recover` and `read_log` both begin with; the latter looks three times.
        return list(_survey(files, TINY, None)[0].entries())
    except CorruptionError:
        return None


@pytest.mark.slow
def test_10000_flipped_bits_are_corruption_or_lie_in_padding() -> None:
    draw = random.Random(11)
    flips = harmless = 0
    for seed in range(5):
        files = _written(seed, 6)
        expected = _outcome(files)
        assert expected is not None
        meaning = _meaningful(files)
        places_ = [
            (number, offset)
            for number, bytes_of in meaning.items()
            for offset in range(max(bytes_of) + 1)
        ]
        for number, offset in draw.sample(places_, 2000):
            byte = image(files, number)[offset]
            put(files, number, offset, bytes([byte ^ (1 << draw.randrange(8))]))
            found = _outcome(files)
            put(files, number, offset, bytes([byte]))
            flips += 1
            if offset in meaning[number]:
                assert found is None, (seed, number, offset)
            else:
                harmless += 1
                assert found == expected, (seed, number, offset)
        assert _outcome(files) == expected
    assert flips == 10_000
    assert harmless < 300


def test_every_bit_of_the_last_entry_is_guarded() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    for number in range(3):
        commit(log, payload(number, 60))
    log.close()
    files.remove("published")
    begin, end = places(image(files, 1), 3)[-1]
    for offset in range(begin, end):
        byte = image(files, 1)[offset]
        for bit in range(8):
            put(files, 1, offset, bytes([byte ^ (1 << bit)]))
            assert _outcome(files) is None, (offset, bit)
        put(files, 1, offset, bytes([byte]))
    assert len(_outcome(files) or []) == 3


@pytest.mark.parametrize(
    "last",
    [payload(9, 60), payload(9, 700), b"", b"\x01" + bytes(1100), bytes(600) + b"end", bytes(40)],
    ids=["short", "long", "empty", "zeros inside", "zeros first", "only zeros"],
)
def test_a_write_torn_at_every_byte_of_the_last_entry_is_cut(last: bytes) -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    for number in range(3):
        commit(log, payload(number, 150))
    log.wait(log._next.order - 1)
    before = _copy(files)
    commit(log, last)
    whole = image(files, 1)
    before.remove("published")
    begin, end = places(whole, 4)[-1]
    for cut in range(begin, end):
        torn = _copy(before)
        put(torn, 1, begin, whole[begin:cut])
        recovery = recovered(torn, ROOMY)
        assert payloads(recovery) == [payload(number, 150) for number in range(3)], cut
        # A payload that ends in zeros is torn before its last byte differs from zero.
        assert not any(image(torn, 1)[begin:]), cut
    complete = _copy(before)
    put(complete, 1, begin, whole[begin:end])
    assert payloads(recovered(complete, ROOMY))[-1] == last


@pytest.mark.parametrize("seed", range(150))
def test_lost_sectors_of_an_unsynced_group_are_never_refused_and_never_lose_more(seed: int) -> None:
    draw = random.Random(seed)
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    wanted = [_content(draw) for _ in range(draw.randrange(1, 12))]
    synced = draw.randrange(len(wanted) + 1)
    for one in wanted[:synced]:
        commit(log, one)
    base = image(files, 1)
    for one in wanted[synced:]:
        log.reserve(len(one))
        log.append(1, AC, one)
    log._tape.write()
    written = image(files, 1)
    # As the disk stands when the power fails: any subset of the sectors that were not synced.
    for _ in range(8):
        image_ = bytearray(written)
        for at in range(0, len(written), SECTOR):
            if draw.random() < 0.5:
                image_[at : at + SECTOR] = base[at : at + SECTOR]
        after = _copy(files)
        put(after, 1, 0, bytes(image_))
        found = payloads(recovered(after, ROOMY))
        assert found == wanted[: len(found)], seed
        assert len(found) >= synced, seed
        assert payloads(recovered(after, ROOMY)) == found, seed


def test_an_old_entry_never_comes_back_to_life_after_a_cut() -> None:
    """A hole in front of entries that survived: they are gone, whatever is written next."""
    for new_size in range(10, 400, 13):
        files = FaultyFiles()
        log, _ = start(files, ROOMY)
        commit(log, payload(0))
        for number in (1, 2, 3, 4):
            log.reserve(200)
            log.append(1, AC, payload(number, 200), number)
        log._tape.write()
        after = files.crash_image(all=True)
        begin, end = places(image(after, 1), 2)[1]
        put(after, 1, begin, bytes(end - begin))
        log, recovery = start(after, ROOMY)
        assert payloads(recovery) == [payload(0)]
        assert recovery.cut_bytes > 0
        new = [payload(7, new_size), payload(8, 200)]
        for one in new:
            commit(log, one)
        log.close()
        assert payloads(recovered(after, ROOMY)) == [payload(0), *new]


def test_old_bytes_that_come_back_behind_the_end_of_a_sealed_file_are_not_read() -> None:
    """Even if the zeroing of the cut is undone, the next file's header says where to stop."""
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    for number in range(3):
        commit(log, payload(number))
    torn = image(files, 1)
    begin, end = places(torn, 3)[-1]
    put(files, 1, begin, bytes(end - begin))
    files.remove("published")
    log, recovery = start(files, ROOMY)
    assert payloads(recovery) == [payload(0), payload(1)]
    commit(log, payload(7))
    log.close()
    put(files, 1, begin, torn[begin:end])
    assert payloads(recovered(files, ROOMY)) == [payload(0), payload(1), payload(7)]


def test_a_durable_entry_that_is_zeroed_is_corruption_because_a_later_one_knows_it() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    for number in range(8):
        commit(log, payload(number))
    log.close()
    files.remove("published")
    data = image(files, 1)
    spots = places(data, 8)
    for begin, end in spots[:-1]:
        put(files, 1, begin, bytes(end - begin))
        with pytest.raises(CorruptionError, match="was durable"):
            recovered(files, ROOMY)
        put(files, 1, begin, data[begin:end])
    assert len(entries_of(files)) == 8


def test_a_durable_file_header_that_is_zeroed_is_corruption() -> None:
    files = FaultyFiles()
    for _ in range(2):
        log, _ = start(files)
        for number in range(20):
            commit(log, payload(number))
        log.close()
    files.remove("published")
    for number in log_numbers(files):
        head = image(files, number)[:SECTOR]
        put(files, number, 0, bytes(SECTOR))
        with pytest.raises(CorruptionError):
            recovered(files)
        put(files, number, 0, head)
    assert _outcome(files) is not None


@pytest.mark.parametrize("which", ["first of many", "middle"])
def test_a_missing_file_is_corruption(which: str) -> None:
    files = _written(4, 12)
    numbers = log_numbers(files)
    assert len(numbers) > 3
    files.remove(path_of(numbers[0] if which == "first of many" else numbers[2]))
    with pytest.raises(CorruptionError):
        list(recovered(files).entries(start_order=1))


def test_the_last_file_missing_or_cut_short_is_found_by_the_published_position() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    while log.places.file_of(1 << 62) < 3:
        commit(log, payload(1, 200))
    log.close()
    gone = files.crash_image(all=True)
    gone.remove(path_of(3))
    page = bytes(files.page("published", 160, writable=False)[0:160])
    gone.page("published", 160, writable=True)[0:160] = page
    with pytest.raises(CorruptionError, match="durable further"):
        recovered(gone)
    short = _copy(files)
    file = short.open(path_of(3))
    file.truncate(1024)
    file.sync()
    with pytest.raises(CorruptionError, match="shorter"):
        recovered(short)


def test_a_log_that_vanished_whole_is_corruption_while_it_is_known() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    commit(log, b"x")
    log.close()
    files.remove(path_of(1))
    with pytest.raises(CorruptionError):
        recovered(files)


@pytest.mark.parametrize("damage", ["zeroed", "flipped", "cut off"])
def test_a_sealed_file_must_be_whole(damage: str) -> None:
    files = _written(5, 12)
    spans = recovered(files).spans
    firsts = [span.header.first_order for span in spans]
    which = next(n for n in range(len(spans) - 1) if firsts[n + 1] > firsts[n])
    number, count = spans[which].header.number, firsts[which + 1] - firsts[which]
    data = image(files, number)
    begin, end = places(data, count)[-1]
    if damage == "zeroed":
        put(files, number, begin, bytes(end - begin))
    elif damage == "flipped":
        put(files, number, begin + 40, bytes([data[begin + 40] ^ 4]))
    else:
        file = files.open(path_of(number))
        file.truncate(begin)
        file.sync()
    with pytest.raises(CorruptionError):
        recovered(files)


def test_files_of_another_database_are_refused() -> None:
    files, other = _written(6, 8), FaultyFiles()
    log, _ = start(other)
    log.uuid = bytes(16)
    log.close()
    numbers = log_numbers(files)
    mixed = image(files, numbers[-1])
    swapped = bytearray(mixed)
    swapped[:SECTOR] = image(other, 1)[:SECTOR]
    put(files, numbers[-1], 0, bytes(swapped))
    with pytest.raises(CorruptionError, match=r"misnamed|another database"):
        recovered(files)


def test_exchanged_files_are_refused() -> None:
    files = _written(7, 12)
    one, two = log_numbers(files)[:2]
    first, second = image(files, one), image(files, two)
    files.write(path_of(one), second)
    files.write(path_of(two), first)
    with pytest.raises(CorruptionError, match="misnamed"):
        recovered(files)


def test_leftovers_of_spare_files_are_harmless_and_go_away() -> None:
    for leftover in (b"", bytes(100), bytes(4096), bytes(512) + b"\x01" * 50 + bytes(1000)):
        files = FaultyFiles()
        log, _ = start(files)
        commit(log, payload(1))
        files.create(path_of(2)).pwrite(leftover, 0)
        files.create(path_of(3), 2048)
        recovery = recovered(files.crash_image(all=True))
        assert payloads(recovery) == [payload(1)]
        assert log_numbers(recovery.files) == [1]


def test_a_next_file_with_a_header_and_no_entry_is_fine() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    commit(log, payload(1, 500))
    log.reserve(1200)
    log._tape.write()
    assert log.places.file_of(2) == 2
    for seed in range(10):
        assert payloads(recovered(files.crash_image(seed))) == [payload(1, 500)]
    log, recovery = start(files.crash_image(all=True))
    assert recovery.tail.number == 2
    commit(log, payload(2))
    assert payloads(read_log(recovery.files, TINY)) == [payload(1, 500), payload(2)]


def test_read_log_changes_nothing() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    commit(log, payload(0))
    log.reserve(300)
    log.append(1, AC, payload(1, 300))
    log._tape.write()
    begin, end = places(image(files, 1), 2)[-1]
    put(files, 1, end - 1, b"\0")
    before = len(files.operations)
    recovery = read_log(files, ROOMY)
    assert payloads(recovery) == [payload(0)]
    assert recovery.cut_bytes == end - 1 - recovery.tail.offset
    assert not recovery.repaired
    assert {one.kind for one in files.operations[before:]} <= {"read", "list"}
    assert image(files, 1)[begin]


def test_recovery_makes_the_tail_durable_after_a_failed_sync() -> None:
    """The kernel shows bytes that never reached the disk; they are written again before use."""
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    commit(log, payload(0))
    files.fail(1, errno.EIO, kind="sync")
    log.reserve(100)
    order = log.append(1, AC, payload(1))
    with pytest.raises(Exception, match="stopped"):
        log.wait(order)
    killed = files.crash_image(all=True)
    found = payloads(recovered(killed, ROOMY))
    assert found == [payload(0), payload(1)]
    assert payloads(recovered(killed.crash_image(none=True), ROOMY)) == found


def test_what_follows_a_hole_goes_with_it_in_async_mode() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY, "async")
    for number in range(10):
        commit(log, payload(number, 400))
    data = image(files, 1)
    begin, _ = places(data, 10)[4]
    hole = begin - begin % SECTOR
    after = files.crash_image(all=True)
    put(after, 1, hole, bytes(SECTOR))
    found = payloads(recovered(after, ROOMY))
    assert found == [payload(number, 400) for number in range(len(found))]
    assert 3 <= len(found) <= 4
    log.close()
