"""Single rows of one moment: one entry of the log, and a transaction each for everybody who looks.

at_once     the request loop waits for the disk while others come: all of them are its next turn
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.errors import UnavailableError
from halocline.log import Follower, Log
from halocline.log.record import DML_A, DML_U, decode_record
from halocline.node import wire
from halocline.node.logtail import read_message
from halocline.node.wire import Commit, frame
from halocline.schema.codec import encode as encode_rows
from halocline.store import LocalFiles
from tests.node.test_logtail import read_since
from tests.node.test_request_loop import WAIT_S, caller, row_record, said, slow_disk
from tests.roles import committer_of, maintenance_of
from tests.unit.rows.rig import commit_together

OPTIONS = hc.Options(background=False, page_rows=4)
COLUMNS = {"id": int, "text": str}
TABLES = {"other": COLUMNS}


@pytest.fixture
def db(owner: hc.Database) -> hc.Database:
    return owner


def insert(db: hc.Database, key: int, table: str = "t", snapshot: int | None = None) -> bytes:
    return _commit(db, DML_A, table, encode_rows([(key, f"row {key}")]), snapshot)


def update(db: hc.Database, key: int, text: str) -> bytes:
    state = _state(db, "t")
    body = encode_rows(((state.schema.columns[1].id,), (state.tree.newest(key),), [(key, text)]))
    return _commit(db, DML_U, "t", body, None)


def _commit(db: hc.Database, kind: int, table: str, body: bytes, snapshot: int | None) -> bytes:
    record = row_record(kind, _state(db, table).table_id, body)
    return frame(Commit(db.visible_ts if snapshot is None else snapshot, 0, record, None, True))


def _state(db: hc.Database, table: str) -> Any:
    (state,) = [one for one in db.core.engine.tables.values() if one.entry.name == table]
    return state


def at_once(
    db: hc.Database, frames: Sequence[bytes], monkeypatch: pytest.MonkeyPatch
) -> list[list[Any]]:
    """The answers to requests that the request loop finds all at the same time."""
    with ExitStack() as stack, slow_disk(monkeypatch) as (began, go_on):
        first, *rest = [stack.enter_context(caller(db)) for _ in range(len(frames) + 1)]
        first.sock.sendall(insert(db, -1))
        assert began.wait(WAIT_S)
        for channel, data in zip(rest, frames, strict=True):
            channel.sock.sendall(data)
        go_on.set()
        assert said(first)[0] == "done"
        return [said(channel) for channel in rest]


def entries(db: hc.Database) -> list[int]:
    """The entries of the log that hold several transactions."""
    follower = Follower(LocalFiles(db.path))
    records = [decode_record(entry) for entry in follower.poll()]
    follower.close()
    return [one.order for one in records if one.info is not None and one.info.commits > 1]


def ids(db: hc.Database, at: int | None = None, table: str = "t") -> list[int]:
    with db.begin(at=at) as txn:
        return sorted(txn.scan(table).column("id").to_pylist())


# -- what they are -------------------------------------------------------------------------------


def test_rows_of_one_turn_are_one_entry_and_a_transaction_each(
    db: hc.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hc.open(db.path, options=OPTIONS) as node:
        assert ids(node) == []
        answers = at_once(db, [insert(db, key) for key in range(6)], monkeypatch)
        stamps = [ts for _, ts in answers]
        assert sorted(stamps) == list(range(min(stamps), min(stamps) + 6))
        assert len(entries(db)) == 1
        shutil.copytree(db.path, tmp_path / "killed", ignore=shutil.ignore_patterns("*.sock"))
        with hc.open(tmp_path / "killed", options=OPTIONS) as again:
            for place in (db, node, again):
                assert ids(place) == [-1, *range(6)]
                for key, ts in enumerate(stamps):
                    seen = [other for other, when in enumerate(stamps) if when <= ts]
                    assert ids(place, at=ts) == [-1, *seen]
                    with place.begin(at=ts) as txn:
                        assert txn.get("t", key) == {"id": key, "text": f"row {key}"}
            assert not again.check()


def test_each_has_an_outcome_of_its_own(db: hc.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with db.begin() as txn:
        txn.insert("t", [{"id": 1, "text": "there"}, {"id": 2, "text": "gone"}])
    with db.begin() as txn:
        txn.delete("t", 2)
    damaged = row_record(DML_A, _state(db, "t").table_id, encode_rows([("x",)]))
    frames = [
        insert(db, 1),
        insert(db, 2),
        insert(db, 3),
        insert(db, 3),
        insert(db, 4),
        update(db, 1, "new"),
        insert(db, 1, "other"),
        insert(db, 2, "other"),
        frame(Commit(db.visible_ts, 0, damaged, None, True)),
        insert(db, 5, snapshot=db.visible_ts + 1000),
        frame(wire.Ping()),
    ]
    answers = at_once(db, frames, monkeypatch)
    kinds = [tag if tag == "done" else rest[0] for tag, *rest in answers]
    assert kinds[0] == "DuplicateKeyError"
    assert sorted(kinds[2:4]) in (["ConflictError", "done"], ["DuplicateKeyError", "done"])
    assert kinds[8:10] == ["CorruptionError", "UsageError"]
    assert [kinds[place] for place in (1, 4, 5, 6, 7, 10)] == ["done"] * 6
    assert ids(db) == [-1, 1, 2, 3, 4]
    assert ids(db, table="other") == [1, 2]
    with db.begin() as txn:
        assert txn.get("t", 1) == {"id": 1, "text": "new"}


def test_a_table_that_is_gone_takes_no_rows_whatever_the_snapshot(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = db.visible_ts
    frames = [insert(db, key, "other", db.visible_ts + 1) for key in range(3)]
    db.drop_table("other")
    assert db.visible_ts == snapshot + 1  # they say that they have seen it
    answers = at_once(db, [*frames, insert(db, 1), insert(db, 2)], monkeypatch)
    assert [answer[1] for answer in answers[:3]] == ["ConflictError"] * 3
    assert [tag for tag, *_ in answers[3:]] == ["done"] * 2
    with caller(db) as channel:
        channel.sock.sendall(frames[0])
        assert said(channel)[1] == "ConflictError"


def test_one_bad_row_among_others_spoils_none_of_them(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of the right form, so all are decoded at once, and then each alone."""
    bad = _commit(db, DML_A, "t", encode_rows([(7, 8)]), None)
    answers = at_once(db, [insert(db, 1), bad, insert(db, 2)], monkeypatch)
    assert [tag for tag, *_ in answers] == ["done", "failed", "done"]
    assert ids(db) == [-1, 1, 2]


def test_bytes_that_one_leaves_out_are_not_taken_from_another(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that do not mean well: together with the row between them their bytes are three rows."""
    db.create_table("blob", {"id": int, "data": bytes}, "id")
    good = encode_rows([(1, b"good")])
    swallow = b"\x91\x92\x02\xc4" + bytes([len(good) - 1])  # bytes that end behind the next row
    surplus = encode_rows([(3, b"x")]) + encode_rows([(4, b"y")])[1:]
    bodies = [swallow, good, surplus]
    frames = [_commit(db, DML_A, "blob", body, None) for body in bodies]
    answers = at_once(db, frames, monkeypatch)
    assert [tag for tag, *_ in answers] == ["failed", "done", "failed"]
    with db.begin() as txn:
        assert txn.scan("blob").to_pylist() == [{"id": 1, "data": b"good"}]


def test_a_full_disk_is_told_to_all_and_nothing_has_happened(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, went = Log.reserve, []

    def reserve(log: Log, payload_bytes: int, *extra: int) -> None:
        went.append(payload_bytes)
        if len(went) > 1:
            raise UnavailableError("no room for the log", outcome="not_committed")
        real(log, payload_bytes, *extra)

    with monkeypatch.context() as patch:
        patch.setattr(Log, "reserve", reserve)
        answers = at_once(db, [insert(db, key) for key in range(3)], monkeypatch)
    assert {tuple(answer[:2]) for answer in answers} == {("failed", "UnavailableError")}
    assert {answer[2]["outcome"] for answer in answers} == {"not_committed"}
    assert ids(db) == [-1]
    with caller(db) as channel:
        channel.sock.sendall(insert(db, 0))
        assert said(channel)[0] == "done"
    assert ids(db) == [-1, 0]


# -- those who read the log ----------------------------------------------------------------------


def _insert_together(db: hc.Database, keys: Sequence[int], table: str = "t") -> list[int]:
    rows = [(key, f"row {key}") for key in keys]
    snapshots = [db.visible_ts] * len(rows)
    stamps = commit_together(db, _state(db, table), rows, snapshots)
    committer_of(db.core).sync()
    assert all(stamps)
    return stamps


@pytest.mark.parametrize("way", ["owner", "socket", "tcp"])
def test_subscribers_get_every_commit_and_may_begin_between_two(db: hc.Database, way: str) -> None:
    stamps = _insert_together(db, range(5))
    with ExitStack() as stack:
        handle = db
        if way == "socket":
            handle = stack.enter_context(hc.open(db.path, options=OPTIONS))
        elif way == "tcp":
            door = db.serve()
            handle = stack.enter_context(hc.connect(door.uri, door.token, options=OPTIONS))
        for since in (0, *stamps):
            with handle.subscribe("t", since=since) as feed:
                expected = [(ts, key) for key, ts in enumerate(stamps) if ts > since]
                for ts, key in expected:
                    delivery = feed.read(WAIT_S)
                    assert delivery is not None
                    (message,) = delivery.messages
                    (row,) = message.rows.to_pylist()
                    assert (delivery.commit_ts, row["_commit_ts"], row["id"]) == (ts, ts, key)
                assert feed.read(0.01) is None


def test_a_feed_that_is_read_in_parts_breaks_off_between_entries(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halocline.node.push.PUSH_BYTES_MAX", 1000)
    since = db.visible_ts
    stamps = _insert_together(db, range(5)) + _insert_together(db, range(5, 9))
    end, messages = read_since(db, since)
    assert end == stamps[-1]
    assert [int(read_message(data)[0]["commit_ts"]) for data in messages] == stamps


def test_a_checkpoint_between_two_of_them_is_gone_on_from(db: hc.Database) -> None:
    """Rows that were in memory then are read from the log again, those behind it are folded."""
    _insert_together(db, range(5))
    maintenance_of(db).checkpoints.run(everything=False)  # type: ignore[union-attr]
    stamps = _insert_together(db, range(5, 9))
    db.close()
    with hc.open(db.path, options=OPTIONS) as again:
        assert ids(again) == list(range(9))
        assert ids(again, at=stamps[1]) == list(range(7))
        assert not again.check()


# -- what has to go alone ------------------------------------------------------------------------


def test_what_stands_in_the_way_of_a_row_leaves_it_to_others(db: hc.Database) -> None:
    core, state = db.core, _state(db, "t")
    with db.begin() as txn:
        txn.insert("t", {"id": 1, "text": "there"})
    before = db.visible_ts
    rows = [(key, "x") for key in (1, 2, 2, 3)]
    stamps = commit_together(db, state, rows, [before] * 4)
    assert [bool(ts) for ts in stamps] == [False, True, False, True]
    committer_of(core).sync()
    stamps = commit_together(db, state, [(1, "x"), (9, "x")], [before] * 2)
    assert [bool(ts) for ts in stamps] == [False, True]
    committer_of(core).sync()
    db.create_table("third", {"id": int}, "id")  # since their snapshots the catalog has changed
    rows = [(key, "x") for key in (20, 21, 22)]
    assert commit_together(db, state, rows, [before] * 3) == [0, 0, 0]
    future = [db.visible_ts + 5] * 3
    assert commit_together(db, state, rows, future) == [0, 0, 0]
    assert ids(db) == [1, 2, 3, 9]
