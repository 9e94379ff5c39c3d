"""A change of a table's definition takes what a commit takes: no object is opened or written."""

from __future__ import annotations

from typing import Any

import pytest

import halocline as hc
from halocline.options import Options
from tests.store.faulty import FaultyFiles

CHANGES: dict[str, dict[str, Any]] = {
    "add": {"add": {"note": hc.Column(str, nullable=False, default="-")}},
    "drop": {"drop": ["text"]},
    "rename": {"rename": {"n": "amount"}},
    "change": {"change": {"n": "int64"}},
    "set_default": {"set_default": {"n": 5}},
    "drop_checks": {"drop_checks": ["small"]},
    "rename_table": {},
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_alter_opens_no_object(change: str) -> None:
    files = FaultyFiles()
    options = Options(background=False, object_rows_min=10, sql_threads=1)
    columns = {"id": int, "n": "int32", "text": str}
    with hc.Database(files, "shop", options=options) as db:
        db.create_table("t", columns, primary_key="id", checks={"small": "n < 1000"})
        with db.begin() as txn:
            txn.insert("t", [{"id": n, "n": n, "text": "x"} for n in range(100)])
        db.flush()
    with hc.Database(files, "shop", options=options) as db:  # nothing of the object is in memory
        assert len(db.table("t").files()) == 1
        before = len(files.operations)
        if change == "rename_table":
            db.rename_table("t", "u")
        else:
            db.alter_table("t", **CHANGES[change])
        done = [str(one) for one in files.operations[before:]]
        assert not [one for one in done if "objects" in one or "parquet" in one], done
        name = "u" if change == "rename_table" else "t"
        assert len(db.table(name).to_arrow()) == 100
        read = [str(one) for one in files.operations[before:]]
        assert [one for one in read if "parquet" in one], "a read does open it"
