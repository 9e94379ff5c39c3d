"""What the tests of this folder share: one nursery, and chance."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.process.nursery import Nursery


@pytest.fixture(scope="session")
def one_nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def nursery(one_nursery: Nursery) -> Iterator[Nursery]:
    """Starts children; those that the test leaves behind are killed."""
    yield one_nursery
    one_nursery.end_children()


@pytest.fixture
def chance(fresh_seed: int) -> Random:
    """Another one each time."""
    return Random(fresh_seed)
