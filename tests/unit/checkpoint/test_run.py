"""Making checkpoints: what is written, what is kept, what may go, and when it happens by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halocline import Database, Options, UnavailableError
from halocline.checkpoint.load import read_root
from halocline.checkpoint.pointer import read_pointer
from halocline.log.format import CKP
from halocline.log.names import log_numbers
from halocline.log.recover import read_log
from tests.roles import maintenance_of
from tests.store.faulty import FaultyFiles
from tests.unit.checkpoint.history import TINY, open_on


def make(files: FaultyFiles | None = None, **options: Any) -> Database:
    files = files or FaultyFiles()
    return Database(files, "simulated", options=replace(TINY, **options))


def fill(db: Database, name: str, first: int, count: int = 20) -> None:
    for key in range(first, first + count):
        with db.begin() as txn:
            txn.insert(name, {"id": key, "text": f"row {key}" * 5})


def shop(**options: Any) -> tuple[Database, FaultyFiles]:
    files = FaultyFiles()
    db = make(files, **options)
    db.create_table("t", {"id": int, "text": str}, primary_key="id")
    return db, files


def checkpoint_keys(files: FaultyFiles) -> list[str]:
    return files.objects.list("0")


def test_w16_a_checkpoint_replaces_what_stands_before_it() -> None:
    """Restart begins at the last CKP: what it covers is not replayed."""
    db, files = shop()
    fill(db, "t", 0)
    report = db.checkpoint()
    assert (report["ts"], report.flushed, report.files) == (db.visible_ts, 1, 2)
    fill(db, "t", 100, 3)
    db.close()
    log = read_log(files, TINY)
    assert log.checkpoint is not None
    assert log.checkpoint.type == CKP
    with make(files) as again:
        assert again.table("t").count() == 23
        state = next(iter(again.core.engine.tables.values()))
        assert sum(count for _, count in state.shape.counted()) == 3, "the rest is in objects"
        assert not again.check()


def test_r06_r07_object_lists_are_written_anew_only_for_tables_that_changed() -> None:
    db, files = shop()
    db.create_table("quiet", {"id": int, "text": str}, primary_key="id")
    db.create_table("empty", {"id": int, "text": str}, primary_key="id")
    fill(db, "t", 0)
    fill(db, "quiet", 0)
    assert db.checkpoint().files == 3
    fill(db, "t", 100)
    report = db.checkpoint()
    assert (report.files, report.flushed) == (2, 1)
    assert db.checkpoint().files == 1, "nothing changed: only the root"
    newest = db.core.engine.checkpoints[0]
    lists = {t.table_id: t.objects for t in read_root(files.objects, newest).tables}
    assert [ref is None for ref in lists.values()] == [False, False, True]
    db.close()
    with make(files) as again:
        assert again.checkpoint().files == 1, "an opening knows what is there"
        assert not again.check()


def test_n02_the_newest_two_are_kept_newest_first() -> None:
    db, files = shop()
    stamps: list[int] = []
    for number in range(4):
        fill(db, "t", 100 * number, 5)
        stamps.insert(0, db.checkpoint().ts)
        kept = db.core.engine.checkpoints
        assert [node.ts for node in kept] == stamps[:2]
        assert read_pointer(files).checkpoints == kept
        assert set(checkpoint_keys(files)) == db.core.engine.kept_files
    db.gc()
    assert set(checkpoint_keys(files)) == db.core.engine.kept_files, "GC takes none of them"
    assert not db.check()
    db.close()


def test_w19_w23_log_files_go_when_every_table_has_flushed() -> None:
    db, files = shop()
    fill(db, "t", 0, 40)
    first = log_numbers(files)
    assert len(first) > 1
    assert db.checkpoint().log_files == 0, "one checkpoint: the whole log stands in for it"
    fill(db, "t", 100, 40)
    middle = db.core.engine.checkpoints[0].start_file
    report = db.checkpoint()
    assert report.log_files == middle - 1 > 0
    assert log_numbers(files)[0] == middle
    fill(db, "t", 200, 40)
    db.checkpoint()
    assert log_numbers(files)[0] > middle
    assert not db.check()
    db.close()
    with make(files) as again:
        assert again.table("t").count() == 120


def test_w19_h05_a_table_that_has_not_flushed_keeps_its_log_and_others_need_not_wait() -> None:
    db, files = shop()
    db.create_table("late", {"id": int, "text": str}, primary_key="id")
    fill(db, "late", 0, 2)
    checkpoints = maintenance_of(db).checkpoints
    assert checkpoints is not None
    mover, checkpoints.flush = checkpoints.flush, None
    for number in range(4):
        fill(db, "t", 100 * number, 40)
        db.flush("t")
        assert db.checkpoint().log_files == 0
    assert log_numbers(files)[0] == 1
    image = files.crash_image(all=True)
    with make(image) as again:
        assert again.table("late").count() == 2
        state = again.core.engine.tables[1]
        assert not state.shape.counted(), "rows of t in that log are skipped by their bound"
        assert not again.check()
    checkpoints.flush = mover
    assert db.checkpoint().flushed == 1
    assert db.checkpoint().log_files >= 3
    db.close()


def test_the_background_flushes_only_who_holds_log_from_before_the_newest_checkpoint() -> None:
    db, _ = shop()
    checkpoints = maintenance_of(db).checkpoints
    assert checkpoints is not None
    db.create_table("other", {"id": int, "text": str}, primary_key="id")
    fill(db, "t", 0, 3)
    assert checkpoints.run(everything=False).flushed == 0
    fill(db, "other", 0, 3)
    assert checkpoints.run(everything=False).flushed == 1, "t"
    assert checkpoints.run(everything=False).flushed == 1, "other"
    assert checkpoints.run(everything=False).flushed == 0
    assert not db.check()
    db.close()


def test_a_dropped_table_that_old_snapshots_see_is_flushed_too() -> None:
    db, files = shop()
    fill(db, "t", 0, 10)
    before = db.visible_ts
    db.drop_table("t")
    report = db.checkpoint()
    assert report.flushed == 1
    assert report.tail_bytes < 300
    db.close()
    with make(files) as again:
        assert again.begin(at=before).scan("t").num_rows == 10
        assert not again.check()


def test_one_is_due_after_so_many_bytes_of_log() -> None:
    db, files = shop(checkpoint_log_bytes=20_000)
    checkpoints = maintenance_of(db).checkpoints
    assert checkpoints is not None
    assert not checkpoints.due()
    checkpoints.step()
    assert not checkpoint_keys(files)
    fill(db, "t", 0, 200)
    assert checkpoints.due()
    checkpoints.step()
    assert checkpoint_keys(files)
    assert not checkpoints.due()
    db.close()


def test_the_background_makes_them() -> None:
    files = FaultyFiles()
    db = make(files, background=True, checkpoint_log_bytes=8192)
    db.create_table("t", {"id": int, "text": str}, primary_key="id")
    key = 0
    while log_numbers(files)[0] == 1:
        fill(db, "t", key, 10)
        key += 10
        db._setting.clock.sleep(0.01)
        assert key < 20_000, "the log is never truncated"
    assert db.table("t").count() == key
    assert not db.check()
    db.close()


def test_closing_leaves_no_object_for_a_few_rows_and_no_long_log() -> None:
    files = FaultyFiles()
    with make(files) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
    openings = 0
    while not checkpoint_keys(files):
        with make(files) as db:
            fill(db, "t", openings, 1)
        openings += 1
        assert openings < 40
    assert openings == 17, "every opening begins a log file"
    assert {key.partition("-")[0] for key in files.objects.list("1")} == {"1/1"}, "one job"
    for extra in range(40):
        with make(files) as db:
            fill(db, "t", openings + extra, 1)
    assert len(log_numbers(files)) < 40
    with make(files) as db:
        assert db.table("t").count() == openings + 40
        assert not db.check()


def test_closing_after_many_commits_spares_the_next_opening() -> None:
    files = FaultyFiles()
    with make(files, checkpoint_log_bytes=64 * 4096) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        fill(db, "t", 0, 10)
    assert not checkpoint_keys(files)
    with make(files, checkpoint_log_bytes=64 * 4096) as db:
        fill(db, "t", 100, 30)
    assert checkpoint_keys(files)
    with make(files) as db:
        assert maintenance_of(db).checkpoints is not None
        assert maintenance_of(db).checkpoints.tail_bytes() < 1000
        assert db.table("t").count() == 40


def test_an_unneeded_checkpoint_on_close_never_fails_the_close() -> None:
    files = FaultyFiles()
    db = make(files, checkpoint_log_bytes=64)
    db.create_table("t", {"id": int, "text": str}, primary_key="id")
    fill(db, "t", 0, 10)
    files.fail(1, 28, kind="put")
    db.close()
    files.clear()
    with make(files) as again:
        assert again.table("t").count() == 10
        assert not again.check()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_full_disk_fails_the_checkpoint_and_nothing_else(step: int) -> None:
    db, files = shop()
    fill(db, "t", 0, 10)
    before = db.checkpoint()
    fill(db, "t", 100, 10)
    files.fail(step, 28, kind="put")
    with pytest.raises(UnavailableError):
        db.checkpoint()
    files.clear()
    assert not db.core.engine.jobs
    assert [node.ts for node in db.core.engine.checkpoints] == [before.ts]
    fill(db, "t", 200, 5)
    assert db.checkpoint().ts > before.ts
    assert db.table("t").count() == 25
    db.gc()
    assert set(checkpoint_keys(files)) == db.core.engine.kept_files
    assert not db.check()
    db.close()


def test_a_read_only_opener_makes_none() -> None:
    db, files = shop()
    reader = Database(files, "simulated", read_only=True, options=TINY)
    with pytest.raises(UnavailableError):
        reader.checkpoint()
    reader.close()
    db.close()


def test_check_looks_at_checkpoint_files() -> None:
    db, files = shop()
    fill(db, "t", 0)
    db.checkpoint()
    assert not db.check()
    for key in checkpoint_keys(files):
        content = files.objects.read(key)
        files.objects.put(key, content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
        (problem,) = db.check()
        assert key in problem
        files.objects.put(key, content)
    db.close()


def test_health_knows_how_long_an_opening_would_read() -> None:
    db, _ = shop(checkpoint_log_bytes=4096)
    fill(db, "t", 0, 100)
    owed = {one.work for one in db.health().owed}
    assert "checkpoint" in owed
    db.checkpoint()
    assert "checkpoint" not in {one.work for one in db.health().owed}
    db.close()


def test_options_of_another_size_open_the_same_files() -> None:
    db, files = shop()
    fill(db, "t", 0, 30)
    db.checkpoint()
    fill(db, "t", 100, 30)
    db.close()
    with Database(files, "simulated", options=Options(background=False)) as again:
        assert again.table("t").count() == 60
    with open_on(files) as again:
        assert again.table("t").count() == 60
