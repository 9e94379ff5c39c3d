"""docs/isolation.md as data: its tables by heading, its fenced examples by language.

The document decides; the tests only read it. So it cannot say one thing and the engine do another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "isolation.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A fenced block and the line of the document on which its text begins."""

    language: str
    text: str
    line: int


def tables() -> dict[str, list[list[str]]]:
    """Header and rows of each table, under the first cell of its header and its last heading."""
    found: dict[str, list[list[str]]] = {}
    heading, current = "", ""
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            current = ""
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not current:
            current = f"{heading}: {cells[0]}"
            assert current not in found, f"two tables {current!r}"
            found[current] = []
        if not re.fullmatch(r"[-|]+", line):
            found[current].append(cells)
    return found


def examples(language: str) -> list[Example]:
    """The fenced blocks of one language, in order."""
    found: list[Example] = []
    inside, start = "", 0
    block: list[str] = []
    for number, line in enumerate(DOCUMENT.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            block.append(line)
        elif inside:
            found.append(Example(language=inside, text="\n".join(block), line=start))
            inside = ""
        else:
            inside, start, block = line[3:].strip(), number + 1, []
    return [example for example in found if example.language == language]
