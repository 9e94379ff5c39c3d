"""The report: what was shown, each with its figures, and how to go on.

A finding is a claim that held or did not; a speed is two measured rates that stand beside each
other, for which there is no right or wrong. Chapters add theirs as they go, so that a demo that was
stopped early reports what it had seen until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.padding import Padding
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from bank.screen import Screen, grid

NEW_LINES = (
    "import halocline as hc",
    'db = hc.open("shop"); db.create_table("people", {"id": int, "name": str}, "id")',
    'db.run(lambda txn: txn.insert("people", {"id": 1, "name": "Ada"}))',
)
KEPT_LINES = (
    "import halocline as hc",
    'db = hc.open("BANK")',
    'print(db.sql("select branch, sum(balance) as cents from accounts group by branch"))',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A claim, whether it held, and the figures."""

    held: bool
    claim: str
    figures: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Commits per second of both sides; `peer` is None where there is nothing to compare with."""

    title: str
    ours: float
    peer: float | None = None

    @property
    def ratio(self) -> str:
        return f"{self.ours / self.peer:.2f}x" if self.peer else ""


@dataclass(slots=True, kw_only=True)
class Report:
    """Collects while the demo runs, prints at its end."""

    findings: list[Finding] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    measured: str = ""
    """How the speeds were measured."""

    def found(self, held: bool, claim: str, figures: str) -> None:
        self.findings.append(Finding(held=held, claim=claim, figures=figures))

    @property
    def all_held(self) -> bool:
        return all(finding.held for finding in self.findings)

    def show(self, screen: Screen, *, ended: str) -> None:
        """Print it all; `ended` says whether this is the whole demo."""
        console = screen.console
        console.print()
        if screen.plain:
            console.print(f"== Report: {ended} ==")
        else:
            console.print(Rule(f"[bold green]Report[/]: {ended}", align="left", style="green"))
        if self.findings:
            self._show_findings(screen)
        if self.speeds:
            console.print()
            console.print(Padding(grid(self._speed_cells(), "lrrrl"), (0, 1)))
        if self.measured:
            console.print()
            style = "" if screen.plain else "dim"
            console.print(Padding(Text(self.measured, style=style), (0, 1)))

    def _show_findings(self, screen: Screen) -> None:
        if screen.plain:
            for finding in self.findings:
                mark = screen.good if finding.held else screen.bad
                screen.say(f"{mark:<4}{finding.claim}: {finding.figures}")
            return
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1)
        for finding in self.findings:
            mark = screen.good if finding.held else screen.bad
            table.add_row(mark, f"[bold]{finding.claim}[/]", finding.figures)
        screen.console.print(Padding(table, (1, 1, 0, 1)))

    def _speed_cells(self) -> list[list[str]]:
        cells = [["[bold]Durable commits per second[/]", "Halocline", "SQLite", "ratio", ""]]
        for speed in self.speeds:
            peer = f"{speed.peer:,.0f}" if speed.peer else ""
            cells.append([speed.title, f"[bold]{speed.ours:,.0f}[/]", peer, speed.ratio, ""])
        return cells


def show_place(screen: Screen, bank: Path, *, kept: bool) -> None:
    """Say where the data was, and three lines to go on with."""
    size_bytes = sum(path.stat().st_size for path in bank.rglob("*") if path.is_file())
    fate = "kept" if kept else "removed now; --keep keeps it"
    screen.console.print()
    screen.say(f"The bank was in {bank}, {size_bytes / 1e6:,.0f} MB ({fate}).")
    lines = KEPT_LINES if kept else NEW_LINES
    screen.say("Try it yourself:")
    text = "\n".join(lines).replace("BANK", str(bank))
    code = text if screen.plain else Syntax(text, "python", theme="ansi_dark", word_wrap=False)
    screen.console.print(Padding(code, (0, 4)))
