"""The writer of the log: reserve, append, wait.

    with commit_lock:  reserve ---> (fold) ---> append          wait (no lock held)
                         |                        |               |
                    room in a file        frame, put on the   leader: pwrite + sync all of it
                                          tape                others: park until that reached them

The caller folds before it appends: a leader at work takes whatever is on the tape and makes it
visible, and nobody may see half a commit. In async mode `append` itself gives the entry to the
operating system, and `wait` has nothing left to do.

    order    1 2 3 4 5 6 7 8 9
             ------- synced, published, visible
                     --- written, not synced (async mode; in sync mode only while a leader works)
                         ----- pending: framed, in memory

Why an interrupt (Ctrl-C) in `wait` is harmless. Writing and syncing can be broken off and begun
again (tape.py), and so can taking turns (line.py). So after a first interrupt, in any place, `wait`
lets go of leadership, starts over, finishes, and raises only then. A second interrupt in there
poisons the log, as does any in the few steps of `append` and `_move_to` that cannot be done half.

After a failed pwrite or fsync nothing can be trusted: a second fsync may succeed without having
written. The log is poisoned: whoever waits gets outcome="unknown", whoever comes later
"not_committed", and only recovery, which writes the tail again, tells what happened.

Invariants
- A file is whole and synced before its successor gets its first byte (`_roll`).
- visible_ts moves only after the bytes behind it: synced, or in async mode handed over; and only
  after the fold, because nothing is on the tape before it.
- No byte is written that was not allocated before: a full disk fails in `reserve`.

Lock order: the caller's commit lock, leadership (Line), the tape's. Nobody waits the other way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from halocline.clock import Clock
from halocline.errors import Outcome, UnavailableError, UsageError
from halocline.log.allocate import Allocator, Fresh
from halocline.log.flusher import Flusher
from halocline.log.format import CKP, ENTRY_EXTRA_MAX, PAYLOAD_BYTES_MAX, SECTOR, file_seed
from halocline.log.frame import frame
from halocline.log.line import Line, let_go
from halocline.log.names import LOG_DIRECTORY
from halocline.log.places import Places
from halocline.log.published import FencedError, Publisher
from halocline.log.recover import Recovery
from halocline.log.tape import Mark, Tape
from halocline.log.watch import Watchers
from halocline.options import Durability, Options
from halocline.store import Files

SYSTEM_PAYLOAD_MAX: Final = 512
"""A reservation leaves room for one system entry of this payload, which needs none of its own."""
_RESERVE_EXTRA: Final = ENTRY_EXTRA_MAX + SYSTEM_PAYLOAD_MAX + ENTRY_EXTRA_MAX
_LAST: Final = 1 << 64  # an order that is never reached: whoever waits for it wants to lead
_new = tuple.__new__


class Log:
    """One database's log, open for writing. `Log.start` makes one."""

    def __init__(
        self, files: Files, recovery: Recovery, *, options: Options, durability: Durability
    ) -> None:
        self.uuid = recovery.uuid
        self.epoch = recovery.epoch + 1
        self.failed: BaseException | None = None
        self._line = Line()
        self.watchers = Watchers()
        self._allocator = Allocator(files, options)
        # Where the next entry goes. Changed under the commit lock only.
        self._next = replace(recovery.tail, lsns=list(recovery.tail.lsns))
        self.places = Places(self._next, [span.header for span in recovery.spans])
        self._checkpoint = recovery.checkpoint.order if recovery.checkpoint else 0
        self._sync_always = durability == "sync"
        self._unsynced_max = options.log_buffer_bytes
        fresh = self._as_written(self._allocator.first_file(recovery.tail.number + 1))
        publisher = Publisher(files, self.uuid, self.epoch)
        self.published = publisher.copy
        self.visible_ts = self._ts = publisher.visible_ts
        self._reached = order = self._next.order - 1
        header = self._begin(fresh)
        self._tape = Tape(fresh, header, publisher=publisher, order=order, visible_ts=self._ts)
        self._tape.write()
        self._tape.sync()
        self._owed = False
        self._flusher: Flusher | None = None
        if not self._sync_always:
            self._flusher = Flusher(options.async_sync_ms / 1000, self._flush, self.poison)
            self._touch = self._flusher.touch

    @classmethod
    def start(
        cls,
        files: Files,
        recovery: Recovery,
        *,
        options: Options,
        clock: Clock,
        durability: Durability = "sync",
    ) -> Log:
        """Begin a new epoch in a new file, durably, and publish it."""
        del clock  # Nothing here asks for the time: the flusher sleeps on an event.
        if not recovery.repaired:
            raise UsageError("this log was opened for reading; recover it before writing")
        try:
            files.makedirs(LOG_DIRECTORY)
            log = cls(files, recovery, options=options, durability=durability)
            if recovery.spans:
                log._allocator.trim_file(recovery.tail.number, recovery.tail.offset)
        except FileExistsError as error:
            raise UsageError(f"the log has been started already: {error}") from error
        except OSError as error:
            raise UnavailableError(f"no new log file: {error}") from error
        return log

    # Under the commit lock.

    def reserve(self, payload_bytes: int, extra: int = _RESERVE_EXTRA) -> None:
        """Make sure that one entry of this payload, and a small system entry, have room. 0.2 us."""
        if self.failed is not None:
            raise self.refusal("not_committed")
        if self._next.offset + payload_bytes + extra > self._size:
            self._roll(payload_bytes)

    def append(
        self, group: int, type: int, payload: bytes | bytearray | memoryview, visible_ts: int = 0
    ) -> int:
        """Frame an entry and put it on its way; returns its order. 2 us, and a pwrite if async."""
        if self.failed is not None:
            raise self.refusal("not_committed")
        at, tape = self._next, self._tape
        offset = at.offset
        entry, crc = frame(at, self._seed, tape.durable, group, type, payload)
        end = offset + len(entry)
        if end > self._size:
            raise UsageError(f"an entry of {len(payload)} bytes was not reserved")
        try:
            if visible_ts > self._ts:
                self._ts = visible_ts
            order = at.order
            if type == CKP:
                self._checkpoint = order
            at.order = order + 1
            at.lsns[group] += 1
            at.crc, at.offset = crc, end
            mark = _new(Mark, (order, end, self._ts))
            if self._sync_always:
                tape.pending.append((entry, offset, mark))
                return order
            # Async: the commit lock makes us the only writer.
            tape.put(entry, offset, mark)
            self._see(visible_ts)
            self._reached = order
            self._touch()
            if end > self._owed_at:
                self._owed = True
        except OSError as error:
            self.poison(error)
            raise self.refusal("unknown") from error
        except BaseException as interrupt:
            # Half an append: what is in memory no longer fits what will be written.
            self.poison(interrupt)
            raise
        return order

    # No lock held.

    def wait(self, order: int) -> None:
        """Return when that order is durable and visible (async: given to the operating system)."""
        if order <= self._reached and not self._owed:
            return
        try:
            if order > self._reached:
                self._take_turns(order)
            elif self._spare_at < _LAST or self._too_much_unsynced():
                self._sync_now()
            if self._tape.synced.end > self._spare_at:
                self._tidy()
            if self._owed:
                self._owed = False
                self._owed_at = min(self._spare_at, self._tape.synced.end + self._unsynced_max)
        except BaseException:
            # Finish what was begun, so that nobody is left waiting, and raise it only then.
            try:
                self._resume()
                self._take_turns(order)
            except UnavailableError:
                pass  # The log has failed, and everyone has been told.
            except BaseException as second:  # noqa: BLE001 the first one is raised
                self.poison(second)
            raise

    def sync(self, order: int) -> None:
        """Return when that order is durable, in async mode too."""
        self.wait(order)
        if self._tape.durable < order:
            self._sync_now()
            if self._tape.durable < order:
                raise self.refusal("unknown")

    def wait_visible(self, ts: int, timeout: float) -> bool:
        """Wait until visible_ts has reached `ts`; False when time is up."""
        if self.visible_ts < ts and self.failed is None:
            self.wait(self._next.order - 1)  # whoever should lead may have been interrupted
        if self.visible_ts < ts:
            due = lambda: self.visible_ts >= ts or self.failed is not None  # noqa: E731
            self.watchers.wait(ts, timeout, due)
            if self.visible_ts < ts and self.failed is not None:
                raise self.refusal("not_committed")
        return self.visible_ts >= ts

    def set_visible(self, ts: int) -> None:
        """Make everything up to `ts` visible: at start-up, when the log has been replayed."""
        self._ts = max(self._ts, ts)
        self._see(ts)
        self._tape.publish_ts(self.visible_ts)

    def check_place(self) -> None:
        """MovedError when the name of the active file leads elsewhere now."""
        self._tape.active.check()

    def mend_page(self) -> None:
        """Bring back the published position if somebody has taken it away. OSError."""
        try:
            self._tape.mend_page()
        except FencedError as error:
            self.poison(error)

    def poison(self, error: BaseException) -> None:
        """Refuse everything from now on, and wake all who wait."""
        self.failed = self.failed or error
        self._resume()
        self.watchers.wake_up_to(_LAST)

    def truncate_before(self, file_number: int) -> None:
        """Delete whole files, oldest first, as far as a durable checkpoint allows."""
        if 0 < self._checkpoint <= self._tape.durable:
            keep = min(file_number, self.places.file_of(self._checkpoint))
            self._allocator.remove_before(keep)
            self.places.forget_before(keep)

    def close(self) -> None:
        """Make everything durable and let go. Twice is harmless.

        UnavailableError when the log of async mode has failed: what it had acknowledged since its
        last sync may be lost, and those who were told of it are gone.
        """
        if self._flusher is not None:
            self._flusher.stop()
        if self.failed is None:
            try:
                self._drain()
                self._resume()
            except OSError as error:
                self.poison(error)
            except BaseException:
                self._resume()
                raise
            else:
                self._allocator.close(self._tape.active.number)
                self.failed = UnavailableError("the log is closed")
        self._allocator.let_go()
        self._tape.close()
        if isinstance(self.failed, OSError):
            self.failed = self.refusal("unknown")
            if not self._sync_always:  # else whoever waited has been told
                raise self.failed

    # Going on in the next file.

    def _roll(self, payload_bytes: int) -> None:
        """Seal the active file and go on in the next. Nothing is changed unless there is room."""
        try:
            for fresh in self._next_files(payload_bytes):
                self._drain()
                self._move_to(fresh)
            self._resume()
        except OSError as error:
            self.poison(error)
            raise self.refusal("not_committed") from error
        except BaseException:
            self._resume()
            raise

    def _next_files(self, payload_bytes: int) -> list[Fresh]:
        if payload_bytes > PAYLOAD_BYTES_MAX:
            raise UsageError(f"an entry of {payload_bytes} bytes is longer than the log allows")
        active = self._tape.active.number
        try:
            return self._allocator.next_files(active, payload_bytes + _RESERVE_EXTRA)
        except OSError as error:
            raise UnavailableError(f"no room for the log: {error}") from error

    def _move_to(self, fresh: Fresh) -> None:
        try:
            fresh = self._as_written(fresh)
            self._allocator.retire(self._tape.active.file, self._next.offset)
            self._tape.move_to(fresh, self._begin(fresh))
            if not self._sync_always:
                self._tape.write()  # the header: `append` writes behind it without looking
        except BaseException as interrupt:
            self.poison(interrupt)
            raise

    def _as_written(self, fresh: Fresh) -> Fresh:
        """Async mode writes through memory (decision 0002)."""
        return fresh if self._sync_always else fresh._replace(file=fresh.file.mapped(fresh.size))

    def _begin(self, fresh: Fresh) -> bytes:
        """Let the next entry go to the beginning of this file; returns its header."""
        at = self._next
        header = at.next_header(
            uuid=self.uuid, number=fresh.number, epoch=self.epoch, size=fresh.size
        )
        at.offset = SECTOR
        self._seed = file_seed(fresh.number)
        self._size, self._spare_at = fresh.size, fresh.size // 2
        # Async: from half of the file on the flusher makes the spare, unless it comes too late.
        self._owed_at = min(fresh.size - fresh.size // 8, self._unsynced_max)
        self.places.enter(header, self._ts)
        return header.encode()

    def _tidy(self) -> None:
        """What no other commit should wait for: make the spare, trim and close sealed files."""
        self._spare_at = _LAST
        self._allocator.make_spare(self._tape.active.number)
        if self._tape.header_is_durable():
            self._allocator.trim_sealed()

    # Taking turns.

    def _take_turns(self, order: int) -> None:
        """Lead or park until the order is reached. Can be begun again after `_resume`."""
        line = self._line
        parked = False
        while order > self._reached:
            if self.failed is not None:
                raise self.refusal("unknown")
            ticket = line.enter(order)
            if ticket is None:
                self._lead()
                line.leave(self._reached)
            else:
                ticket.acquire()
                parked = True
        if parked and line.is_ours():
            # Async: an append reached the order between the hand-over and our waking.
            line.leave(self._reached)

    def _lead(self) -> None:
        """Work for everybody whose entries are on the tape."""
        try:
            self._tape.write()
            if self._sync_always or self._too_much_unsynced():
                self._tape.sync()
        except OSError as error:
            self.poison(error)
        else:
            self._advance()

    def _advance(self) -> None:
        """What follows from the work of a leader: first visible, then reached."""
        mark = self._tape.synced if self._sync_always else self._tape.written
        if self._flusher is not None:
            self._flusher.touch()
        self._see(mark.visible_ts)
        self._reached = mark.order

    def _too_much_unsynced(self) -> bool:
        return self._tape.written.end - self._tape.synced.end > self._unsynced_max

    def _drain(self) -> None:
        """Make durable all that was released; then still lead, until `_resume`."""
        while (ticket := self._line.enter(_LAST)) is not None:
            ticket.acquire()
        if self.failed is not None:
            raise self.refusal("not_committed")
        self._tape.write()
        self._tape.sync()
        self._advance()

    def _resume(self) -> None:
        """After an interrupt, anywhere: this thread holds nothing, and nobody parks."""
        let_go(self._tape.syncing)
        let_go(self._allocator.mutex)
        self._line.resume()

    def _sync_now(self) -> None:
        """Async: make durable what was handed over. An interrupt passes, the next one does it."""
        try:
            self._tape.sync()
        except OSError as error:
            self.poison(error)

    def _flush(self) -> None:
        """Async, in the flusher's thread: sync, and make the spare while nobody waits for it."""
        self._sync_now()
        if self.failed is None and self._tape.synced.end > self._spare_at:
            self._tidy()

    def _see(self, ts: int) -> None:
        if ts > self.visible_ts:
            self.visible_ts = ts
            if self.watchers.watching:
                self.watchers.wake_up_to(ts)

    def refusal(self, outcome: Outcome) -> UnavailableError:
        """What everybody is told once the log has failed."""
        reason = str(self.failed) or type(self.failed).__name__
        text = f"the database stopped ({reason}): close it and open it again"
        return UnavailableError(text, outcome=outcome).with_cause(self.failed)
