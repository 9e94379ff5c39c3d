"""Dispatch: what an owner does when another process asks.

    Request --> a method of `Dispatch` --> a value, or an error of errors.py

The same for everybody, whatever the way: processes of this machine through a socket (service.py),
those of other machines through TLS (server.py), and this process itself, once it has taken over
from an owner that is gone (link.py). A commit runs in the thread that brought it, or in
the request loop (request_loop.py) with those that came together with it.

A snapshot that comes from outside is pinned here first and then compared with what has been trimmed
from memory (`Core.check_writable`): either the trimmer has seen the pin, or we see that it went on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final

from halocline.errors import (
    ConflictError,
    SnapshotExpiredError,
    UnavailableError,
    UsageError,
)
from halocline.node.file_requests import list_log, look, put_object, read_file, read_object
from halocline.node.limits import LARGE_BYTES, Nodes, Room, read_record
from halocline.node.push import Hub
from halocline.node.row_commits import Answerable, RowAnswer, log_rows
from halocline.node.served import Served
from halocline.node.session import Session
from halocline.node.wire import (
    BeginDdl,
    CallCatalog,
    CheckpointFacts,
    Command,
    Commit,
    Committed,
    EndJob,
    EndTurns,
    FindCommit,
    ListCheckpoints,
    ListLog,
    Look,
    Ping,
    PinSnapshot,
    Position,
    PutObject,
    ReadFile,
    ReadObject,
    Request,
    ReserveKeys,
    StartJob,
    Subscribe,
    TakeTurns,
    WaitVisible,
)
from halocline.node.workspace_wire import unpack
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from halocline.schema.evolve import follows
from halocline.schema.schema import Schema
from halocline.txn import Core, Transaction
from halocline.txn.definitions import validated

WAIT_S: Final = 1.0
_NO_ROOM: Final = nullcontext()  # a small commit needs none: 2 us less


class Dispatch:
    """Does what requests ask for. Thread-safe."""

    def __init__(self, owner: Callable[[], Served | None], *, sync: bool) -> None:
        """`owner` gives the database, None when the program has let go of it.

        With `sync` every commit of another process is synced, whatever the owner does with its own:
        others follow the log, and must find there what they have committed.
        """
        self._owner = owner
        self._sync = sync
        self.hub = Hub(owner)
        self._room = Room()
        self._methods: dict[type, Callable[[Served, Session, Any], Any]] = {
            Ping: self._ping,
            Commit: self._commit,
            FindCommit: self._find_commit,
            TakeTurns: self._take_turns,
            EndTurns: self._end_turns,
            WaitVisible: self._wait_visible,
            StartJob: self._start_job,
            EndJob: self._end_job,
            ReserveKeys: self._reserve_keys,
            BeginDdl: self._begin_ddl,
            CallCatalog: self._call_catalog,
            Command: self._command,
            ReadFile: read_file,
            Look: look,
            ListLog: list_log,
            ReadObject: read_object,
            PutObject: put_object,
            PinSnapshot: self._pin,
            Subscribe: self._subscribe,
            ListCheckpoints: self._list_checkpoints,
        }

    def answer(self, session: Session, request: Request) -> Any:
        """The value that is sent back; errors are raised."""
        return self._methods[type(request)](self._running(), session, request)

    def _running(self) -> Served:
        owner = self._owner()
        if owner is None or owner.core.closed:
            raise UnavailableError("the owner is closing the database")
        return owner

    def end(self, session: Session) -> None:
        """The last connection of a session is gone."""
        owner = self._owner()
        session.end(None if owner is None else owner.core)

    def schema_of(self, table: str) -> Schema | None:
        """The newest table of that name; None when there is none."""
        owner = self._owner()
        if owner is None:
            return None
        entry = owner.core.catalog.table(table, owner.core.engine.last_ts)
        return None if entry is None else entry.schema

    # Transactions.

    def _commit(self, owner: Served, session: Session, request: Commit) -> int | Committed:
        core = owner.core
        if request.token is not None or request.again:
            if known := self._find_commit(owner, session, request):
                return known  # sent again, because the first answer was lost
        if request.created and request.epoch != core.own.log.epoch:
            raise ConflictError("another owner has taken over since the transaction began")
        if request.single and request.token is None:
            (outcome,) = self.log_rows([(session, request)])
            if isinstance(outcome, Exception):
                raise outcome
            row_ts, owing = outcome or self.log_commit(session, request, [])
            self.settle()
            self.tidy(owing)
            return row_ts
        try:
            nodes, size = read_record(request.record)
            room = self._room.take(size) if size >= LARGE_BYTES else _NO_ROOM
            with room, Transaction(core, request.snapshot) as txn:
                txn.ticket = session.ticket(request.ticket)
                if request.token is not None:
                    txn.use_token(request.token, 0)
                tables = unpack(core, session, request, nodes, txn)
                if not nodes:
                    txn.keep_token()  # nobody sends nothing, but for the sake of its token
                core.check_writable(request.snapshot, tables)
                jobs = {
                    id: one.blind
                    for id, one in txn.workspace.changes.items()
                    if one.blind is not None
                }
                commit_ts = txn.commit()
        finally:
            if request.objects or request.ddl:
                session.settle(core, request.ddl)
        if commit_ts is None:  # it came to nothing, as it would have done there
            return 0
        if self._sync:
            core.own.sync()
        counts = {id: job.counts() for id, job in jobs.items()}
        return Committed(commit_ts, counts) if counts else commit_ts

    def log_commit(self, session: Session, request: Commit, nodes: Nodes) -> Answerable:
        """Fold and log a short commit (`short_nodes`). Durable after `settle`, then `tidy`."""
        owner = self._running()
        core, tables = owner.core, owner.core.engine.tables
        nodes = nodes or read_record(request.record)[0]
        with Transaction(core, request.snapshot) as txn:
            txn.waits = False
            txn.ticket = session.ticket(request.ticket)
            changed = unpack(core, session, request, nodes, txn)
            core.check_writable(request.snapshot, changed)
            commit_ts = txn.commit()
        return commit_ts or 0, [tables[id] for id in changed if id in tables and tables[id].owes]

    def log_rows(self, sent: Sequence[tuple[Session, Commit]]) -> Sequence[RowAnswer]:
        """Fold and log commits of single rows; None for those that `log_commit` must decide."""
        try:
            tickets = [commit.ticket and session.ticket(commit.ticket) for session, commit in sent]
            return log_rows(self._running().core, [commit for _, commit in sent], tickets)
        except Exception as error:  # noqa: BLE001 nothing has been logged: see there
            return [error] * len(sent)

    def settle(self) -> None:
        """Wait until all that was logged is durable and visible."""
        owner = self._owner()
        if owner is None:
            raise UnavailableError("the owner has let go of the database", outcome="unknown")
        (owner.core.own.sync if self._sync else owner.core.own.wait)()

    def tidy(self, states: list[TableState]) -> None:
        """Freeze and merge what commits left behind. They have happened: nothing is refused."""
        owner = self._owner()
        for state in states:
            if owner is not None and not owner.core.closed:
                owner.core.own.tidy(state)

    def _find_commit(self, owner: Served, session: Session, request: FindCommit | Commit) -> int:
        engine, log = owner.core.engine, owner.core.own.log
        known = engine.serials.find(request.serial)
        if request.token is not None:
            known = engine.tokens.find(request.token)
        while known and not log.wait_visible(known, WAIT_S):
            if log.failed is not None:
                raise UnavailableError("the database stopped after an error", outcome="unknown")
        return known

    def _take_turns(self, owner: Served, session: Session, request: TakeTurns) -> bool:
        return session.take_turns(owner.core, request)

    def ask_turns(
        self, session: Session, request: TakeTurns, until: float, call: Callable[[], None]
    ) -> bool:
        """Is it the turn of that caller? See `Session.ask_turns`; `settle` comes behind it."""
        return session.ask_turns(self._running().core, request, until, call)

    def _end_turns(self, owner: Served, session: Session, request: EndTurns) -> None:
        session.end_turns(owner.core, request.ticket)

    def _wait_visible(self, owner: Served, session: Session, request: WaitVisible) -> int:
        log = owner.core.own.log
        log.wait_visible(request.ts, WAIT_S)
        if self._sync:
            owner.core.own.sync()
        return log.visible_ts

    def _ping(self, owner: Served, session: Session, request: Ping) -> Position:
        log = owner.core.own.log
        return Position(log.epoch, log.visible_ts)

    # Jobs.

    def _start_job(self, owner: Served, session: Session, request: StartJob) -> JobNode:
        core = owner.core
        state = _state_of(core, session, request)
        return session.start_job(
            core, state, rows=request.rows, job_id=request.job_id, lease_us=request.lease_us
        )

    def _end_job(self, owner: Served, session: Session, request: EndJob) -> None:
        session.end_job(owner.core, request.job_id)

    def _reserve_keys(
        self, owner: Served, session: Session, request: ReserveKeys
    ) -> tuple[int, int]:
        state = _state_of(owner.core, session, request)
        if state.sequence is None:
            raise UsageError(f"table {state.entry.name!r} has no identity column")
        return owner.core.own.reserve_keys(state, request.count, request.above)

    # The catalog.

    def _begin_ddl(self, owner: Served, session: Session, request: BeginDdl) -> int:
        core = owner.core
        if not core.engine.floor <= request.snapshot <= core.engine.last_ts:
            raise SnapshotExpiredError(request.snapshot, core.engine.floor)
        return session.begin_ddl(core, request.snapshot)

    def _call_catalog(self, owner: Served, session: Session, request: CallCatalog) -> list[int]:
        longest = owner.core.options.key_bytes_max
        match request.call:
            case "table":
                entry = session.ddl(request.ddl).table(request.name)
                return [] if entry is None else [entry.id]
            case "tables":
                return [entry.id for entry in session.ddl(request.ddl).tables()]
            case "create_table":
                schema = validated(Schema.from_wire(request.schema or {}, key_bytes_max=longest))
                return [session.create_table(request.ddl, request.name, schema, request.layout)]
            case "alter_table":
                ddl = session.ddl(request.ddl)
                entry = ddl.table(request.name)
                if entry is None:
                    raise ConflictError("the table was dropped by another transaction")
                schema = validated(Schema.from_wire(request.schema or {}, key_bytes_max=longest))
                if not follows(entry.schema, schema):
                    raise ConflictError("the table was altered by another transaction")
                return [ddl.alter_table(entry, schema).id]
            case "rename_table":
                ddl = session.ddl(request.ddl)
                entry = ddl.table(request.name)
                if entry is None:
                    raise ConflictError("the table was dropped by another transaction")
                return [ddl.rename_table(entry, request.new_name).id]
            case "drop_table":
                return [session.ddl(request.ddl).drop_table(request.name).id]
            case "create_index":
                made = session.ddl(request.ddl)
                columns = list(request.columns)
                table, index = made.create_index(request.name, request.table, request.kind, columns)
                return [table.id, index.id, *index.columns]
            case "drop_index":
                table, index = session.ddl(request.ddl).drop_index(request.name)
                return [table.id, index.id]
            case "end":
                session.end_ddl(request.ddl)
        return []

    # Following the log.

    def _pin(self, owner: Served, session: Session, request: PinSnapshot) -> None:
        session.pin(owner.core, request.ts)

    def _subscribe(self, owner: Served, session: Session, request: Subscribe) -> None:
        raise UsageError("a subscription is a stream: it has one answer after another")

    def _list_checkpoints(
        self, owner: Served, session: Session, request: ListCheckpoints
    ) -> list[CheckpointFacts]:
        ts_of_file = owner.core.own.log.places.ts_of_file
        return [
            CheckpointFacts(node.ts, node.key, node.size_bytes, since)
            for node in owner.core.engine.checkpoints
            if (since := ts_of_file(node.start_file)) is not None
        ]

    # Maintenance.

    def _command(self, owner: Served, session: Session, request: Command) -> Any:
        report = owner.maintain(request)
        if self._sync:
            owner.core.own.sync()  # whoever asked must see what it has changed
        return report


def _state_of(core: Core, session: Session, request: StartJob | ReserveKeys) -> TableState:
    """The table of a request, which its sender may be about to create."""
    if request.ddl:
        return session.nascent(core, request.ddl, request.table_id)
    state = core.engine.tables.get(request.table_id)
    if state is None:
        raise ConflictError("the table was dropped by another transaction")
    return state
