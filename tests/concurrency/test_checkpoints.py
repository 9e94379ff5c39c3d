"""Checkpoints beside commits, moves, DDL and GC: every opening finds what was acknowledged."""

from __future__ import annotations

import threading
from typing import Any

from halocline import ConflictError, Database, Options
from tests.roles import maintenance_of
from tests.store.faulty import FaultyFiles

OPTIONS = Options(
    page_rows=64,
    bulk_rows=256,
    object_rows=1024,
    row_group_rows=512,
    log_file_bytes=16384,
    log_file_bytes_first=4096,
    background=False,
)


class Gate:
    """Lets the other threads work, or has them wait while we look."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.over = False

    def __bool__(self) -> bool:
        self.open.wait()
        return not self.over

    def end(self) -> None:
        self.over = True
        self.open.set()


def _write(db: Database, writer: int, gate: Gate, acked: dict[int, int]) -> None:
    count = 0
    while gate:
        key = writer * 1_000_000 + count % 50
        value = count
        try:
            with db.begin(token=(f"writer {writer}", count)) as txn:
                txn.upsert("t", {"id": key, "value": value})
        except ConflictError:
            continue
        acked[key] = value
        count += 1


def _define(db: Database, gate: Gate) -> None:
    number = 0
    while gate:
        db.create_table(f"extra{number}", {"id": int}, primary_key="id")
        with db.begin() as txn:
            txn.insert(f"extra{number}", [{"id": n} for n in range(20)])
        if number > 2:
            db.drop_table(f"extra{number - 3}")
        number += 1
        threading.Event().wait(0.05)  # a few are enough


def _read(files: FaultyFiles) -> tuple[dict[int, int], Any]:
    with Database(files, "copy", options=OPTIONS) as db:
        assert not db.check()
        rows = db.begin().scan("t").to_pylist()
        return {row["id"]: row["value"] for row in rows}, db.core.engine


def test_checkpoints_beside_everything_else() -> None:
    files = FaultyFiles()
    db = Database(files, "shared", options=OPTIONS, retention=0)
    db.create_table("t", {"id": int, "value": int}, primary_key="id")
    gate = Gate()
    acked: list[dict[int, int]] = [{} for _ in range(3)]
    threads = [
        threading.Thread(target=_write, args=(db, number, gate, acked[number]))
        for number in range(3)
    ]
    threads.append(threading.Thread(target=_define, args=(db, gate)))
    for thread in threads:
        thread.start()
    try:
        assert maintenance_of(db).checkpoints is not None
        for number in range(8):
            gate.open.set()
            if number % 3 == 2:
                db.gc()
            maintenance_of(db).checkpoints.run(everything=number % 2 == 0)
            # A power loss now: nothing but what was synced is left.
            before = [dict(one) for one in acked]
            image = files.crash_image(none=True)
            gate.open.clear()
            found, engine = _read(image)
            assert engine.checkpoints, "it was opened from a checkpoint"
            for one in before:
                for key, value in one.items():
                    assert found[key] >= value, f"round {number}: an acknowledged row is gone"
    finally:
        gate.end()
        for thread in threads:
            thread.join(60)
    assert not db.check()
    expected = {key: value for one in acked for key, value in one.items()}
    rows = db.begin().scan("t").to_pylist()
    assert {row["id"]: row["value"] for row in rows} == expected
    db.close()
    assert _read(files)[0] == expected


def test_two_checkpoints_at_once_take_turns() -> None:
    files = FaultyFiles()
    db = Database(files, "shared", options=OPTIONS)
    db.create_table("t", {"id": int, "value": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", [{"id": n, "value": n} for n in range(100)])
    threads = [threading.Thread(target=db.checkpoint) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(db.core.engine.checkpoints) == 2
    assert not db.core.engine.jobs
    assert not db.check()
    db.close()
