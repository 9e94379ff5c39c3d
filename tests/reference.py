"""docs/reference.md is made here: public functions, from their docstrings, with an example each.

    signature + docstring + errors it names + its example --> a section of the page

The examples stand in reference_examples.txt and are run by test_reference.py, each in a database of
its own that has the table of the setting. `HALOCLINE_WRITE_DOCS=1 pytest
tests/test_reference.py` writes the page anew.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import halocline as hc
from halocline import errors
from halocline.schema import files

_FILE = Path(__file__).with_name("reference_examples.txt").read_text(encoding="utf-8")
_BLOCKS = dict(re.findall(r"^## (\S+)\n(.*?)\n(?=\n## |\Z)", _FILE, re.DOTALL | re.MULTILINE))
SETTING = _BLOCKS.pop("setting") + "\n"
EXAMPLES = {name: code.strip() for name, code in _BLOCKS.items()}

INSIDE = {
    "txn": (
        "view_of state_of entry_of changes_of definitions hold keep_token record_reads use_token"
        " writes"
    ),
    "db": "",
    "table": "",
}
"""Methods that other rooms call; users have no need of them."""

HEAD = """# Reference

What a program calls, made from the docstrings of the source (by `HALOCLINE_WRITE_DOCS=1 pytest
tests/test_reference.py`). Every example has been run in this setting:

```python
import halocline as hc
{setting}```

What runs on Spark is in [spark.md](spark.md), the types are in [types.md](types.md), the errors in
[errors.md](errors.md).
"""


def functions() -> Iterator[tuple[str, Any]]:
    """All public functions by the name that people call them by."""
    yield from [("hc.open", hc.open), ("hc.connect", hc.connect), ("hc.read", files.read)]
    for prefix, owner in (("db", hc.Database), ("table", hc.Table), ("txn", hc.Transaction)):
        for name, member in vars(owner).items():
            if not name.startswith("_") and inspect.isfunction(member):
                if name not in INSIDE[prefix].split():
                    yield f"{prefix}.{name}", member


def properties() -> Iterator[tuple[str, Any]]:
    """Public properties of the three classes."""
    for prefix, owner in (("db", hc.Database), ("table", hc.Table), ("txn", hc.Transaction)):
        for name, member in vars(owner).items():
            if isinstance(member, property) and not name.startswith("_"):
                yield f"{prefix}.{name}", member


def page() -> str:
    """docs/reference.md."""
    parts = [HEAD.format(setting=SETTING.lstrip("\n"))]
    heading = ""
    titles = {"hc": "Module", "db": "Database", "table": "Table", "txn": "Transaction"}
    for name, function in functions():
        prefix = name.partition(".")[0]
        if titles[prefix] != heading:
            heading = titles[prefix]
            parts.append(f"## {heading}\n")
            shown = [
                f"- `{one}`: {_plain(p)}" for one, p in properties() if one.startswith(prefix + ".")
            ]
            if shown:
                parts.append("\n".join(shown) + "\n")
        parts.append(_section(name, function))
    return "\n".join(parts)


def _section(name: str, function: Any) -> str:
    lines = [f"### {name}", "", f"```\n{_signature(name, function)}\n```", "", _text(function)]
    named = [one for one in _errors() if re.search(rf"\b{one}\b", function.__doc__ or "")]
    if named:
        lines += ["", "Raises: " + ", ".join(f"`{one}`" for one in named) + "."]
    return "\n".join([*lines, "", f"```python\n{EXAMPLES.get(name, '')}\n```", ""])


def _errors() -> list[str]:
    return sorted(name for name in vars(errors) if name.endswith("Error"))


def _text(function: Any) -> str:
    """The docstring without its own example."""
    text = inspect.getdoc(function) or ""
    return "\n".join(
        line for line in text.splitlines() if not line.strip().startswith(">>>")
    ).strip()


def _plain(member: property) -> str:
    return " ".join((inspect.getdoc(member) or "").split())


def _signature(name: str, function: Any) -> str:
    parameters = [
        one.replace(annotation=inspect.Parameter.empty, default=_default(one.default))
        for one in inspect.signature(function).parameters.values()
        if one.name != "self"
    ]
    return name + str(inspect.Signature(parameters))


class _Missing:
    def __repr__(self) -> str:
        return "..."


def _default(value: Any) -> Any:
    return _Missing() if type(value) is object else value
