"""Nothing in `src/` is there for its own tests alone.

    every function, class and constant --> is its name used in src/, outside of its own lines?

An import does not count, nor does the list of names of a room; the lists of what users import do.
A name that is used anywhere counts for all that bear it, so this finds less than there may be; what
it finds is certain. `CALLED_BY_NAME` has what others call by its name.

    every method --> is it meant by a use of its name in src/?        by types; `make test-more`

The second question finds the method that hides behind another one of its name (resolved.py).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"

FRONT_DOORS = {"halocline/__init__.py", "halocline/spark/__init__.py"}
"""Whose `__all__` is what users import."""

CALLED_BY_NAME = {
    "halocline/database/database.py": "_repr_html_ explain: for notebooks and users",
    "halocline/database/health.py": "is_well _repr_html_: for users and notebooks",
    "halocline/database/table.py": "to_pandas _repr_html_: for users and notebooks",
    "halocline/log/format.py": "PARTS: a number that stays reserved",
    "halocline/log/record.py": "DDL_CD DDL_DD: numbers that stay reserved",
    "pyspark_halocline/feed.py": (
        "initialOffset latestOffset getDefaultReadLimit reportLatestOffset"
        " prepareForTriggerAvailableNow: Spark calls them"
    ),
    "pyspark_halocline/sink.py": "abort: Spark calls it",
    "pyspark_halocline/source.py": "streamReader streamWriter: Spark calls them",
}
"""File -> names in it that nothing in `src/` uses, and who does."""


MEANT_BY_OTHERS = {
    "halocline/database/database.py": "snapshots: for users",
    "halocline/database/table.py": "history: for users",
    "halocline/txn/transaction.py": "get_many: for users",
    "pyspark_halocline/feed.py": "partitions: Spark calls it",
    "pyspark_halocline/scan.py": "partitions: Spark calls it",
}
"""File -> further methods that nothing in `src/` means, though it uses their names."""


CALLED_BY_TYPE = {"halocline/spark/dialect.py": "_Rewriter"}
"""File -> a class whose methods are found by the type of what they are for."""


class Definition(NamedTuple):
    name: str
    owner: str
    path: str
    first: int
    last: int


def _definitions(tree: ast.Module, path: str) -> Iterator[Definition]:
    owners = {
        id(child): node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for child in node.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            owner = owners.get(id(node), "")
            yield Definition(node.name, owner, path, node.lineno, node.end_lineno or 0)
    for node in tree.body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                yield Definition(target.id, "", path, node.lineno, node.end_lineno or 0)


def _lists(tree: ast.Module, path: str) -> set[int]:
    """Nodes inside `__all__` of rooms and `__slots__`: naming a thing there is no use of it."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name == "__slots__" or (name == "__all__" and path not in FRONT_DOORS):
                found.update(id(inner) for inner in ast.walk(node))
    return found


def _uses(tree: ast.Module, path: str) -> Iterator[tuple[str, int]]:
    """(name, line) of names that are read, and of texts that may be names."""
    lists = _lists(tree, path)
    for node in ast.walk(tree):
        if id(node) in lists:
            continue
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield (node.id if isinstance(node, ast.Name) else node.attr), node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r'[\w.\[\], |"]{1,200}', node.value):
                for word in re.findall(r"\w+", node.value):
                    yield word, node.lineno


def _unused() -> list[Definition]:
    definitions: list[Definition] = []
    uses: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for file in sorted(SOURCES.rglob("*.py")):
        path = file.relative_to(SOURCES).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"))
        definitions += _definitions(tree, path)
        for name, line in _uses(tree, path):
            uses[name].append((path, line))
    return [
        one
        for one in definitions
        if not (one.name.startswith("__") and one.name.endswith("__"))
        and CALLED_BY_TYPE.get(one.path) != one.owner
        and all(path == one.path and one.first <= line <= one.last for path, line in uses[one.name])
    ]


def _allowed(*lists: dict[str, str]) -> set[tuple[str, str]]:
    return {
        (path, name)
        for one in lists
        for path, reason in one.items()
        for name in reason.partition(":")[0].split()
    }


def test_everything_in_the_sources_is_used_there() -> None:
    allowed = _allowed(CALLED_BY_NAME)
    found = {(one.path, one.name): one.first for one in _unused()}
    offences = [
        f"{path}:{line}: {name}"
        for (path, name), line in found.items()
        if (path, name) not in allowed
    ]
    if offences:
        pytest.fail("nothing in src/ uses:\n  " + "\n  ".join(offences), pytrace=False)
    stale = sorted(allowed - found.keys())
    assert not stale, f"used now, or gone: take them out of CALLED_BY_NAME: {stale}"


@pytest.mark.more
def test_every_method_is_meant_by_a_use_of_its_name() -> None:
    from tests.resolved import unmeant

    found = {
        (Path(one.path).resolve().relative_to(SOURCES).as_posix(), one.name): one
        for one in unmeant(ROOT, "src")
        if CALLED_BY_TYPE.get(Path(one.path).resolve().relative_to(SOURCES).as_posix())
        != one.owner.name
    }
    offences = [
        f"{path}:{one.first}: {one.owner.name}.{name}"
        for (path, name), one in found.items()
        if (path, name) not in _allowed(CALLED_BY_NAME, MEANT_BY_OTHERS)
    ]
    if offences:
        pytest.fail("nothing in src/ means:\n  " + "\n  ".join(offences), pytrace=False)
    stale = sorted(_allowed(MEANT_BY_OTHERS) - found.keys())
    assert not stale, f"meant now, or gone: take them out of MEANT_BY_OTHERS: {stale}"
