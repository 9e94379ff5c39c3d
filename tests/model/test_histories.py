"""Random histories of concurrent transactions equal the model, step by step and as a whole.

`make test` runs the same histories every time; `make sim` runs new ones. What fails is printed as
a short program, and with it the blob for `@reproduce_failure`.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.model.histories import play
from tests.model.twin import Disk, Memory

SIM_HISTORIES = int(os.environ.get("HALOCLINE_HISTORIES", "5000"))

CHOICES = st.randoms(note_method_calls=False, use_true_random=False)
_quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
short = settings(deadline=None, print_blob=True, suppress_health_check=_quiet)


@settings(short, max_examples=200)
@given(CHOICES)
def test_histories_in_memory_equal_the_model(choices: Random) -> None:
    play(choices, Memory())


@settings(short, max_examples=20)
@given(CHOICES)
def test_histories_on_disk_equal_the_model(choices: Random) -> None:
    play(choices, Disk())


@pytest.mark.sim
@settings(short, max_examples=SIM_HISTORIES)
@given(CHOICES)
def test_many_histories_in_memory_equal_the_model(choices: Random) -> None:
    play(choices, Memory())


@pytest.mark.sim
@settings(short, max_examples=SIM_HISTORIES // 10)
@given(CHOICES)
def test_many_histories_on_disk_equal_the_model(choices: Random) -> None:
    play(choices, Disk())
