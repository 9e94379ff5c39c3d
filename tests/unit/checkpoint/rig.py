"""A small database in memory that tests move, merge and collect by hand.

world = World()                  a store that can crash, a clock that is turned by hand
world.put({1: 10, 2: 20})        one commit: key -> value, None deletes
world.old()                      the clock goes on beyond the retention time
world.reopen()                   close and open; `crash=seed` loses the power instead
"""

from __future__ import annotations

from typing import Any

from halocline import Database
from halocline.objects.shelf import object_key
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from tests.clock import ManualClock
from tests.store.faulty import FaultyFiles
from tests.unit.read.moving import TINY, committer_of, state_of

HOUR = 3600


class World:
    """One owner, its store and its clock."""

    def __init__(self, retention: str | float = "1h", durability: str = "sync") -> None:
        self.files = FaultyFiles()
        self.clock = ManualClock()
        self.retention = retention
        self.durability = durability
        self.db = self.open()
        self.db.create_table("t", {"id": int, "v": int}, primary_key="id")

    def open(self, *, read_only: bool = False) -> Database:
        return Database(
            self.files,
            "db",
            read_only=read_only,
            durability=self.durability,  # type: ignore[arg-type]
            retention=self.retention,
            clock=self.clock,
            options=TINY,
        )

    def reopen(self, *, crash: int | None = None) -> None:
        if crash is None:
            self.db.close()
        else:
            self.files = self.files.crash_image(seed=crash)
        self.db = self.open()

    def put(self, values: dict[int, int | None], table: str = "t") -> int:
        """One commit; its timestamp."""
        with self.db.begin() as txn:
            for key, value in values.items():
                if value is None:
                    txn.delete(table, key)
                else:
                    txn.upsert(table, {"id": key, "v": value})
        assert txn.commit_ts is not None
        return txn.commit_ts

    def old(self, seconds: float = 2 * HOUR) -> None:
        """Everything that has happened so far is older than the retention time."""
        self.clock.advance(seconds)

    def state(self, table: str = "t") -> TableState:
        return state_of(self.db, table)

    def stored(self) -> list[str]:
        """What is in the object store."""
        return self.files.objects.list()

    def referenced(self) -> list[str]:
        """What tables and checkpoints refer to."""
        engine = self.db.core.engine
        tiers = [state.shape.tier for state in engine.tables.values()]
        return sorted({*(e.key for tier in tiers for e in tier.by_id.values()), *engine.kept_files})

    def job(self, *, lease_us: int = 0, files: int = 1, table: str = "t") -> JobNode:
        """A writer that has put some files into the store and has not committed."""
        state = self.state(table)
        job = committer_of(self.db).start_job(state, lease_us=lease_us)
        for number in range(files):
            self.files.objects.put(object_key(state.table_id, job.job_id, number), b"half done")
        return job

    def close(self) -> None:
        assert not self.db.check()
        self.db.close()


def rows(reader: Any, keys: range | list[int] = range(100), table: str = "t") -> dict[int, int]:
    """Key -> value of the rows that a transaction finds by key."""
    found = reader.get_many(table, list(keys)).to_pylist()
    return {row["id"]: row["v"] for row in found}


def seen(db: Database, at: Any = None) -> dict[int, int]:
    """The same in a transaction of its own."""
    with db.begin(at=at) as txn:
        return rows(txn)
