"""Bytes of checkpoints: they survive, and nothing that was changed is believed."""

from __future__ import annotations

import random
from array import array

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.checkpoint.objectlist import SCHEMA, decode_objects, encode_objects
from halocline.checkpoint.pointer import POINTER_PATH, read_pointer, write_pointer
from halocline.checkpoint.root import (
    MAGIC,
    PIECE,
    VERSION,
    Piece,
    decode_root,
    encode_root,
    pack_times,
    unpack_times,
)
from halocline.checkpoint.seal import seal, unseal
from halocline.errors import CorruptionError, HaloclineError, UsageError
from halocline.ids import NEVER
from halocline.rows.system import CheckpointNode
from tests.store.faulty import FaultyFiles
from tests.unit.checkpoint.history import Life


def _life() -> Life:
    life = Life(5)
    for _ in range(60):
        life.step()
    life.checkpoint()
    return life


@pytest.fixture(scope="module")
def life() -> Life:
    return _life()


def _root_bytes(life: Life) -> tuple[str, bytes]:
    key = life.engine.checkpoints[0].key
    return key, life.files.objects.read(key)


def test_a_root_survives_its_bytes(life: Life) -> None:
    key, data = _root_bytes(life)
    root = decode_root(data, key)
    assert encode_root(root) == data
    assert (root.ts, root.floor) == (life.engine.last_ts, life.engine.floor)
    assert root.start.order <= root.here.order == root.order + 1


def test_any_changed_bit_of_a_root_is_found(life: Life) -> None:
    key, data = _root_bytes(life)
    chance = random.Random(1)
    for _ in range(400):
        place = chance.randrange(len(data) * 8)
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        if place // 8 in range(12, 16):
            continue  # zeros that are reserved
        with pytest.raises((CorruptionError, UsageError)):
            decode_root(bytes(changed), key)
    for end in range(0, len(data), 97):
        with pytest.raises(CorruptionError):
            decode_root(data[:end], key)


@given(st.binary(max_size=300))
def test_a_body_that_makes_no_sense_is_corruption(body: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_root(seal(MAGIC, VERSION, body), "root")


def test_another_version_is_refused_by_its_number() -> None:
    with pytest.raises(UsageError, match="version 9"):
        decode_root(seal(MAGIC, 9, b"whatever"), "root")
    assert bytes(unseal(b"HALO-XYZ", 1, seal(b"HALO-XYZ", 1, b"body"), "file")) == b"body"


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 10**7)), max_size=50),
    st.integers(0, 20),
)
def test_commit_times_survive(steps: list[tuple[int, int]], start: int) -> None:
    stamps, walls = array("q"), array("q")
    ts, wall = 0, 1_700_000_000_000_000
    for more, later in steps:
        ts, wall = ts + more, wall + later
        stamps.append(ts)
        walls.append(wall)
    start = min(start, len(stamps))
    pieces = pack_times(stamps, walls, start, len(stamps))
    assert unpack_times(pieces, "root") == (stamps[start:], walls[start:])


def test_many_commit_times_come_in_pieces_and_take_little() -> None:
    count = 3 * PIECE + 5
    stamps, walls = array("q", range(1, count + 1)), array("q", range(0, 7 * count, 7))
    pieces = pack_times(stamps, walls, 0, count)
    assert [piece.count for piece in pieces] == [PIECE, PIECE, PIECE, 5]
    assert unpack_times(pieces, "root") == (stamps, walls)
    assert sum(len(piece.stamps) + len(piece.walls) for piece in pieces) < count


@pytest.mark.parametrize(
    "piece",
    [
        Piece(0, b"", b""),
        Piece(PIECE + 1, b"", b""),
        Piece(2, b"junk", b"junk"),
        Piece(1 << 60, b"junk", b"junk"),
        Piece(2, pa.compress(bytes(8), codec="zstd", asbytes=True), b""),
        Piece(1, *[pa.compress(b"\xff" * 8, codec="zstd", asbytes=True)] * 2),
    ],
)
def test_commit_times_that_make_no_sense_are_corruption(piece: Piece) -> None:
    with pytest.raises(CorruptionError):
        unpack_times([piece], "root")


def test_r06_an_object_list_has_a_row_for_every_object(life: Life) -> None:
    found = 0
    for state in life.engine.tables.values():
        tier = state.shape.tier
        data = encode_objects(state.table_id, tier)
        back = decode_objects(data, state.table_id, "list")
        assert back.by_id == tier.by_id
        for entry in tier.by_id.values():
            assert back.by_id[entry.id].file == entry.file
            assert back.by_id[entry.id].stats == entry.stats
        # Any other tool reads it too.
        table = pq.read_table(pa.BufferReader(data))
        assert table.column_names == SCHEMA.names
        for row in table.to_pylist():
            entry = tier.by_id[row["object_id"]]
            assert (row["location"], row["kind"], row["level"]) == (
                entry.key,
                entry.kind,
                entry.level,
            )
            assert (row["pk_min"], row["rowid_max"]) == (entry.stats.key_min, entry.stats.rowid_max)
            assert (row["deleted_at"] == NEVER) == (entry.deleted_at == NEVER)
            found += 1
    assert found >= 5


def test_r06_the_hint_tells_of_tombstones(life: Life) -> None:
    for state in life.engine.tables.values():
        tier = state.shape.tier
        rows = pq.read_table(pa.BufferReader(encode_objects(state.table_id, tier))).to_pylist()
        stones = [one.stats for one in tier.tombstones if one.deleted_at == NEVER]
        for row in rows:
            reached = any(
                one.rowid_min <= row["rowid_max"] and one.rowid_max >= row["rowid_min"]
                for one in stones
            )
            assert row["has_tombstone"] == (reached and row["kind"] == "data")


def test_an_object_list_that_makes_no_sense_is_corruption(life: Life) -> None:
    state = max(life.engine.tables.values(), key=lambda one: len(one.shape.tier))
    data = encode_objects(state.table_id, state.shape.tier)
    with pytest.raises(CorruptionError, match="another table"):
        decode_objects(data, state.table_id + 1, "list")
    table = pq.read_table(pa.BufferReader(data))

    def written(changed: pa.Table) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(changed, sink)
        return bytes(sink.getvalue().to_pybytes())

    hostile = [
        data[:-1],
        b"",
        written(table.replace_schema_metadata({})),
        written(table.drop_columns(["level"])),
        written(_with(table, "kind", "tombstone")),
        written(_with(table, "kind", "nonsense")),
        written(_with(table, "statistics", b"\xc1")),
        written(_with(table, "statistics", msgspec.msgpack.encode([1, 2, 3]))),
    ]
    for one in hostile:
        with pytest.raises(CorruptionError):
            decode_objects(one, state.table_id, "list")


def _with(table: pa.Table, name: str, value: object) -> pa.Table:
    place = table.column_names.index(name)
    column = pa.array([value] * table.num_rows, table.schema.field(name).type)
    return table.set_column(place, table.schema.field(name), column)


NODE = CheckpointNode(
    job_id=1, key="0/1-0.checkpoint", size_bytes=9, digest=b"d" * 16, order=5, ts=4, start_file=1
)


def test_a_pointer_survives_and_a_damaged_one_is_none() -> None:
    files = FaultyFiles()
    files.makedirs("log")
    assert read_pointer(files) is None
    write_pointer(files, b"u" * 16, (NODE, NODE))
    pointer = read_pointer(files)
    assert pointer is not None
    assert (pointer.uuid, pointer.checkpoints) == (b"u" * 16, (NODE, NODE))
    data = files.read(POINTER_PATH)
    for place in [*range(12), *range(16, len(data))]:
        changed = bytearray(data)
        changed[place] ^= 0x10
        files.write(POINTER_PATH, bytes(changed))
        assert read_pointer(files) is None


@given(st.binary(max_size=120))
def test_a_pointer_of_nonsense_is_none(body: bytes) -> None:
    files = FaultyFiles()
    files.makedirs("log")
    files.write(POINTER_PATH, seal(b"HALO-PTR", 1, body))
    try:
        assert read_pointer(files) is None
    except HaloclineError as error:  # pragma: no cover
        pytest.fail(str(error))
