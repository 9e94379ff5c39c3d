"""The examples run, and what they print is true."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import halocline as hc

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.more
def test_nightly_load(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nightly = example("nightly_load")
    first, second = nightly.run(tmp_path)
    assert (first.inserted, first.updated) == (1000, 0)
    assert second.updated == 100
    again = nightly.run(tmp_path)
    assert all(report.already_committed for report in again), "a second night changes nothing"
    said = capsys.readouterr().out
    assert "'articles': 1200" in said
    assert said.count("1200 rows, all of which count") == 2
    with hc.open(tmp_path / "shop") as db:
        prices = db.sql("select price, count(*) as n from prices group by 1 order by 1").to_pylist()
        assert [(str(row["price"]), row["n"]) for row in prices] == [("9.99", 900), ("12.50", 300)]
        sold = db.sql("select count(*) as n, sum(pieces) as pieces from turnover").to_pylist()
        assert sold == [{"n": 1200, "pieces": sum(n % 7 for n in range(1200))}]
        bad = tmp_path / "prices-bad.csv"
        bad.write_text("sku,price,stock,day\nA1,cheap,1,2024-03-03\n", encoding="utf-8")
        with pytest.raises(Exception, match=r"MALFORMED|FAILFAST"):
            nightly.load_file(spark, db, bad)
        assert db.table("prices").count() == 1200
        assert db.check() == []


@pytest.mark.more
def test_hourly_report(spark: Any, tmp_path: Path) -> None:
    hourly = example("hourly_report")
    seen = hourly.run(tmp_path, hours=1) + hourly.run(tmp_path, hours=1)
    with hc.open(tmp_path / "shop") as db:
        stored = db.table("reports").to_arrow().to_pylist()
        assert db.check() == []
    assert sorted(map(repr, stored)) == sorted(repr(row) for rows in seen for row in rows)
    totals = [sum(row["orders"] for row in rows) for rows in seen]
    assert totals == sorted(totals), "a later snapshot has no fewer orders"
    assert totals[-1] > 0
