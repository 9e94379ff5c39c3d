"""N-01: whoever applies the messages of the logtail has the table, whatever happens to its rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import halocline as hc
from halocline.node.logtail import read_message
from halocline.node.wire import Subscribe
from tests.roles import committer_of, owner_of
from tests.unit.rows.rig import commit_together

OPTIONS = hc.Options(
    background=False, bulk_rows=4, object_rows_min=12, object_rows=16, page_rows=4, compact_depth=1
)


class Copy:
    """A client that knows nothing but the messages and the files they name."""

    def __init__(self, root: str) -> None:
        self._objects = Path(root, "objects")
        self.rows: dict[int, dict[str, Any]] = {}
        self.ended: set[int] = set()
        self._located: dict[str, list[int]] = {}

    def apply(self, kind: str, table: pa.Table) -> None:
        getattr(self, f"_{kind}")(table.to_pylist())

    def live(self) -> list[dict[str, Any]]:
        return [row for rowid, row in self.rows.items() if rowid not in self.ended]

    def _Rows(self, rows: list[dict[str, Any]]) -> None:  # noqa: N802
        for row in rows:
            assert row.pop("_commit_ts") > 0
            self.rows[row.pop("_rowid")] = row

    def _RowTombstones(self, rows: list[dict[str, Any]]) -> None:  # noqa: N802
        self.ended |= {row["_rowid"] for row in rows}

    def _Objects(self, rows: list[dict[str, Any]]) -> None:  # noqa: N802
        for entry in rows:
            found = pq.read_table(self._objects / entry["location"]).to_pylist()
            if entry["is_tombstone"]:
                self.ended |= {row["_rowid"] for row in found}
                continue
            self._located[entry["location"]] = [row["_rowid"] for row in found]
            for row in found:
                rowid = row["_rowid"]
                assert entry["rowid_min"] <= rowid <= entry["rowid_max"]
                self.rows[rowid] = {k: v for k, v in row.items() if not k.startswith("_")}

    def _ObjectTombstones(self, rows: list[dict[str, Any]]) -> None:  # noqa: N802
        for entry in rows:
            if entry["location"] is None:
                self.ended |= {rowid for ids in self._located.values() for rowid in ids}
                self._located.clear()
            else:
                self._located.pop(entry["location"], None)  # or a file of tombstones


def read_since(db: hc.Database, since: int, table: str | None = "t") -> tuple[int, list[bytes]]:
    """What was committed since then, and until when."""
    newest, messages = db.visible_ts, list[bytes]()
    for pushed in owner_of(db).answers.hub.open(Subscribe(since, table)):
        messages += pushed.messages
        if pushed.end >= newest:
            return pushed.end, messages
    raise AssertionError("a feed goes on until it is stopped")


def change_at_random(db: hc.Database, chance: random.Random, keys: set[int]) -> None:
    first = chance.randrange(40)
    some = sorted({(first + step) % 40 for step in range(chance.choice([1, 1, 2, 8, 20]))})
    others = ["delete", "where", "flush", "compact", "truncate", "together", "together"]
    match chance.choice(["upsert"] * 4 + others):
        case "together" if len(new := sorted(set(some) - keys)) > 1:
            (state,) = [one for one in db.core.engine.tables.values() if one.entry.name == "t"]
            stamps = commit_together(db, state, [(key, key) for key in new])
            committer_of(db.core).sync()
            keys |= {key for key, ts in zip(new, stamps, strict=True) if ts}
        case "upsert":
            rows = [{"id": key, "v": chance.randrange(100)} for key in some]
            with db.begin() as txn:
                txn.upsert("t", pa.Table.from_pylist(rows) if len(rows) > 2 else rows)
            keys |= set(some)
        case "delete":
            with db.begin() as txn:
                txn.delete("t", some[0])
            keys.discard(some[0])
        case "where":
            with db.begin() as txn:
                txn.delete("t", where=f"id >= {first} and id < {first + 15}")
            keys -= set(range(first, first + 15))
        case "truncate" if chance.random() < 0.4:
            with db.begin() as txn:
                txn.truncate("t")
            keys.clear()
        case "flush":
            db.flush()
        case _:
            db.compact()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.more) for seed in (1, 2))]
)
def test_n01_the_messages_applied_are_the_table(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "v": int}, "id")
        db.create_table("other", {"id": int}, "id")
        copy, end, keys = Copy(db.path), 0, set[int]()
        for _ in range(40):
            change_at_random(db, chance, keys)
            with db.begin() as txn:
                txn.upsert("other", {"id": chance.randrange(5)})
            since, (end, messages) = end, read_since(db, end)
            for facts, table in map(read_message, messages):
                assert facts["table"] == "t"
                assert since < int(facts["commit_ts"]) <= end
                copy.apply(facts["kind"], table)
            found = db.table("t").to_arrow().to_pylist()
            assert sorted(copy.live(), key=lambda row: row["id"]) == sorted(
                found, key=lambda row: row["id"]
            )
            assert {row["id"] for row in found} == keys
        assert read_since(db, end) == (end, [])


def test_a_subscriber_that_falls_behind_is_told(tmp_path: Path) -> None:
    options = hc.Options(background=False, log_file_bytes=4096, log_file_bytes_first=4096)
    with hc.open(tmp_path / "db", options=options) as db:
        db.create_table("t", {"id": int, "v": str}, "id")
        for key in range(60):
            with db.begin() as txn:
                txn.insert("t", {"id": key, "v": "x" * 200})
        first = db.visible_ts - 60
        assert len(read_since(db, first)[1]) == 60
        for _ in range(3):
            db.checkpoint()
            with db.begin() as txn:
                txn.update("t", 1, {"v": "y" * 3000})
        with pytest.raises(hc.SnapshotExpiredError):
            read_since(db, first)
        with pytest.raises(hc.NotFoundError):
            read_since(db, 0, "missing")
