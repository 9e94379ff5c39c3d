"""Make a checkpoint: write what is new, name it in the log, let go of what only older ones needed.

    flush    tables that hold back the log            (the mover's work, given by the caller)
    job      logged, durable                          files may be written
    capture  under the commit lock                    capture.py
    write    object lists of changed tables, root     into the object store
    CKP      logged, durable                          from here on it is a checkpoint
    pointer  log/checkpoint                           from here on openings begin with it
    drop     log files and files of the third-newest  oldest first

A crash between any two of these steps leaves the two checkpoints before, or the new one and the one
before it, with all that they need: nothing is deleted before the pointer names a newer pair. What
was written for nothing belongs to a job that is dead then, and GC removes it.

The newest two are kept. The log reaches back to where the older of them needs it, so that it can
stand in if a file of the newest is damaged. With one checkpoint only, the whole log is kept.

When. In the background after every `checkpoint_log_bytes` of log; then only tables are flushed that
need log from before the newest checkpoint, so each is flushed once in two intervals at most and the
log holds three or four. When the database is closed: if the next opening would read more than a
64th of that (1 MiB, some thousand commits), or CLOSE_FILES log files, which every opening adds one
to. Then everything is flushed; below that nothing is, so that opening, changing a row and closing
again does not leave an object each time. And whenever `db.checkpoint()` asks.

Not here: the mover (mover/); opening from a checkpoint (load.py, restore.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock

import xxhash

from halocline.checkpoint.capture import Moment, Needs, capture, root_of, survey
from halocline.checkpoint.indexlist import encode_indexes
from halocline.checkpoint.load import files_of, read_root
from halocline.checkpoint.objectlist import encode_objects
from halocline.checkpoint.pointer import write_pointer
from halocline.checkpoint.report import CheckpointReport
from halocline.checkpoint.root import FileRef, Root, encode_root
from halocline.errors import CorruptionError, HaloclineError
from halocline.ids import TableId
from halocline.log import Place
from halocline.log.format import CKP
from halocline.log.record import ROOT, encode_body
from halocline.objects.shelf import object_key, root_key
from halocline.rows.state import TableState
from halocline.rows.system import CheckpointNode, JobNode
from halocline.rows.tier import Tier
from halocline.store import Files
from halocline.txn import Committer

CLOSE_SHARE = 64
CLOSE_FILES = 16

Flush = Callable[[TableState], object]
"""Move all rows and tombstones that a table has in L0 into objects."""
Lists = dict[int, tuple[Tier, FileRef, FileRef | None]]
"""Table id -> its objects, and the files that list exactly these, index objects by themselves."""


class Checkpoints:
    """The checkpoints of an open database: what is on disk, and what the next has to write."""

    def __init__(self, committer: Committer, files: Files) -> None:
        self._committer = committer
        self._files = files
        self.flush: Flush | None = None
        """The mover's; without it tables stay as they are."""
        self._turn = Lock()
        self._lists: Lists = {}
        """The newest object list of each table, and the objects that it lists."""
        self._owned: dict[str, list[str]] = {}
        """Root key -> all files of that checkpoint, for those that are kept."""
        self.here: Place | None = None
        """Where the newest was captured."""
        self.start: Place = committer.log.places.first()
        """Where an opening begins to read."""

    def adopt(self, root: Root, key: str, tiers: Mapping[TableId, Tier]) -> None:
        """The database was opened from this checkpoint, with these objects."""
        for table in root.tables:
            if table.objects is not None:
                tier = tiers[TableId(table.table_id)]
                self._lists[table.table_id] = (tier, table.objects, table.indexes)
        self._owned[key] = files_of(root, key)
        if root.checkpoints:
            self._owned[root.checkpoints[0].key] = list(root.previous_files)
        self.here, self.start = root.here, root.start
        for node in self._committer.engine.checkpoints:
            if node.key not in self._owned:
                self._learn(node)
        self._keep()

    def _learn(self, node: CheckpointNode) -> None:
        """A newer checkpoint that a crash kept from being named: which files are its own?"""
        try:
            root = read_root(self._committer.engine.shelf.objects, node)
        except CorruptionError:
            return
        self._owned[node.key] = files_of(root, node.key)

    def tail_bytes(self) -> int:
        """Bytes of log that an opening would have to read now."""
        return self._committer.log.places.bytes_since(self.start)

    def bytes_since(self) -> int:
        """Bytes of log since the newest checkpoint."""
        places = self._committer.log.places
        return places.bytes_since(self.here or places.first())

    def due(self) -> bool:
        """Has enough been logged since the newest checkpoint?"""
        return self.bytes_since() >= self._committer.engine.options.checkpoint_log_bytes

    def due_on_close(self) -> bool:
        """Is it worth one that the next opening finds less to read?"""
        places = self._committer.log.places
        files = places.last_file() - self.start.number
        few = self._committer.engine.options.checkpoint_log_bytes // CLOSE_SHARE
        return self.tail_bytes() > few or files > CLOSE_FILES

    def step(self) -> None:
        """For the background: make one if it is due."""
        if self.due():
            self.run(everything=False)

    def close(self) -> None:
        """The last thing before the end of an epoch: make one if it is worth it."""
        if self.due_on_close():
            self.run()

    def run(self, *, everything: bool = True) -> CheckpointReport:
        """Make a checkpoint; OSError when a file cannot be written. Waits for one being made.

        With `everything` L0 of all tables is flushed before, so that an opening has next to
        nothing to replay; else only of those that need log from before the newest checkpoint.
        """
        with self._turn:
            flushed = self._flush_holders(everything=everything)
            committer = self._committer
            job = committer.start_job(None)
            try:
                needs = survey(committer)
                moment = capture(committer)
                lists, written = self._write_lists(job, moment)
                root = self._root(moment, needs, lists)
                node = self._write_root(job, root)
                self._log(node, root)
            except BaseException:  # Ctrl-C too: a job that is given up lets GC have its files
                if committer.log.failed is None:
                    with suppress(HaloclineError):
                        committer.end_job(job)
                raise
            self._lists, self.here, self.start = lists, root.here, root.start
            written.append(node.size_bytes)
            write_pointer(self._files, committer.log.uuid, committer.engine.checkpoints)
            dropped = self._drop()
            return CheckpointReport(
                ts=root.ts,
                flushed=flushed,
                files=len(written),
                bytes_written=sum(written),
                log_files=dropped,
                tail_bytes=self.tail_bytes(),
            )

    def _flush_holders(self, *, everything: bool) -> int:
        if self.flush is None:
            return 0
        committer = self._committer
        needs = survey(committer)
        until = needs.until
        if not everything:
            until = committer.engine.checkpoints[0].ts if committer.engine.checkpoints else 0
        count = 0
        for table_id in needs.since(until):
            state = committer.engine.tables.get(table_id)
            if state is not None:  # or GC has forgotten it meanwhile
                self.flush(state)
                count += 1
        return count

    def _write_lists(self, job: JobNode, moment: Moment) -> tuple[Lists, list[int]]:
        """Put the object lists of tables that have changed; returns all lists, and sizes."""
        objects = self._committer.engine.shelf.objects
        lists: Lists = {}
        written: list[int] = []

        def put(data: bytes) -> FileRef:
            key = object_key(0, job.job_id, len(written) + 1)
            objects.put(key, data)
            written.append(len(data))
            return FileRef(key, len(data), xxhash.xxh3_128_digest(data))

        for table_id, tier in moment.tiers.items():
            known = self._lists.get(table_id)
            if not tier:
                continue
            if known is None or known[0] is not tier:
                plain = put(encode_objects(table_id, tier))
                has_indexes = bool(tier.index_objects)
                indexes = put(encode_indexes(table_id, tier)) if has_indexes else None
                known = (tier, plain, indexes)
            lists[table_id] = known
        return lists, written

    def _root(self, moment: Moment, needs: Needs, lists: Lists) -> Root:
        log = self._committer.log
        start_ts, start = log.places.before(needs.oldest)
        assert start_ts < needs.oldest, "the log that a table needs is gone"
        newest = moment.root.checkpoints[0].key if moment.root.checkpoints else ""
        return root_of(
            moment,
            needs,
            start=start,
            start_ts=start_ts,
            lists={table_id: refs for table_id, (_, *refs) in lists.items()},
            previous_files=self._owned.get(newest, []),
        )

    def _write_root(self, job: JobNode, root: Root) -> CheckpointNode:
        data = encode_root(root)
        key = root_key(job.job_id)
        self._committer.engine.shelf.objects.put(key, data)
        return CheckpointNode(
            job_id=job.job_id,
            key=key,
            size_bytes=len(data),
            digest=xxhash.xxh3_128_digest(data),
            order=root.order,
            ts=root.ts,
            start_file=root.start.number,
        )

    def _log(self, node: CheckpointNode, root: Root) -> None:
        """The CKP entry: from here on it is a checkpoint."""
        committer = self._committer
        engine, log = committer.engine, committer.log
        self._owned[node.key] = files_of(root, node.key)

        def keep() -> None:
            # Kept before the job ends: a sweep must find one or the other.
            engine.kept_files = {*engine.kept_files, *self._owned[node.key]}
            engine.keep_checkpoint(node)

        with committer.lock:
            committer.check_running()
            # The pointer must never name a checkpoint that the log does not.
            order = committer.append_system(ROOT, encode_body(node), type=CKP, fold=keep)
        log.sync(order)

    def _drop(self) -> int:
        """Delete what only older checkpoints needed; returns the number of log files."""
        before = self._committer.engine.kept_files
        self._keep()
        objects = self._committer.engine.shelf.objects
        for key in sorted(before - self._committer.engine.kept_files):
            try:
                objects.delete(key)
            except OSError:
                continue  # GC will find it
        return self.drop_log()

    def drop_log(self) -> int:
        """Delete log files that neither of the two checkpoints needs; returns how many."""
        engine, log = self._committer.engine, self._committer.log
        if len(engine.checkpoints) < 2 or self.here is None:
            return 0
        first = log.places.first_file()
        try:
            log.truncate_before(min(node.start_file for node in engine.checkpoints))
        except OSError:
            pass  # oldest first: what is left is whole
        return log.places.first_file() - first

    def _keep(self) -> None:
        """Tell GC which files checkpoints need."""
        engine = self._committer.engine
        kept = {node.key for node in engine.checkpoints}
        self._owned = {key: files for key, files in self._owned.items() if key in kept}
        engine.kept_files = kept.union(*self._owned.values())
