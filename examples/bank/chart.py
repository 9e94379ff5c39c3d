"""The chart: a table's objects on the axis of its keys, by level, as text and as SVG.

    level 1  ######## ####.       a box is an object, as wide as its range of keys;
             ######...            its right part, as large as its share of dead rows, is pale
    level 2  ####### ####### ###
             1                            60,000

Boxes of a level that overlap stand in lanes below each other: so the number of lanes is the number
of objects that a search for one key may have to look into. Pure: boxes in, text out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

LABEL_COLUMNS = 4
LANES_MAX = 8
WIDTH, MARGIN, LANE, GAP = 960, 24, 18, 4
PALE, TEXT, COLORS = "#e7b3a1", "#22303c", ("#1f7a8c", "#3d5a80")


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One data object; `low` and `high` are its first and its last key."""

    level: int
    low: int
    high: int
    rows: int
    dead_rows: int

    @property
    def dead_share(self) -> float:
        return self.dead_rows / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A table at one moment."""

    title: str
    boxes: Sequence[Box]


def draw_text(panels: Sequence[Panel], width: int, *, ascii_only: bool = False) -> str:
    """Panels below each other over one axis, no line longer than `width`."""
    low, high = _axis(panels)
    columns = max(width - LABEL_COLUMNS, 20)
    lines = []
    for panel in panels:
        lines.append(f"{panel.title}: {describe(panel.boxes)}")
        for level, boxes in _levels(panel.boxes):
            spans = [_columns(box, low, high, columns) for box in boxes]
            lanes = _lanes(spans)
            for number, lane in enumerate(lanes[:LANES_MAX]):
                label = f"L{level}" if number == 0 else ""
                row = _row([(spans[place], boxes[place]) for place in lane], columns, ascii_only)
                lines.append(f"{label:<{LABEL_COLUMNS}}{row}".rstrip())
            if len(lanes) > LANES_MAX:
                hidden = sum(map(len, lanes[LANES_MAX:]))
                lines.append(f"{'':<{LABEL_COLUMNS}}and {hidden} more below")
    ends = f"{low:,}", f"{high:,}"
    axis = f"{ends[0]:<{columns - len(ends[1])}}{ends[1]}" if lines else ""
    return "\n".join([*lines, f"{'':<{LABEL_COLUMNS}}{axis}".rstrip()])


def draw_svg(panels: Sequence[Panel], title: str) -> str:
    """The same as a picture that needs nothing else; each box says what it is when pointed at."""
    low, high = _axis(panels)
    scale = (WIDTH - 3 * MARGIN) / max(high - low + 1, 1)
    parts = [_words(MARGIN, 34, title, 18)]
    top = 66
    for panel in panels:
        parts.append(_words(MARGIN, top, f"{panel.title}: {describe(panel.boxes)}", 13))
        top += 12
        for level, boxes in _levels(panel.boxes):
            lanes = _lanes([(box.low, box.high + 1) for box in boxes])
            parts.append(_words(MARGIN, top + LANE - 5, f"L{level}", 12))
            for lane in lanes:
                parts += [_box(boxes[place], top, low, scale) for place in lane]
                top += LANE + GAP
            top += GAP
        top += 26
    parts.append(_words(2 * MARGIN, top, f"{low:,}", 12))
    parts.append(_words(WIDTH - MARGIN, top, f"{high:,}", 12, anchor="end"))
    note = "a box is an object over its range of keys; its pale part is the share of dead rows"
    parts.append(_words(WIDTH / 2, top, note, 12, anchor="middle"))
    height = top + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif">'
    )
    back = f'<rect width="{WIDTH}" height="{height}" fill="#fbfaf7"/>'
    return "\n".join([head, back, *parts, "</svg>", ""])


def describe(boxes: Sequence[Box]) -> str:
    """How many objects and rows, and how many of them are dead."""
    rows = sum(box.rows for box in boxes)
    dead = sum(box.dead_rows for box in boxes)
    share = 100 * dead / rows if rows else 0.0
    noun = "object" if len(boxes) == 1 else "objects"
    return f"{len(boxes)} {noun}, {rows:,} rows, {share:.1f} % dead"


def _axis(panels: Sequence[Panel]) -> tuple[int, int]:
    boxes = [box for panel in panels for box in panel.boxes]
    return min((box.low for box in boxes), default=0), max((box.high for box in boxes), default=0)


def _levels(boxes: Sequence[Box]) -> Iterator[tuple[int, list[Box]]]:
    for level in sorted({box.level for box in boxes}):
        members = [box for box in boxes if box.level == level]
        yield level, sorted(members, key=lambda box: (box.low, box.high))


def _lanes(spans: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Places of spans, sorted by their starts, in as few lanes as they need not to overlap."""
    lanes: list[list[int]] = []
    ends: list[int] = []
    for place, (start, end) in enumerate(spans):
        number = next((n for n, taken in enumerate(ends) if taken <= start), len(lanes))
        if number == len(lanes):
            lanes.append([])
            ends.append(end)
        lanes[number].append(place)
        ends[number] = end
    return lanes


def _columns(box: Box, low: int, high: int, columns: int) -> tuple[int, int]:
    """The columns of a box, at least one."""
    width = high - low + 1
    start = (box.low - low) * columns // width
    return start, max(start + 1, (box.high + 1 - low) * columns // width)


def _row(boxes: Sequence[tuple[tuple[int, int], Box]], columns: int, ascii_only: bool) -> str:
    live, dead = ("#", ".") if ascii_only else ("█", "░")
    row = [" "] * columns
    for (start, end), box in boxes:
        # A column stays empty, so that one can tell neighbours apart.
        inside = max(end - start - 1, 1)
        pale = round(inside * box.dead_share)
        if box.dead_rows and inside > 1:
            pale = max(pale, 1)
        row[start : start + inside] = live * (inside - pale) + dead * pale
    return "".join(row)


def _box(box: Box, top: int, low: int, scale: float) -> str:
    left = 2 * MARGIN + (box.low - low) * scale
    width = max((box.high - box.low + 1) * scale - 1, 1)
    pale = width * box.dead_share
    color = COLORS[(box.level - 1) % len(COLORS)]
    about = (
        f"level {box.level}, keys {box.low:,} to {box.high:,}, {box.rows:,} rows, "
        f"{box.dead_rows:,} dead"
    )
    return (
        f"<g><title>{about}</title>"
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{LANE}" fill="{color}"/>'
        f'<rect x="{left + width - pale:.1f}" y="{top}" width="{pale:.1f}" height="{LANE}" '
        f'fill="{PALE}"/></g>'
    )


def _words(x: float, y: float, text: str, size: int, *, anchor: str = "start") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{TEXT}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
