"""Sizes that are no option of the engine, made small for histories of fifty steps."""

from __future__ import annotations

import pytest

from halocline.rows import tidy


@pytest.fixture(autouse=True)
def cheap_sql(shared_duck: None) -> None:
    """A history opens its database four times and more."""


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge the key runs of bulk commits when there are three, not nine."""
    monkeypatch.setattr(tidy, "RUNS_MAX", 2)
