"""Files of an owner on another machine: what a look brings, and which of two is newer."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from halocline.log.published import _BODY, _PAGE
from halocline.node.remote_files import Glance, RemoteFiles
from halocline.node.wire import Look, Looked


def page(sequence: int) -> bytes:
    """A published position."""
    fields = (b"u" * 16, sequence, 1, 1, 512, 7, 1)
    return _PAGE.pack(*fields, crc32(_BODY.pack(*fields)), sequence)


def test_a_glance_never_takes_the_place_of_a_newer_one() -> None:
    """Threads look at the same time, and answers overtake each other."""
    answers = [Looked(page(sequence), bytes(sequence)) for sequence in (5, 9, 7, 9, 3)]
    asked: list[Look] = []

    def ask(request: Any, kind: Any) -> Looked:
        asked.append(request)
        return answers[len(asked) - 1]

    files = RemoteFiles(ask)
    for _ in range(5):
        files.look()
    assert len(asked) == 5
    assert files.looked == Glance(page(9), "", 0, bytes(9))
    answers.append(Looked(b"", b""))  # nothing that could be compared: it is believed
    files.look()
    assert files.looked.page == b""


def test_a_look_asks_for_whole_sectors_behind_what_was_read() -> None:
    files = RemoteFiles(lambda request, kind: Looked(page(1), bytes(1024)))
    files.place = ("log/00000001.log", 1300)
    files.look()
    assert files.looked[1:3] == ("log/00000001.log", 1024)
