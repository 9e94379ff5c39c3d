"""db.compact() beside the background: whoever asks gets the result, not "nothing to do"."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import halocline as hc
from halocline import Options
from tests.roles import maintenance_of


def test_a_call_waits_for_a_group_that_the_background_has_begun(tmp_path: Path) -> None:
    options = Options(page_rows=4, object_rows=64, row_group_rows=16, background=False)
    with hc.open(tmp_path / "db", options=options) as db:
        db.create_table("t", {"id": int}, primary_key="id")
        for part in range(8):
            with db.begin() as txn:
                txn.insert("t", [{"id": part + 8 * number} for number in range(8)])
            db.flush("t")
        compactor = maintenance_of(db).compactor
        assert compactor is not None
        with compactor._turn:  # as the background holds it while it rewrites a group
            stepped: list[bool] = []
            step = Thread(target=lambda: stepped.append(compactor.step(db.core.engine.tables[1])))
            step.start()
            step.join(30)
            assert stepped == [False]
            waiting = Thread(target=db.compact)
            waiting.start()
            waiting.join(0.2)
            assert waiting.is_alive()
        waiting.join(30)
        assert not waiting.is_alive()
        assert len(db.table("t").files()) < 8
        assert db.check() == []
