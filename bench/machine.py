"""Where the numbers come from: the machine and the versions, for the head of every report."""

from __future__ import annotations

import os
import platform
import sqlite3
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench import disk

LIBRARIES = ("halocline", "pyarrow", "numpy", "duckdb", "msgspec")


def facts(directory: Path) -> dict[str, str]:
    """What a reader must know before comparing these numbers with others."""
    found = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
    }
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    found["durable append"] = f"{_durable_append_us(directory):.0f} us"
    return found


def _durable_append_us(directory: Path, ops: int = 500) -> float:
    place = directory / "durable-append"
    place.mkdir(parents=True)
    with disk.appends(place, ops=ops) as run:
        run(0)
        return min(run(number) for number in range(1, 4)) / ops * 1e6
