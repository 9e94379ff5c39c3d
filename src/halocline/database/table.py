"""Table: a handle on one table by name. It holds no data and stays valid across commits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from halocline.database.display import table_picture
from halocline.errors import SnapshotExpiredError, UnavailableError
from halocline.read.changes import AFTER, DELETE, INSERT, read_events
from halocline.read.scan import take_plan, why_inexact
from halocline.schema.batches import from_arrow
from halocline.schema.schema import Schema

if TYPE_CHECKING:
    from halocline.database.database import Database
    from halocline.txn import Transaction


class Table:
    """One table of a database: its definition, its rows as Arrow, its history."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        with database._begin_reading() as txn:
            self.name = txn.state_of(name).entry.name

    def __repr__(self) -> str:
        return table_picture(self).text()

    def _repr_html_(self) -> str:
        return table_picture(self, width=1 << 30).html()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Rows as dicts, one by one, at one snapshot; this is how pandas.DataFrame asks."""
        with self._database._begin_reading() as txn:
            batches = txn.scan(self.name, stream=True)
        names = batches.schema.names
        for batch in batches:
            for row in from_arrow(batch):
                yield dict(zip(names, row, strict=True))

    @property
    def schema(self) -> pa.Schema:
        """Columns and types as an Arrow schema."""
        with self._database._begin_reading() as txn:
            return txn.state_of(self.name).schema.arrow

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the key columns; empty when the table has none."""
        with self._database._begin_reading() as txn:
            return txn.state_of(self.name).schema.primary_key

    def count(self, at: int | datetime | str | None = None) -> int:
        """Number of rows, now or at a point in time."""
        from halocline.read.query import count

        with self._database._begin_reading(at) as txn:
            return count(self._database.core.duck, txn.state_of(self.name), txn.snapshot)

    def to_arrow(self, at: int | datetime | str | None = None) -> pa.Table:
        """All rows, now or at a point in time."""
        with self._database._begin_reading(at) as txn:
            result = txn.scan(self.name)
            assert isinstance(result, pa.Table)
            return result

    def to_pandas(self, at: int | datetime | str | None = None) -> Any:
        """All rows as a pandas DataFrame, now or at a point in time.

        What Arrow makes of the types: integers and bools with NULL become floats and objects.
        """
        return self.to_arrow(at).to_pandas()

    def files(self, at: int | datetime | str | None = None, *, exact: bool = False) -> list[str]:
        """Paths of the data objects that stand for the table at a snapshot.

        They also hold rows that have ended, lack those that are still in memory, and have the
        columns of when they were written. With `exact` they do not: every row counts, none is
        missing, and the columns are those of the snapshot, else UnavailableError; `db.settle`
        brings a table into that state and returns the timestamp to give as `at`.
        """
        with self._database._begin_reading(at) as txn:
            state = txn.state_of(self.name)
            why = why_inexact(state, take_plan(state, txn.snapshot)) if exact else ""
            if why:
                run = f"run ts = db.settle({self.name!r}) and ask for files(at=ts, exact=True)"
                raise UnavailableError(f"the files of {self.name} are not exact: {why}; {run}")
            state.shelf.check_root()  # others open them by these paths
            data, _ = state.shape.tier.at(txn.snapshot)
            files = [entry.file for entry in data if entry.file is not None]
            return [state.shelf.path_of(file) or file.key for file in files]

    def history(self) -> pa.Table:
        """Every commit that touched the table: commit_ts, wall clock, rows changed by kind.

        Where it altered the table, also the version of the schema that it made, and the change.
        """
        database = self._database
        with self._oldest() as past, database.begin() as txn:
            state = txn.state_of(self.name)
            events = read_events(state, past.snapshot, txn.snapshot)
            versions = state.newest.entry.versions()[1:]
            since, until = past.snapshot, txn.snapshot
        altered: dict[int, tuple[int, str]] = {}
        for one in versions:
            if since < (ts := one.commit_ts) <= until:  # several may be of one commit
                before = altered[ts][1] + ", " if ts in altered else ""
                altered[ts] = one.schema.version, before + one.change
        stamps = np.concatenate([events.stamps, np.fromiter(altered, np.int64, len(altered))])
        commits, places = np.unique(stamps, return_inverse=True)
        counts = {
            name: np.bincount(
                places[: len(events.stamps)][events.kinds == kind], minlength=len(commits)
            )
            for kind, name in _COLUMN_OF.items()
        }
        walls = [database.wall_of(int(ts)) for ts in commits]
        made = [altered.get(int(ts), (None, None)) for ts in commits]
        columns: dict[str, Any] = {
            "commit_ts": pa.array(commits, pa.int64()),
            "committed_at": pa.array(walls, pa.timestamp("us", "UTC")),
            **{name: pa.array(column) for name, column in counts.items()},
            "schema_version": pa.array([version for version, _ in made], pa.int64()),
            "change": pa.array([change for _, change in made], pa.string()),
        }
        return pa.table(columns)

    def _oldest(self) -> Transaction:
        """The oldest snapshot that can still be read, held open."""
        while True:
            try:
                return self._database.begin(at=self._database.floor)
            except SnapshotExpiredError:  # the floor has risen meanwhile
                continue

    def __halocline_schema__(self) -> Schema:
        """What `create_table` takes over: the columns with all they have, and the checks."""
        with self._database._begin_reading() as txn:
            return txn.state_of(self.name).schema

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Lets pandas, Polars, DuckDB and pyarrow read the table directly."""
        with self._database._begin_reading() as txn:
            return txn.scan(self.name, stream=True).__arrow_c_stream__(requested_schema)


_COLUMN_OF = {INSERT: "inserted", AFTER: "updated", DELETE: "deleted"}
