"""Session: what the owner keeps for one process that talks to it.

A session is as long as the longest of its connections. What it began and did not commit, jobs and
catalog transactions, ends with it: files that its jobs have written are then nobody's, and GC
removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Final

from halocline.catalog import CatalogTxn, TableEntry
from halocline.errors import ConflictError, UnavailableError
from halocline.ids import NEVER
from halocline.node.wire import TakeTurns
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from halocline.schema.schema import Schema
from halocline.store import File, Files
from halocline.txn.jobs import give_up
from halocline.txn.turns import HELD

if TYPE_CHECKING:
    from halocline.txn import Core

TURN_LOOK_S: Final = 1.0
"""How long a turn is waited for until the one who waits is asked whether it still does."""
OPEN_MAX: Final = 1000
"""Jobs or catalog transactions that one process may have open."""


class Session:
    """Jobs and catalog transactions of one client."""

    def __init__(self, number: int, numbers: Iterator[int], role: str = "write") -> None:
        """`numbers` are given to catalog transactions: none of them is ever given twice."""
        self.number = number
        self.role = role
        self._numbers = numbers
        self.connections = 1
        self._lock = Lock()
        self._jobs: dict[int, JobNode] = {}
        self._ddls: dict[int, CatalogTxn] = {}
        self._made: dict[int, dict[int, TableEntry]] = {}
        """Tables that each catalog transaction has created, by id."""
        self._nascent: dict[int, TableState] = {}
        self._log: tuple[str, File] | None = None
        self._tickets: dict[int, int] = {}
        """For turns: the owner's own number for each ticket of this process, oldest first."""

    def read_log(self, files: Files, path: str, size: int, offset: int) -> bytes:
        """Bytes of the log file that the session follows; it is kept open for the next look."""
        with self._lock:
            if self._log is None or self._log[0] != path:
                self._let_go()
                self._log = (path, files.open_read(path))
            return self._log[1].pread(size, offset)

    def _let_go(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log[1].close()

    def pin(self, core: Core, ts: int) -> None:
        """The oldest snapshot that a process far away reads; those near have pins of their own."""
        if ts < NEVER:
            core.pins[id(self)] = ts  # above zero: it may commit from there
        else:
            core.pins.pop(id(self), None)

    # Turns.

    def take_turns(self, core: Core, request: TakeTurns) -> bool:
        """Wait for a turn, for a moment: who has hung up meanwhile must be noticed."""
        committer, timeout_s = core.own, request.timeout_ms / 1000
        number = self._numbered(core, request.ticket)
        try:
            wait_s = min(timeout_s, TURN_LOOK_S)
            committer.take_turns(number, request.rows, wait_s, lasts=request.lasts)
        except ConflictError as error:
            if error.reason != HELD or timeout_s <= TURN_LOOK_S:
                raise
            return False
        finally:
            if self.ticket(request.ticket) != number:  # it was ended while it waited
                committer.end_turns(number)
        return True

    def ask_turns(
        self, core: Core, request: TakeTurns, until: float, call: Callable[[], None]
    ) -> bool:
        """Is it its turn? Otherwise `call` is called when that should be asked again."""
        return core.own.turns.ask(self._numbered(core, request.ticket), request.rows, until, call)

    def _numbered(self, core: Core, ticket: int) -> int:
        with self._lock:
            number = self._tickets.setdefault(ticket, 0) or core.own.new_ticket()
            self._tickets[ticket] = number
            oldest = next(iter(self._tickets)) if len(self._tickets) > OPEN_MAX else None
        if oldest is not None:
            self.end_turns(core, oldest)
        return number

    def ticket(self, ticket: int) -> int:
        """The owner's own number for a ticket; 0 for one that has had no turn."""
        return self._tickets.get(ticket, 0)

    def end_turns(self, core: Core, ticket: int) -> None:
        """Give up all turns of a ticket."""
        number = self._tickets.pop(ticket, 0)
        if number:
            core.own.end_turns(number)

    # Jobs.

    def start_job(
        self, core: Core, state: TableState, *, rows: int, job_id: int, lease_us: int
    ) -> JobNode:
        """Log a job, or more RowIDs for one; the session remembers which are whose."""
        if job_id and (job_id not in self._jobs or job_id not in core.engine.jobs):
            raise ConflictError("the job is not live any more", table=state.entry.name)
        if not job_id and len(self._jobs) >= OPEN_MAX:
            raise _too_many("large transactions")
        job = core.own.start_job(state, rows=rows, job_id=job_id, lease_us=lease_us)
        with self._lock:
            self._jobs[job.job_id] = job
        return job

    def job(self, core: Core, job_id: int) -> JobNode | None:
        """A job of this session.

        A job whose lease outlives the session that started it is anybody's who knows its number.
        """
        job = self._jobs.get(job_id)
        left = core.engine.jobs.get(job_id) if job is None else None
        return left if left is not None and _outlives(left) else job

    def end_job(self, core: Core, job_id: int) -> None:
        """Given up, or committed: in both cases it is over."""
        job = self.job(core, job_id)
        with self._lock:
            self._jobs.pop(job_id, None)
        if job is not None:
            give_up(core.own, [job])

    # The catalog.

    def begin_ddl(self, core: Core, snapshot: int) -> int:
        """A catalog transaction; its number."""
        if len(self._ddls) >= OPEN_MAX:
            raise _too_many("transactions that create or drop tables")
        with self._lock:
            number = next(self._numbers)
            self._ddls[number] = core.catalog.begin(snapshot)
        return number

    def ddl(self, number: int) -> CatalogTxn:
        found = self._ddls.get(number)
        if found is None:
            raise ConflictError("the catalog transaction is not open any more")
        return found

    def create_table(self, number: int, name: str, schema: Schema, layout: str) -> int:
        """A table that is there when its catalog transaction commits; its id."""
        entry = self.ddl(number).create_table(name, schema, layout=layout, options={})
        self._made.setdefault(number, {})[entry.id] = entry
        return entry.id

    def end_ddl(self, number: int) -> None:
        with self._lock:
            found = self._ddls.pop(number, None)
            for table_id in self._made.pop(number, {}):
                self._nascent.pop(table_id, None)
        if found is not None:
            found.rollback()  # harmless after its commit

    def nascent(self, core: Core, number: int, table_id: int) -> TableState:
        """The state of a table that a catalog transaction has created."""
        state = self._nascent.get(table_id)
        if state is None:
            entry = self._made.get(number, {}).get(table_id)
            if entry is None:
                raise ConflictError("the catalog transaction does not know the table")
            state = self._nascent[table_id] = core.engine.new_table(entry)
        return state

    def settle(self, core: Core, ddl: int) -> None:
        """A transaction has ended, well or not: what belonged to it is over."""
        self.end_ddl(ddl)
        with self._lock:
            for job_id in [one for one in self._jobs if one not in core.engine.jobs]:
                del self._jobs[job_id]

    def end(self, core: Core | None) -> None:
        """The process is gone: so is what it has not committed."""
        with self._lock:
            self._let_go()
        if core is not None:
            self.pin(core, NEVER)
        for ticket in list(self._tickets):
            number = self._tickets.pop(ticket, 0)
            if core is not None and core.owned is not None:
                core.owned.end_turns(number)
        for number in list(self._ddls):
            self.end_ddl(number)
        for job_id, job in list(self._jobs.items()):
            if core is not None and core.committer is not None and not core.closed:
                if not _outlives(job):
                    self.end_job(core, job_id)


def _outlives(job: JobNode) -> bool:
    """Does a job go on without the process that started it? Its rows are written by others."""
    return bool(job.lease_us and job.rows)


def _too_many(what: str) -> UnavailableError:
    text = f"this process has {OPEN_MAX} {what} open: commit or roll back some of them"
    return UnavailableError(text)
