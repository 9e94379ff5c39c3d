"""Blind jobs that a compute node runs and the owner commits, beside what others do meanwhile.

The histories are those of tests/unit/txn/test_blind_histories.py; only the jobs come from another
handle, so their workspaces travel and their fates are decided by the owner.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import halocline as hc

pytest.importorskip("pyspark")

from tests.unit.txn import test_blind_histories as histories
from tests.unit.txn.blindjobs import begin_job
from tests.unit.txn.test_blind_histories import OPTIONS, World


@pytest.mark.parametrize("seed", [1, 3])
def test_random_histories_beside_jobs_of_a_node(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = tmp_path / "shop"
    owner = hc.open(path, options=OPTIONS)
    with owner, hc.open(path, options=OPTIONS) as node:

        def elsewhere(db: hc.Database, *given: Any) -> Any:
            assert db is owner
            return begin_job(node, *given)

        monkeypatch.setattr(histories, "begin_job", elsewhere)
        world = World(owner, chance, composite=seed % 3 == 0)
        for _ in range(30):
            world.step()
        for _ in range(4):
            world.job(monkeypatch)
            world.verify(owner)
            world.verify(node)
            assert not owner.check()
    with hc.open(path, options=OPTIONS) as db:
        world.verify(db)
        assert not db.check()
