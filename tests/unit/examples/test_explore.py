"""The exploring example runs, in a small size, and finds the dirt that it has made."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import explore


def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = explore.main(3000, str(tmp_path))
    shown = capsys.readouterr().out
    assert found["good"] + found["bad"] == 3001
    assert 30 < found["bad"] < 150
    assert found["fixed"] > 0
    assert found["problems"] == 0
    for text in ("n/a", "2025-02-30", "not one of", "key (id)", "now"):
        assert text in shown
