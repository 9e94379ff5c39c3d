"""The table of walks in docs/architecture.md: compared with what the tracer saw, or written.

HALOCLINE_WRITE_DOCS=1 .venv/bin/pytest tests/walks tests/spark/test_walk.py     writes it
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.walks.tracer import Walk

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
WRITES = os.environ.get("HALOCLINE_WRITE_DOCS", "") not in {"", "0"}


def check_page(name: str, walk: Walk) -> None:
    """Fail when the page tells another walk; with HALOCLINE_WRITE_DOCS it is written instead.

    Waiting, spinning and waking differ between runs on a busy machine, so counts may be off by
    one file and a tenth of the crossings, and `node/` may answer a process that asks meanwhile.
    """
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    there = [index for index, line in enumerate(lines) if line.startswith(f"| {name} |")]
    assert len(there) == 1, f"{PAGE.name} has no row {name!r} in its table of walks"
    if WRITES:
        rooms = ", ".join(f"`{room}/`" for room in walk.rooms if room != "top")
        counts = f"{len(walk.files)} | {len(walk.crossings)}"
        lines[there[0]] = f"| {name} | {counts} | {rooms} |"
        PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _, _, files, crossings, rooms, _ = lines[there[0]].split("|")
    seen = f"{len(walk.files)} files, {len(walk.crossings)} crossings, {walk.rooms}"
    hint = f"{PAGE.name} tells another walk than this one: {seen}; HALOCLINE_WRITE_DOCS=1 writes it"
    assert abs(int(files) - len(walk.files)) <= 1, hint
    assert abs(int(crossings) - len(walk.crossings)) <= max(2, int(crossings) // 10), hint
    told = {room.strip() for room in rooms.split(",")}
    assert told ^ {f"`{room}/`" for room in walk.rooms if room != "top"} <= {"`node/`"}, hint
