"""Table: a handle on one table by name. It holds no data and stays valid across commits."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from halocline.read import count_rows, read_changes

if TYPE_CHECKING:
    from halocline.database import Database


class Table:
    """One table of a database: its definition, its rows as Arrow, its history."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        with database.begin() as txn:
            self.name = txn.changes_of(name).entry.name

    def __repr__(self) -> str:
        return f"<Table {self.name!r} of {self._database.path}>"

    @property
    def schema(self) -> pa.Schema:
        """Columns and types as an Arrow schema."""
        with self._database.begin() as txn:
            return txn.changes_of(self.name).schema.arrow

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the key columns; empty when the table has none."""
        with self._database.begin() as txn:
            return txn.changes_of(self.name).schema.primary_key

    def count(self, at: int | datetime | str | None = None) -> int:
        """Number of rows, now or at a point in time."""
        with self._database.begin(at=at) as txn:
            return count_rows(txn.changes_of(self.name).state, txn.snapshot)

    def to_arrow(self, at: int | datetime | str | None = None) -> pa.Table:
        """All rows, now or at a point in time."""
        with self._database.begin(at=at) as txn:
            result = txn.scan(self.name)
            assert isinstance(result, pa.Table)
            return result

    def files(self, at: int | datetime | str | None = None) -> list[str]:
        """Objects that stand for the table at a snapshot; rows in memory are in none."""
        with self._database.begin(at=at) as txn:
            txn.changes_of(self.name)
        return []

    def history(self) -> pa.Table:
        """Every commit that touched the table: commit_ts, wall clock, rows changed by kind."""
        database = self._database
        with database.begin() as txn:
            state = txn.changes_of(self.name).state
            events = read_changes(state, database.floor, txn.snapshot)
        stamps = events.column("_commit_ts").to_numpy()
        kinds = events.column("_change").to_pylist()
        commits = np.unique(stamps)
        counts = {name: np.zeros(len(commits), dtype=np.int64) for name in _COLUMN_OF.values()}
        places = np.searchsorted(commits, stamps)
        kind_array = np.array([_COLUMN_OF.get(kind, "") for kind in kinds], dtype=object)
        for name, column in counts.items():
            np.add.at(column, places[kind_array == name], 1)
        walls = [database.wall_of(int(ts)) for ts in commits]
        columns: dict[str, Any] = {
            "commit_ts": pa.array(commits, pa.int64()),
            "committed_at": pa.array(walls, pa.timestamp("us", "UTC")),
            **{name: pa.array(column) for name, column in counts.items()},
        }
        return pa.table(columns)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Lets pandas, Polars, DuckDB and pyarrow read the table directly."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)


_COLUMN_OF = {"insert": "inserted", "update_after": "updated", "delete": "deleted"}
