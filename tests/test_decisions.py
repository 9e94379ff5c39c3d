"""Every decision says whether it still holds, and docs/decisions/README.md lists them all."""

from __future__ import annotations

import re
from pathlib import Path

from tests.test_tidy import ROOT, report

FOLDER = ROOT / "docs" / "decisions"
STATUS = re.compile(r"^[*](Valid|In part replaced by|Replaced by)\b")
NUMBER = re.compile(r"\[(\d{4})\]")
ROW = re.compile(r"^\| \[(\d{4})\]\(([\w.-]+)\) \| (.+) \| (.+) \|$", re.MULTILINE)
UNUSED = re.compile(r"^Numbers without a record: ([\d, ]+)[.]", re.MULTILINE)


def decisions() -> list[Path]:
    """The records, in the order of their numbers."""
    return sorted(FOLDER.glob("[0-9]*.md"))


def state_of(path: Path) -> str:
    """The state in the words of the index: valid, in part replaced by 0013 and 0014."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = STATUS.match(lines[2]) if len(lines) > 2 else None
    if found is None:
        return f"without a state in its third line: {lines[2:3]}"
    end = next(at for at, line in enumerate(lines[2:], 2) if line.endswith("*"))
    # A state may give its reasons behind a colon.
    words = " ".join(lines[2 : end + 1]).partition(":")[0] if found[1] != "Valid" else "Valid"
    return " and ".join([found[1].lower(), *NUMBER.findall(words)]).replace(" and ", " ", 1)


def test_every_decision_says_its_number_and_its_state() -> None:
    offences = []
    for path in decisions():
        title = path.read_text(encoding="utf-8").partition("\n")[0]
        if not title.startswith(f"# {path.name[:4]}: "):
            offences.append(f"{path.name}: its title is {title!r}")
        if "state" in (state := state_of(path)):
            offences.append(f"{path.name}: {state}")
    report("a decision begins with its number and its state", offences)


def test_the_index_lists_every_decision_with_its_state() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = [(number, file, state) for number, file, _, state in ROW.findall(index)]
    assert listed == [(path.name[:4], path.name, state_of(path)) for path in decisions()]


def test_what_replaces_a_decision_exists_and_is_newer() -> None:
    numbers = {path.name[:4] for path in decisions()}
    offences = [
        f"{path.name}: {other}"
        for path in decisions()
        for other in re.findall(r"\d{4}", state_of(path))
        if other not in numbers or other <= path.name[:4]
    ]
    report("a decision is replaced by a later one", offences)


def test_no_number_is_missing_without_a_word() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    unused = UNUSED.search(index)
    assert unused is not None
    numbers = [int(path.name[:4]) for path in decisions()]
    missing = sorted({*range(1, max(numbers) + 1)} - {*numbers})
    assert [int(number) for number in unused[1].split(",")] == missing
    assert len(numbers) == len(set(numbers)), "a number is given once"
