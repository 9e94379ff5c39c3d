"""docs/reference.md says what the source says, and its examples run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import halocline as hc
from tests import reference

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"
AGAIN = "run `HALOCLINE_WRITE_DOCS=1 pytest tests/test_reference.py`, it writes docs/reference.md"


def test_the_page_is_made_from_the_docstrings() -> None:
    text = reference.page()
    if os.environ.get("HALOCLINE_WRITE_DOCS"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text, AGAIN


def test_every_public_function_has_an_example() -> None:
    names = [name for name, _ in reference.functions()]
    missing = sorted(set(names) - reference.EXAMPLES.keys())
    assert not missing, f"tests/reference.py needs an example of {missing}; then {AGAIN}"
    assert reference.EXAMPLES.keys() == set(names), "an example of something that is not there"


@pytest.mark.parametrize("name", sorted(reference.EXAMPLES))
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("orders.csv").write_text("id,status,amount\n1,paid,2.50\n7,new,7.00\n")
    names: dict[str, object] = {"hc": hc}
    exec(reference.SETTING, names)
    try:
        exec(reference.EXAMPLES[name], names)
    finally:
        exec("db.close()", names)
