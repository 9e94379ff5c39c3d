"""Read objects: only bytes that are exactly what was written ever reach a decoder.

    verify(file)            the whole file against its digest; then DuckDB may have it
    scan, read, take(file)  pages of the columns and rows that are wanted
        tail --digest--> directory --> pages --digest of each--> splice --> cast to today's schema

A Parquet decoder that meets a flipped bit may answer with wrong rows, an error, a crash or a loop
without end, and Parquet's own checksums leave out footers and page headers. So nothing is decoded
before its digest has been compared: the tail's with the catalog's, a page's with the tail's.
`verify` remembers what it has seen, because the files are immutable and the readers behind it open
them again and again; `again=True` is for checks of the disk as it is today.

Columns are found by id. One that the file does not have shows its value for absent
(schema/evolve.py); one that has been widened since is cast. `_commit_ts` of an object that was
written before its commit is the file's `commit_ts`.

Invariants
- What is missing, cut, swapped, stale or damaged raises CorruptionError with the key of the file.

Not here: single keys (finder.py), which objects to read (read/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from halocline.errors import CorruptionError, UnavailableError
from halocline.objects.bloom import Bloom
from halocline.objects.columns import COMMIT_TS, COMMIT_TS_ID, HIDDEN, ROWID
from halocline.objects.directory import Directory, decode_directory
from halocline.objects.pool import Handle, Pool
from halocline.objects.splice import Chunk, decode
from halocline.objects.stats import ObjectFile, ObjectStats
from halocline.options import MIB
from halocline.schema.column import TableColumn
from halocline.schema.evolve import cast
from halocline.schema.schema import Schema
from halocline.store.objects import Objects

Numbers = npt.NDArray[np.int64]
"""Rows of an object, counted from 0 in the order of the file."""

GAP_BYTES: Final = 64 * 1024
"""Two pieces that are closer than this are read in one go."""
_VERIFY_BYTES: Final = 8 * MIB
_HIDDEN: Final = (ROWID, COMMIT_TS)


class ObjectTail:
    """The verified end of an object: its directory and its bloom filters."""

    __slots__ = ("_blooms", "_path", "_view", "directory")

    def __init__(self, path: str, view: memoryview, directory: Directory) -> None:
        self._path = path
        self._view = view
        self._blooms: dict[int, Bloom] = {}
        self.directory = directory

    def bloom(self, group: int) -> Bloom:
        """The filter of a row group; ask only where the directory has a bloom column."""
        bloom = self._blooms.get(group)
        if bloom is None:
            offset, size = self.directory.blooms[group]
            at = offset - self.directory.tail_start
            bloom = self._blooms[group] = Bloom.parse(self._path, self._view[at : at + size])
        return bloom


class ObjectReader:
    """Reads the objects of one store. Safe to share between threads."""

    def __init__(self, objects: Objects, index: Pool) -> None:
        self._objects = objects
        self._index = index
        self._verified: set[tuple[str, bytes]] = set()
        self.inspected: dict[tuple[str, bytes], ObjectStats] = {}
        """Files whose content has been compared with these statistics (inspect.py)."""
        self.credit: dict[tuple[str, bytes], float] = {}
        """What has been saved by indexes on each file, and may be spent on reading blocks of it for
        them, in microseconds (index/chooser.py)."""
        self._lock = Lock()
        self.vanished: Callable[[str], None] | None = None
        """Called first when a file is missing: raises if it knows a better reason than damage."""

    def verify(self, file: ObjectFile, *, again: bool = False) -> None:
        """Compare the whole file with its digest, once in the life of this reader."""
        if file.id in self._verified and not again:
            return
        stats = file.stats
        digest = xxhash.xxh3_128()
        for offset in range(0, stats.size_bytes, _VERIFY_BYTES):
            digest.update(self._bytes(file, offset, min(_VERIFY_BYTES, stats.size_bytes - offset)))
        if digest.digest() != stats.digest:
            raise CorruptionError(file.path, "its digest is not the one in the catalog")
        if self._bytes(file, stats.size_bytes, 1, short=True):
            raise CorruptionError(file.path, f"it is longer than {stats.size_bytes} bytes")
        with self._lock:
            self._verified.add(file.id)

    def forget(self, file: ObjectFile) -> None:
        """The file is gone for good."""
        with self._lock:
            self._verified.discard(file.id)
            self.inspected.pop(file.id, None)
            self.credit.pop(file.id, None)
        self._index.drop(("tail", file.id))

    def tail(self, file: ObjectFile) -> Handle:
        """The file's tail, an `ObjectTail`, held in the index pool."""
        return self._index.pin(
            ("tail", file.id), lambda: self._load_tail(file), expect=file.stats.tail_bytes
        )

    def knows_tail(self, file: ObjectFile) -> bool:
        """Is the file's tail in memory?"""
        return self._index.loaded(("tail", file.id))

    def read(
        self,
        file: ObjectFile,
        schema: Schema,
        *,
        columns: Sequence[str] | None = None,
        hidden: Sequence[str] = _HIDDEN,
        rows: Sequence[range] | None = None,
        directory: Directory | None = None,
    ) -> Any:
        """Columns of today's schema by name, then hidden ones, as a pa.Table in file order.

        `rows` are ascending ranges of row numbers that do not overlap; blocks without any of them
        are not read. `directory`: the file's, if the caller has kept it.
        """
        wanted = wanted_columns(schema, columns, hidden)
        if directory is not None:
            parts = list(self._groups(file, directory, wanted, rows))
        else:
            parts = list(self.scan(file, schema, columns=columns, hidden=hidden, rows=rows))
        if parts:
            return pa.concat_tables(parts)
        return arrow_of(wanted).empty_table()

    def scan(
        self,
        file: ObjectFile,
        schema: Schema,
        *,
        columns: Sequence[str] | None = None,
        hidden: Sequence[str] = _HIDDEN,
        rows: Sequence[range] | None = None,
    ) -> Iterator[Any]:
        """The rows that `read` gives, one row group at a time."""
        wanted = wanted_columns(schema, columns, hidden)
        with self.tail(file) as tail:
            yield from self._groups(file, tail.directory, wanted, rows)

    def _groups(
        self,
        file: ObjectFile,
        directory: Directory,
        wanted: Sequence[TableColumn],
        rows: Sequence[range] | None,
    ) -> Iterator[Any]:
        for group in range(len(directory.group_rows)):
            blocks = _blocks_of(directory, group, rows)
            if blocks:
                table = self.blocks(file, directory, blocks, wanted)
                yield table if rows is None else _cut(directory, table, blocks, rows)

    def take(
        self,
        file: ObjectFile,
        schema: Schema,
        numbers: Numbers,
        *,
        columns: Sequence[str] | None = None,
        hidden: Sequence[str] = _HIDDEN,
    ) -> Any:
        """Single rows by number, in the order given, as a pa.Table."""
        wanted = wanted_columns(schema, columns, hidden)
        if not len(numbers):
            return arrow_of(wanted).empty_table()
        with self.tail(file) as tail:
            directory = tail.directory
            blocks = np.unique(directory.blocks_of(numbers)).tolist()
            groups: dict[int, list[int]] = {}
            for block in blocks:
                groups.setdefault(directory.group_of(block), []).append(block)
            tables = [self.blocks(file, directory, part, wanted) for part in groups.values()]
            present = np.concatenate([directory.numbers(block) for block in blocks])
        return pa.concat_tables(tables).take(pa.array(np.searchsorted(present, numbers)))

    def blocks(
        self,
        file: ObjectFile,
        directory: Directory,
        blocks: Sequence[int],
        wanted: Sequence[TableColumn],
    ) -> Any:
        """Some blocks of one row group as a pa.Table of the columns that are wanted."""
        rows = sum(map(directory.block_size, blocks))
        present = [directory.columns[c.id] for c in wanted if c.id in directory.columns]
        decoded: Any = None
        if present:
            leaves = [leaf for column in present for leaf in directory.leaves[column.id]]
            chunks = self._chunks(file, directory, blocks, leaves)
            try:
                decoded = decode(present, chunks, rows)
            except (pa.ArrowException, OSError) as error:
                raise CorruptionError(file.path, f"it cannot be decoded: {error}") from error
        positions = {column.id: at for at, column in enumerate(present)}
        arrays = [
            _conformed(file, decoded.column(positions[column.id]), column)
            if column.id in positions
            else absent(file, column, rows)
            for column in wanted
        ]
        return pa.Table.from_arrays(arrays, schema=arrow_of(wanted))

    def _chunks(
        self, file: ObjectFile, directory: Directory, blocks: Sequence[int], leaves: Sequence[int]
    ) -> list[Chunk]:
        group = directory.group_of(blocks[0])
        pages = directory.pages[np.ix_(leaves, blocks)].tolist()
        dictionaries = directory.dictionaries[leaves, group].tolist()
        wanted = [
            [dictionary, *data] if dictionary[2] else data
            for dictionary, data in zip(dictionaries, pages, strict=True)
        ]
        views = iter(self._pieces(file, [piece for leaf in wanted for piece in leaf]))
        chunks = []
        for dictionary, data in zip(dictionaries, pages, strict=True):
            first = next(views) if dictionary[2] else None
            values = sum(page[3] for page in data)
            chunks.append(Chunk(first, [next(views) for _ in data], values))
        return chunks

    def _pieces(
        self, file: ObjectFile, pieces: Sequence[tuple[int, int, int, int]]
    ) -> list[memoryview]:
        """The bytes of pages (offset, digest, size, values), in their order, each one verified."""
        # In the order of the file, so that neighbours share a read.
        order = sorted(range(len(pieces)), key=lambda at: pieces[at][0])
        views: list[memoryview] = [memoryview(b"")] * len(pieces)
        at = 0
        while at < len(order):
            start, _, size, _ = pieces[order[at]]
            stop, run = start + size, [order[at]]
            for other in order[at + 1 :]:
                offset, _, size, _ = pieces[other]
                if offset > stop + GAP_BYTES:
                    break
                stop = offset + size
                run.append(other)
            data = memoryview(self._bytes(file, start, stop - start))
            for other in run:
                offset, digest, size, _ = pieces[other]
                view = data[offset - start : offset - start + size]
                if xxhash.xxh3_64_intdigest(view) != digest:
                    raise CorruptionError(
                        file.path, "a page is not what was written", offset=offset
                    )
                views[other] = view
            at += len(run)
        return views

    def _load_tail(self, file: ObjectFile) -> tuple[ObjectTail, int]:
        stats = file.stats
        data = self._bytes(file, stats.size_bytes - stats.tail_bytes, stats.tail_bytes)
        if xxhash.xxh3_128_digest(data) != stats.tail_digest:
            raise CorruptionError(file.path, "the digest of its tail is not the one in the catalog")
        view = memoryview(data)
        return ObjectTail(
            file.path, view, decode_directory(file.path, view, stats.size_bytes)
        ), len(data)

    def _bytes(self, file: ObjectFile, offset: int, size: int, *, short: bool = False) -> bytes:
        try:
            data = self._objects.read(file.key, offset, size)
        except FileNotFoundError:
            if self.vanished is not None:
                self.vanished(file.key)
            raise CorruptionError(file.path, "the file is missing") from None
        except OSError as error:
            raise UnavailableError(f"{file.path} cannot be read: {error}") from error
        if len(data) != size and not short:
            raise CorruptionError(file.path, f"it is shorter than {offset + size} bytes")
        return data


def wanted_columns(
    schema: Schema, columns: Sequence[str] | None, hidden: Sequence[str]
) -> list[TableColumn]:
    if columns is None:
        table = list(schema.columns)
    else:
        table = [schema.columns[schema.position(name)] for name in columns]
    have = {column.id for column in table}
    return table + [HIDDEN[name] for name in hidden if HIDDEN[name].id not in have]


def arrow_of(columns: Sequence[TableColumn]) -> Any:
    return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in columns])


def _conformed(file: ObjectFile, values: Any, column: TableColumn) -> Any:
    """What was written under this id, as the type that the column has today."""
    if values.type == column.type:
        return values
    try:
        return cast(values, column.type)
    except pa.ArrowException as error:
        reason = f"column {column.id} holds {values.type}, not {column.type}: {error}"
        raise CorruptionError(file.path, reason) from error


def absent(file: ObjectFile, column: TableColumn, rows: int) -> Any:
    if column.id == COMMIT_TS_ID:
        return pa.chunked_array([pa.array(np.full(rows, file.commit_ts, np.int64))])
    return column.filled(rows)


def _blocks_of(directory: Directory, group: int, rows: Sequence[range] | None) -> list[int]:
    """The blocks of a row group that hold any of these rows."""
    first, last = directory.group_blocks[group], directory.group_blocks[group + 1]
    if rows is None:
        return list(range(first, last))
    low, high = directory.group_starts[group], directory.group_starts[group + 1]
    blocks: set[int] = set()
    for part in rows:
        start, stop = max(part.start, low), min(part.stop, high)
        if start < stop:
            blocks.update(range(directory.block_of(start), directory.block_of(stop - 1) + 1))
    return sorted(blocks)


def _cut(directory: Directory, table: Any, blocks: Sequence[int], rows: Sequence[range]) -> Any:
    """Only these rows of a table that is made of these blocks."""
    numbers = np.concatenate([directory.numbers(block) for block in blocks])
    starts = np.searchsorted(numbers, [part.start for part in rows])
    stops = np.searchsorted(numbers, [part.stop for part in rows])
    pairs = zip(starts.tolist(), stops.tolist(), strict=True)
    return pa.concat_tables([table.slice(start, stop - start) for start, stop in pairs])
