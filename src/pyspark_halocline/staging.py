"""How the rows of a write travel from executors to the one process that commits them.

    few rows    inside the message of their task
    more        appended, or upserted with all columns: not at all, the task makes objects of them
                (objects.py); otherwise a file in the database's folder `staging`, named by the
                message, with its digest; of a database that is served they travel in the message
                all the same

A staged file is no object: nobody refers to it, no snapshot needs it, and a write whose files are
gone fails as a whole and can be run again. All files of a write carry the id of its job, those of
tasks that were tried again, too. Each task holds them for a day, and so does the commit
(halocline/checkpoint/staging.py); after the commit all of them go. What a write leaves that never
came to its commit is removed by GC, once nobody holds it. An aborted write removes nothing: its
commit may have happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import xxhash
from pyspark.sql.datasource import WriterCommitMessage

from halocline.checkpoint.staging import FOLDER, end_staged, hold_staged
from halocline.clock import Clock, SystemClock
from halocline.errors import CorruptionError, NotFoundError
from halocline.objects import ObjectFile
from halocline.options import MIB
from halocline.schema.ipc import check_own
from halocline.store import LocalFiles
from pyspark_halocline.objects import ObjectStage

MESSAGE_BYTES: Final = 4 * MIB
"""Rows of one task that travel in its message; more become objects, or a file."""
MESSAGE_ROWS: Final = 1 << 20
"""The limit for rows that pack into almost nothing: a task has names for 32 objects."""
ENDING: Final = ".arrow"
LEASE_S: Final = 86_400.0
"""How long staged rows wait for their commit."""
_OPTIONS: Final = {"compression": "lz4"}


@dataclass
class TaskMessage(WriterCommitMessage):
    """What one task tells the commit."""

    rows: int = 0
    data: bytes = b""
    """Rows as an Arrow stream; or the file that holds it, and its digest."""
    file: str = ""
    digest: bytes = b""
    job: str = ""
    """Whose files they are. The process that commits a micro-batch is told so by nobody else."""
    made: list[ObjectFile] = field(default_factory=list)
    """Objects that the task has made of its rows, or of most of them."""
    problem: str = ""
    """What is wrong with the input. The commit says it, once, whichever task found it first."""
    repeated: bytes = b""
    """Keys that come more than once in the input of the task."""
    query: str = ""
    """The id of the streaming query, which only tasks are told."""


class Stage:
    """Takes the rows of one task."""

    def __init__(
        self,
        root: str,
        job: str,
        schema: pa.Schema,
        clock: Clock | None = None,
        objects: Callable[[], ObjectStage | None] = lambda: None,
    ) -> None:
        """`objects` is asked once, for where rows go that are too many to travel."""
        self._start_objects = objects
        self._objects: ObjectStage | None = None
        self._travel = True
        """Whether rows that come now leave the task; else objects are made of them."""
        self._root = root
        self._job = job
        self._clock = clock or SystemClock()
        self._schema = schema
        self._rows = 0
        self._buffer = pa.BufferOutputStream()
        self._sink: Any = self._buffer
        self._path: Path | None = None
        self._writer = self._start()

    def add(self, table: pa.Table) -> None:
        """Take some rows."""
        self._rows += table.num_rows
        if not self._travel and self._objects is not None and not self._objects.is_full:
            self._objects.add(table)
            return
        self._writer.write_table(table)
        many = self._sink.tell() > MESSAGE_BYTES or self._rows > MESSAGE_ROWS
        if self._root and self._path is None and many:
            self._spill()

    def finish(self) -> TaskMessage:
        """All rows are here."""
        self._writer.close()
        made = [] if self._travel or self._objects is None else self._objects.finish()
        if self._path is None:
            data = self._buffer.getvalue().to_pybytes()
            return TaskMessage(rows=self._rows, data=data, made=made, job=self._job)
        self._sink.close()
        hold_staged(self._root, self._clock, self._job, LEASE_S)  # it may have taken long
        digest = _digest_of(self._path)
        name = self._path.name
        return TaskMessage(rows=self._rows, file=name, digest=digest, made=made, job=self._job)

    @property
    def made(self) -> list[ObjectFile]:
        """The objects so far, of a task that fails: the commit lets go of them."""
        return [] if self._objects is None else self._objects.made

    def _start(self) -> Any:
        options = pa.ipc.IpcWriteOptions(**_OPTIONS)
        return pa.ipc.new_stream(self._sink, self._schema, options=options)

    def _spill(self) -> None:
        """What is in memory begins the file; an Arrow stream can go on where another ended."""
        self._writer.close()
        with pa.ipc.open_stream(self._buffer.getvalue()) as reader:
            held = reader.read_all()
        if self._travel:
            self._travel = False
            self._objects = self._start_objects()
        if self._objects is not None and not self._objects.is_full:
            self._sink = self._buffer = pa.BufferOutputStream()
            self._writer = self._start()
            self._objects.add(held)
            return
        folder = hold_staged(self._root, self._clock, self._job, LEASE_S)
        self._path = folder / f"{self._job}.{self._clock.random_bytes(16).hex()}{ENDING}"
        self._path.touch(mode=0o600, exist_ok=False)
        self._sink = pa.OSFile(str(self._path), "wb")
        self._buffer = pa.BufferOutputStream()
        self._writer = self._start()
        self._writer.write_table(held)


def check(root: str, messages: Iterable[TaskMessage]) -> None:
    """All files are there; NotFoundError, which would not get through the reader of `batches`."""
    for message in messages:
        path = Path(root, FOLDER, message.file)
        if message.file and not path.exists():
            raise NotFoundError("staged file", str(path), hint="run the write again")


def batches(root: str, messages: Iterable[TaskMessage]) -> Iterator[pa.RecordBatch]:
    """All rows that the tasks sent."""
    for message in messages:
        if message.file:
            path = Path(root, FOLDER, message.file)
            with pa.memory_map(str(path)) as source:
                if _digest(source) != message.digest:
                    raise CorruptionError(str(path), "it is not what its task wrote")
                source.seek(0)
                yield from _unpacked(source.read_buffer(), str(path))
        elif message.data:
            yield from _unpacked(pa.py_buffer(message.data), "the message of a task")


def _unpacked(stream: pa.Buffer, path: str) -> Iterator[pa.RecordBatch]:
    try:
        check_own(memoryview(stream))
    except ValueError as error:
        raise CorruptionError(path, str(error)) from None
    with pa.ipc.open_stream(stream) as reader:
        yield from reader


def hold(root: str, messages: Iterable[TaskMessage]) -> None:
    """Before a commit reads its files."""
    for job in {message.job for message in messages if root and message.file}:
        hold_staged(root, SystemClock(), job, LEASE_S)


def end(root: str, messages: Iterable[TaskMessage]) -> None:
    """After a commit: nobody needs its files any more."""
    for job in {message.job for message in messages if root and message.job}:
        end_staged(LocalFiles(root), job)


def _digest_of(path: Path) -> bytes:
    with pa.memory_map(str(path)) as source:
        return _digest(source)


def _digest(source: Any) -> bytes:
    digest = xxhash.xxh3_128()
    while piece := source.read_buffer(8 * MIB):
        digest.update(piece)
    return digest.digest()
