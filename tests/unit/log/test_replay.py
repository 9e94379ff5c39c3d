"""From entries to transactions: W-06, W-08, W-09, W-15, and what must never be delivered."""

from __future__ import annotations

import pytest

from halocline.errors import CorruptionError
from halocline.log import (
    AC,
    CKP,
    EPOCH,
    NO_PREVIOUS,
    PC,
    RB,
    UC,
    Entry,
    encode_payload,
    transactions,
)
from halocline.log.replay import Parts
from halocline.store.faulty import FaultyFiles
from tests.unit.log.rig import recovered, start

Previous = tuple[int, int] | None


class Script:
    """Entries written down by hand, with LSNs and orders as the log would give them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._lsns = {1: 0, 2: 0, 3: 0}

    def add(
        self, group: int, type: int, txn_id: int, name: str, prev: Previous = None, epoch: int = 1
    ) -> tuple[int, int]:
        self._lsns[group] += 1
        nodes = [(1, name.encode())] if name else []
        data = bytes(encode_payload(txn_id, b"info", nodes, prev=prev))
        lsn, order = self._lsns[group], len(self.entries) + 1
        self.entries.append(Entry(group, lsn, type, order, data, epoch))
        return group, lsn

    def delivered(self) -> list[tuple[int, list[str]]]:
        return [
            (one.txn_id, [body.decode() for _, body in one.nodes])
            for one in transactions(self.entries)
        ]


def test_w08_six_committed_transactions() -> None:
    """T1=E[2,1]<-E[1,5]; T2=E[1,1]; T3=E[1,2]; T4=E[2,2]<-E[1,4]; T5=E[1,3]; T6 has two parts."""
    script = Script()
    assert script.add(1, AC, 2, "t2") == (1, 1)
    assert script.add(1, AC, 3, "t3") == (1, 2)
    t1 = script.add(2, UC, 1, "t1-1", NO_PREVIOUS)
    assert script.add(1, AC, 5, "t5") == (1, 3)
    t4 = script.add(2, UC, 4, "t4-1", NO_PREVIOUS)
    assert script.add(1, PC, 4, "t4-2", t4) == (1, 4)
    assert script.add(1, PC, 1, "t1-2", t1) == (1, 5)
    first = script.add(2, UC, 6, "t6-1", NO_PREVIOUS)
    second = script.add(2, UC, 6, "t6-2", first)
    assert script.add(1, PC, 6, "t6-3", second) == (1, 6)
    assert (t1, t4, first, second) == ((2, 1), (2, 2), (2, 3), (2, 4))
    assert script.delivered() == [
        (2, ["t2"]),
        (3, ["t3"]),
        (5, ["t5"]),
        (4, ["t4-1", "t4-2"]),
        (1, ["t1-1", "t1-2"]),
        (6, ["t6-1", "t6-2", "t6-3"]),
    ]


def test_w08_the_same_through_a_real_log() -> None:
    files = FaultyFiles()
    log, _ = start(files)

    def write(group: int, type: int, txn_id: int, prev: Previous = None) -> None:
        data = encode_payload(txn_id, b"", [(1, b"n")], prev=prev)
        log.reserve(len(data))
        log.wait(log.append(group, type, data))

    write(1, AC, 2)
    write(1, AC, 3)
    write(2, UC, 1, NO_PREVIOUS)
    write(1, AC, 5)
    write(2, UC, 4, NO_PREVIOUS)
    write(1, PC, 4, (2, 2))
    write(1, PC, 1, (2, 1))
    write(2, UC, 6, NO_PREVIOUS)
    write(2, UC, 6, (2, 3))
    write(1, PC, 6, (2, 4))
    log.close()
    found = list(recovered(files).entries())
    in_group_1 = [(one.lsn, one.order) for one in found if one.group == 1]
    assert in_group_1 == [(1, 1), (2, 2), (3, 4), (4, 6), (5, 7), (6, 10)]
    records = list(transactions(found))
    assert [(one.txn_id, len(one.nodes)) for one in records] == [
        (2, 1),
        (3, 1),
        (5, 1),
        (4, 2),
        (1, 2),
        (6, 3),
    ]


def test_w09_nodes_of_all_parts_are_numbered_through() -> None:
    script = Script()
    first = script.add(2, UC, 6, "E6-1", NO_PREVIOUS)
    second = script.add(2, UC, 6, "E6-2", first)
    script.add(1, PC, 6, "E6-3", second)
    assert script.delivered() == [(6, ["E6-1", "E6-2", "E6-3"])]


def test_w15_a_rolled_back_transaction_is_dropped_with_its_parts() -> None:
    script = Script()
    part = script.add(2, UC, 2, "t2", NO_PREVIOUS)
    script.add(1, AC, 1, "t1")
    script.add(1, RB, 2, "", part)
    script.add(1, AC, 3, "t3")
    assert script.delivered() == [(1, ["t1"]), (3, ["t3"])]


def test_w15_a_rollback_without_parts_was_never_written() -> None:
    script = Script()
    script.add(1, RB, 2, "", NO_PREVIOUS)
    with pytest.raises(CorruptionError):
        script.delivered()


def test_w06_a_last_part_follows_at_least_one_other() -> None:
    script = Script()
    script.add(1, PC, 2, "t2", NO_PREVIOUS)
    with pytest.raises(CorruptionError):
        script.delivered()


def test_w06_a_transaction_that_never_ended_is_dropped() -> None:
    script = Script()
    script.add(1, AC, 1, "t1")
    script.add(2, UC, 2, "t2", NO_PREVIOUS)
    assert script.delivered() == [(1, ["t1"])]


def test_a_missing_part_is_corruption_never_half_a_transaction() -> None:
    script = Script()
    script.add(2, UC, 2, "t2-1", NO_PREVIOUS)
    script.add(1, PC, 2, "t2-3", (2, 2))
    with pytest.raises(CorruptionError, match="needs part"):
        script.delivered()


def test_a_part_of_another_transaction_is_corruption() -> None:
    script = Script()
    part = script.add(2, UC, 2, "t2-1", NO_PREVIOUS)
    script.add(1, PC, 3, "t3", part)
    with pytest.raises(CorruptionError):
        script.delivered()


def test_a_part_is_used_once() -> None:
    script = Script()
    part = script.add(2, UC, 2, "t2-1", NO_PREVIOUS)
    script.add(1, PC, 2, "t2-2", part)
    script.add(1, PC, 2, "t2-2", part)
    with pytest.raises(CorruptionError):
        script.delivered()


def test_a_chain_that_points_at_itself_ends_in_an_error() -> None:
    script = Script()
    script.add(2, UC, 2, "t2", (2, 1))
    script.add(1, PC, 2, "t2", (2, 1))
    with pytest.raises(CorruptionError):
        script.delivered()


def test_a_new_epoch_cannot_end_a_transaction_of_the_old_one() -> None:
    script = Script()
    part = script.add(2, UC, 2, "old", NO_PREVIOUS, epoch=1)
    script.add(1, PC, 2, "new", part, epoch=2)
    with pytest.raises(CorruptionError):
        script.delivered()


@pytest.mark.parametrize(("group", "type"), [(1, UC), (2, AC), (2, PC), (1, CKP), (1, 0x33)])
def test_types_in_the_wrong_group_are_corruption(group: int, type: int) -> None:
    script = Script()
    script.add(group, type, 1, "x", NO_PREVIOUS)
    with pytest.raises(CorruptionError):
        script.delivered()


def test_w16_system_entries_are_delivered_in_order() -> None:
    script = Script()
    script.add(1, AC, 1, "t1")
    script.add(3, CKP, 0, "checkpoint")
    script.add(1, AC, 2, "t2")
    found = [(one.group, one.type, one.order) for one in transactions(script.entries)]
    assert found == [(1, AC, 1), (3, CKP, 2), (1, AC, 3)]


def test_system_nodes_come_with_their_type() -> None:
    data = bytes(encode_payload(0, b"", [(EPOCH, b"e")]))
    (found,) = transactions([Entry(3, 1, AC, 1, data, 1)])
    assert found.nodes == [(EPOCH, b"e")]


def test_a_transaction_may_end_in_a_later_poll() -> None:
    script = Script()
    part = script.add(2, UC, 6, "a", NO_PREVIOUS)
    script.add(1, PC, 6, "b", part)
    parts: Parts = {}
    assert list(transactions(script.entries[:1], parts)) == []
    (found,) = transactions(script.entries[1:], parts)
    assert [body for _, body in found.nodes] == [b"a", b"b"]
    assert parts == {}
