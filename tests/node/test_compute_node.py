"""A handle that is not the owner offers what the owner does, with the same errors.

All handles live in this process; they talk through a socket, or over TLS, all the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import halocline as hc
from halocline.node.endpoint import read_endpoint
from tests.node.handles import far
from tests.node.handles import rows as rows_of

OPTIONS = hc.Options(
    background=False, bulk_rows=10, object_rows_min=50, object_rows=64, page_rows=16
)
COLUMNS = {"id": int, "v": int, "d": "decimal(12,2)"}
ROWS = 5


@pytest.fixture(params=["near", "afar"])
def node(
    owner: hc.Database, certificate: tuple[str, str], request: pytest.FixtureRequest
) -> Iterator[hc.Database]:
    """Through the socket of this machine, or as if from another one."""
    if request.param == "near":
        db = hc.open(owner.path, options=OPTIONS)
    else:
        db = far(owner.serve(tls=certificate), certificate, options=OPTIONS)
    with db:
        assert db.role == "node"
        yield db
        assert not db.check()


def test_what_one_commits_the_other_reads_at_once(owner: hc.Database, node: hc.Database) -> None:
    for key in range(10, 30, 2):
        with node.begin() as txn:
            txn.insert("t", {"id": key, "v": 0, "d": Decimal("1.50")})
        assert owner.begin().get("t", key) == {"id": key, "v": 0, "d": Decimal("1.50")}
        with owner.begin() as txn:
            txn.update("t", key, {"v": 7})
        assert node.begin().get("t", key) == {"id": key, "v": 7, "d": Decimal("1.50")}
    assert rows_of(owner) == rows_of(node)


def test_conflicts_carry_the_same_facts(owner: hc.Database, node: hc.Database) -> None:
    slow = node.begin()
    slow.update("t", 1, {"v": 100})
    with owner.begin() as txn:
        txn.update("t", 1, {"v": 200})
    with pytest.raises(hc.ConflictError) as lost:
        slow.commit()
    assert (lost.value.table, lost.value.key) == ("t", 1)
    assert lost.value.winner_ts == txn.commit_ts
    with pytest.raises(hc.DuplicateKeyError) as taken, node.begin() as txn:
        txn.insert("t", {"id": 1, "v": 0})
    assert taken.value.keys == [1]


def test_other_columns_of_one_row_merge(owner: hc.Database, node: hc.Database) -> None:
    one, two = node.begin(), owner.begin()
    one.update("t", 1, {"v": 100})
    two.update("t", 1, {"d": Decimal("2.00")})
    two.commit()
    one.commit()
    assert node.begin().get("t", 1) == {"id": 1, "v": 100, "d": Decimal("2.00")}


def test_run_goes_on_after_a_conflict(owner: hc.Database, node: hc.Database) -> None:
    def add(txn: hc.Transaction) -> None:
        row = txn.get("t", 1)
        assert row is not None
        txn.update("t", 1, {"v": row["v"] + 1})

    def work(db: hc.Database) -> None:
        for _ in range(20):
            db.run(add, retries=1000)

    threads = [threading.Thread(target=work, args=(db,)) for db in (owner, node, node)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert owner.begin().get("t", 1)["v"] == 61  # type: ignore[index]


@pytest.mark.parametrize("rows", [1, 8, 30, 300])
def test_many_rows_go_the_way_that_suits_them(
    owner: hc.Database, node: hc.Database, rows: int
) -> None:
    ids = list(range(1000, 1000 + rows))
    with node.begin() as txn:
        txn.insert("t", pa.table({"id": ids, "v": ids}))
        assert txn.scan("t", where="id >= 1000").num_rows == rows
    with node.begin() as txn:
        assert txn.update("t", where="id >= 1000", set={"v": 1}) == rows
    with node.begin() as txn:
        txn.upsert("t", pa.table({"id": [*ids, 1], "v": [2] * (rows + 1)}))
    assert owner.sql("select count(*) as n from t where v = 2").to_pylist() == [{"n": rows + 2}]
    with node.begin() as txn:
        assert txn.delete("t", where="id >= 1000") == rows
    assert rows_of(owner) == rows_of(node)
    with node.begin() as txn:
        txn.truncate("t")
    assert rows_of(owner) == rows_of(node) == []
    assert not owner.check()


def test_a_table_is_created_and_filled_in_one_transaction(
    owner: hc.Database, node: hc.Database
) -> None:
    with node.begin() as txn:
        txn.create_table("u", {"a": int, "b": str}, "a")
        txn.insert("u", pa.table({"a": range(200), "b": ["x"] * 200}))
        txn.insert("u", {"a": 1000, "b": "y"})
        txn.drop_table("t")
        assert txn.tables() == ["u"]
        assert owner.tables() == ["t"]
    assert owner.tables() == node.tables() == ["u"]
    assert owner.table("u").count() == 201
    with pytest.raises(hc.AlreadyExistsError):
        node.create_table("U", {"a": int})
    node.create_table("u", {"a": int}, if_not_exists=True)
    with pytest.raises(hc.NotFoundError):
        node.drop_table("t")


def test_conflicts_over_names_surface_at_once(owner: hc.Database, node: hc.Database) -> None:
    one, two = owner.begin(), node.begin()
    one.create_table("u", {"a": int})
    with pytest.raises(hc.ConflictError):
        two.create_table("u", {"a": int})
    one.rollback()
    two.create_table("u", {"a": int})
    two.commit()
    forgotten = node.begin()
    forgotten.create_table("w", {"a": int})
    del forgotten
    node.create_table("x", {"a": int})  # tells the owner what was forgotten
    owner.create_table("w", {"a": int})
    assert owner.tables() == ["t", "u", "w", "x"]


def test_tables_are_renamed_from_everywhere(owner: hc.Database, node: hc.Database) -> None:
    before = node.visible_ts
    node.rename_table("t", "s")
    for db in (owner, node):
        assert db.tables() == ["s"]
        assert len(rows_of(db, "s")) == ROWS
        with db.begin(at=before) as past:
            assert past.tables() == ["t"]
    slow = node.begin()
    slow.update("s", 1, {"v": 7})
    with owner.begin() as txn:  # a swap that the other one follows
        txn.create_table("u", {"id": int}, primary_key="id")
    with owner.begin() as txn:
        txn.rename_table("s", "x")
        txn.rename_table("u", "s")
        txn.rename_table("x", "u")
    with pytest.raises(hc.ConflictError):
        slow.commit()
    assert len(rows_of(node, "u")) == ROWS
    assert node.table("s").schema.names == ["id"]
    one, two = owner.begin(), node.begin()
    one.rename_table("u", "v")
    with pytest.raises(hc.ConflictError):
        two.rename_table("u", "w")
    with pytest.raises(hc.ConflictError):
        two.create_table("v", {"a": int})
    one.commit()
    two.rollback()
    with node.begin() as both, pytest.raises(hc.AlreadyExistsError):
        both.rename_table("v", "s")
    with node.begin() as gone:
        gone.rename_table("s", "t")
        gone.drop_table("t")
    assert owner.tables() == node.tables() == ["v"]
    node.rename_table("v", "t")


def test_serializable_reads_are_checked_by_the_owner(owner: hc.Database, node: hc.Database) -> None:
    for read in (
        lambda txn: txn.get("t", 2),
        lambda txn: txn.range("t", 0, 3),
        lambda txn: txn.scan("t"),
    ):
        txn = node.begin(isolation="serializable")
        read(txn)
        txn.insert("t", {"id": 99, "v": 0})
        owner.run(lambda other: other.update("t", 2, {"v": other.get("t", 2)["v"] + 1}))
        with pytest.raises(hc.ConflictError):
            txn.commit()
    with node.begin(isolation="serializable") as txn:
        assert txn.get("t", 77) is None
        txn.insert("t", {"id": 99, "v": 0})


def test_tokens_count_everywhere(owner: hc.Database, node: hc.Database) -> None:
    with node.begin(token="once") as first:
        first.insert("t", {"id": 50, "v": 0})
    for db in (owner, node):
        with db.begin(token="once") as again:
            assert again.already_committed
            again.insert("t", {"id": 50, "v": 0})
        assert again.commit_ts == first.commit_ts
    assert node.run(lambda txn: 1, token=("app", 3)) == 1


def test_the_past_and_the_feed(owner: hc.Database, node: hc.Database) -> None:
    before = node.visible_ts
    with node.begin() as txn:
        txn.delete("t", 0)
    assert node.table("t").count(at=before) == 5
    assert node.snapshot("kept") == node.visible_ts
    assert [one.name for one in node.snapshots()] == ["kept"]
    assert node.changes("t", before).to_pylist() == owner.changes("t", before).to_pylist()
    assert node.wall_of(before) == owner.wall_of(before)
    with node.begin(at="kept") as txn:
        assert txn.get("t", 0) is None
    node.drop_snapshot("kept")
    with pytest.raises(hc.NotFoundError):
        node.drop_snapshot("kept")


def test_maintenance_is_done_by_the_owner(owner: hc.Database, node: hc.Database) -> None:
    assert node.flush().rows == 5
    assert node.flush("t").rows == 0
    assert node.checkpoint().ts == node.visible_ts
    assert node.compact()["t"].name == "t"
    assert node.gc().floor == node.floor == owner.floor
    assert str(node.health()) == str(owner.health())
    with pytest.raises(hc.NotFoundError):
        node.flush("missing")


def test_an_owner_that_does_not_sync_syncs_for_others(tmp_path: Path) -> None:
    owner = hc.open(tmp_path / "db", durability="async", options=OPTIONS)
    with owner, hc.open(tmp_path / "db", options=OPTIONS) as node:
        node.create_table("t", {"id": int}, "id")
        for key in range(20):
            with node.begin() as txn:
                txn.insert("t", {"id": key})
            assert node.begin().get("t", key) is not None
        assert owner.table("t").count() == 20


def test_an_open_snapshot_of_a_node_holds_the_owner_back(
    owner: hc.Database, node: hc.Database
) -> None:
    """What it may still have to be compared with stays in memory, and what it reads on disk."""
    slow = node.begin()
    slow.update("t", 1, {"v": 100})
    for _ in range(3):
        with owner.begin() as txn:
            txn.update("t", 2, {"v": 5})
            txn.update("t", 1, {"d": Decimal("9.00")})
        owner.flush()
        owner.compact()
        owner.gc()
    assert slow.get("t", 2) == {"id": 2, "v": 2, "d": None}
    slow.commit()
    assert node.begin().get("t", 1) == {"id": 1, "v": 100, "d": Decimal("9.00")}


def test_files_of_a_node_that_leaves_are_collected(owner: hc.Database) -> None:
    node = hc.open(owner.path, options=OPTIONS)
    txn = node.begin()
    txn.insert("t", pa.table({"id": range(1000, 1200), "v": range(200)}))
    folder = Path(owner.path, "objects")
    assert list(folder.rglob("*.parquet"))
    assert owner.gc().files == 0  # its job is live
    node.close()
    while owner.core.engine.jobs:  # until the owner has seen that it is gone
        owner.visible_ts  # noqa: B018
    assert owner.gc().files > 0
    assert not list(folder.rglob("*.parquet"))


def test_closing_leaves_nothing_behind(tmp_path: Path) -> None:
    owner = hc.open(tmp_path / "db", options=OPTIONS)
    endpoint = read_endpoint(owner.path)
    assert endpoint is not None
    node = hc.open(tmp_path / "db", options=OPTIONS)
    node.sql("select 1 as one")
    threads = threading.active_count()
    node.close()
    node.close()
    owner.close()
    assert threading.active_count() < threads
    assert not Path(endpoint.socket).parent.exists()
    assert not (tmp_path / "db" / "endpoint").exists()
    assert not list((tmp_path / "db" / "pins").iterdir())
    with pytest.raises(hc.UsageError):
        node.begin()


def test_what_a_killed_node_spilled_is_swept(tmp_path: Path) -> None:
    """By the next owner; the folder of a node that lives stays."""
    script = f"""
import halocline as hc, os
db = hc.open({str(tmp_path)!r})
db.sql("select 1")
print(db.role, flush=True)
os.kill(os.getpid(), 9)
"""
    with hc.open(tmp_path, options=OPTIONS):
        killed = subprocess.run(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False
        )
        assert killed.stdout == "node\n"
        node = hc.open(tmp_path, options=OPTIONS)
        node.sql("select 1")
        assert len(list((tmp_path / "spill").iterdir())) == 2
    with hc.open(tmp_path, options=OPTIONS) as owner:
        assert owner.role == "owner"
        (left,) = (tmp_path / "spill").iterdir()
        assert left.name.startswith(f"{os.getpid()}-")
        node.close()
        assert not left.exists()


def test_a_forked_child_cannot_use_the_connection(owner: hc.Database) -> None:
    node = hc.open(owner.path, options=OPTIONS)
    txn = node.begin()
    txn.update("t", 1, {"v": 50})
    pid = os.fork()
    if not pid:
        code = 0
        for use in (node.begin, txn.commit, owner.begin, node.flush):
            try:
                use()
                code = 1
            except hc.UsageError:
                pass
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    txn.commit()
    assert owner.begin().get("t", 1)["v"] == 50  # type: ignore[index]
    node.close()
