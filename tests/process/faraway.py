"""What child processes do that serve a database to other machines, or are far away from it.

`shown` is a file that all of them map: the newest value of row 0 that somebody was told is
committed. Whoever begins a transaction reads it first, and must see no older one.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import halocline
from halocline.node.certificate import own_certificate
from tests.process.children import SMALL, _answer, _say


def serve(input: int, output: int, path: str) -> None:
    """The owner of a new database with a table of one row."""
    with halocline.open(path, options=SMALL) as db:
        db.create_table("t", {"id": int, "v": int}, "id")
        with db.begin() as txn:
            txn.insert("t", {"id": 0, "v": 0})
        server = db.serve(tls=own_certificate(path))
        _say(output, {"uri": server.uri, "token": server.token})
        _answer(input, output, {})


def client(input: int, output: int, uri: str, token: str, roots: str, shown: str) -> None:
    """Commits again and again, as often as it is asked to."""
    with halocline.connect(uri, token, tls_roots=roots, options=SMALL) as db:
        page = shown_page(shown)
        _say(output, {"open": True})

        def streak(first: int, count: int) -> int:
            for key in range(first, first + count):
                watch_and_insert(db, page, key)
            return count

        _answer(input, output, {"streak": streak})


def shown_page(path: str) -> mmap.mmap:
    """The page, at first without a value."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(file, 8)
        return mmap.mmap(file, 8)
    finally:
        os.close(file)


def shown_value(page: mmap.mmap) -> int:
    return int.from_bytes(page[:8], "little")


def watch_and_insert(db: Any, page: mmap.mmap, key: int) -> None:
    """A transaction that must see what was shown before it began."""
    shown = shown_value(page)
    with db.begin() as txn:
        seen = txn.get("t", 0)["v"]
        assert seen >= shown, f"{shown} was shown, {seen} is seen"
        txn.insert("t", {"id": key, "v": seen})


def raise_and_show(db: Any, page: mmap.mmap) -> None:
    """One more in row 0, shown to everybody once it is committed."""
    with db.begin() as txn:
        value = txn.get("t", 0)["v"] + 1
        txn.update("t", 0, {"v": value})
    page[:8] = value.to_bytes(8, "little")
