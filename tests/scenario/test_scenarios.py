"""Every scenario in every placement, and the scenarios that must not go missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.scenario.play import EVERYWHERE, RARELY, Placement, ScenarioFailure, play
from tests.scenario.script import read_script

FOLDER = Path(__file__).parent
SCRIPTS = sorted(FOLDER.glob("*.txt"))

ANOMALIES = (
    "g0_dirty_write",
    "g1a_aborted_read",
    "g1b_intermediate_read",
    "g1c_circular_information_flow",
    "otv_observed_transaction_vanishes",
    "pmp_predicate_many_preceders",
    "pmp_write_predicate",
    "p4_lost_update",
    "g_single_read_skew",
    "g_single_predicate",
    "g_single_write_predicate",
    "g2_item_write_skew_snapshot",
    "g2_item_write_skew_serializable",
    "g2_predicate_write_skew_snapshot",
    "g2_predicate_write_skew_serializable",
)


OF_OWNERS = ("for_update",)
"""Scenarios about what only transactions of the owner do: others do not wait for rows yet."""


def _cases() -> Iterator[ParameterSet]:
    for path in SCRIPTS:
        for placement in (*EVERYWHERE, *RARELY):
            if not (placement.nodes and path.stem in OF_OWNERS):
                marks = [pytest.mark.more] if placement in RARELY else []
                yield pytest.param(path, placement, marks=marks, id=f"{path.stem}-{placement.name}")


@pytest.mark.parametrize(("path", "placement"), list(_cases()))
def test_scenario(path: Path, placement: Placement, memory_path: Path) -> None:
    failed = ""
    try:
        play(read_script(path), memory_path / "db", placement)
    except ScenarioFailure as failure:
        failed = str(failure)
    if failed:
        pytest.fail(failed, pytrace=False)  # The place in the script says more than a trace.


def test_every_anomaly_has_its_scenario() -> None:
    assert set(ANOMALIES) <= {path.stem for path in SCRIPTS}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_scenario_says_what_it_is_about(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_scenario_expects_something(path: Path) -> None:
    assert any(step.wanted for step in read_script(path))
