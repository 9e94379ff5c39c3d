"""System nodes, tokens and commit times."""

from __future__ import annotations

import random
from typing import Any

import pytest

from halocline.errors import CorruptionError, UsageError
from halocline.log.record import decode_body, encode_body
from halocline.options import Options
from halocline.rows.engine import TIMES_MIN, EngineState, Times
from halocline.rows.system import EpochNode, FloorNode, JobNode
from halocline.rows.tokens import SEQUENCES_MAX, Serials, Tokens, check_token
from tests.unit.rows.rig import KEYED, entry_of

NODES = [
    EpochNode(epoch=3, ts_ceiling=2**40, rowid_ceiling=2**50),
    EpochNode(epoch=3, ts_ceiling=7, rowid_ceiling=9, closed=True),
    FloorNode(floor=12),
    JobNode(job_id=5, table_id=2, first_rowid=100, rows=1 << 20, lease_us=10**15),
    JobNode(job_id=5, table_id=2, ended=True),
]


@pytest.mark.parametrize("node", NODES, ids=repr)
def test_a_system_node_comes_back_as_it_went(node: EpochNode | FloorNode | JobNode) -> None:
    payload = encode_body(node)
    assert payload[:1] == b"\x01"
    assert decode_body(payload, type(node)) == node  # type: ignore[type-var]
    assert decode_body(memoryview(payload), type(node)) == node  # type: ignore[type-var]


@pytest.mark.parametrize("node", NODES, ids=repr)
def test_mutated_system_nodes_are_corruption_or_a_node(
    node: EpochNode | FloorNode | JobNode,
) -> None:
    payload = encode_body(node)
    rng = random.Random(1)
    for end in range(len(payload)):
        with pytest.raises(CorruptionError):
            decode_body(payload[:end], type(node))  # type: ignore[type-var]
    for _ in range(500):
        data = bytearray(payload)
        data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found: Any = decode_body(bytes(data), type(node))  # type: ignore[type-var]
            assert isinstance(found, type(node))
        except CorruptionError:
            pass
    for hostile in (
        b"",
        b"\x02" + payload[1:],
        b"\x01",
        b"\x01\x90",
        b"\x01\x80",
        payload + b"\x00",
    ):
        with pytest.raises(CorruptionError):
            decode_body(hostile, type(node))  # type: ignore[type-var]


def test_times_find_the_newest_commit_at_a_moment() -> None:
    times = Times()
    assert (times.at(10**18), times.wall_of(5)) == (0, 0)
    for ts, wall in ((1, 100), (2, 100), (5, 200), (9, 300)):
        times.extend([ts], [wall])
    assert [times.at(wall) for wall in (0, 99, 100, 199, 200, 299, 300, 10**18)] == [
        *(0, 0, 2, 2, 5, 5, 9, 9),
    ]
    assert [times.wall_of(ts) for ts in (0, 1, 2, 3, 5, 9, 10)] == [
        100,
        100,
        100,
        100,
        200,
        300,
        300,
    ]


def test_commit_times_below_the_floor_are_forgotten_when_there_are_many() -> None:
    times = Times()
    for ts in range(1, 3 * TIMES_MIN):
        times.extend([2 * ts], [10 * ts])
    assert times.since(100) is times, "too few to be worth it"
    floor = 4 * TIMES_MIN + 1
    kept = times.since(floor)
    assert len(kept.stamps) < len(times.stamps) // 2
    for ts in range(floor, 6 * TIMES_MIN + 5):
        assert kept.wall_of(ts) == times.wall_of(ts)
        assert kept.at(5 * ts) == times.at(5 * ts)
    assert kept.at(10) == 0, "nobody may ask for that any more"
    assert kept.wall_of(2) == times.wall_of(floor)


def test_a_plain_token_is_known_until_it_expires() -> None:
    tokens = Tokens()
    assert tokens.find("a") == 0
    tokens.add("a", 5, 1000)
    tokens.add("b", 6, 2000)
    assert (tokens.find("a"), tokens.find("b"), tokens.find("c")) == (5, 6, 0)
    assert tokens.expire(1000) == 0
    assert tokens.expire(1001) == 1
    assert (tokens.find("a"), tokens.find("b")) == (0, 6)


def test_of_an_application_the_newest_version_is_known_for_ever() -> None:
    tokens = Tokens()
    assert tokens.find(("app", 0)) == 0
    tokens.add(("app", 3), 5, 1000)
    assert [tokens.find(("app", version)) for version in (0, 2, 3, 4)] == [5, 5, 5, 0]
    tokens.add(("app", 10), 8, 2000)
    assert [tokens.find(("app", version)) for version in (3, 10, 11)] == [8, 8, 0]
    assert tokens.find(("other", 1)) == 0
    assert tokens.find("app") == 0
    assert tokens.expire(10**18) == 0
    assert tokens.find(("app", 10)) == 8


def test_tokens_in_canonical_form() -> None:
    assert check_token(None) is None
    assert check_token("x" * 1024) == "x" * 1024
    assert check_token(("app", 0)) == check_token(["app", 0]) == ("app", 0)
    assert check_token(("app", 2**63 - 1)) == ("app", 2**63 - 1)
    bad: Any
    for bad in ("", "x" * 1025, b"x", 5, ("app",), ("app", -1), ("app", 2**63), ("app", 1.0), {}):
        with pytest.raises(UsageError):
            check_token(bad)


def test_an_epoch_starts_above_what_the_one_before_was_promised() -> None:
    engine = EngineState(Options())
    state = engine.add_table(entry_of(*KEYED["int"]))
    engine.open_epoch(EpochNode(epoch=1, ts_ceiling=100, rowid_ceiling=1000))
    assert state.next_rowid == 1
    engine.open_epoch(EpochNode(epoch=1, ts_ceiling=200, rowid_ceiling=2000))
    assert state.next_rowid == 1, "a block more for the same epoch"
    engine.open_epoch(EpochNode(epoch=2, ts_ceiling=300, rowid_ceiling=3000))
    assert (state.next_rowid, engine.first_rowid) == (2001, 2001)
    assert (engine.ts_ceiling, engine.rowid_ceiling, engine.epoch) == (300, 3000, 2)


def test_a_job_reserves_its_row_ids() -> None:
    engine = EngineState(Options())
    state = engine.add_table(entry_of(*KEYED["int"]))
    job = JobNode(job_id=4, table_id=1, first_rowid=50, rows=100)
    engine.start_job(job)
    assert (engine.jobs, state.next_rowid) == ({4: job}, 150)
    engine.start_job(JobNode(job_id=4, table_id=1, ended=True))
    assert (engine.jobs, state.next_rowid) == ({}, 150)
    engine.start_job(JobNode(job_id=5, table_id=99, first_rowid=1, rows=1))
    assert 5 in engine.jobs


def test_a_serial_is_known_when_its_sequence_has_come_so_far() -> None:
    serials = Serials()
    assert serials.find((7, 1)) == 0
    serials.add((7, 1), 5)
    serials.add((8, 4), 6)
    serials.add((7, 2), 9)
    assert [serials.find((7, number)) for number in (1, 2, 3)] == [9, 9, 0]
    assert serials.find((8, 4)) == 6
    serials.add((0, 0), 10)
    assert serials.find((0, 0)) == 0, "that is no serial"
    assert serials.written_down() == [(8, 4, 6), (7, 2, 9)]
    again = Serials()
    again.restore(serials.written_down())
    assert again.written_down() == serials.written_down()


def test_sequences_that_nobody_uses_any_more_are_forgotten() -> None:
    serials = Serials()
    for number in range(1, SEQUENCES_MAX + 11):
        serials.add((number, 1), number)
        serials.add((1, number), number)
    assert len(serials.written_down()) == SEQUENCES_MAX
    assert serials.find((1, SEQUENCES_MAX + 10))
    assert not serials.find((2, 1))
    assert serials.find((SEQUENCES_MAX, 1))
