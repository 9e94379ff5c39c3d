"""Chapter 5: rows settle: from memory into objects, while writers go on.

    writers --orders--> L0 --mover--> objects --compaction--> fewer, better objects
                        log --checkpoint--> little to replay        GC --> files nobody needs, gone

The background does all of it by itself; here with small limits, so that it can be watched. Then
each step is done once more by hand, with db.health() before and after, and the table must say the
same all the time: now, and at a snapshot that was named while the writers were at work. At the end
the table is drawn (chart.py), before compaction and after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import halocline as hc
from bank import chart, orders
from bank.orders import Ledger, Sum
from bank.report import Report
from bank.screen import Cells, Screen, bar
from bank.tables import money
from bank.writers import Writers
from halocline.compaction import Gatherer

DRAW_SECONDS = 0.2
MOVE_SECONDS_MAX = 15.0
"""However short the chapter, it lasts until an object has come; on a slow machine not for ever."""
COMPACT_SECONDS_MAX = 10.0
SNAPSHOT = "half-time"
RETENTION_SECONDS = 0.1
RETENTION = f"{RETENTION_SECONDS * 1e3:.0f}ms"
"""Nothing old is kept but what somebody holds: so one sees what a named snapshot does."""
WIDTHS = (-10, 8, 12, 9, 7, 7, 10, 11, 10)
HEAD = ["", "in L0", "tombstones", "objects", "depth", "dead", "files", "to replay", "took"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """Where the rows of the orders are, from db.health()."""

    l0_rows: int
    tombstones: int
    objects: int
    object_rows: int
    depth: int
    dead_share: float
    file_bytes: int
    log_bytes: int

    @classmethod
    def of(cls, db: hc.Database) -> Tiers:
        health = db.health()
        table = health.tables["orders"]
        return cls(
            l0_rows=table.l0_rows,
            tombstones=table.l0_tombstones,
            objects=table.shape.data_objects + table.shape.tombstone_objects,
            object_rows=table.shape.rows,
            depth=table.depth,
            dead_share=table.dead_share,
            file_bytes=table.shape.size_bytes + table.ended_bytes,
            log_bytes=health.tail_bytes or 0,
        )


def run(
    screen: Screen, report: Report, place: Path, picture: Path, *, threads: int, seconds: float
) -> None:
    """Let a shop take orders, tidy it up, and draw its table."""
    screen.chapter(
        "5  Rows settle into objects",
        f"{threads} threads take, change and cancel orders. Rows start in memory (L0) and in the "
        "log; a background thread moves them into Parquet objects, merges those, and writes "
        "checkpoints, here at a hundredth of the usual sizes. Nobody waits for it.",
    )
    with hc.open(place, retention=RETENTION, options=orders.OPTIONS) as db:
        orders.create(db)
        ledgers = [Ledger() for _ in range(threads)]
        half = _work(screen, report, db, ledgers, seconds)
        if screen.signal or half is None:
            return
        panels = _tidy(screen, report, db, half)
    _reopen(report, place, ledgers)
    title = "Table orders: objects over the keys"
    picture.write_text(chart.draw_svg(panels, title), encoding="utf-8")
    width = screen.console.width - 3
    report.picture = chart.draw_text(panels, width, ascii_only=screen.plain)
    report.picture_path = picture


def _work(
    screen: Screen, report: Report, db: hc.Database, ledgers: list[Ledger], seconds: float
) -> Sum | None:
    """Take orders for a while; what they added up to in the middle of it, under a name."""
    batches, half = itertools.count(), None
    with (
        Writers(len(ledgers), lambda n: orders.steps(db, batches, ledgers[n], n)) as writers,
        screen.live("lrl") as picture,
    ):
        while screen.pause(DRAW_SECONDS) and not writers.errors:
            tiers = Tiers.of(db)
            picture.show(_cells(screen, writers, tiers), _line(writers, tiers))
            if half is None and writers.seconds >= seconds / 2 and tiers.objects:
                db.snapshot(SNAPSHOT)
                with db.begin(at=SNAPSHOT) as past:
                    half = orders.add_up(past)
            enough = writers.seconds >= seconds and half is not None
            if enough or writers.seconds >= seconds + MOVE_SECONDS_MAX:
                break
    seen = Tiers.of(db)
    rate = writers.commits * (orders.NEW + orders.CHANGED + orders.CANCELLED) / writers.seconds
    report.found(
        None,
        "Rows settle while writers go on",
        f"{rate:,.0f} rows written per second in {writers.commits:,} durable commits; "
        f"{seen.object_rows:,} rows in {seen.objects} objects by then, {seen.l0_rows:,} in memory",
    )
    return half


def _cells(screen: Screen, writers: Writers, tiers: Tiers) -> Cells:
    width = max(screen.console.width - 44, 8)
    top = max(tiers.l0_rows, tiers.object_rows, 1)
    dead = f"depth {tiers.depth}, {tiers.dead_share:.0%} of their rows dead"
    return [
        ["commits", f"[bold green]{writers.commits:,}[/]", f"in {writers.seconds:.0f} s"],
        ["rows in L0", f"{tiers.l0_rows:,}", f"[cyan]{bar(tiers.l0_rows, top, width)}[/]"],
        ["in objects", f"{tiers.object_rows:,}", f"[blue]{bar(tiers.object_rows, top, width)}[/]"],
        ["objects", f"[bold]{tiers.objects:,}[/]", dead],
        ["tombstones", f"{tiers.tombstones:,}", "in memory"],
        ["log", _size(tiers.log_bytes), "to replay, if it were opened now"],
    ]


def _line(writers: Writers, tiers: Tiers) -> str:
    return (
        f"{writers.seconds:4.0f} s  {writers.commits:>6,} commits  L0 {tiers.l0_rows:>6,} rows, "
        f"{tiers.tombstones:>6,} tombstones  objects {tiers.objects:>3}, "
        f"{tiers.object_rows:>7,} rows  log {_size(tiers.log_bytes)}"
    )


def _tidy(screen: Screen, report: Report, db: hc.Database, half: Sum) -> list[chart.Panel]:
    """Do by hand what the background does, each step with its figures."""
    panels: list[chart.Panel] = []
    with screen.live("lrrrrrrrr") as picture:
        rows = [HEAD, _figures("before", Tiers.of(db), None)]

        def step(name: str, work: Callable[[], Any]) -> Any:
            started = perf_counter()
            done = work()
            took_ms = (perf_counter() - started) * 1e3
            rows.append(_figures(name, Tiers.of(db), took_ms))
            picture.show(rows, _aligned(rows[-1]), last=True)
            return done

        for row in rows:
            picture.show(rows, _aligned(row), last=True)
        step("flush", db.flush)
        panels.append(chart.Panel(title="Before compaction", boxes=_boxes(db)))
        step("compact", lambda: _compact(screen, db))
        panels.append(chart.Panel(title="After", boxes=_boxes(db)))
        step("checkpoint", db.checkpoint)
        screen.pause(RETENTION_SECONDS)  # from now on only its name keeps the snapshot
        kept = step("gc", db.gc)
        with db.begin(at=SNAPSHOT) as past:
            again, ts = orders.add_up(past), past.snapshot
        db.drop_snapshot(SNAPSHOT)
        freed = step("gc again", db.gc)
    report.found(
        again == half,
        "The past moves along",
        f"at='{SNAPSHOT}' it was {half.rows:,} orders of {money(half.cents)}, and is so after "
        f"flush, compact, checkpoint and gc",
    )
    report.found(
        _expired(db, ts),
        "until nobody wants it",
        f"gc freed {_size(kept.bytes_freed)} while the snapshot had its name, and "
        f"{_size(freed.bytes_freed)} after; reading it now is a SnapshotExpiredError",
    )
    return panels


def _compact(screen: Screen, db: hc.Database) -> None:
    """Merge what is out of shape. Objects that the background is merging right now are its own."""
    until = perf_counter() + COMPACT_SECONDS_MAX
    db.compact()
    while any(owed.work == "compact" for owed in db.health().owed) and perf_counter() < until:
        if not screen.pause(0.1):
            break
        db.compact()


def _expired(db: hc.Database, ts: int) -> bool:
    try:
        db.begin(at=ts).rollback()
    except hc.SnapshotExpiredError:
        return True
    return False


def _reopen(report: Report, place: Path, ledgers: list[Ledger]) -> None:
    """Open the shop again: what was acknowledged is there, and it took no time."""
    started = perf_counter()
    with hc.open(place, retention=RETENTION, options=orders.OPTIONS) as db:
        took_ms = (perf_counter() - started) * 1e3
        with db.begin() as txn:
            found = orders.add_up(txn)
        problems = db.check()
    expected = Ledger.sum(ledgers)
    report.found(
        found == expected and not problems,
        "Rows move, nothing changes",
        f"{found.rows:,} orders of {money(found.cents)} there, {expected.rows:,} of "
        f"{money(expected.cents)} acknowledged, {len(problems)} problems in db.check()",
    )
    report.found(None, "Opening does not read history", f"{took_ms:,.0f} ms, checkpoint and tail")


def _boxes(db: hc.Database) -> list[chart.Box]:
    """The table's data objects as the engine's own planner sees them."""
    state = next(one for one in db.core.engine.tables.values() if one.entry.name == "orders")
    key = state.schema.columns[0].id
    with db.begin() as txn:
        tier = state.shape.tier
        stats = [one for one in Gatherer().stats(state, tier, txn.snapshot) if one.kind == "data"]
        zones = [tier.by_id[one.id].stats.zonemaps[key] for one in stats]
    return [
        chart.Box(
            level=one.level, low=zone.min, high=zone.max, rows=one.rows, dead_rows=one.dead_rows
        )
        for one, zone in zip(stats, zones, strict=True)
    ]


def _figures(name: str, tiers: Tiers, took_ms: float | None) -> list[str]:
    return [
        name,
        f"{tiers.l0_rows:,}",
        f"{tiers.tombstones:,}",
        f"{tiers.objects:,}",
        f"{tiers.depth}",
        f"{tiers.dead_share:.1%}",
        _size(tiers.file_bytes),
        _size(tiers.log_bytes),
        "" if took_ms is None else f"{took_ms:,.0f} ms",
    ]


def _aligned(cells: Sequence[str]) -> str:
    """A line of the table for plain output: names to the left, figures to the right."""
    return "".join(
        cell.ljust(-width) if width < 0 else cell.rjust(width)
        for cell, width in zip(cells, WIDTHS, strict=True)
    )


def _size(count: float) -> str:
    return f"{count / 1e6:,.2f} MB" if count >= 100_000 else f"{count / 1e3:,.1f} kB"
