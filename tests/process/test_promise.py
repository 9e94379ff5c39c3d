"""A process far away that was promised quiet: paused, or its owner killed, it misses nothing."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import halocline
from halocline import UnavailableError
from tests.process.children import SMALL
from tests.process.faraway import (
    raise_and_show,
    shown_page,
    skip_on_slow_disks,
    watch_and_insert,
)
from tests.process.nursery import Child, Nursery

WAIT_S = 60.0
PAUSES = 8
COMMITS = 400


def _until(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


def test_a_paused_client_holds_up_nobody_and_misses_nothing(
    nursery: Nursery, tmp_path: Path
) -> None:
    skip_on_slow_disks(tmp_path)
    page = shown_page(str(tmp_path / "shown"))
    with halocline.open(tmp_path / "db", options=SMALL) as db:
        db.create_table("t", {"id": int, "v": int}, "id")
        with db.begin() as txn:
            txn.insert("t", {"id": 0, "v": 0})
        server = db.serve()
        names = {"uri": server.uri, "token": server.token, "shown": str(tmp_path / "shown")}
        child = Child(nursery, "faraway.client", **names)
        promise = db._log.promise
        assert promise is not None
        spared = 0
        for number in range(PAUSES):
            given = promise.given
            question = {"do": "streak", "first": 1 + number * COMMITS, "count": COMMITS}
            os.write(child._input, json.dumps(question).encode() + b"\n")
            _until(lambda: promise.given > given)  # noqa: B023 waited for at once
            os.kill(child.pid, signal.SIGSTOP)
            started = time.monotonic()
            for _ in range(20):
                raise_and_show(db, page)
            # Twenty syncs, and one promise: a pause of the other lasts as long as we like.
            assert time.monotonic() - started < WAIT_S / 2
            os.kill(child.pid, signal.SIGCONT)
            answer = child._read()
            assert "value" in answer, answer
            spared = answer["value"]
        assert spared > 0
        assert child.end() == 0
        assert db.table("t").count() == 1 + PAUSES * COMMITS


def test_nothing_is_missed_when_the_owner_is_killed(nursery: Nursery, tmp_path: Path) -> None:
    skip_on_slow_disks(tmp_path)
    page = shown_page(str(tmp_path / "shown"))
    owner = Child(nursery, "faraway.serve", path=str(tmp_path / "db"))
    uri, token = owner.said["uri"], owner.said["token"]
    near = halocline.open(tmp_path / "db", options=SMALL)
    far = halocline.connect(uri, token, options=SMALL)
    done, stale = threading.Event(), []

    def write() -> None:
        key = 1
        while not done.is_set():
            try:
                with suppress(UnavailableError):
                    watch_and_insert(far, page, key)
            except BaseException as error:
                stale.append(error)
                raise
            key += 1

    files = far._files
    thread = threading.Thread(target=write)
    thread.start()
    try:
        _until(lambda: files.spared > 20)  # type: ignore[attr-defined]
        owner.kill()
        for _ in range(20):
            raise_and_show(near, page)  # the first one takes over
        assert near.role == "owner"
        near.serve(port=int(uri.rpartition(":")[2]), token=token)
        spared = files.spared  # type: ignore[attr-defined]
        for _ in range(20):
            raise_and_show(near, page)
        _until(lambda: files.spared > spared + 20 or stale)  # type: ignore[attr-defined]
    finally:
        done.set()
        thread.join(WAIT_S)
    assert not stale
    with far.begin() as txn:
        assert txn.get("t", 0) == {"id": 0, "v": 40}
    far.close()
    assert not near.check()
    near.close()
