"""Progress of a round of maintenance on a terminal: a line for each step, a bar while a job runs.

    compact orders   4 groups, 120,000 of 2,000,000 rows dropped, 1.9 GB read, 1.7 GB written
    checkpoint       checkpoint at 812: 4 files (12,000 bytes), ...

Where nobody looks (a file, a pipe) there are lines only.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from halocline.checkpoint import GcReport
from halocline.checkpoint.maintain import News
from halocline.compaction import CompactReport
from halocline.mover import Moved


class Show:
    """Prints the progress of maintenance on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=None, visible=False)

    def __enter__(self) -> Show:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, news: News) -> None:
        if news.kind == "began":
            self._progress.reset(self._bar, total=None, visible=True, description=str(news.chore))
        elif news.kind == "tasks":
            self._progress.update(self._bar, completed=news.done, total=news.total or None)
        elif news.kind == "rest":
            self._progress.update(self._bar, visible=False)
        else:
            self._progress.update(self._bar, visible=False)
            self._line(news)

    def _line(self, news: News) -> None:
        text = words(news.report) if news.kind == "done" else f"failed: {news.report}"
        if text:
            style = "red" if news.kind == "failed" else ""
            self._console.print(Text(f"{news.chore!s:<20} {text}", style=style), soft_wrap=True)


def words(report: Any) -> str:
    """A report in one line; empty when nothing was done."""
    if isinstance(report, CompactReport):
        return _compacted(report)
    if isinstance(report, Moved):
        rows, tombstones = report.rows, report.tombstones
        return f"{rows:,} rows and {tombstones:,} tombstones" if rows or tombstones else ""
    if isinstance(report, GcReport):
        line = str(report).splitlines()[0]
        return line if report.files or report.versions or report.log_files else ""
    return str(report)


def _compacted(report: CompactReport) -> str:
    if not report.groups:
        return ""
    rows = sum(done.rows_in for table in report.tables for done in table.done)
    tasks = sum(done.tasks for table in report.tables for done in table.done)
    where = f", {tasks} tasks on Spark" if tasks else ""
    depth = max((table.before.depth_max for table in report.tables), default=0)
    after = max((table.after.depth_max for table in report.tables), default=0)
    return (
        f"{report.groups} groups, overlap {depth} -> {after}, {report.rows_dropped:,} of {rows:,} "
        f"rows dropped, {report.bytes_read:,} bytes read, {report.bytes_written:,} written{where}"
    )
