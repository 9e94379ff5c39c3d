"""Damaged files: an error that names the file, or the right rows; never a wrong row or a crash.

Every kind of object, every way of reading, in memory. A flip may hit bytes that a reader does not
ask for; then the answer is right. All others end in CorruptionError.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from halocline.errors import CorruptionError
from halocline.objects.columns import (
    CHANGED,
    COMMIT_TS,
    HIDDEN,
    ROWID,
    SUCCESSOR,
    tombstone_schema,
)
from halocline.objects.finder import Finder
from halocline.objects.pool import Pool
from halocline.objects.read import ObjectReader
from halocline.objects.stats import ObjectFile, ObjectStats
from halocline.objects.write import encode_data, encode_tombstones
from halocline.options import Options
from halocline.schema.schema import Schema
from halocline.store.objects import MemoryObjects
from tests.unit.objects.rig import KEY, ORDERS, empty, equal, orders
from tests.unit.schema.pools import same

FEW = Options(page_rows=8, row_group_rows=16)
"""Three blocks in two row groups for some 20 rows."""
PAIRS = Schema.define({"a": int, "b": str, "v": "struct<x: int, y: varchar[]>"}, ["a", "b"])


class Case:
    """An object, its right rows, and a key that is in it."""

    def __init__(
        self, name: str, made: tuple[bytes, ObjectStats], schema: Schema, key: Any
    ) -> None:
        self.name = name
        self.data, self.stats = made
        self.file = ObjectFile(KEY, self.stats)
        self.schema = schema
        self.key = key
        self._objects = MemoryObjects()
        self._pools = Pool("index", 1 << 24), Pool("data", 1 << 24)
        index, blocks = self._pools
        self.reader = ObjectReader(self._objects, index)
        self.finder = Finder(self.reader, schema, index=index, data=blocks)
        self.put(self.data)
        self.table = self.reader.read(self.file, schema)
        self.found = self.finder.find(self.file, key)
        self.batch = self.finder.batch(self.table)
        self.numbers = list(range(self.table.num_rows))
        assert self.found

    def put(self, data: bytes | bytearray) -> None:
        """Other bytes in the place of the file, and nothing remembered of those before."""
        self._objects.put(KEY, data)
        for pool in self._pools:
            empty(pool)

    def attempts(self) -> list[Callable[[], bool]]:
        """Ways to read; each says whether its answer was right."""
        file, schema, reader, finder = self.file, self.schema, self.reader, self.finder
        return [
            lambda: same(finder.find(file, self.key), self.found),
            lambda: equal(reader.read(file, schema), self.table),
            lambda: finder.find_many(file, self.batch).numbers.tolist() == self.numbers,
        ]


def tombstones() -> tuple[bytes, ObjectStats]:
    ends = {
        ROWID: list(range(20, 40)),
        "id": list(range(40, 0, -2)),
        COMMIT_TS: [9] * 20,
        SUCCESSOR: pa.array([None, 7] * 10, pa.int64()),
        CHANGED: pa.array([None, [2, 5]] * 10, HIDDEN[CHANGED].type),
    }
    return encode_tombstones(pa.table(ends), ORDERS, options=FEW)


def pairs() -> tuple[bytes, ObjectStats]:
    rows = [(k // 3, f"b{k % 3}", {"x": k, "y": ["p", None]}) for k in range(20)]
    table = PAIRS.to_table(rows).append_column(ROWID, pa.array(range(20)))
    return encode_data(table, PAIRS, options=FEW)


CASES = [
    Case("data", encode_data(orders(20), ORDERS, options=FEW), ORDERS, 20),
    Case("composite", pairs(), PAIRS, (4, "b1")),
    Case("tombstone", tombstones(), tombstone_schema(ORDERS), 33),
]
IDS = [case.name for case in CASES]
PATH = f"objects/{KEY}"


def outcome(attempt: Callable[[], Any]) -> str:
    """right, wrong, or the name of the file that an error complains about."""
    try:
        return "wrong" if attempt() is False else "right"
    except CorruptionError as error:
        return error.path


def check(case: Case, data: bytes | bytearray) -> int:
    """Read in every way; how many were refused."""
    outcomes = []
    for attempt in case.attempts():
        case.put(data)
        outcomes.append(outcome(attempt))
    assert set(outcomes) <= {"right", PATH}
    return outcomes.count(PATH)


def refuses_whole(case: Case, data: bytes | bytearray) -> bool:
    case.put(data)
    return outcome(lambda: case.reader.verify(case.file, again=True)) == PATH


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_an_undamaged_file_is_read_in_every_way(case: Case) -> None:
    assert check(case, case.data) == 0
    assert not refuses_whole(case, case.data)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_flipped_bits_are_refused_or_harmless(case: Case, sim: bool) -> None:
    chance = random.Random(case.name)
    trials = 20_000 if sim else 1_700
    refused = 0
    for _ in range(trials):
        data = bytearray(case.data)
        at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
        assert refuses_whole(case, data)
        # One way of reading a trial keeps 5,000 trials short; all ways get their share.
        answer = outcome(chance.choice(case.attempts()))
        assert answer in ("right", PATH), f"{answer} after a flip in byte {at}"
        refused += answer == PATH
    assert refused > trials // 2


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_every_byte_of_the_tail_counts(case: Case) -> None:
    start = len(case.data) - case.stats.tail_bytes
    for at in range(start, len(case.data), 97):
        data = bytearray(case.data)
        data[at] ^= 0x10
        assert check(case, data) == 3


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_file_cut_anywhere_is_refused(case: Case) -> None:
    for size in [0, 1, 7, 8, 100, len(case.data) // 2, len(case.data) - 1]:
        data = case.data[:size]
        assert check(case, data) == 3
        assert refuses_whole(case, data)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_file_with_a_tail_too_many_is_refused_as_a_whole(case: Case) -> None:
    assert refuses_whole(case, case.data + b"\0")
    assert refuses_whole(case, case.data + case.data)
    assert check(case, case.data + b"\0" * 100) == 0, "ranges know where they are"


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_sector_of_zeros_is_refused_or_harmless(case: Case) -> None:
    refused = 0
    for start in range(0, len(case.data), 512):
        data = bytearray(case.data)
        size = len(data[start : start + 512])
        data[start : start + 512] = bytes(size)
        assert refuses_whole(case, data)
        refused += check(case, data)
    assert refused > 0


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_swapped_sectors_and_pages_are_refused_or_harmless(case: Case) -> None:
    chance = random.Random(7)
    sectors = len(case.data) // 512
    for _ in range(60):
        one, two = (512 * chance.randrange(sectors) for _ in range(2))
        data = bytearray(case.data)
        data[one : one + 512], data[two : two + 512] = data[two : two + 512], data[one : one + 512]
        if data != case.data:
            assert refuses_whole(case, data)
        check(case, data)


def test_pages_of_the_same_size_that_changed_places_are_refused() -> None:
    schema = Schema.define({"id": int}, "id")
    table = pa.table({"id": range(40), ROWID: range(40)})
    made = encode_data(table, schema, options=FEW)
    case = Case("ints", made, schema, 5)
    with case.reader.tail(case.file) as tail:
        (one, _, size, _), (two, _, other, _) = tail.directory.pages[0][:2].tolist()
    assert size == other
    data = bytearray(case.data)
    data[one : one + size], data[two : two + size] = data[two : two + size], data[one : one + size]
    # Each page has the right checksum of its own, so only its place gives it away.
    assert check(case, data) == 3


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_another_object_in_its_place_is_refused(case: Case) -> None:
    others = [other.data for other in CASES if other is not case]
    others += [encode_data(orders(20, seed=5), ORDERS, options=FEW)[0], b"PAR1" * 200]
    for data in others:
        if data != case.data:
            assert check(case, data) == 3
            assert refuses_whole(case, data)


def test_an_older_version_of_the_file_is_refused() -> None:
    new, stale = (encode_data(orders(20, seed=seed), ORDERS, options=FEW) for seed in (1, 2))
    case = Case("stale", new, ORDERS, 20)
    assert check(case, stale[0]) == 3
    # The worst case: the tail is the new one, the pages before it are of the old file.
    tail = case.stats.tail_bytes
    mixed = stale[0][: len(new[0]) - tail].ljust(len(new[0]) - tail, b"\0") + new[0][-tail:]
    assert check(case, mixed) >= 2
    assert refuses_whole(case, mixed)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_missing_file_is_refused(case: Case) -> None:
    index = Pool("index", 1 << 24)
    reader = ObjectReader(MemoryObjects(), index)
    with pytest.raises(CorruptionError, match=f"{KEY}.*missing"):
        reader.verify(case.file)
    with pytest.raises(CorruptionError, match=f"{KEY}.*missing"):
        reader.read(case.file, case.schema)


def test_plain_parquet_with_the_right_digests_is_refused() -> None:
    """A catalog that points to a file of somebody else: it has no block directory."""
    import io

    import pyarrow.parquet as pq
    import xxhash

    sink = io.BytesIO()
    pq.write_table(orders(20), sink)
    data = sink.getvalue()
    for size in (len(data), 400, 8):
        stats = replace(
            CASES[0].stats,
            size_bytes=len(data),
            tail_bytes=size,
            tail_digest=xxhash.xxh3_128_digest(data[-size:]),
        )
        CASES[0].put(data)
        with pytest.raises(CorruptionError, match="directory"):
            CASES[0].reader.read(ObjectFile(KEY, stats), ORDERS)


def test_a_later_version_of_the_directory_is_refused() -> None:
    import xxhash

    case = CASES[0]
    from halocline.objects.footer import footer_start

    end = footer_start(memoryview(case.data))
    size = int.from_bytes(case.data[end - 8 : end - 4], "little")
    for at, value in ((end - 8 - size + 1, 2), (end - 8 - size, 0x00), (end - 6, 0xFF)):
        data = bytearray(case.data)
        data[at] = value
        digest = xxhash.xxh3_128_digest(data[-case.stats.tail_bytes :])
        stats = replace(case.stats, tail_digest=digest)
        case.put(data)
        with pytest.raises(CorruptionError, match="directory is broken"):
            case.reader.read(ObjectFile(KEY, stats), ORDERS)
