"""The screen: a live picture on a terminal, plain lines anywhere else.

    chapter("Title", text)       a heading and what is about to happen
    with live("lrl") as picture:
        picture.show(cells, line)   a terminal draws the cells in place, over and over;
                                    elsewhere the line is printed, at most once a second
    pause(0.2)                   False as soon as the viewer wants to stop

Plain output is ASCII without control characters, fit for a log. Stopping is a number that a signal
handler leaves behind: nothing is torn out of a commit, every loop looks at it when it pauses.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Literal

from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

WIDTH_MAX = 100
Cells = Sequence[Sequence[str]]
_JUSTIFY: dict[str, Literal["left", "right"]] = {"l": "left", "r": "right"}


class Screen:
    """Where the demo speaks, and the one place that knows whether it should go on."""

    def __init__(self, *, plain: bool) -> None:
        self.plain = plain or not _can_draw()
        self.console = Console(
            highlight=False,
            markup=True,
            no_color=True if self.plain else None,
            force_terminal=False if self.plain else None,
        )
        self.console.width = WIDTH_MAX if self.plain else min(self.console.width, WIDTH_MAX)
        self.signal = 0
        """The signal that asked to stop, 0 while nobody has."""

    def listen(self) -> None:
        """From now on Ctrl-C is a wish; the second one is an order."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            signal.signal(number, signal.SIG_IGN)  # Cleaning up is not to be torn apart as well.
            raise KeyboardInterrupt
        self.signal = number

    def pause(self, seconds: float) -> bool:
        """Wait; False when it is time to stop."""
        until = time.perf_counter() + seconds
        while not self.signal and (left := until - time.perf_counter()) > 0:
            time.sleep(min(left, 0.05))
        return not self.signal

    def put(self, what: RenderableType = "", *, indent: int = 1) -> None:
        """Print something, a little away from the edge."""
        padded = Padding(what, (0, 1, 0, indent))
        if not self.plain:
            self.console.print(padded)
            return
        with self.console.capture() as captured:
            self.console.print(padded)
        for line in captured.get().splitlines():
            print(line.rstrip(), flush=True)

    def heading(self, title: str, color: str) -> None:
        self.put()
        if self.plain:
            self.put(f"== {title} ==", indent=0)
        else:
            self.console.print(Rule(f"[bold {color}]{title}[/]", align="left", style=color))

    def chapter(self, title: str, text: str) -> None:
        self.heading(title, "cyan")
        self.aside(text)

    def aside(self, text: str) -> None:
        """Something to know, not to look at."""
        self.put(Text(text, style="" if self.plain else "dim"))

    def live(self, justify: str) -> Picture:
        return Picture(self, justify)

    def mark(self, held: bool | None) -> str:
        """A tick, a cross, or a dot for what is neither."""
        if held is None:
            return "-" if self.plain else "[dim]·[/]"
        if self.plain:
            return "ok" if held else "NOT"
        return "[bold green]✓[/]" if held else "[bold red]✗[/]"


class Picture:
    """A picture that changes in place, or the lines that stand for it."""

    def __init__(self, screen: Screen, justify: str) -> None:
        self._screen = screen
        self._justify = justify
        self._printed = time.perf_counter()
        self._pending = ""
        self._live = (
            None
            if screen.plain
            else Live(console=screen.console, auto_refresh=False, redirect_stderr=False)
        )

    def __enter__(self) -> Picture:
        if self._live is not None:
            self._screen.put()
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._pending:
            self._screen.put(self._pending)

    def show(self, cells: Cells, line: str, *, last: bool = False) -> None:
        """Draw the cells; in plain output print the line, when one is due or it is the last."""
        if self._live is not None:
            self._live.update(Padding(grid(cells, self._justify), (0, 1)), refresh=True)
        elif not line:
            pass
        elif last or time.perf_counter() - self._printed >= 1:
            self._screen.put(line)
            self._printed, self._pending = time.perf_counter(), ""
        else:
            self._pending = line


def grid(cells: Cells, justify: str) -> Table:
    """Rows of text with markup, in columns that are as wide as they need to be."""
    table = Table.grid(padding=(0, 2))
    for number, side in enumerate(justify):
        last = number == len(justify) - 1
        table.add_column(justify=_JUSTIFY[side], no_wrap=not last, ratio=1 if last else None)
    for row in cells:
        table.add_row(*row)
    return table


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as a row of little bars, the highest one full."""
    shown = values[-width:]
    top = max(shown, default=0) or 1
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(value / top * 7.999))] for value in shown)


def bar(value: float, top: float, width: int) -> str:
    """A bar in eighths of a character."""
    eighths = round(value / top * width * 8) if top else 0
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def _can_draw() -> bool:
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return sys.stdout.isatty() and encoding == "utf8" and os.environ.get("TERM") != "dumb"
