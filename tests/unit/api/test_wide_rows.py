"""Whatever was accepted can be read, changed, compacted and checked, however wide its rows are.

With memory="32MB" each pool has 4 MiB, so that rows of some hundred bytes are wide already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc

pytestmark = pytest.mark.slow

KIB = 1024
MIB = 1024 * KIB
OPTIONS = hc.Options(background=False, serve=False)
ROWS = 8192


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "shop", memory="32MB", durability="async", options=OPTIONS) as opened:
        yield opened
        assert not opened.check()


def body(key: int, size: int) -> str:
    """A text that hardly shrinks and tells whose it is."""
    return f"{key}:" + "".join(chr(97 + (key * 7 + n * n) % 26) for n in range(64)) * (size // 64)


def fill(db: hc.Database, keys: list[Any], size: Callable[[int], int]) -> dict[Any, str]:
    """A table `t` of these keys, moved into objects."""
    db.create_table("t", {"id": type(keys[0]), "n": int, "body": str}, primary_key="id")
    bodies = {key: body(n, size(n)) for n, key in enumerate(keys)}
    with db.begin() as txn:
        txn.insert("t", [{"id": k, "n": n, "body": bodies[k]} for n, k in enumerate(keys)])
    db.flush("t")
    return bodies


def check_every_call(db: hc.Database, bodies: dict[Any, str]) -> None:
    """Read by key, by keys and by range; update, delete, changes; then the same once more."""
    keys = sorted(bodies)
    first, middle, last = keys[0], keys[len(keys) // 2], keys[-1]
    before = db.begin()
    for key in (first, middle, last):
        assert before.get("t", key)["body"] == bodies[key]
    wanted = keys[:: len(keys) // 10]
    found = before.get_many("t", wanted)
    assert found.column("body").to_pylist() == [bodies[key] for key in wanted]
    part = before.range("t", low=middle, limit=5)
    assert part.column("body").to_pylist() == [bodies[k] for k in keys if k >= middle][:5]
    with db.begin() as txn:
        txn.update("t", middle, {"n": -1})
        txn.delete("t", first)
        txn.delete("t", where="id = ?", params=[last])
    events = db.changes("t", since=before.snapshot).to_pylist()
    assert {(e["_change"], e["id"], e["body"]) for e in events} == {
        ("delete", first, bodies[first]),
        ("delete", last, bodies[last]),
        ("update_before", middle, bodies[middle]),
        ("update_after", middle, bodies[middle]),
    }
    db.flush("t")
    assert not db.check()
    before.rollback()
    db.compact("t")
    with db.begin() as txn:
        assert txn.get("t", first) is None
        assert txn.get("t", middle) == {"id": middle, "n": -1, "body": bodies[middle]}
        assert txn.get("t", keys[1])["body"] == bodies[keys[1]]
        assert txn.range("t", low=keys[-3]).column("body").to_pylist() == [
            bodies[key] for key in keys[-3:-1]
        ]


def test_a_block_of_wide_rows_is_larger_than_the_pool(db: hc.Database) -> None:
    check_every_call(db, fill(db, list(range(ROWS)), lambda n: KIB))


def test_one_cell_is_larger_than_the_pool(db: hc.Database) -> None:
    check_every_call(db, fill(db, list(range(100)), lambda n: 6 * MIB if n == 50 else 100))


def test_long_keys_make_key_blocks_larger_than_the_pool(db: hc.Database) -> None:
    keys = [f"{n:06d}" + "k" * 900 for n in range(ROWS)]
    check_every_call(db, fill(db, keys, lambda n: 64))


def test_many_columns_are_together_larger_than_the_pool(db: hc.Database) -> None:
    names = [f"c{n}" for n in range(100)]
    db.create_table("t", {"id": int, **dict.fromkeys(names, str)}, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", [{"id": k, **{name: body(k, 64) for name in names}} for k in range(2000)])
    db.flush("t")
    with db.begin() as txn:
        for key in (0, 999, 1999):
            assert txn.get("t", key) == {"id": key, **{name: body(key, 64) for name in names}}


def test_many_bytes_become_objects_before_the_commit(tmp_path: Path) -> None:
    options = hc.Options(background=False, serve=False, object_bytes_min=MIB)
    keys = pa.array(range(2000))
    with hc.open(tmp_path / "shop", options=options) as db:
        for name, size, objects in (("small", 64, False), ("large", KIB, True)):
            db.create_table(name, {"id": int, "body": str}, primary_key="id")
            table = pa.table({"id": keys, "body": [body(key, size) for key in range(2000)]})
            with db.begin() as txn:
                txn.insert(name, table)
            assert bool(db.table(name).files()) is objects
            with db.begin() as txn:
                assert txn.get(name, 1234)["body"] == body(1234, size)
        assert not db.check()


def test_many_readers_share_a_pool_that_holds_the_row_of_one(db: hc.Database) -> None:
    bodies = fill(db, list(range(64)), lambda n: MIB if n % 2 else 3 * MIB)
    wrong: list[Any] = []

    def work(first: int) -> None:
        try:
            with db.begin() as txn:
                keys = range(first, 64, 5)
                wrong.extend(key for key in keys if txn.get("t", key)["body"] != bodies[key])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong


def check_every_scan(db: hc.Database, bodies: dict[Any, str]) -> None:
    """SQL, scans, streams, and changes by predicate."""
    size = sum(map(len, bodies.values()))
    assert db.sql("select sum(length(body)) as s from t").to_pylist() == [{"s": size}]
    (row,) = db.sql("select * from t limit 1").to_pylist()
    assert row["body"] == bodies[row["id"]]
    assert db.sql("select id from t order by body desc").num_rows == len(bodies)
    table = db.table("t").to_arrow()
    assert dict(zip(*(table[name].to_pylist() for name in ("id", "body")), strict=True)) == bodies
    with db.begin() as txn:
        assert txn.update("t", where="body <> ''", set={"n": -7}) == len(bodies)
    batches = list(db.sql("select id, n, body from t", stream=True))
    assert sum(batch.num_rows for batch in batches) == len(bodies)
    for batch in batches:
        assert batch.nbytes <= 16 * MIB or batch.num_rows <= 2048
        for row in batch.slice(0, 2).to_pylist():
            assert (row["n"], row["body"]) == (-7, bodies[row["id"]])
    with db.begin() as txn:
        assert txn.delete("t", where="n = -7") == len(bodies)
    assert not list(Path(db.path, "spill").iterdir())


def test_many_wide_rows_can_be_scanned(db: hc.Database) -> None:
    check_every_scan(db, fill(db, list(range(20_000)), lambda n: 640))


def test_so_wide_rows_that_a_vector_of_them_outgrows_memory_can_be_scanned(db: hc.Database) -> None:
    check_every_scan(db, fill(db, list(range(1500)), lambda n: 28 * KIB))


def test_cells_that_are_larger_than_memory_can_be_scanned(db: hc.Database) -> None:
    check_every_scan(db, fill(db, list(range(100)), lambda n: 40 * MIB if n % 50 == 7 else 100))
