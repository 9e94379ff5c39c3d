"""The demo's chart: objects where their keys are, overlap as lanes, dead rows as the pale part."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from examples.bank.chart import LANES_MAX, Box, Panel, draw_svg, draw_text

SVG = "{http://www.w3.org/2000/svg}"
BOXES = (
    Box(level=2, low=1, high=50, rows=50, dead_rows=0),
    Box(level=2, low=51, high=100, rows=50, dead_rows=25),
    Box(level=1, low=41, high=60, rows=20, dead_rows=20),
    Box(level=1, low=1, high=100, rows=10, dead_rows=0),
)


def test_a_box_stands_over_its_keys_and_shows_its_dead_share() -> None:
    text = draw_text([Panel(title="Now", boxes=BOXES)], 24, ascii_only=True)
    assert text.splitlines() == [
        "Now: 4 objects, 130 rows, 34.6 % dead",
        "L1  ###################",
        "            ...",
        "L2  ######### #####....",
        "    1                100",
    ]


def test_no_line_is_longer_than_asked_for_and_plain_text_is_ascii() -> None:
    for width in (30, 61, 100):
        text = draw_text([Panel(title="Now", boxes=BOXES[:1])], width, ascii_only=True)
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= max(width, 37)
    assert "█" in draw_text([Panel(title="Now", boxes=BOXES)], 40)


def test_lanes_are_as_many_as_objects_over_one_key() -> None:
    deep = [Box(level=1, low=n, high=n + 100, rows=1, dead_rows=0) for n in range(20)]
    lines = draw_text([Panel(title="Deep", boxes=deep)], 60, ascii_only=True).splitlines()
    assert sum("#" in line for line in lines) == LANES_MAX
    assert f"and {20 - LANES_MAX} more below" in lines[-2]


@pytest.mark.parametrize("boxes", [(), BOXES])
def test_the_picture_is_a_whole_svg_that_needs_nothing_else(boxes: tuple[Box, ...]) -> None:
    drawn = draw_svg([Panel(title="a < b & c", boxes=boxes)], "Table")
    root = ElementTree.fromstring(drawn)
    assert "href" not in drawn
    assert len(root.findall(f"{SVG}g")) == len(boxes)
    titles = [one.text for one in root.iter(f"{SVG}title")]
    assert not boxes or "level 2, keys 51 to 100, 50 rows, 25 dead" in titles
    width = float(root.attrib["width"])
    for rect in root.iter(f"{SVG}rect"):
        right = float(rect.attrib.get("x", 0)) + float(rect.attrib["width"])
        assert 0 < right <= width


def test_pale_and_dark_are_in_the_proportion_of_dead_and_living() -> None:
    root = ElementTree.fromstring(draw_svg([Panel(title="Now", boxes=BOXES[1:2])], "Table"))
    whole, pale = root.find(f"{SVG}g").findall(f"{SVG}rect")  # type: ignore[union-attr]
    assert float(pale.attrib["width"]) * 2 == pytest.approx(float(whole.attrib["width"]), abs=0.2)


def test_nothing_is_drawn_of_an_empty_table() -> None:
    assert draw_text(
        [Panel(title="Now", boxes=())], 40
    ) == "Now: 0 objects, 0 rows, 0.0 % dead\n" + ("    0" + " " * 34 + "0")
