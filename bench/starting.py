"""Starting: what a program waits for before its first row is in the database.

    import    `import halocline` against `import pyarrow.parquet`
    insert    import, open a new database, create a table, insert a row, close; against it too
    help      `halocline --help` against a bare typer application with as many commands

Each is a fresh process, and what counts is its processor time: a start is work for one core. All
sides take turns; the first round compiles, and is not counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.harness import Figure

PARQUET = "import pyarrow.parquet"
IMPORT = "import halocline"
INSERT = """
import halocline as hc
with hc.open({place!r}) as db:
    db.create_table("orders", {{"id": int, "status": str}}, primary_key="id")
    with db.begin() as txn:
        txn.insert("orders", {{"id": 1, "status": "new"}})
"""
HELP = "from halocline.cli import app; app(['--help'], prog_name='halocline')"
BARE_HELP = """
import typer
app = typer.Typer(help="As many commands.", no_args_is_help=True, add_completion=False)
for number in range({commands}):
    def command(path: str) -> None:
        "Do something."
    app.command(f"command{{number}}")(command)
app(["--help"], prog_name="bare")
"""


def starting(directory: Path, *, rounds: int) -> Iterator[Figure]:
    """Ratios of processor time, each the median of its rounds."""
    bare_help = BARE_HELP.format(commands=_commands())
    programs = {"parquet": PARQUET, "import": IMPORT, "bare": bare_help, "help": HELP}
    seconds: dict[str, list[float]] = {name: [] for name in (*programs, "insert")}
    for number in range(rounds + 1):
        place = str(directory / f"db{number}")
        for name, code in {**programs, "insert": INSERT.format(place=place)}.items():
            took = _processor_seconds(code, directory / "compiled")
            if number:
                seconds[name].append(took)
    yield _ratio("import / import pyarrow.parquet", seconds, "import", "parquet", 2.0)
    yield _ratio("first insert / pyarrow.parquet", seconds, "insert", "parquet", 3.0)
    yield _ratio("halocline --help / bare typer", seconds, "help", "bare", 1.3)


def _processor_seconds(code: str, compiled: Path) -> float:
    """What one fresh process takes, of user and system time together."""
    env = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(compiled)
    before = os.times()
    subprocess.run([sys.executable, "-c", code], env=env, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    user = after.children_user - before.children_user
    return user + after.children_system - before.children_system


def _commands() -> int:
    from halocline.cli import app

    return len(app.registered_commands)


def _ratio(
    name: str, seconds: dict[str, list[float]], ours: str, peer: str, limit: float
) -> Figure:
    mine, theirs = median(seconds[ours]), median(seconds[peer])
    note = f"{mine * 1e3:.0f} and {theirs * 1e3:.0f} ms"
    return Figure(name=name, value=mine / theirs, unit="x", limit=limit, note=note)
