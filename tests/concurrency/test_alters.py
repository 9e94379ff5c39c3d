"""Readers and writers beside somebody who alters the table all the time.

A state that readers hold becomes a view of its successor while they use it (rows/state.py). So each
snapshot must show one shape and the right rows in it, by every way to read.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

import halocline as hc
from halocline.options import Options
from tests.concurrency.threads import together

OPTIONS = Options(page_rows=16, object_rows=64, object_rows_min=32)
ROWS = 200
ALTERS = 12


@pytest.mark.more
def test_readers_see_one_shape_while_the_table_is_altered(tmp_path: Path) -> None:
    done = Event()
    with hc.open(tmp_path / "db", options=OPTIONS, durability="async") as db:
        db.create_table("t", {"id": int, "a0": "int64"}, primary_key="id")
        db.run(lambda txn: txn.insert("t", [{"id": n, "a0": n} for n in range(ROWS)]))

        def alter() -> None:
            try:
                for step in range(ALTERS):
                    fresh = hc.Column(int, nullable=False, default=step)
                    drop = [f"b{step - 1}"] if step else []
                    rename = {f"a{step}": f"a{step + 1}"}
                    db.alter_table("t", add={f"b{step}": fresh}, drop=drop, rename=rename)
                    if step % 5 == 0:
                        db.flush("t")
                    if step % 15 == 14:
                        db.compact("t")
            finally:
                done.set()

        def read() -> None:
            while not done.is_set():
                with db.begin() as txn:
                    row = txn.get("t", 7)
                    assert row is not None
                    check(txn, row)
                with db.begin() as txn:
                    found = txn.scan("t").to_pylist()
                    assert len(found) == ROWS
                    for one in found[::50]:
                        check(txn, one)

        def check(txn: Any, row: dict[str, Any]) -> None:
            names = list(row)
            assert row[names[1]] == row["id"], row
            step = int(names[1][1:])
            assert names[2:] == ([f"b{step - 1}"] if step else [])
            assert step == 0 or row[names[2]] == step - 1
            assert txn.get("t", row["id"]) == row
            assert txn.get_many("t", [row["id"]]).to_pylist() == [row]
            text = f"{names[1]} = {row['id']}"
            assert txn.scan("t", where=text).to_pylist() == [row]
            assert txn.range("t", row["id"], row["id"] + 1).to_pylist() == [row]

        def write() -> None:
            key = 0
            while not done.is_set():
                key = (key + 1) % ROWS

                def rewrite(txn: hc.Transaction, key: int = key) -> None:
                    row = txn.get("t", key)
                    assert row is not None
                    txn.update("t", key, {list(row)[1]: key})

                db.run(rewrite, retries=1000)

        together(alter, read, read, write)
        assert db.check() == []
        assert db.table("t").schema.names == ["id", f"a{ALTERS}", f"b{ALTERS - 1}"]
