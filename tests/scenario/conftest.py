"""Many small databases: those in memory share what is costly to start."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def cheap_sql(shared_duck: None) -> None:
    """Every scenario opens its database twice."""
