"""Starting is quick: what is costly to load is loaded when it is needed, and not before.

Each test asks a fresh interpreter what it has loaded. What a start costs is measured by the
benchmark (bench/starting.py): modules can be counted on any machine, seconds cannot.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "duckdb": "runs SQL",
    "pandas": "pyarrow loads it, where it is installed, for a `pa.array` of anything but numpy",
    "pyarrow.dataset": "nothing here needs it",
    "pyarrow.flight": "nothing here needs it",
    "pyspark": "runs jobs",
    "sqlglot": "reads SQL",
}
FRONT_DOOR = HEAVY | {
    "numpy": "the engine",
    "pyarrow": "the engine",
    "halocline.database": "the engine",
}
COMMANDS = FRONT_DOOR | {"rich.progress": "shows maintenance"}

FIRST_INSERT = """
import halocline as hc
with hc.open({path!r}) as db:
    db.create_table("orders", {{"id": int, "status": str}}, primary_key="id")
    with db.begin() as txn:
        txn.insert("orders", {{"id": 1, "status": "new"}})
        txn.get("orders", 1)
"""
HELP = """
from halocline.cli import app
try:
    app(["--help"])
except SystemExit:
    pass
"""


def loaded(code: str) -> set[str]:
    """The modules that an interpreter of its own has loaded after it has run some code."""
    tell = "import sys; print('loaded:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{tell}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("loaded:")[2].split())


def test_import_loads_the_names_and_not_the_engine() -> None:
    assert not loaded("import halocline") & FRONT_DOOR.keys()


def test_a_first_insert_loads_neither_sql_nor_pandas(tmp_path: Path) -> None:
    assert not loaded(FIRST_INSERT.format(path=str(tmp_path / "db"))) & HEAVY.keys()


def test_opening_what_is_there_loads_neither_sql_nor_pandas(tmp_path: Path) -> None:
    code = FIRST_INSERT.format(path=str(tmp_path / "db"))
    loaded(code)
    again = f"import halocline as hc\nwith hc.open({str(tmp_path / 'db')!r}) as db: db.tables()"
    assert not loaded(again) & HEAVY.keys()


def test_help_loads_no_engine() -> None:
    assert not loaded(HELP) & COMMANDS.keys()


@pytest.mark.parametrize(
    "name", ["Database", "Options", "Table", "Transaction", "connect", "open", "read"]
)
def test_each_lazy_name_is_there_when_it_is_the_first_that_is_asked_for(name: str) -> None:
    assert "halocline" in loaded(f"from halocline import {name}\nassert {name} is not None")


def test_dir_shows_what_is_not_loaded_yet() -> None:
    loaded("import halocline\nassert {'open', 'Database'} <= set(dir(halocline))")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    code = "import halocline\nassert not hasattr(halocline, 'openn')"
    assert "pyarrow" not in loaded(code)
