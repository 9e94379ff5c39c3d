"""Thousands of databases in memory, one after the other: they share what is costly to start."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def cheap_sql(shared_duck: None) -> None:
    """What a crash has left is opened up to four times, and read each time."""
