"""The tables of docs/types.md: what becomes of each column of each kind of input."""

from __future__ import annotations

import os
import re
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import halocline as hc

PAGE = Path(__file__).parents[3] / "docs" / "types.md"
ROW = re.compile(r"^\| (`(?:pa|pd|pl|duck|csv|json)[.(].*?`) \|(.*)\|$", re.MULTILINE)


def _duck(text: str) -> Any:
    return duckdb.sql(f"select {text} as x")


def _csv(*texts: str) -> Any:
    Path("page.csv").write_text(
        "n,x\n" + "".join(f"{at},{text}\n" for at, text in enumerate(texts))
    )
    return hc.read("page.csv")


def _json(*texts: str) -> Any:
    Path("page.json").write_text("".join(f'{{"n": 1, "x": {text}}}\n' for text in texts))
    return hc.read("page.json")


SPACE = {
    "pa": pa,
    "pd": pd,
    "pl": pl,
    "UUID": UUID,
    "Decimal": Decimal,
    "date": date,
    "time": time,
    "datetime": datetime,
    "duck": _duck,
    "csv": _csv,
    "json": _json,
}


def _frame(given: Any) -> Any:
    if isinstance(given, pa.Array):
        return pa.table({"x": given})
    if isinstance(given, pd.Series):
        return given.to_frame("x")
    return given.alias("x").to_frame() if isinstance(given, pl.Series) else given


def _outcome(db: Any, expression: str) -> str:
    """The two last cells of a line."""
    try:
        table = db.create_table("t", _frame(eval(expression, SPACE)))
        db.run(lambda txn: txn.insert("t", _frame(eval(expression, SPACE))))
    except hc.SchemaError as error:
        found = db.tables() and repr(table).split()[-1]
        db.drop_table("t", if_exists=True)
        return f" {found or 'none'} | refused: {str(error).replace('|', '/')} "
    except pa.ArrowException as error:
        return f" none | Arrow cannot export it: {str(error).splitlines()[0]} "
    (kind,) = [c.type_name for c in db.begin().state_of("t").schema.columns if c.name == "x"]
    values = [row["x"] for row in db.begin().scan("t").to_pylist()]
    db.drop_table("t")
    return f" {kind} | `{', '.join(map(repr, values))}` "


@pytest.mark.slow
def test_the_tables_say_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    with hc.open("db", durability="async") as db:
        found = ROW.sub(lambda row: f"| {row[1]} |{_outcome(db, row[1][1:-1])}|", text)
    if os.environ.get("HALOCLINE_WRITE_DOCS"):
        PAGE.write_text(found, encoding="utf-8")
        text = found
    assert len(ROW.findall(text)) > 50
    assert found == text, "run `HALOCLINE_WRITE_DOCS=1 pytest tests/unit/api/test_types_page.py`"
