"""The examples of docs/history.md and docs/memory.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import halocline as hc

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", ["history", "memory"])
def test_the_examples_of_a_page_run(open_db: Any, page: str) -> None:
    db = open_db()
    db.create_table("orders", {"id": int, "status": str}, primary_key="id")
    db.run(lambda txn: txn.insert("orders", {"id": 1, "status": "new"}))
    names = {"db": db, "hc": hc}
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text("utf-8"), re.DOTALL)
    for block in blocks:
        exec(block, names)
    assert blocks
