"""docs/errors.md describes every error there is, with its fields, and its examples run."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline import errors

PAGE = Path(__file__).resolve().parents[3] / "docs" / "errors.md"
TEXT = PAGE.read_text(encoding="utf-8")
CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, hc.HaloclineError) and cls is not hc.HaloclineError
]
EXAMPLES: dict[str, Exception] = {
    "ConflictError": hc.ConflictError("why", table="t", key=1, winner_ts=5),
    "DuplicateKeyError": hc.DuplicateKeyError("t", [1]),
    "AlreadyExistsError": hc.AlreadyExistsError("table", "t"),
    "NotFoundError": hc.NotFoundError("table", "t"),
    "UsageError": hc.UsageError("why"),
    "SchemaError": hc.SchemaError("why", column="c", row=1),
    "CheckError": hc.CheckError("t", "positive", "v > 0", key=1, values={"v": -1}, row=1),
    "SnapshotExpiredError": hc.SnapshotExpiredError(1, 2),
    "UnavailableError": hc.UnavailableError("why", outcome="unknown"),
    "CorruptionError": hc.CorruptionError("log", "why", offset=7),
}


def _row(name: str) -> list[str]:
    (line,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{name}`")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_is_described(cls: type[Exception]) -> None:
    name = cls.__name__
    assert f"\n### {name}\n" in TEXT
    _, what, next_step, fields = _row(name)
    assert what
    assert next_step
    named = set(re.findall(r"`(\w+)`", fields))
    assert named == set(vars(EXAMPLES[name])) - {"read_keys"}  # those are for transactions
    assert getattr(hc, name) is cls, "every error comes through the front door"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_facts_are_fields_and_in_the_message(cls: type[Exception]) -> None:
    error = EXAMPLES[cls.__name__]
    for name, fact in vars(error).items():
        if fact and fact is not True and name not in ("total", "outcome", "key", "read_keys"):
            shown = str(fact[0]) if isinstance(fact, list) else str(fact)
            if isinstance(fact, dict):
                shown = ", ".join(f"{column}={value!r}" for column, value in fact.items())
            assert shown in str(error), name


def test_the_page_names_no_error_that_does_not_exist() -> None:
    named = set(re.findall(r"`(\w+Error)`", TEXT)) | set(re.findall(r"### (\w+)", TEXT))
    assert named == {cls.__name__ for cls in CLASSES} | {"HaloclineError"}


def test_all_errors_have_one_root() -> None:
    assert issubclass(hc.SchemaError, hc.UsageError)
    assert not issubclass(hc.HaloclineError, (ValueError, KeyError, OSError))


def test_python_of_the_page_runs(db: Any) -> None:
    db.create_table("accounts", {"id": int, "balance": int}, primary_key="id")
    names: dict[str, Any] = {"db": db, "hc": hc}
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == TEXT.count("\n```") // 2 == 5
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert not db.check()
