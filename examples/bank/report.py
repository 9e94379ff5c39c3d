"""The report: what was shown, each with its figures, and how to go on.

A finding is a claim that held or did not; a speed is two measured rates that stand beside each
other, for which there is no right or wrong. Chapters add theirs as they go, so that a demo that was
stopped early reports what it had seen until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.syntax import Syntax
from rich.text import Text

from bank.screen import Screen, grid

NEW_LINES = (
    "import halocline as hc",
    'db = hc.open("zoo"); db.create_table("pets", {"id": int, "name": str}, "id")',
    'db.run(lambda txn: txn.insert("pets", {"id": 1, "name": "Ada"}))',
)
KEPT_LINES = (
    "import halocline as hc",
    'db = hc.open("BANK")',
    'print(db.sql("select branch, sum(balance) from accounts group by branch"))',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A claim, whether it held, and the figures; `held` is None for what is merely a figure."""

    held: bool | None
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
    picture: str = ""
    """The table of chapter 5, drawn in letters."""
    picture_path: Path | None = None
    """The same as a picture."""

    def found(self, held: bool | None, claim: str, figures: str) -> None:
        self.findings.append(Finding(held=held, claim=claim, figures=figures))

    @property
    def all_held(self) -> bool:
        return all(finding.held is not False for finding in self.findings)

    def show(self, screen: Screen, *, ended: str) -> None:
        """Print it all; `ended` says whether this is the whole demo."""
        screen.heading(f"Report: {ended}", "green")
        if self.findings:
            screen.put()
            screen.put(grid(self._finding_cells(screen), "lll"))
        if self.speeds:
            screen.put()
            screen.put(grid(self._speed_cells(), "lrrrl"))
        if self.measured:
            screen.put()
            screen.aside(self.measured)
        if self.picture_path is not None:
            screen.put()
            screen.put("[bold]The orders of chapter 5, object by object[/]")
            screen.put(Text(self.picture, style="" if screen.plain else "cyan"))
            screen.put()
            screen.put(f"The same as a picture: {self.picture_path}")

    def _finding_cells(self, screen: Screen) -> list[list[str]]:
        return [
            [
                screen.mark(finding.held),
                f"[bold]{finding.claim}[/]",
                finding.figures,
            ]
            for finding in self.findings
        ]

    def _speed_cells(self) -> list[list[str]]:
        cells = [["[bold]Durable commits per second[/]", "Halocline", "SQLite", "ratio", ""]]
        for speed in self.speeds:
            peer = f"{speed.peer:,.0f}" if speed.peer else ""
            cells.append([speed.title, f"[bold]{speed.ours:,.0f}[/]", peer, speed.ratio, ""])
        return cells


def show_place(screen: Screen, bank: Path, *, kept: bool) -> None:
    """Say where the data was, and three lines to go on with."""
    size_bytes = sum(path.stat().st_size for path in bank.rglob("*") if path.is_file())
    fate = "kept" if kept else "now removed; --keep keeps it"
    lines = "\n".join(KEPT_LINES if kept else NEW_LINES).replace("BANK", str(bank))
    code = Syntax(lines, "python", theme="ansi_dark", word_wrap=True, background_color="default")
    screen.put()
    screen.put(f"The bank was in {bank}, {size_bytes / 1e6:,.0f} MB ({fate}). Try it yourself:")
    screen.put()
    screen.put(lines if screen.plain else code, indent=2)
