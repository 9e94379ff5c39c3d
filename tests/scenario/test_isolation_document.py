"""The examples and lists of docs/isolation.md hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from tests.scenario.document import DOCUMENT, Example, examples, tables
from tests.scenario.play import EVERYWHERE, Placement, play
from tests.scenario.script import parse


@pytest.mark.parametrize("placement", EVERYWHERE, ids=lambda placement: placement.name)
@pytest.mark.parametrize("example", examples("scenario"), ids=lambda example: str(example.line))
def test_scenarios_of_the_document_run(
    example: Example, placement: Placement, memory_path: Path
) -> None:
    play(parse(example.text, DOCUMENT.name, example.line), memory_path / "db", placement)


def test_python_of_the_document_runs(db: Any) -> None:
    db.create_table("accounts", {"id": int, "balance": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("accounts", {"id": 1, "balance": 100})
    names: dict[str, Any] = {"db": db, "hc": hc}
    blocks = examples("python")
    assert len(blocks) == 6
    for block in blocks:
        # Blank lines in front, so that a failure names the line of the document.
        exec(compile("\n" * (block.line - 1) + block.text, str(DOCUMENT), "exec"), names)
    assert not db.check()


def test_scenarios_that_the_document_names_exist() -> None:
    rows = tables()["What is prevented: anomaly"][1:]
    named = {name for row in rows for name in row[3].replace("`", "").split(", ")}
    folder = Path(__file__).parent
    assert len(rows) == 13
    assert {name for name in named if not (folder / f"{name}.txt").exists()} == set()


def test_every_fenced_block_is_run() -> None:
    fences = DOCUMENT.read_text(encoding="utf-8").count("\n```") // 2
    assert fences == len(examples("scenario")) + len(examples("python"))
