"""The scenario suite, read through Spark: at its end every table, now and in the past.

Each script is played in a placement that Spark can reach, and what the engine says of every table
is compared with what `hs.table` says. In the normal run a script is looked at now or at one of its
named timestamps; the long form looks at all of them in all placements.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halocline import spark as hs
from tests.scenario.places import Flushed, Moved
from tests.scenario.play import ArrowByPredicate, Placement, Player, _tiny
from tests.scenario.script import read_script

SCRIPTS = sorted((Path(__file__).parents[1] / "scenario").glob("*.txt"))
PLACEMENTS = (
    Placement(name="objects", place=Flushed, on_disk=True),
    Placement(name="moved", place=Moved, on_disk=True),
    Placement(
        name="bulk-objects",
        options=_tiny(bulk_rows=0, object_rows_min=0),
        writer=ArrowByPredicate(),
        on_disk=True,
    ),
)


class SparkPlayer(Player):
    """Plays a script, and reads its tables through Spark before they are closed."""

    spark: Any
    only: int | None
    """Which of its tables and timestamps to look at, counted round and round; None: all of them."""
    compared = 0

    def finish(self, last: Any) -> None:
        for txn in self._sessions.values():
            txn.rollback()
        self._sessions.clear()
        self._place.settle()
        local = list(self._everything().items())
        stamps = {"now": None, **self._names}
        if self.only is not None and local:
            local = [local[self.only % len(local)]]
        for (name, table), expected in local:
            frame = hs.table(self.spark, self._db, table, at=stamps[name])
            rows = sorted(repr(tuple(row.values())) for row in frame.toArrow().to_pylist())
            assert rows == expected, (last, name, table)
            self.compared += 1
        hs.release(self.spark, self._db)
        super().finish(last)


def _play(spark: Any, path: Path, home: Path, placement: Placement, only: int | None) -> int:
    player = SparkPlayer(home, placement)
    player.spark, player.only = spark, only
    steps = read_script(path)
    try:
        for step in steps:
            player.do(step)
            player.move()
        player.finish(steps[-1])
    finally:
        player.close()
    return player.compared


@pytest.mark.more
def test_scenarios_end_with_the_same_rows_through_spark(spark: Any, tmp_path: Path) -> None:
    compared = 0
    for number, path in enumerate(SCRIPTS):
        placement = PLACEMENTS[number % len(PLACEMENTS)]
        # In threes: otherwise each placement would always be asked about the same places.
        compared += _play(spark, path, tmp_path / path.stem, placement, number // len(PLACEMENTS))
    assert compared > 0.9 * len(SCRIPTS), "a table may be gone at the end"


@pytest.mark.sim
@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda placement: placement.name)
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scenario_through_spark(
    spark: Any, tmp_path: Path, path: Path, placement: Placement
) -> None:
    _play(spark, path, tmp_path / "db", placement, None)
