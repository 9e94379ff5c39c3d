"""Names of log files: `log/00000001.log`, `log/00000002.log`, ...

Numbers start at 1 and have no gaps; files are deleted oldest first, so what exists is one run of
numbers. A hole in it is a lost file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from halocline.errors import CorruptionError
from halocline.log.format import SECTOR
from halocline.store import Files

LOG_DIRECTORY: Final = "log"
PUBLISHED_PATH: Final = "published"

_PIECE_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"([0-9]{8,})\.log")


def path_of(number: int) -> str:
    return f"{LOG_DIRECTORY}/{number:08d}.log"


def log_numbers(files: Files) -> list[int]:
    """The numbers of the log files that exist, ascending; CorruptionError if one is missing."""
    numbers = found_numbers(files)
    for before, number in pairwise(numbers):
        if number != before + 1:
            raise CorruptionError(path_of(before + 1), "the log file is missing")
    return numbers


def found_numbers(files: Files) -> list[int]:
    """The numbers of the log files that exist, ascending, with or without holes."""
    matches = (_NAME.fullmatch(name) for name in files.list(LOG_DIRECTORY))
    return sorted(int(match[1]) for match in matches if match)


def read_pieces(files: Files, number: int, bytes_max: int) -> Iterator[bytes]:
    """A log file that has no header, from its second sector on, piece by piece.

    Pieces begin at sectors, so no header of an entry lies in two. A sparse file may claim any size:
    CorruptionError for one that is longer than what the log makes.
    """
    file = files.open_read(path_of(number))
    try:
        size = file.size()
        if size > bytes_max:
            raise CorruptionError(
                path_of(number), f"has no header, and {size:,} bytes: no log file is so long"
            )
        for offset in range(SECTOR, size, _PIECE_BYTES):
            yield file.pread(_PIECE_BYTES, offset)
    finally:
        file.close()


def read_image(files: Files, number: int, size: int | None = None, offset: int = 0) -> bytes:
    """Bytes of a log file: all of them, or `size` from `offset` on."""
    file = files.open_read(path_of(number))
    try:
        return file.pread(file.size() if size is None else size, offset)
    finally:
        file.close()
