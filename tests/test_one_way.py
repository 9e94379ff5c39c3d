"""The founding sentences: one place appends commits, one changes tables, one takes records apart.

every module of src --AST--> who does it --> exactly the files that are named here
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Every node of every module, with the name of its file."""
    return [
        (str(path.relative_to(SOURCE)), node)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]


def places(is_one: Callable[[ast.AST], bool]) -> list[str]:
    """The file of every node for which that is so."""
    return [name for name, node in nodes() if is_one(node)]


def _appends(group: str) -> Callable[[ast.AST], bool]:
    def is_one(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "append"
            and ast.unparse(node.func.value).endswith("log")
            and ast.unparse(node.args[0]) == group
        )

    return is_one


def test_exactly_one_place_appends_a_commit_to_the_log() -> None:
    assert places(_appends("COMMITS")) == ["halocline/txn/commit.py"]
    assert places(_appends("SYSTEM")) == ["halocline/txn/commit.py"]
    every = places(
        lambda node: (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "append"
            and ast.unparse(node.func.value).split(".")[-1] in ("log", "_log")
        )
    )
    assert every == ["halocline/txn/commit.py"] * 2


def _is_attribute(node: ast.AST, owners: tuple[str, ...], names: tuple[str, ...]) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr in names
        and ast.unparse(node.value).split(".")[-1] in owners
    )


def _sets_tombstone(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    return any(
        isinstance(target, ast.Subscript)
        and ast.unparse(target.value).split(".")[-1] == "ended"
        and "deletes" in ast.unparse(target.value)
        for target in node.targets
    )


def test_exactly_one_place_adds_rows_keys_and_tombstones() -> None:
    state = {"halocline/rows/state.py"}
    keys = places(lambda node: _is_attribute(node, ("tree",), ("put", "link")))
    assert set(keys) == state
    ends = places(
        lambda node: _is_attribute(node, ("deletes",), ("link",)) or _sets_tombstone(node)
    )
    assert set(ends) == state
    folds = places(
        lambda node: isinstance(node, ast.FunctionDef) and node.name.startswith("_append")
    )
    assert set(folds) == state


def _imported(names: set[str], room: str) -> list[str]:
    return places(
        lambda node: (
            isinstance(node, ast.ImportFrom)
            and node.module == room
            and bool(names & {alias.name for alias in node.names})
        )
    )


def test_exactly_one_place_takes_a_record_apart_and_one_a_run_of_rows() -> None:
    """Others ask for a record, or know how long a head is; they unpack nothing."""
    unpacks = places(
        lambda node: (
            isinstance(node, ast.Attribute)
            and node.attr in ("unpack", "unpack_from", "iter_unpack")
            and ast.unparse(node.value) in ("META", "INFO", "COUNT", "NODE", "FRONT")
        )
    )
    assert set(unpacks) == {
        "halocline/log/record.py",
        "halocline/rows/row_run.py",
    }
    heads = _imported({"HEAD"}, "halocline.rows.nodes")
    unpacks = places(lambda node: isinstance(node, ast.Attribute) and "unpack" in node.attr)
    assert set(heads) & set(unpacks) == {"halocline/rows/row_run.py", "halocline/node/limits.py"}


def test_exactly_one_place_parses_frames() -> None:
    assert _imported({"HEADER"}, "halocline.log.format") == ["halocline/log/scan.py"]
