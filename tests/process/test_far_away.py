"""Processes far away that are paused, or whose owner is killed, miss nothing that was told."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import halocline
from halocline import UnavailableError
from halocline.node.certificate import own_certificate
from tests.process.children import SMALL
from tests.process.faraway import raise_and_show, shown_page, watch_and_insert
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
    page = shown_page(str(tmp_path / "shown"))
    with halocline.open(tmp_path / "db", options=SMALL) as db:
        db.create_table("t", {"id": int, "v": int}, "id")
        with db.begin() as txn:
            txn.insert("t", {"id": 0, "v": 0})
        tls = own_certificate(db.path)
        server = db.serve(tls=tls)
        names = {"uri": server.uri, "token": server.token, "shown": str(tmp_path / "shown")}
        child = Child(nursery, "faraway.client", roots=tls[0], **names)
        for number in range(PAUSES):
            before = db.visible_ts
            question = {"do": "streak", "first": 1 + number * COMMITS, "count": COMMITS}
            os.write(child._input, json.dumps(question).encode() + b"\n")
            _until(lambda: db.visible_ts > before + 20)  # noqa: B023 waited for at once
            with child.paused():
                started = time.monotonic()
                for _ in range(20):
                    raise_and_show(db, page)
                # Twenty syncs: a pause of the other lasts as long as we like.
                assert time.monotonic() - started < WAIT_S / 2
            assert child._read() == {"value": COMMITS}
        assert child.end() == 0
        assert db.table("t").count() == 1 + PAUSES * COMMITS


def test_nothing_is_missed_when_the_owner_is_killed(nursery: Nursery, tmp_path: Path) -> None:
    page = shown_page(str(tmp_path / "shown"))
    owner = Child(nursery, "faraway.serve", path=str(tmp_path / "db"))
    uri, token = owner.said["uri"], owner.said["token"]
    tls = own_certificate(tmp_path / "db")  # the one that the owner has made
    near = halocline.open(tmp_path / "db", options=SMALL)
    far = halocline.connect(uri, token, tls_roots=tls[0], options=SMALL)
    done, stale, written = threading.Event(), [], [0]

    def write() -> None:
        key = 1
        while not done.is_set():
            try:
                with suppress(UnavailableError):
                    watch_and_insert(far, page, key)
                    written[0] += 1
            except BaseException as error:
                stale.append(error)
                raise
            key += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        _until(lambda: written[0] > 20 or stale)
        owner.kill()
        for _ in range(20):
            raise_and_show(near, page)  # the first one takes over
        assert near.role == "owner"
        near.serve(port=int(uri.rpartition(":")[2]), token=token, tls=tls)
        before = written[0]
        for _ in range(20):
            raise_and_show(near, page)
        _until(lambda: written[0] > before + 20 or stale)
    finally:
        done.set()
        thread.join(WAIT_S)
    assert not stale
    with far.begin() as txn:
        assert txn.get("t", 0) == {"id": 0, "v": 40}
    far.close()
    assert not near.check()
    near.close()
