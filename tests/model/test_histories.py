"""Random histories of concurrent transactions equal the model, step by step and as a whole.

    seed --> ten histories, eight of them of fifty steps or more --> the first difference, shrunk

Ten to a seed, because after its first ten examples Hypothesis mostly varies earlier ones, and new
histories find more. `make test` plays the same seeds every time. `make sim` plays new ones, and
HALOCLINE_SEED=... plays one of them again. A difference is printed as a little program that can be
pasted into a test.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.model.histories import play
from tests.model.twin import Disk, Memory, Nodes

PER_SEED = 10
LONG_PER_SEED = 8
"""Hypothesis begins with an example that is all pauses and one that is small."""
STEPS_MIN = 50
CHORES_DONE = ("move", "checkpoint", "gc", "reopen")


def play_seed(number: int, store: type[Memory | Disk]) -> None:
    """Play the histories of a seed; a failure shows the shortest one that fails."""
    steps: list[int] = []
    done: list[Counter[str]] = []

    @seed(number)
    @settings(
        max_examples=PER_SEED,
        deadline=None,
        derandomize=False,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(note_method_calls=False, use_true_random=False))
    def history(random: Random) -> None:
        taken, chores = play(random, store())
        steps.append(taken)
        done.append(chores)

    history()
    assert sum(count >= STEPS_MIN for count in steps) >= LONG_PER_SEED
    # Rows move, a checkpoint is written, GC runs and the database is reopened in nearly all.
    assert sum(all(chores[one] for one in CHORES_DONE) for chores in done) >= LONG_PER_SEED


MORE = [pytest.param(number, marks=pytest.mark.more) for number in range(9, 36)]


@pytest.mark.parametrize("number", [*range(9), *MORE])
def test_histories_equal_the_model(number: int) -> None:
    play_seed(number, Memory)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1000, pytest.param(1001, marks=pytest.mark.more)])
def test_histories_on_real_files_equal_the_model(number: int) -> None:
    play_seed(number, Disk)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2000, 2001))
def test_histories_through_a_compute_node_equal_the_model(number: int) -> None:
    play_seed(number, Nodes)


@pytest.mark.sim
@pytest.mark.parametrize("store", [Memory, Disk, Nodes])
def test_new_histories_equal_the_model(store: type[Memory | Disk], fresh_seed: int) -> None:
    play_seed(fresh_seed, store)
