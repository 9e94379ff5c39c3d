"""Transactions that begin ahead of what their process has folded: nobody can tell."""

from __future__ import annotations

import datetime as dt
import errno
import gc
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.checkpoint.pins import read_pins
from halocline.ids import NEVER
from halocline.node.lazy_begin import LazyTransaction
from halocline.node.remote_committer import RemoteCommitter
from halocline.node.replica import Replica
from tests.roles import node_of

OPTIONS = hc.Options(background=False, page_rows=64)
TABLES = {"u": {"id": int, "v": int}}
SEEDS = range(6)
Key = Callable[[int], Any]


@pytest.fixture
def node(node: hc.Database) -> hc.Database:
    """One that has seen the tables."""
    with node.begin() as txn:
        txn.tables()
    return node


def put(db: hc.Database, key: Any, v: int = 0, table: str = "t") -> None:
    with db.begin() as txn:
        txn.insert(table, {"id": key, "v": v})


def rows(db: hc.Database, table: str = "t") -> dict[Any, int]:
    with db.begin() as txn:
        return {row["id"]: row["v"] for row in txn.scan(table).to_pylist()}


def is_ahead(txn: hc.Transaction) -> bool:
    return isinstance(txn, LazyTransaction) and txn._ahead is not None


def test_an_insert_folds_nothing(owner: hc.Database, node: hc.Database) -> None:
    put(owner, 1)
    before = node_of(node).replica.engine.last_ts  # type: ignore[union-attr]
    with node.begin() as txn:
        assert is_ahead(txn)
        txn.insert("t", {"id": 2, "v": 2})
        assert is_ahead(txn)
    assert txn.commit_ts is not None
    assert node_of(node).replica.engine.last_ts == before  # type: ignore[union-attr]
    assert rows(node) == rows(owner) == {1: 0, 2: 2}


def test_a_key_that_others_have_just_inserted_is_taken(
    owner: hc.Database, node: hc.Database
) -> None:
    for key, db in ((1, owner), (2, node)):  # its own is not folded either
        put(db, key)
        txn = node.begin()
        txn.insert("t", {"id": key, "v": 9})
        assert is_ahead(txn)
        with pytest.raises(hc.DuplicateKeyError, match="already") as caught:
            txn.commit()
        assert caught.value.keys == [key]
    for key in (1, 2):  # they are folded now: it is an error of the insert, and it goes on
        with node.begin() as txn:
            with pytest.raises(hc.DuplicateKeyError, match="already"):
                txn.insert("t", {"id": key, "v": 9})
            txn.insert("t", {"id": 20 + key, "v": 9})
    assert rows(owner) == {1: 0, 2: 0, 21: 9, 22: 9}


def test_a_taken_key_is_told_by_whatever_comes_next(owner: hc.Database, node: hc.Database) -> None:
    put(owner, 1)
    calls: list[Callable[[hc.Transaction], Any]] = [
        lambda txn: txn.get("t", 1),
        lambda txn: txn.insert("t", {"id": 3, "v": 3}),
        lambda txn: txn.scan("t"),
        lambda txn: txn.commit(),
    ]
    txn = node.begin()
    txn.insert("t", {"id": 1, "v": 9})
    for call in calls:
        with pytest.raises(hc.DuplicateKeyError) as caught:
            call(txn)
        assert caught.value.keys == [1]
    assert [pin.ts for pin in read_pins(node.files)] == [NEVER]
    assert rows(owner) == {1: 0}


def test_a_key_that_was_taken_for_a_moment_is_free(owner: hc.Database, node: hc.Database) -> None:
    put(owner, 1)
    with owner.begin() as txn:
        txn.delete("t", 1)
    put(node, 1, 5)
    assert rows(owner) == rows(node) == {1: 5}


def test_a_key_that_has_moved_before_it_was_folded_is_taken(
    owner: hc.Database, node: hc.Database
) -> None:
    for key in range(100):
        put(owner, key)
    owner.flush()
    with pytest.raises(hc.DuplicateKeyError):
        put(node, 7)
    assert len(rows(owner)) == 100


def test_a_key_that_was_deleted_is_free(owner: hc.Database, node: hc.Database) -> None:
    put(owner, 1)
    assert rows(node) == {1: 0}
    with owner.begin() as txn:
        txn.delete("t", 1)
    put(node, 1, 5)
    assert rows(owner) == {1: 5}


@pytest.mark.parametrize("many", [2, 50, 3000])
def test_keys_of_larger_commits_are_taken(owner: hc.Database, node: hc.Database, many: int) -> None:
    with owner.begin() as txn:
        txn.insert("t", [{"id": key, "v": 0} for key in range(many)])
    with pytest.raises(hc.DuplicateKeyError):
        put(node, many - 1, 1)


def test_a_table_that_is_new_or_gone_is_so(owner: hc.Database, node: hc.Database) -> None:
    owner.drop_table("u")
    with pytest.raises(hc.NotFoundError):
        put(node, 1, 1, "u")
    owner.create_table("u", {"id": int, "v": int, "w": int}, "id")
    with node.begin() as txn:
        txn.insert("u", {"id": 1, "v": 1, "w": 3})
    with owner.begin() as txn:
        assert txn.get("u", 1) == {"id": 1, "v": 1, "w": 3}
    with owner.begin() as txn:
        txn.truncate("u")
    put(node, 1, table="u")


def test_the_snapshot_is_that_of_its_begin(owner: hc.Database, node: hc.Database) -> None:
    put(owner, 1)
    txn = node.begin()
    assert is_ahead(txn)
    put(owner, 2)
    assert txn.get("t", 1) == {"id": 1, "v": 0}
    assert not is_ahead(txn)
    assert txn.get("t", 2) is None
    assert txn.scan("t").num_rows == 1
    txn.insert("t", {"id": 2, "v": 7})
    with pytest.raises(hc.ConflictError):
        txn.commit()
    put(owner, 3)
    late = node.begin()
    put(owner, 4)
    late.insert("t", {"id": 4, "v": 7})  # not there at its snapshot: it is a conflict, later
    with pytest.raises(hc.ConflictError):
        late.commit()
    assert set(rows(owner)) == {1, 2, 3, 4}


READS: list[Callable[[hc.Transaction], Any]] = [
    lambda txn: txn.get("t", 2),
    lambda txn: txn.get_many("t", [2]).num_rows,
    lambda txn: txn.range("t").num_rows,
    lambda txn: txn.scan("t").num_rows,
    lambda txn: txn.sql("select count(*) as n from t").to_pylist(),
    lambda txn: txn.tables(),
    lambda txn: txn.update("t", 2, {"v": 3}),
    lambda txn: txn.update("t", where="id = 2", set={"v": 3}),
    lambda txn: txn.upsert("t", {"id": 2, "v": 4}),
    lambda txn: txn.delete("t", 2),
    lambda txn: txn.delete_many("t", [2, 3]),
    lambda txn: txn.insert("t", [{"id": 4, "v": 4}]),
    lambda txn: txn.insert("u", {"id": 4, "v": 4}),
    lambda txn: txn.create_table("w", {"id": int}, "id"),
    lambda txn: txn.drop_table("u"),
    lambda txn: txn.truncate("t"),
]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("read", READS)
def test_whatever_else_it_does_it_has_caught_up(
    owner: hc.Database, node: hc.Database, read: Callable[[hc.Transaction], Any], first: bool
) -> None:
    """The same as a transaction of the owner does, before and after a row of its own."""
    put(owner, 1)
    put(owner, 2)
    found = []
    for db in (owner, node):
        txn = db.begin()
        if first:
            txn.insert("t", {"id": 3, "v": 3})
        result = read(txn)
        found.append((result, sorted(map(str, txn.scan("t").to_pylist())), txn.tables()))
        txn.rollback()
    assert found[0] == found[1]
    put(owner, 5)
    with node.begin() as txn:
        assert is_ahead(txn)
        if first:
            txn.insert("t", {"id": 3, "v": 3})
        read(txn)
    assert rows(node) == rows(owner)


def test_serializable_and_tokens(owner: hc.Database, node: hc.Database) -> None:
    put(owner, 1)
    with node.begin(isolation="serializable") as txn:
        assert not is_ahead(txn)
        assert txn.get("t", 1) is not None
    put(owner, 2)
    with node.begin(token="once") as txn:
        txn.insert("t", {"id": 3, "v": 0})
    put(owner, 4)
    with node.begin(token="once") as again:
        assert again.already_committed
        again.insert("t", {"id": 3, "v": 0})
    assert set(rows(owner)) == {1, 2, 3, 4}


def test_errors_of_the_input_are_those_of_every_transaction(
    owner: hc.Database, node: hc.Database
) -> None:
    wrong: list[tuple[type[Exception], Any, Any]] = [
        (hc.SchemaError, "t", {"id": "x", "v": 1}),
        (hc.SchemaError, "t", {"id": None, "v": 1}),
        (hc.SchemaError, "t", {"id": 5, "w": 1}),
        (hc.NotFoundError, "nothing", {"id": 5}),
        (hc.UsageError, 7, {"id": 5}),
    ]
    for number, (kind, table, row) in enumerate(wrong):
        put(owner, 100 + number)
        with node.begin() as txn:
            assert is_ahead(txn)
            with pytest.raises(kind):
                txn.insert(table, row)
    txn = node.begin()
    txn.rollback()
    with pytest.raises(hc.UsageError, match="rolled back"):
        txn.insert("t", {"id": 5, "v": 1})
    assert len(rows(owner)) == len(wrong)


KEYS: dict[str, tuple[Any, Key]] = {
    "int": (int, lambda n: n),
    "str": (str, lambda n: f"key-{n}"),
    "bytes": ("binary", lambda n: bytes([n, n])),
    "date": ("date", lambda n: dt.date(2026, 1, 1) + dt.timedelta(n)),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("seed", SEEDS)
def test_against_a_dict(tmp_path: Path, kind: str, seed: int) -> None:
    """Owner and nodes in turn; a duplicate is found by the insert, or by the commit."""
    print(f"seed {seed}, {kind}")
    draw = random.Random(seed)
    type_, key_of = KEYS[kind]
    model: dict[tuple[str, Any], int] = {}
    with hc.open(tmp_path / "db", options=OPTIONS) as owner:
        for name in "tu":
            owner.create_table(name, {"id": type_, "v": int}, "id")
        with (
            hc.open(owner.path, options=OPTIONS) as one,
            hc.open(owner.path, options=OPTIONS) as two,
        ):
            for step in range(150):
                db = draw.choice([owner, one, one, two, two])
                table, n = draw.choice("tu"), draw.randrange(40)
                _step(db, draw, model, table, key_of(n), step)
            for db in (owner, one, two):
                for table in "tu":
                    assert rows(db, table) == {
                        k: v for (name, k), v in model.items() if name == table
                    }
        assert not owner.check()


def _step(
    db: hc.Database, draw: random.Random, model: dict[Any, int], table: str, key: Any, v: int
) -> None:
    action = draw.choice(["insert"] * 6 + ["delete", "update", "get", "upsert", "flush", "two"])
    taken = (table, key) in model
    if action == "flush":
        db.flush(table)
        return
    if action == "insert":
        if taken:
            with pytest.raises(hc.DuplicateKeyError):
                put(db, key, v, table)
        else:
            put(db, key, v, table)
            model[table, key] = v
        return
    with db.begin() as txn:
        if action == "two":
            txn.upsert("t", [{"id": key, "v": v}])
            txn.upsert("u", [{"id": key, "v": v}])
            model["t", key] = model["u", key] = v
            return
        if action == "get":
            found = txn.get(table, key)
            assert found == ({"id": key, "v": model[table, key]} if taken else None)
            return
        if action == "delete":
            assert txn.delete(table, key) == taken
            model.pop((table, key), None)
            return
        if action == "update" and not taken:
            return
        if action == "update":
            txn.update(table, key, {"v": v})
        else:
            txn.upsert(table, {"id": key, "v": v})
    model[table, key] = v


def test_a_long_way_ahead_is_folded(owner: hc.Database, node: hc.Database) -> None:
    for key in range(700):
        put(owner, key)
    txn = node.begin()
    assert not is_ahead(txn)
    txn.rollback()


def test_files_that_go_between_begin_and_the_first_read(
    owner: hc.Database, node: hc.Database
) -> None:
    """What it wanted to fold is deleted: it begins anew from a checkpoint, at its own snapshot."""
    put(owner, 1)
    txn = node.begin()
    assert is_ahead(txn)
    for key in range(2, 300):
        put(owner, key)
    owner.flush()
    with owner.begin() as bulk:
        bulk.insert("u", [{"id": key, "v": key} for key in range(20_000)])
    for _ in range(3):
        owner.checkpoint()
        put(owner, 1000 + owner.visible_ts)
    owner.gc()
    assert [row["id"] for row in txn.scan("t").to_pylist()] == [1]
    txn.insert("t", {"id": 500, "v": 1})
    with pytest.raises(hc.ConflictError, match="not in memory any more"):
        txn.commit()  # nobody knew that it would read and write, and now it is too late
    assert 500 not in rows(owner)


@pytest.fixture
def forgetful(owner: hc.Database, node: hc.Database) -> Callable[[], None]:
    """Makes the owner forget all history that nobody holds."""

    def forget() -> None:
        put(owner, 10_000 + owner.visible_ts)
        owner.flush()
        owner.keep_for(0)
        owner.gc()

    return forget


def test_nothing_is_held_for_an_insert(
    owner: hc.Database, node: hc.Database, forgetful: Callable[[], None]
) -> None:
    """Its snapshot has expired, and what happened since is forgotten: it goes on at a newer one."""
    put(owner, 1)
    txn = node.begin()
    txn.insert("t", {"id": 2, "v": 2})
    assert is_ahead(txn)
    assert [pin.ts for pin in read_pins(node.files)] == [NEVER]
    before = txn.snapshot
    forgetful()
    assert owner.floor > before
    txn.commit()
    assert txn.commit_ts == owner.visible_ts
    assert txn.snapshot > before
    with owner.begin() as check:
        assert check.get("t", 2) == {"id": 2, "v": 2}
    assert [pin.ts for pin in read_pins(node.files)] == [NEVER]


@pytest.mark.parametrize("error", [hc.SnapshotExpiredError(1, 2), FileNotFoundError("gone")])
def test_a_file_that_was_removed_is_not_needed(
    owner: hc.Database, node: hc.Database, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a pin GC may remove objects that are not read, but looked up for the key."""
    put(owner, 1)

    def gone(*_: Any) -> int:
        raise error

    monkeypatch.setattr("halocline.node.lazy_begin.find", gone)
    with node.begin() as txn:
        assert is_ahead(txn)
        txn.insert("t", {"id": 2, "v": 2})
        assert not is_ahead(txn)
    assert rows(owner) == {1: 0, 2: 2}


@pytest.mark.parametrize("deleted", [False, True])
def test_a_key_that_was_taken_while_history_was_forgotten(
    owner: hc.Database, node: hc.Database, forgetful: Callable[[], None], deleted: bool
) -> None:
    put(owner, 1)
    txn = node.begin()
    txn.insert("t", {"id": 2, "v": 2})
    put(owner, 2, 7)
    if deleted:
        with owner.begin() as other:
            other.delete("t", 2)
    forgetful()
    if deleted:
        txn.commit()
    else:
        with pytest.raises(hc.ConflictError, match="inserted the key"):
            txn.commit()
    with owner.begin() as check:
        assert check.get("t", 2) == {"id": 2, "v": 2 if deleted else 7}
    assert [pin.ts for pin in read_pins(node.files)] == [NEVER]


@pytest.mark.parametrize("inserted", [False, True])
def test_whoever_reads_when_its_snapshot_has_expired_sees_a_newer_one(
    owner: hc.Database, node: hc.Database, forgetful: Callable[[], None], inserted: bool
) -> None:
    put(owner, 1)
    txn = node.begin()
    if inserted:
        txn.insert("t", {"id": 2, "v": 2})
    assert is_ahead(txn)
    with owner.begin() as other:
        other.update("t", 1, {"v": 5})
    forgetful()
    assert txn.get("t", 1) == {"id": 1, "v": 5}
    assert not is_ahead(txn)
    (pin,) = read_pins(node.files)
    assert owner.floor <= pin.ts <= txn.snapshot
    forgetful()  # from now on it is held
    assert txn.get("t", 1) == {"id": 1, "v": 5}
    txn.update("t", 1, {"v": 6})
    txn.commit()
    with owner.begin() as check:
        assert check.get("t", 1) == {"id": 1, "v": 6}
        assert (check.get("t", 2) is not None) == inserted


def test_its_pin_is_not_above_its_snapshot_whatever_others_have_folded(
    owner: hc.Database, node: hc.Database, forgetful: Callable[[], None]
) -> None:
    put(owner, 1)
    txn = node.begin()
    assert is_ahead(txn)
    with owner.begin() as other:
        other.update("t", 1, {"v": 5})
    for _ in range(2):
        assert rows(node)[1] == 5  # another transaction of the process, which folds
        assert txn.get("t", 1) == {"id": 1, "v": 0}
        (pin,) = read_pins(node.files)
        assert pin.ts <= txn.snapshot
        forgetful()
    assert txn.scan("t").to_pylist() == [{"id": 1, "v": 0}]
    txn.rollback()


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_table_that_is_dropped_before_the_commit_is_a_conflict(
    owner: hc.Database,
    node: hc.Database,
    forgetful: Callable[[], None],
    forgotten: bool,
    again: bool,
    read: bool,
) -> None:
    put(owner, 1)
    txn = node.begin()
    txn.insert("u", {"id": 2, "v": 2})
    assert is_ahead(txn)
    owner.drop_table("u")
    if again:
        owner.create_table("u", {"id": int, "name": str}, "id")
        with owner.begin() as other:
            other.insert("u", {"id": 2, "name": "new"})
    if forgotten:
        forgetful()
    if read and forgotten:
        for _ in range(2):
            with pytest.raises(hc.ConflictError, match="dropped"):
                txn.get("t", 1)
    elif read:
        assert txn.get("t", 1) == {"id": 1, "v": 0}
    with pytest.raises(hc.ConflictError, match="dropped"):
        txn.commit()
    if again:
        with owner.begin() as check:
            assert check.scan("u").to_pylist() == [{"id": 2, "name": "new"}]


def test_a_commit_whose_snapshot_has_just_expired_is_a_conflict(
    owner: hc.Database, node: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`db.run` does it again then."""
    put(owner, 1)
    tries = []

    def work(txn: hc.Transaction) -> None:
        tries.append(is_ahead(txn))
        txn.update("t", 1, {"v": 9})

    real = RemoteCommitter.commit_single

    def expired(*args: Any) -> int:
        if len(tries) == 1:
            raise hc.SnapshotExpiredError(1, 2)
        return real(*args)

    monkeypatch.setattr(RemoteCommitter, "commit_single", expired)
    node.run(work)
    assert len(tries) == 2
    assert tries[0]
    assert rows(owner) == {1: 9}


def test_whoever_reads_after_a_key_was_taken_and_history_forgotten_is_told(
    owner: hc.Database, node: hc.Database, forgetful: Callable[[], None]
) -> None:
    put(owner, 1)
    txn = node.begin()
    txn.insert("t", {"id": 2, "v": 2})
    put(owner, 2, 7)
    forgetful()
    with pytest.raises(hc.ConflictError, match="inserted the key"):
        txn.get("t", 1)
    txn.rollback()
    assert [pin.ts for pin in read_pins(node.files)] == [NEVER]
    assert rows(owner)[2] == 7


def test_the_owner_closes_under_it(tmp_path: Path) -> None:
    owner = hc.open(tmp_path / "db", options=OPTIONS)
    owner.create_table("t", {"id": int, "v": int}, "id")
    with hc.open(owner.path, options=OPTIONS) as node:
        assert rows(node) == {}
        put(owner, 1)
        reads, writes = node.begin(), node.begin()
        assert is_ahead(reads)
        writes.insert("t", {"id": 3, "v": 3})
        put(owner, 2)
        owner.close()
        put(node, 4)
        assert node.role == "owner"
        assert [row["id"] for row in reads.scan("t").to_pylist()] == [1]
        reads.rollback()
        try:
            writes.commit()
        except hc.ConflictError:
            put(node, 3, 3)  # the next owner cannot check what happened before it
        assert set(rows(node)) == {1, 2, 3, 4}


def test_threads_of_one_process(owner: hc.Database, node: hc.Database) -> None:
    """Each key is inserted by exactly one of them, whoever folds meanwhile."""
    won: list[int] = []

    def work(db: hc.Database, seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(60):
            key = draw.randrange(100)
            try:
                put(db, key)
                won.append(key)
            except hc.DuplicateKeyError:
                with db.begin() as txn:
                    assert txn.get("t", key) is not None
            except hc.ConflictError:
                pass  # committed, but not durable yet

    threads = [
        threading.Thread(target=work, args=(db, seed))
        for seed, db in enumerate((owner, node, node, node))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(won) == sorted(rows(owner)) == sorted(rows(node))


def test_a_fold_that_was_broken_off_is_not_gone_ahead_of(
    owner: hc.Database, node: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(owner, 1)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("halocline.node.replica.RowRun", interrupt)
        txn = node.begin()
        with pytest.raises(KeyboardInterrupt):
            txn.get("t", 1)
        assert not is_ahead(node.begin()) or is_ahead(txn)
    assert txn.get("t", 1) == {"id": 1, "v": 0}
    assert rows(node) == {1: 0}


def test_a_table_that_was_made_again_has_its_new_columns(
    owner: hc.Database, node: hc.Database
) -> None:
    owner.drop_table("u")
    owner.create_table("u", {"id": int, "other": str}, "id")
    with node.begin() as txn:
        assert is_ahead(txn)
        txn.insert("u", {"id": 1, "other": "x"})
    with owner.begin() as txn:
        assert txn.get("u", 1) == {"id": 1, "other": "x"}


def test_a_transaction_outlives_a_database_that_was_forgotten(owner: hc.Database) -> None:
    node = hc.open(owner.path, options=OPTIONS)
    assert rows(node) == {}
    put(owner, 1)
    txn = node.begin()
    assert is_ahead(txn)
    link = node_of(node).link
    del node
    gc.collect()
    assert txn.get("t", 1) == {"id": 1, "v": 0}
    assert link is not None
    link.close()


def test_who_was_idle_for_long_does_not_pin_the_past(owner: hc.Database, node: hc.Database) -> None:
    for key in range(700):
        put(owner, key)
    txn = node.begin()
    (pin,) = read_pins(node.files)
    assert pin.ts == txn.snapshot == owner.visible_ts
    txn.rollback()


def test_an_error_in_begin_leaves_no_pin(
    owner: hc.Database, node: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(owner, 1)

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "ahead", fail)
        with pytest.raises(OSError, match="no") as caught:
            node.begin()
    assert [pin.ts for pin in read_pins(node.files)] == [NEVER]
    del caught
