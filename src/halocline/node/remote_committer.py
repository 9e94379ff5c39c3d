"""Remote committer: commits the transactions of a compute node by asking the owner.

    Transaction --commit--> RemoteCommitter --Commit--> owner: check, timestamp, log, fold, sync
                              ^                   |
            Replica folds the log files <-----------'   before the next snapshot is taken

A compute node writes its workspaces, and the files of large ones, by itself; all that needs to be
decided in one place is asked for: RowIDs and jobs, the names of tables, the commit. What was
committed is in the log, and published, before the answer comes; so the next transaction that begins
here has folded it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from halocline.catalog import IndexEntry, TableEntry, nodes
from halocline.catalog.ddl import IndexedTable
from halocline.catalog.indexes import with_index, without_index
from halocline.catalog.names import check_name
from halocline.clock import SystemClock
from halocline.errors import ConflictError, HaloclineError
from halocline.node import wire
from halocline.node.link import Link
from halocline.node.workspace_wire import pack_objects, pack_reads
from halocline.rows.engine import EngineState
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from halocline.schema.evolve import told
from halocline.schema.schema import Schema
from halocline.txn.bulk_ends import rewrite
from halocline.txn.identity import KeyBlocks
from halocline.txn.record import prepare
from halocline.txn.row_commit import encode_row, row_node
from halocline.txn.row_update import Addition, Single
from halocline.txn.turns import RowName
from halocline.txn.workspace import Workspace


class RemoteCommitter:
    """Commits through the owner. Thread-safe, as the owner is."""

    def __init__(self, engine: EngineState, link: Link, refresh: Callable[[], None]) -> None:
        """`refresh` folds what the owner has published."""
        self.engine = engine
        """The newest state that was loaded; open transactions may have an older one."""
        self.link = link
        self.keys = KeyBlocks(self._reserve_keys, engine.options.identity_block)
        self.forgotten: list[JobNode] = []
        self.nascent: dict[int, int] = {}
        """Tables that open transactions have created -> the number of the catalog transaction."""
        self.lapsed: deque[int] = deque()
        """Catalog transactions whose transactions were forgotten."""
        self._refresh = refresh
        self._tickets = count(1)
        self._queued: set[int] = set()
        """Tickets that may have a turn at the owner, or wait for one."""
        self._lapsed_tickets: deque[int] = deque()
        """Tickets whose transactions were forgotten."""
        self._clock = SystemClock()

    def commit(self, txn: Workspace) -> int:
        """Send the workspace; returns commit_ts once it is durable and visible."""
        tables = {table_id: changes for table_id, changes in txn.changes.items() if changes}
        for changes in tables.values():
            rewrite(self, changes)
        prepared = prepare(0, 0, tables, self.engine.options.bulk_rows, beside=False)
        ddl = txn.ddl if isinstance(txn.ddl, RemoteDdl) else None
        request = wire.Commit(
            snapshot=txn.snapshot,
            epoch=self.link.epoch if ddl is None else ddl.epoch,
            record=bytes(prepared.payload),
            token=txn.token,
            ddl=0 if ddl is None else ddl.number,
            created=tuple(txn.created),
            dropped=tuple(txn.dropped),
            reads=pack_reads(txn, self.engine.tables),
            objects=pack_objects(tables),
            ticket=txn.ticket,
        )
        try:
            answer: int | wire.Committed = self._commit(request, int | wire.Committed)
        finally:
            if ddl is not None:
                ddl.settle()
        if isinstance(answer, int):
            return answer
        for table_id, counts in answer.counts.items():
            blind = tables[table_id].blind
            if blind is not None:
                blind.decided = counts
        return answer.commit_ts

    def commit_single(
        self, snapshot: int, single: Single, wait: bool = True, ticket: int = 0
    ) -> int:
        """Have the owner commit a transaction of one row."""
        record = bytes(encode_row(row_node(single), 0, 0))
        request = wire.Commit(snapshot, self.link.epoch, record, None, True, ticket=ticket)
        commit_ts: int = self._commit(request, int)
        return commit_ts

    def commit_addition(
        self, snapshot: int, addition: Addition, wait: bool = True, ticket: int = 0
    ) -> int:
        """Left to the general way."""
        return 0

    # Turns.

    def new_ticket(self) -> int:
        """A number of this process; the owner gives it a place when it first asks for a turn."""
        return next(self._tickets)

    def take_turns(
        self, ticket: int, rows: Collection[RowName], timeout_s: float, *, lasts: bool = False
    ) -> None:
        """Wait at the owner for the turn at these rows, then read what was committed before."""
        self._end_lapsed()
        self._queued.add(ticket)
        until = self._clock.monotonic() + timeout_s
        named = tuple(sorted(rows))
        while True:
            left_ms = max(0, round((until - self._clock.monotonic()) * 1000))
            if self.link.ask(wire.TakeTurns(ticket, named, left_ms, lasts), bool):
                break
        self._refresh()

    def begin_turn(self, ticket: int, rows: Collection[RowName], timeout_s: float) -> int:
        """Wait for the turn; what was committed before has been read when this returns."""
        self.take_turns(ticket, rows, timeout_s)
        return 0

    def settle(self, snapshot: int) -> None:
        """Whatever this process has read is durable."""

    def end_turns(self, ticket: int) -> None:
        """Give up all turns of a ticket, unless a commit has ended them."""
        if ticket in self._queued:
            self._queued.discard(ticket)
            with suppress(HaloclineError):  # an owner that is gone has forgotten them already
                self.link.ask(wire.EndTurns(ticket), None)

    def lapse_turns(self, ticket: int) -> None:
        """May be called in the middle of another request: the next one to come tells the owner."""
        self._lapsed_tickets.append(ticket)

    def _end_lapsed(self) -> None:
        while self._lapsed_tickets:
            self.end_turns(self._lapsed_tickets.popleft())

    def _commit(self, request: wire.Commit, kind: Any) -> Any:
        """Send a commit; the turns of its ticket are over when it is answered."""
        self._end_lapsed()
        try:
            answer = self.link.commit(request, kind)
        except ConflictError:
            self._queued.discard(request.ticket)
            raise
        self._queued.discard(request.ticket)
        return answer

    def tidy(self, state: TableState) -> None:
        """The reader tidies up what it has folded."""

    def start_job(
        self, state: TableState | None, *, rows: int = 0, lease_us: int = 0, job_id: int = 0
    ) -> JobNode:
        """The owner logs it."""
        assert state is not None, "only the owner has jobs of the whole database"
        ddl = self.nascent.get(state.table_id, 0)
        request = wire.StartJob(state.table_id, rows, job_id, lease_us, ddl)
        job: JobNode = self.link.ask(request, JobNode)
        return job

    def end_job(self, job: JobNode) -> None:
        """The owner forgets it."""
        self.link.ask(wire.EndJob(job.job_id), None)

    def _reserve_keys(self, state: TableState, count: int, above: int) -> tuple[int, int]:
        """The owner logs that they are ours."""
        ddl = self.nascent.get(state.table_id, 0)
        request = wire.ReserveKeys(state.table_id, count, max(above, 0), ddl)
        found: tuple[int, int] = self.link.ask(request, tuple[int, int])
        return found

    def begin_ddl(self, snapshot: int) -> RemoteDdl:
        """The catalog's part of a transaction: it lives at the owner."""
        while self.lapsed:
            self.link.ask(wire.CallCatalog("end", self.lapsed.popleft()), list[int])
        return RemoteDdl(self, snapshot)


class RemoteDdl:
    """A catalog transaction at the owner, so that conflicts over names surface at once."""

    def __init__(self, remote: RemoteCommitter, snapshot: int) -> None:
        self._remote = remote
        self._snapshot = snapshot
        self._made: dict[int, TableEntry] = {}
        self._open_here = True
        self.altered: set[int] = set()
        self.indexed: set[int] = set()
        self.epoch = remote.link.epoch
        self.number: int = remote.link.ask(wire.BeginDdl(snapshot), int)

    def table(self, name: str) -> TableEntry | None:
        """The table of that name, or None; the commit makes sure that the answer still holds."""
        found = self._call("table", name)
        return self._entry(found[0]) if found else None

    def tables(self) -> list[TableEntry]:
        """All tables, by name."""
        return [self._entry(table_id) for table_id in self._call("tables")]

    def create_table(
        self, name: str, schema: Schema, *, layout: str, options: Mapping[str, Any]
    ) -> TableEntry:
        """A new table, visible here at once."""
        written = schema.to_wire()
        (table_id,) = self._call("create_table", name, written, layout)
        node = nodes.CreateTableNode(
            table_id=table_id,
            name=name,
            schema=written,
            layout=layout,
            options=dict(options),
            next_column_id=max((column.id for column in schema.columns), default=0) + 1,
        )
        entry = self._made[table_id] = nodes.table_entry(node, schema)
        self._remote.nascent[table_id] = self.number
        return entry

    def alter_table(self, entry: TableEntry, schema: Schema) -> TableEntry:
        """Give a table its next schema."""
        self._call("alter_table", entry.name, schema.to_wire())
        altered = entry.with_schema(schema, told(entry.schema, schema))
        self._made[entry.id] = altered
        self.altered.add(entry.id)
        return altered

    def rename_table(self, entry: TableEntry, name: str) -> TableEntry:
        """Give a table another name."""
        check_name("table", name)
        self._call("rename_table", entry.name, new_name=name)
        renamed = self._made[entry.id] = nodes.renamed_entry(entry, name)
        self.altered.add(entry.id)
        return renamed

    def drop_table(self, name: str) -> TableEntry:
        """End the table of that name."""
        entry = self._entry(*self._call("drop_table", name))
        self._remote.nascent.pop(entry.id, None)
        return entry

    def create_index(
        self, name: str, table: str, kind: int, columns: Sequence[str]
    ) -> IndexedTable:
        """Give a table an index, visible here at once."""
        names = tuple(columns)
        request = wire.CallCatalog(
            "create_index", self.number, name, table=table, kind=kind, columns=names
        )
        table_id, index_id, *ids = self._remote.link.ask(request, list[int])
        index = IndexEntry(id=index_id, name=name, kind=kind, columns=tuple(ids))
        entry = self._made[table_id] = with_index(self._entry(table_id), index)
        self.indexed.add(table_id)
        return entry, index

    def drop_index(self, name: str) -> IndexedTable:
        """End the index of that name."""
        table_id, index_id = self._call("drop_index", name)
        before = self._entry(table_id)
        (index,) = [one for one in before.indexes if one.id == index_id]
        entry = self._made[table_id] = without_index(before, index_id)
        self.indexed.add(table_id)
        return entry, index

    def settle(self) -> None:
        """The owner has ended it."""
        self._open_here = False
        for table_id in self._made:
            self._remote.nascent.pop(table_id, None)

    def rollback(self) -> None:
        """Forget everything. Harmless after a commit, or another rollback."""
        if self._open_here:
            self.settle()
            # An owner that is gone has forgotten it already.
            with suppress(HaloclineError):
                self._call("end")

    def abandon(self) -> None:
        """May be called in the middle of another request: the next one to come tells the owner."""
        if self._open_here:
            self.settle()
            self._remote.lapsed.append(self.number)

    def _call(self, call: wire.CatalogCall, *arguments: Any, **named: Any) -> list[int]:
        request = wire.CallCatalog(call, self.number, *arguments, **named)
        found: list[int] = self._remote.link.ask(request, list[int])
        return found

    def _entry(self, table_id: int) -> TableEntry:
        found = self._made.get(table_id) or self._remote.engine.catalog.table_by_id(table_id)
        if found is None:
            raise ConflictError("the table was dropped by another transaction")
        return found
