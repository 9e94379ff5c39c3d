"""Random histories of concurrent transactions equal the model, step by step and as a whole.

`make test` runs the same histories every time; `make sim` runs new ones. What fails is printed as
a short program, and with it the blob for `@reproduce_failure`.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings

from tests.model.histories import History, histories
from tests.model.twin import Disk, Memory

SIM_HISTORIES = int(os.environ.get("HALOCLINE_HISTORIES", "5000"))

_quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
short = settings(deadline=None, print_blob=True, suppress_health_check=_quiet)


@settings(short, max_examples=200)
@given(histories())
def test_histories_in_memory_equal_the_model(history: History) -> None:
    history.play(Memory())


@settings(short, max_examples=20)
@given(histories())
def test_histories_on_disk_equal_the_model(history: History) -> None:
    history.play(Disk())


@pytest.mark.sim
@settings(short, max_examples=SIM_HISTORIES)
@given(histories())
def test_many_histories_in_memory_equal_the_model(history: History) -> None:
    history.play(Memory())


@pytest.mark.sim
@settings(short, max_examples=SIM_HISTORIES // 10)
@given(histories())
def test_many_histories_on_disk_equal_the_model(history: History) -> None:
    history.play(Disk())
