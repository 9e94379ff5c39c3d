"""Opening from checkpoints: the newest valid one, else the one before, else the whole log."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import xxhash
from msgspec.structs import replace

from halocline import CorruptionError, Database, UsageError
from halocline.checkpoint.load import load, read_root
from halocline.checkpoint.pointer import POINTER_PATH, read_pointer, write_pointer
from halocline.checkpoint.restore import restore
from halocline.checkpoint.root import MAGIC, VERSION
from halocline.checkpoint.seal import seal
from halocline.log.format import AC, COMMITS
from halocline.log.names import log_numbers, path_of
from halocline.log.record import decode_record
from halocline.log.recover import read_log
from halocline.rows.system import CheckpointNode
from tests.roles import maintenance_of
from tests.store.faulty import FaultyFiles
from tests.unit.checkpoint.history import TINY, Life, open_on, reading, shelf_on
from tests.unit.checkpoint.test_run import fill, make, shop


def aged(checkpoints: int = 3, rows_each: int = 40) -> tuple[FaultyFiles, int]:
    """A closed database whose log was truncated, and how many rows it has."""
    db, files = shop()
    for number in range(checkpoints):
        fill(db, "t", 100 * number, rows_each)
        db.checkpoint()
    fill(db, "t", 1000, 5)
    rows = db.table("t").count()
    db.close()
    return files, rows


def nodes(files: FaultyFiles) -> tuple[CheckpointNode, ...]:
    pointer = read_pointer(files)
    assert pointer is not None
    return pointer.checkpoints


def flip(files: FaultyFiles, key: str) -> None:
    content = bytearray(files.objects.read(key))
    content[len(content) // 2] ^= 4
    files.objects.put(key, bytes(content))


def lists_of(files: FaultyFiles, node: CheckpointNode) -> list[str]:
    tables = read_root(files.objects, node).tables
    return [table.objects.key for table in tables if table.objects is not None]


def opens(files: FaultyFiles, rows: int) -> Database:
    db = make(files)
    assert db.table("t").count() == rows
    assert not db.check()
    return db


Damage = Callable[[FaultyFiles, str], None]


def lose(files: FaultyFiles, key: str) -> None:
    files.objects.delete(key)


@pytest.mark.parametrize("damage", [flip, lose])
@pytest.mark.parametrize("part", ["root", "list"])
def test_the_checkpoint_before_stands_in_for_a_damaged_one(damage: Damage, part: str) -> None:
    files, rows = aged()
    newest, before = nodes(files)
    key = newest.key if part == "root" else lists_of(files, newest)[0]
    damage(files, key)
    db = opens(files, rows)
    kept = db.core.engine.checkpoints
    assert [node.key for node in kept] == [before.key], "what is damaged is no checkpoint"
    fill(db, "t", 2000, 5)
    db.checkpoint()
    assert [node.key for node in db.core.engine.checkpoints][1] == before.key
    db.gc()
    db.close()
    opens(files, rows + 5).close()


@pytest.mark.parametrize("damage", [flip, lose])
@pytest.mark.parametrize("part", ["root", "list"])
def test_damage_to_both_is_corruption_that_names_the_file(damage: Damage, part: str) -> None:
    files, _ = aged()
    keys = [n.key if part == "root" else lists_of(files, n)[0] for n in nodes(files)]
    for key in keys:
        damage(files, key)
    with pytest.raises(CorruptionError) as caught:
        make(files)
    assert caught.value.path == f"objects/{keys[0]}"
    with pytest.raises(CorruptionError):
        make(files)


def test_the_whole_log_stands_in_for_the_first_checkpoint() -> None:
    files, rows = aged(1)
    assert log_numbers(files)[0] == 1
    (newest,) = nodes(files)
    flip(files, newest.key)
    db = opens(files, rows)
    assert db.core.engine.checkpoints == ()
    db.checkpoint()
    fill(db, "t", 2000, 3)
    db.checkpoint()
    db.close()
    opens(files, rows + 3).close()


@pytest.mark.parametrize("content", [None, b"", b"nonsense" * 20])
def test_a_pointer_that_is_lost_is_found_again_in_the_log(content: bytes | None) -> None:
    files, rows = aged()
    newest, _ = nodes(files)
    assert log_numbers(files)[0] > 1
    if content is None:
        files.remove(POINTER_PATH)
    else:
        files.write(POINTER_PATH, content)
    restored = restore(files, TINY, shelf_on(files), reading(files))
    assert restored.replay.key == newest.key
    opens(files, rows).close()


def test_a_pointer_to_files_that_are_gone_leads_through_the_log() -> None:
    """A crash between the CKP entry and the pointer, then GC: the entry knows better."""
    db, files = shop()
    fill(db, "t", 0, 10)
    db.checkpoint()
    old = files.read(POINTER_PATH)
    for number in (1, 2, 3):
        fill(db, "t", 100 * number, 40)
        db.checkpoint()
    rows = db.table("t").count()
    db.close()
    files.write(POINTER_PATH, old)
    opens(files, rows).close()


def test_a_pointer_of_another_database_is_not_followed() -> None:
    files, rows = aged()
    other, _ = aged()
    stranger = nodes(other)
    for node in stranger:
        for key in [node.key, *lists_of(other, node)]:
            files.objects.put(key.replace("0/", "0/77"), other.objects.read(key))
    write_pointer(files, b"x" * 16, [])
    opens(files, rows).close()


def test_a_checkpoint_of_another_database_is_refused() -> None:
    files, _ = aged()
    other, _ = aged()
    for node in nodes(other):
        for key in [node.key, *lists_of(other, node)]:
            files.objects.put(key, other.objects.read(key))
    files.write(POINTER_PATH, other.read(POINTER_PATH))
    with pytest.raises(CorruptionError):
        make(files)


def test_a_newer_format_is_refused_by_its_number() -> None:
    files, _ = aged()
    newest, _ = nodes(files)
    data = seal(MAGIC, VERSION + 1, b"from the future")
    files.objects.put(newest.key, data)
    changed = replace(newest, size_bytes=len(data), digest=xxhash.xxh3_128_digest(data))
    write_pointer(files, b"u" * 16, [changed])
    with pytest.raises(UsageError, match=f"version {VERSION + 1}"):
        make(files)


def test_a_log_that_has_lost_its_end_is_corruption_not_a_shorter_history() -> None:
    files, _ = aged()
    newest, _ = nodes(files)
    root = read_root(files.objects, newest)
    published = files.read("published")
    files.write("published", bytes(len(published)))
    for number in reversed(log_numbers(files)):
        if number > root.here.number:
            files.remove(path_of(number))
    file = files.open(path_of(root.here.number))
    file.pwrite(bytes(file.size() - root.here.offset), root.here.offset)
    file.sync()
    file.close()
    with pytest.raises(CorruptionError, match="ends before"):
        make(files)


def test_a_missing_log_file_behind_the_start_is_corruption() -> None:
    files, _ = aged()
    first = log_numbers(files)[0]
    newest, before = nodes(files)
    assert before.start_file == first
    files.remove(path_of(first))
    if newest.start_file > first:
        opens(files, 125).close()  # the newest does not need it
    else:
        with pytest.raises(CorruptionError):
            make(files)


def test_g02_an_opening_reads_no_log_before_the_start_but_headers() -> None:
    files, rows = aged(rows_each=95)
    newest, _ = nodes(files)
    early = [n for n in log_numbers(files) if n < newest.start_file]
    assert early
    for number in early:
        file = files.open(path_of(number))
        file.pwrite(b"\xee" * 64, 700)
        file.sync()
        file.close()
    done = len(files.operations)
    db = make(files)
    reads = [op for op in files.operations[done:] if op.kind == "read" and "/" in op.path]
    long = {op.path for op in reads if op.path.startswith("log/") and op.size > 512}
    assert not long & {path_of(n) for n in early}
    assert not [op for op in reads if op.path.startswith("1/")], "objects are read lazily"
    assert db.table("t").count() == rows
    assert db.check(), "a check reads all of it"
    db.close()


def test_n03_a_loaded_checkpoint_stands_for_everything_up_to_its_timestamp() -> None:
    db, files = shop()
    fill(db, "t", 0, 10)
    with db.begin(token="once") as txn:
        txn.insert("t", {"id": 99, "text": "token"})
    report = db.checkpoint()
    replay = load(db.core.engine.checkpoints[0], TINY, shelf_on(files))
    engine = replay.engine
    assert (engine.last_ts, engine.floor) == (report.ts, db.floor)
    assert engine.tokens.find("once") == db.core.engine.tokens.find("once")
    assert [entry.name for entry in engine.catalog.tables(report.ts)] == ["t"]
    assert list(engine.times.stamps) == list(db.core.engine.times.stamps)
    db.close()


def test_w17_replay_skips_exactly_what_the_checkpoint_has() -> None:
    """E1 to E4 and E6 to E8 are covered, of E5 the part of one table: nothing else is redone."""
    db, files = shop()
    db.create_table("u", {"id": int, "text": str}, primary_key="id")
    checkpoints = maintenance_of(db).checkpoints
    assert checkpoints is not None
    checkpoints.flush = None
    fill(db, "t", 0, 4)
    with db.begin() as txn:
        txn.insert("t", {"id": 10, "text": "of both"})
        txn.insert("u", {"id": 10, "text": "of both"})
    fill(db, "t", 20, 3)
    db.flush("t")
    db.checkpoint()
    image = files.crash_image(all=True)
    restored = restore(image, TINY, shelf_on(image), reading(image))
    t, u = (restored.engine.tables[table_id] for table_id in (1, 2))
    assert not t.shape.counted()
    assert [u.row(r) for page, n in u.shape.counted() for r in page.rowid_array(n).tolist()] == [
        (10, "of both")
    ]
    entries = list(read_log(image, TINY, restored.replay.root.start).entries())
    assert any(e.group == COMMITS and e.type == AC for e in entries)
    assert decode_record(entries[-1]).nodes
    db.close()


@pytest.mark.slow
def test_a_database_goes_on_for_many_generations() -> None:
    life = Life(11)
    for number in range(12):
        for _ in range(8):
            life.step()
        life.db.checkpoint()
        life.db.close()
        life.db = open_on(life.files, life.clock)
        assert not life.db.check(), f"generation {number}"
    assert log_numbers(life.files)[0] > 5
    assert len(log_numbers(life.files)) < 10
    life.db.close()


def test_r05_table_data_is_checkpoint_and_tail() -> None:
    """Objects of the checkpoint; rows, tombstones and objects that came after it."""
    db, files = shop()
    fill(db, "t", 0, 20)
    db.checkpoint()
    with db.begin() as txn:
        txn.delete("t", 3)
        txn.update("t", 4, {"text": "tail"})
        txn.insert("t", {"id": 50, "text": "in an object of the tail"})
    db.flush("t")
    with db.begin() as txn:
        txn.delete("t", 5)
        txn.insert("t", {"id": 60, "text": "in memory"})
    expected = db.begin().scan("t", order="id").to_pylist()
    image = files.crash_image(none=True)
    with make(image) as again:
        assert again.begin().scan("t", order="id").to_pylist() == expected
        assert (again.begin().get("t", 3), again.begin().get("t", 5)) == (None, None)
        assert again.begin().get("t", 4) == {"id": 4, "text": "tail"}
        assert not again.check()
    db.close()


def test_r08_an_object_that_the_tail_has_ended_is_left_to_older_snapshots() -> None:
    db, files = shop()
    fill(db, "t", 0, 20)
    fill(db, "t", 20, 20)
    db.checkpoint()
    before = db.visible_ts
    listed = set(next(iter(db.core.engine.tables.values())).shape.tier.by_id)
    with db.begin() as txn:
        txn.truncate("t")
    with db.begin() as txn:
        txn.insert("t", {"id": 1, "text": "new"})
    image = files.crash_image(none=True)
    with make(image) as again:
        tier = next(iter(again.core.engine.tables.values())).shape.tier
        assert listed <= set(tier.by_id), "the checkpoint lists them"
        assert not {entry.id for entry in tier.current()} & listed, "the tail has ended them"
        assert again.begin().scan("t").to_pylist() == [{"id": 1, "text": "new"}]
        assert again.begin(at=before).scan("t").num_rows == 40
        assert not again.check()
    db.close()


def test_c10_ddl_that_a_checkpoint_holds_is_not_applied_again() -> None:
    """Though its records are still in the log that is read, because another table needs it."""
    db, files = shop()
    checkpoints = maintenance_of(db).checkpoints
    assert checkpoints is not None
    checkpoints.flush = None
    fill(db, "t", 0, 3)
    for number in range(4):
        db.create_table(f"made{number}", {"id": int}, primary_key="id")
    db.drop_table("made1")
    between = db.visible_ts
    db.drop_table("made2")
    db.checkpoint()
    db.create_table("made2", {"id": int, "more": str}, primary_key="id")
    image = files.crash_image(none=True)
    restored = restore(image, TINY, shelf_on(image), reading(image))
    assert restored.replay.root is not None
    assert restored.replay.root.start.order < restored.replay.root.order - 6
    with make(image) as again:
        assert again.tables() == ["made0", "made2", "made3", "t"]
        assert again.table("made2").schema.names == ["id", "more"]
        with again.begin(at=between) as txn:
            assert txn.tables() == ["made0", "made2", "made3", "t"]
            assert txn.scan("made2").schema.names == ["id"]
        ids = [entry.id for entry in again.core.engine.catalog.tables(again.visible_ts)]
        assert sorted(ids) == [1, 2, 5, 6], "no id is issued twice"
    db.close()
