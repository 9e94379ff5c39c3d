"""Places: where a log can be read from, and what that spares an opening."""

from __future__ import annotations

import pytest

from halocline.errors import CorruptionError
from halocline.log import Follower, Log, Place, recover
from halocline.log.follow import LogGone
from halocline.log.format import CKP
from halocline.log.names import path_of
from halocline.log.recover import read_log
from tests.store.faulty import FaultyFiles
from tests.unit.log.rig import TINY, commit, payload, put, start


def filled(commits: int = 60, noted: int = 35) -> tuple[FaultyFiles, list[bytes], Place]:
    """A closed log of some files, and the place in front of one of its commits."""
    files = FaultyFiles()
    log, _ = start(files)
    sent = []
    for number in range(1, commits + 1):
        if number == noted:
            place = log.places.here()
            log.places.note(place, number - 1)
        sent.append(payload(number))
        commit(log, sent[-1], number)
    commit(log, b"checkpoint", group=3, type=CKP)
    log.close()
    return files, [*sent, b"checkpoint"], place


def test_a_commit_lies_behind_the_last_place_before_it() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    orders = {}
    for number in range(1, 80):
        if number % 7 == 0:
            log.places.note(log.places.here(), number - 1)
        orders[number] = commit(log, payload(number), number)
    for ts, order in orders.items():
        _, place = log.places.before(ts)
        assert place.order <= order
        _, later = log.places.before(ts + 1)
        assert later.order >= place.order
        assert log.places.file_of(order) >= place.number
    assert log.places.before(80)[1].order > orders[76], "the last place that was noted"
    log.close()


def test_bytes_are_counted_across_files() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    first = log.places.here()
    assert log.places.bytes_since(first) == 0
    for number in range(1, 60):
        commit(log, payload(number), number)
    here = log.places.here()
    assert here.number > first.number + 2
    ends = [span.end for span in read_log(files, TINY).spans]
    assert log.places.bytes_since(first) == sum(ends) - first.offset
    assert log.places.bytes_since(here) == 0
    log.close()


def test_reading_goes_on_from_a_place_in_the_middle_of_a_file() -> None:
    files, sent, place = filled()
    recovery = recover(files, options=TINY, clock=None, start=place)  # type: ignore[arg-type]
    assert place.offset > 512
    assert [entry.payload for entry in recovery.entries()] == sent[34:]
    assert recovery.first_order == place.order
    whole = read_log(files, TINY)
    assert (whole.tail, whole.spans[-1]) == (recovery.tail, recovery.spans[-1])
    assert [span.header.number for span in recovery.spans] == [s.header.number for s in whole.spans]


def test_files_in_front_of_the_place_are_not_read() -> None:
    """G-02: an opening costs checkpoint and tail, not history."""
    files, sent, place = filled()
    assert place.number > 2
    put(files, 1, 600, b"damage in front of the place")
    with pytest.raises(CorruptionError):
        read_log(files, TINY)
    done = len(files.operations)
    recovery = read_log(files, TINY, place)
    assert [entry.payload for entry in recovery.entries()] == sent[34:]
    long = [
        operation
        for operation in files.operations[done:]
        if operation.kind == "read" and operation.size > 512
    ]
    assert {operation.path for operation in long} >= {path_of(place.number)}
    assert not {operation.path for operation in long} & {path_of(1), path_of(2)}


def test_a_new_epoch_goes_on_behind_a_place() -> None:
    files, sent, place = filled()
    recovery = recover(files, options=TINY, clock=None, start=place)  # type: ignore[arg-type]
    log = Log.start(files, recovery, options=TINY, clock=None)  # type: ignore[arg-type]
    log.places.learn([(34, place)], 60)
    assert log.places.before(61)[1].number == recovery.tail.number + 1
    assert log.places.before(60) == (34, place)
    commit(log, payload(61), 61)
    log.truncate_before(place.number)
    log.close()
    again = read_log(files, TINY)
    assert again.spans[0].header.number == place.number
    assert [e.payload for e in read_log(files, TINY, place).entries()] == [*sent[34:], payload(61)]


@pytest.mark.parametrize(
    "change", [{"crc": 5}, {"order": 3}, {"offset": 520}, {"epoch": 9}, {"number": 99}]
)
def test_a_place_of_another_log_is_corruption(change: dict[str, int]) -> None:
    files, _, place = filled()
    with pytest.raises(CorruptionError):
        list(read_log(files, TINY, place._replace(**change)).entries())


def test_a_follower_begins_at_a_place() -> None:
    files, sent, place = filled()
    log, _ = start(files)
    follower = Follower(files, start=place)
    assert [entry.payload for entry in follower.poll()] == sent[34:]
    commit(log, b"more", 61)
    assert [entry.payload for entry in follower.poll()] == [b"more"]
    log.truncate_before(place.number + 1)
    with pytest.raises(LogGone):
        list(Follower(files, start=place).poll())
    log.close()


def test_the_tail_behind_a_place_is_repaired_like_any_other() -> None:
    files = FaultyFiles()
    log, _ = start(files)
    for number in range(1, 4):
        commit(log, payload(number), number)
    place = log.places.here()
    commit(log, b"checkpoint", group=3, type=CKP)
    end = log.places.here().offset
    log.close()
    put(files, 1, end, b"\x01" * 20)  # an entry whose mark never arrived
    recovery = recover(files, options=TINY, clock=None, start=place)  # type: ignore[arg-type]
    assert [entry.payload for entry in recovery.entries()] == [b"checkpoint"]
    assert recovery.cut_bytes == 20
    assert not files.read(path_of(1))[end:].strip(b"\0")
