"""Which method is meant by `thing.name`: the types of the sources, as mypy finds them.

    src/ --mypy--> type of every expression --> uses: (class, name) --> methods that nothing means

A class that mypy does not know (what comes from pyarrow, or `Any`) may be every class, so its uses
count for all methods of that name; so do texts, because of `getattr`. A use through a base or a
protocol counts for whatever takes its place. Packages that the sources only use are not read: that
is a quarter of a minute instead of two.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mypy.build import BuildResult, build
from mypy.config_parser import parse_config_file
from mypy.find_sources import create_source_list
from mypy.nodes import (
    Decorator,
    FuncDef,
    MemberExpr,
    NameExpr,
    OverloadedFuncDef,
    StrExpr,
    SuperExpr,
    SymbolTable,
    TypeInfo,
)
from mypy.options import Options
from mypy.server.subexpr import get_subexpressions
from mypy.types import (
    FunctionLike,
    Instance,
    LiteralType,
    NoneType,
    TupleType,
    Type,
    TypedDictType,
    TypeType,
    TypeVarType,
    UnionType,
    get_proper_type,
)

LEFT_OUT = ("pyarrow", "pandas", "polars", "duckdb", "pyspark", "py4j", "cryptography", "typer")
ANY_CLASS = ("", "builtins.object", "builtins.type")
MADE_UP = ("_asdict", "_make", "_replace")
"""What mypy itself gives to named tuples."""


class Method(NamedTuple):
    owner: TypeInfo
    name: str
    path: str
    first: int
    last: int


class Use(NamedTuple):
    owner: str
    """The full name of the class; "" for one that is not known."""
    path: str
    line: int


def unmeant(root: Path, folder: str) -> list[Method]:
    """Methods of the folder's classes that nothing in the folder means."""
    result = _build(root, folder)
    packages = {path.name for path in (root / folder).iterdir()}
    ours = {name: tree for name, tree in result.files.items() if name.partition(".")[0] in packages}
    classes: dict[str, TypeInfo] = {}
    uses: dict[str, list[Use]] = defaultdict(list)
    for tree in ours.values():
        classes.update(_classes(tree.names, tree.fullname))
        for node in get_subexpressions(tree):
            for name, use in _uses(node, result, tree.path):
                uses[name].append(use)
    return [
        method
        for info in classes.values()
        for method in _methods(info, ours[info.module_name].path)
        if not any(_means(use, method, classes) for use in uses[method.name])
        and not _is_asked_for_by_strangers(method, classes)
    ]


def _build(root: Path, folder: str) -> BuildResult:
    options = Options()
    config = str(root / "pyproject.toml")
    parse_config_file(options, lambda: None, config, sys.stdout, sys.stderr)
    options.incremental, options.cache_dir = False, "/dev/null"
    options.export_types = options.preserve_asts = True
    options.mypy_path = [str(root / folder)]
    for package in LEFT_OUT:
        for pattern in (package, f"{package}.*"):
            known = options.per_module_options.get(pattern, {})
            options.per_module_options[pattern] = known | {"follow_imports": "skip"}
    options.build_per_module_cache()
    return build(create_source_list([str(root / folder)], options), options)


def _classes(names: SymbolTable, module: str) -> Iterator[tuple[str, TypeInfo]]:
    for symbol in names.values():
        info = symbol.node
        if isinstance(info, TypeInfo) and info.fullname.startswith(f"{module}."):
            yield info.fullname, info
            yield from _classes(info.names, info.fullname)


def _methods(info: TypeInfo, path: str) -> Iterator[Method]:
    for name, symbol in info.names.items():
        node = symbol.node
        is_method = isinstance(node, FuncDef | Decorator | OverloadedFuncDef)
        if is_method and not name.startswith("__") and name not in MADE_UP:
            yield Method(info, name, path, node.line, node.end_line or node.line)


def _uses(node: object, result: BuildResult, path: str) -> Iterator[tuple[str, Use]]:
    if isinstance(node, MemberExpr):
        for owner in _named(result.types.get(node.expr)):
            yield node.name, Use(owner, path, node.line)
    elif isinstance(node, SuperExpr):
        for base in node.info.mro[1:] if node.info is not None else ():
            yield node.name, Use(base.fullname, path, node.line)
    elif isinstance(node, NameExpr):
        yield node.name, Use(node.fullname.rpartition(".")[0] or "local", path, node.line)
    elif isinstance(node, StrExpr) and re.fullmatch(r"[\w.]{1,80}", node.value):
        for word in re.findall(r"\w+", node.value):
            yield word, Use("", path, node.line)


def _named(found: Type | None) -> list[str]:
    """The full names of the classes that a value may have."""
    if found is None:
        return [""]
    kind = get_proper_type(found)
    if isinstance(kind, UnionType):
        return [name for item in kind.items for name in _named(item)]
    if isinstance(kind, Instance):
        return [kind.type.fullname]
    if isinstance(kind, NoneType):
        return []
    if isinstance(kind, TupleType):
        return _named(kind.partial_fallback)
    if isinstance(kind, TypedDictType | LiteralType):
        return _named(kind.fallback)
    if isinstance(kind, TypeVarType):
        return _named(kind.upper_bound)
    if isinstance(kind, TypeType):
        return _named(kind.item)
    if isinstance(kind, FunctionLike):
        return [kind.type_object().fullname] if kind.is_type_obj() else _named(kind.fallback)
    return [""]


def _means(use: Use, method: Method, classes: dict[str, TypeInfo]) -> bool:
    if use.path == method.path and method.first <= use.line <= method.last:
        return False  # it calls itself
    if use.owner in ANY_CLASS or any(base.fullname == use.owner for base in method.owner.mro):
        return True
    other = classes.get(use.owner)
    return other is not None and (other.is_protocol or method.owner in other.mro)


def _is_asked_for_by_strangers(method: Method, classes: dict[str, TypeInfo]) -> bool:
    """Does it take the place of a method of somebody else's class, as `run` of a thread does?"""
    return any(
        method.name in base.names and base.fullname not in classes for base in method.owner.mro[1:]
    )
