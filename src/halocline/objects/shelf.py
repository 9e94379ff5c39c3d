"""Shelf: the object store of one database, with the pools and the reader that all tables share.

    open --> Shelf --reader--> verified reads        --path_of--> files for DuckDB to open
                   --finder(schema)--> point reads   --index, data--> pools with hard budgets

A key is made of ids the engine has issued: `<table id>/<job id>-<n>.parquet`. The number of an
object is (job id, n) as one integer, so it is unique in the database and rises with the jobs. Files
of a checkpoint are kept under table id 0; its root file ends in `.checkpoint`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from halocline.objects.finder import Finder
from halocline.objects.pool import Pool, PoolStats
from halocline.objects.read import ObjectReader
from halocline.objects.stats import ObjectFile
from halocline.options import MIB
from halocline.schema.schema import Schema
from halocline.store.objects import MemoryObjects, Objects

FILES_PER_JOB: Final = 1 << 20
POOL_BYTES_MIN: Final = 4 * MIB
_KEY: Final = re.compile(r"([0-9]+)/([0-9]+)-([0-9]+)\.(?:parquet|checkpoint)")


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

    @classmethod
    def in_memory(cls) -> Shelf:
        """A shelf in memory, for databases that live there and for tests of single parts."""
        return cls(MemoryObjects(), memory_bytes=64 * MIB)

    def finder(self, schema: Schema) -> Finder:
        return Finder(self.reader, schema, index=self.index, data=self.data)

    def path_of(self, file: ObjectFile) -> str:
        """The file's path on this machine; empty when it has none."""
        return str(Path(self.root, file.key)) if self.root else ""

    def pools(self) -> list[PoolStats]:
        return [self.index.stats(), self.data.stats()]


def object_key(table_id: int, job_id: int, number: int) -> str:
    """Where the n-th file of a job is kept."""
    return f"{table_id}/{job_id}-{number}.parquet"


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
    return parse_key(key)[1]


def parse_key(key: str) -> tuple[int, int, int]:
    """Table id, job id and number of a file; ValueError for a name that no job has given."""
    found = _KEY.fullmatch(key)
    if found is not None:
        table_id, job_id, number = map(int, found.groups())
        if key in (object_key(table_id, job_id, number), root_key(job_id)):
            return table_id, job_id, number
    raise ValueError(f"{key!r} is not the name of an object")
