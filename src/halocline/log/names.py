"""Names of log files: `log/00000001.log`, `log/00000002.log`, ...

Numbers start at 1 and have no gaps; files are deleted oldest first, so what exists is one run of
numbers. A hole in it is a lost file.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from halocline.errors import CorruptionError
from halocline.store import Files

LOG_DIRECTORY: Final = "log"
PUBLISHED_PATH: Final = "published"

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


def read_image(files: Files, number: int, size: int | None = None, offset: int = 0) -> bytes:
    """Bytes of a log file: all of them, or `size` from `offset` on."""
    file = files.open_read(path_of(number))
    try:
        return file.pread(file.size() if size is None else size, offset)
    finally:
        file.close()
