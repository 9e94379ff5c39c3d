"""What people see: one table on the terminal, and the same as JSON and Markdown.

    Result, Figure --> lines --> print_lines     terminal
                             --> save            build/bench/latest.json, latest.md

A line is a flat dict, so that the three forms cannot drift apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.harness import Figure, Result, Timing

Line = dict[str, Any]
HEADINGS = ("what", "who", "median", "range", "speed-up over it", "verdict")


def case_lines(result: Result) -> list[Line]:
    """Our line, then each peer's with our speed-up over it; the first one carries the target."""
    case, ratios = result.case, result.ratios
    ours = _timing_line(case.title, case.ours.name, result.ours, case.unit, result.errors)
    peer = _timing_line("", case.peer.name, result.peer, case.unit, result.errors) | {
        "ratio": result.ratio,
        "ratio_low": min(ratios) if ratios else None,
        "ratio_high": max(ratios) if ratios else None,
        "target": case.target,
        "reached": result.reached,
    }
    lines = [ours | {"note": case.note}, peer]
    for side in case.others:
        timing = next((found for found in result.others if found.side == side.name), None)
        line = _timing_line("", side.name, timing, case.unit, result.errors)
        if timing is not None and result.ours is not None:
            line["ratio"] = timing.median / result.ours.median
        lines.append(line)
    return [{"case": case.name, **line} for line in lines]


def _timing_line(
    title: str, side: str, timing: Timing | None, unit: str, errors: dict[str, str]
) -> Line:
    line: Line = {"title": title, "side": side, "unit": unit, "error": errors.get(side)}
    if timing is not None:
        line |= {
            "us": timing.median,
            "us_low": timing.low,
            "us_high": timing.high,
            "per_second": 1e6 / timing.median,
            "rounds": len(timing.us),
        }
    return line


def figure_lines(name: str, title: str, figures: Sequence[Figure] | str) -> list[Line]:
    """One line per figure, or one that carries the error."""
    if isinstance(figures, str):
        return [{"case": name, "title": title, "side": "", "error": figures}]
    return [
        {
            "case": name,
            "title": title if number == 0 else "",
            "side": figure.name,
            "value": figure.value,
            "value_unit": figure.unit,
            "limit": figure.limit,
            "reached": figure.reached,
            "note": figure.note,
            "error": None,
        }
        for number, figure in enumerate(figures)
    ]


def print_lines(console: Console, facts: dict[str, str], lines: Sequence[Line]) -> None:
    """The machine, then each case with its sides, then what went wrong."""
    console.print(", ".join(f"{name} {value}" for name, value in facts.items()), style="dim")
    grid = _grid()
    for line in lines:
        title, *cells = _cells(line)
        if title:
            console.print(grid)
            console.print(f"\n{title}", style="bold", highlight=False)
            grid = _grid()
        grid.add_row("  " + cells[0], *cells[1:], style=_style(line))
    console.print(grid)
    for line in lines:
        if line["error"]:
            console.print(f"\n{line['case']} {line['side']} failed:", style="red")
            console.print(line["error"].rstrip(), markup=False, highlight=False)


def _grid() -> Table:
    # Widths are fixed, so that the columns of all cases stand under each other.
    grid = Table.grid(padding=(0, 1))
    for width in (36, 20, 22, 23, 16):
        grid.add_column(width=width)
    return grid


def save(directory: Path, facts: dict[str, str], lines: Sequence[Line]) -> list[Path]:
    """Write latest.json and latest.md; their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    as_json, as_markdown = directory / "latest.json", directory / "latest.md"
    as_json.write_text(json.dumps({"machine": facts, "lines": list(lines)}, indent=1) + "\n")
    text = [f"- {name}: {value}" for name, value in facts.items()]
    text += ["", "| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    text += ["| " + " | ".join(_cells(line)) + " |" for line in lines]
    as_markdown.write_text("\n".join(text) + "\n")
    return [as_json, as_markdown]


def _cells(line: Line) -> tuple[str, ...]:
    """A line's text, one cell per heading."""
    measured, spread = "not run", ""
    if line["error"]:
        measured = "failed"
    elif "value" in line:
        measured, spread = f"{_number(line['value'])} {line['value_unit']}", line["note"]
    elif "us" in line:
        measured = f"{line['us']:,.2f} us/{line['unit']}"
        spread = f"{line['us_low']:,.2f} to {line['us_high']:,.2f}"
    return (line["title"], line["side"], measured, spread, _ratio(line), _verdict(line))


def _number(value: float) -> str:
    """Whole when it is large, with two digits when it is a share or a ratio."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.2f}"


def _ratio(line: Line) -> str:
    if line.get("ratio") is None:
        return ""
    if line.get("ratio_low") is None:
        return f"{line['ratio']:.2f}x"
    return f"{line['ratio']:.2f}x ({line['ratio_low']:.2f} to {line['ratio_high']:.2f})"


def _verdict(line: Line) -> str:
    goal = f"{line['target']:g}x" if line.get("target") is not None else ""
    if line.get("limit") is not None:
        goal = f"<= {_number(line['limit'])}"
    return {True: f"reached {goal}", False: f"MISSED {goal}", None: goal}[line.get("reached")]


def _style(line: Line) -> str:
    if line["error"] or line.get("reached") is False:
        return "red"
    return "green" if line.get("reached") else ""
