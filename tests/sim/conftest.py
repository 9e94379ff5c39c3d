"""A directory in memory, for tests that need real files but not a real disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """Thousands of openings in a row would mostly wait for the disk. Elsewhere: the usual one."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="halocline-", dir=MEMORY))
    yield path
    shutil.rmtree(path)
