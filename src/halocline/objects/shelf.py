"""Shelf: the object store of one database, with the pools and the reader that all tables share.

    open --> Shelf --reader--> verified reads        --path_of--> files for DuckDB to open
                   --finder(schema)--> point reads   --index, data--> pools with hard budgets

A key is made of ids the engine has issued: `<table id>/<job id>-<n>.parquet`. The number of an
object is (job id, n) as one integer, so it is unique in the database and rises with the jobs. Files
of a checkpoint are kept under table id 0; its root file ends in `.checkpoint`. An index object has
the name of its data object, the id of its index, and then its own job and number:

    5/12-3.parquet          the third file of job 12, which is one of table 5
    5/12-3.8.40-1.parquet   what index 8 has of it, by job 40

So the name alone says what it belongs to and whose it is, and what is built again never takes the
name of a file that was committed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from halocline.objects.finder import Finder
from halocline.objects.gather import Gather
from halocline.objects.pool import Pool, PoolStats
from halocline.objects.read import ObjectReader
from halocline.objects.stats import ObjectFile
from halocline.options import MIB
from halocline.schema.schema import Schema
from halocline.store.objects import MemoryObjects, Objects

FILES_PER_JOB: Final = 1 << 20
POOL_BYTES_MIN: Final = 4 * MIB
_KEY: Final = re.compile(
    r"([0-9]+)/(?:([0-9]+)-([0-9]+)\.([0-9]+)\.)?([0-9]+)-([0-9]+)\.(?:parquet|checkpoint)"
)


class Shelf:
    """Objects, reader and pools. Safe to share between threads."""

    def __init__(
        self,
        objects: Objects,
        *,
        memory_bytes: int,
        root: str = "",
        check_root: Callable[[], None] = lambda: None,
    ) -> None:
        self.objects = objects
        self.root = root
        """The local folder of the objects; empty when other programs cannot open them."""
        self.check_root = check_root
        """MovedError when paths in that folder do not lead to our files any more: to be called
        before somebody is given one, DuckDB or Spark."""
        budget = max(POOL_BYTES_MIN, memory_bytes // 8)
        self.index = Pool("index", budget)
        self.data = Pool("data", budget)
        self.reader = ObjectReader(objects, self.index)
        self.gather = Gather(self.reader, self.data)
        self.damaged: dict[int, str] = {}
        """Index objects that were found damaged, by id: who maintains the database ends them."""
        self.index_use: dict[int, tuple[int, int]] = {}
        """How often this process has used each index on an object, and rows that it saved."""

    @classmethod
    def in_memory(cls) -> Shelf:
        """A shelf in memory, for databases that live there and for tests of single parts."""
        return cls(MemoryObjects(), memory_bytes=64 * MIB)

    def finder(self, schema: Schema) -> Finder:
        return Finder(self.reader, schema, index=self.index, data=self.data)

    def path_of(self, file: ObjectFile) -> str:
        """The file's path on this machine; empty when it has none."""
        return str(Path(self.root, file.key)) if self.root else ""

    def note_use(self, index_id: int, rows_saved: int) -> None:
        """An index has named the rows of an object, so that so many others were not read."""
        used, saved = self.index_use.get(index_id, (0, 0))
        self.index_use[index_id] = (used + 1, saved + rows_saved)

    def pools(self) -> list[PoolStats]:
        return [self.index.stats(), self.data.stats()]


def object_key(table_id: int, job_id: int, number: int) -> str:
    """Where the n-th file of a job is kept."""
    return f"{table_id}/{job_id}-{number}.parquet"


def index_key(table_id: int, target: int, index_id: int, job_id: int, number: int) -> str:
    """Where an index object is kept; `target` is the id of its data object."""
    job, place = divmod(target, FILES_PER_JOB)
    return f"{table_id}/{job}-{place}.{index_id}.{job_id}-{number}.parquet"


def root_key(job_id: int) -> str:
    """Where the root file of a checkpoint is kept."""
    return f"0/{job_id}-0.checkpoint"


def object_id(job_id: int, number: int) -> int:
    """The id of the n-th file of a job."""
    assert 0 <= number < FILES_PER_JOB
    return job_id * FILES_PER_JOB + number


def job_in(number: int) -> int:
    """The job that has written the object with this id."""
    return number // FILES_PER_JOB


def job_of(key: str) -> int:
    """The job that a file belongs to; ValueError for a name that no job has given."""
    return parse_key(key).job_id


class FileName(NamedTuple):
    """What the name of a file tells."""

    table_id: int
    job_id: int
    number: int
    target: int = 0
    """Of an index object, the id of its data object."""
    index_id: int = 0


def parse_key(key: str) -> FileName:
    """What the name of a file tells; ValueError for a name that no job has given."""
    found = _KEY.fullmatch(key)
    if found is not None:
        parts = [0 if part is None else int(part) for part in found.groups()]
        table_id, job, place, index_id, job_id, number = parts
        known = [object_key(table_id, job_id, number), root_key(job_id)]
        target = 0
        if found[2] is not None and place < FILES_PER_JOB:
            target = object_id(job, place)
            known = [index_key(table_id, target, index_id, job_id, number)]
        if key in known:
            return FileName(table_id, job_id, number, target, index_id)
    raise ValueError(f"{key!r} is not the name of an object")
