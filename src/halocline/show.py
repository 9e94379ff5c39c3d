"""Showing things to people: lines of text for a terminal, HTML for a notebook.

    rows of cells --text_table--> aligned lines          a report --report_html--> its fields
                  --html_table--> a <table>, escaped

Nothing here reads a database: whoever wants to be shown brings the words. Every text from outside
passes `escape` before it becomes HTML, since a cell may hold what a stranger has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from typing import Any

CELL_WIDTH = 40
_STYLE = "text-align:left;white-space:pre"


def text_table(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Aligned lines, the first `left` columns to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if at < left else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def html_table(
    title: str, heads: Sequence[Sequence[str]], rows: Iterable[Sequence[str]], notes: str = ""
) -> str:
    """A titled table with lines of headings; every text is escaped."""
    head = "".join(_html_row("th", cells) for cells in heads)
    body = "".join(_html_row("td", cells) for cells in rows)
    table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>" if head or body else ""
    note = f"<div><small>{_html(notes)}</small></div>" if notes else ""
    return f"<div><div><strong>{_html(title)}</strong></div>{table}{note}</div>"


def report_html(report: Any) -> str:
    """The fields of a report, one a line."""
    rows = [
        (field.name.replace("_", " "), _field_text(getattr(report, field.name)))
        for field in fields(report)
    ]
    return html_table(type(report).__name__, [], rows)


def cell_text(value: Any, width: int = CELL_WIDTH) -> str:
    """One value in one line of at most `width` characters."""
    if isinstance(value, (str, bytes)):
        value = value[: width + 1]  # before it is turned into words: it may be huge
    text = value if isinstance(value, str) else "" if value is None else str(value)
    text = "".join(char if char.isprintable() else " " for char in text[: width + 1])
    return text if len(text) <= width else text[: width - 1] + "…"


def size_of(count: float) -> str:
    """A number of bytes in the unit that fits."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def _field_text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {text}" for name, text in value.items())
    if isinstance(value, (list, tuple)):
        return "\n".join(map(str, value))
    return "" if value is None else str(value)


def _html_row(tag: str, cells: Sequence[str]) -> str:
    begin, end = f'<{tag} style="{_STYLE}">', f"</{tag}>"
    return f"<tr>{''.join(begin + _html(cell) + end for cell in cells)}</tr>"


def _html(text: str) -> str:
    return escape(text).replace("\n", "<br>")
