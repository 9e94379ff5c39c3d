"""The command line: what it shows, what it does, and how it fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest
from typer.testing import CliRunner, Result

import halocline as hc
from halocline.cli import app

OPTIONS = hc.Options(page_rows=16, object_rows=64, row_group_rows=16, background=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A database that owes some maintenance: eight objects over one range of keys."""
    path = tmp_path / "shop [1]"
    with hc.open(path, options=OPTIONS) as db:
        db.create_table("orders", {"id": int, "note": str}, primary_key="id")
        db.create_table("empty", {"a": int, "b": str}, primary_key=["a", "b"])
        for part in range(8):
            with db.begin() as txn:
                txn.insert("orders", [{"id": n, "note": "x"} for n in range(part, 400, 8)])
            db.flush("orders")
    return path


def test_maintain_once_does_what_is_owed(shop: Path) -> None:
    with hc.open(shop, read_only=True) as db:
        assert any(owed.work == "compact" for owed in db.health().owed)
    done = run("maintain", str(shop), "--once", "--no-spark")
    assert done.exit_code == 0, done.output
    assert re.search(r"compact orders +1 groups, overlap 8 -> 1, 0 of 400 rows", done.output)
    assert "nothing is owed" in done.output
    with hc.open(shop, read_only=True) as db:
        assert db.table("orders").count() == 400
        assert len(db.table("orders").files()) == 1
        assert db.check() == []
    again = run("maintain", str(shop), "--once", "--no-spark")
    assert again.exit_code == 0
    assert "compact" not in again.output


def test_what_is_left_for_spark_is_said(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = hc.open
    limited = hc.Options(compact_local_bytes=1, background=False)
    monkeypatch.setattr(hc, "open", lambda path, **more: real(path, **more | {"options": limited}))
    done = run("maintain", str(shop), "--once", "--no-spark")
    assert done.exit_code == 0
    assert "still owed: compact orders: more than 4 objects hold one key" in done.output
    assert "left for Spark" in done.output


def test_without_java_it_says_so_and_does_the_rest(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = run("maintain", str(shop), "--once")
    assert done.exit_code == 0
    assert "Java" in done.output
    assert "large groups are left" in done.output
    assert "overlap 8 -> 1" in done.output


def test_a_step_that_fails_is_told_and_the_others_run(shop: Path) -> None:
    file = next(Path(path) for path in _files(shop))
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    done = run("maintain", str(shop), "--once", "--no-spark")
    assert done.exit_code == 1
    assert re.search(rf"compact orders +failed: \S*{file.name}", done.output)
    assert "still owed: compact orders" in done.output
    checked = run("check", str(shop))
    assert checked.exit_code == 1
    assert file.name in checked.output


def _files(shop: Path) -> list[str]:
    with hc.open(shop, read_only=True) as db:
        return db.table("orders").files()


def test_health_tables_and_check_read_beside_the_owner(shop: Path) -> None:
    with hc.open(shop, options=OPTIONS) as db:
        with db.begin() as txn:
            txn.insert("orders", {"id": 10_000, "note": "new"})
        health = run("health", str(shop))
        assert health.exit_code == 0
        assert "owed: compact orders" in health.output
        shown = run("tables", str(shop))
        assert re.search(r"orders +401 +id +id int64, note string", shown.output)
        assert re.search(r"empty +0 +a, b", shown.output)
        db.create_table(
            "named", {"id": int, "n": hc.Column(int, default=7, comment="how many")}, "id"
        )
        shown = run("tables", str(shop), "--schema")
        assert re.search(
            r"named\n  id +int64 not null +key\n  n +int64 +default 7, how many", shown.output
        )
        db.drop_table("named")
        checked = run("check", str(shop))
        assert (checked.exit_code, checked.output) == (0, "2 tables, no problems\n")


def test_an_owner_that_serves_does_the_work_itself(shop: Path) -> None:
    with hc.open(shop, options=OPTIONS) as db:
        done = run("maintain", str(shop), "--once")
        assert done.exit_code == 0, done.output
        assert "another process has the database open" in done.output
        assert "overlap 8 -> 1" in done.output
        assert db.health().tables["orders"].depth == 1


def test_a_database_that_is_held_is_named_with_its_holder(shop: Path) -> None:
    with hc.open(shop, options=replace(OPTIONS, serve=False)):
        done = run("maintain", str(shop), "--once", "--no-spark")
    assert done.exit_code == 3
    assert str(os.getpid()) in done.output
    assert "Traceback" not in done.output


def test_a_database_that_is_open_elsewhere_is_maintained_by_its_owner(shop: Path) -> None:
    with hc.open(shop, options=hc.Options(background=False)) as db:
        done = run("maintain", str(shop), "--once", "--no-spark")
        assert done.exit_code == 0, done.output
        assert db.health().is_well


@pytest.mark.parametrize("command", ["maintain", "health", "check", "tables"])
def test_what_is_not_a_database_is_refused_and_not_made(tmp_path: Path, command: str) -> None:
    nowhere = tmp_path / "nowhere"
    file = tmp_path / "file"
    file.write_text("text")
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes").write_text("text")
    for path in (nowhere, file, other):
        done = run(command, str(path))
        assert done.exit_code == 2, done.output
        assert str(path) in done.output.replace("\n", "")
        assert "Traceback" not in done.output
    assert not nowhere.exists()


@pytest.mark.parametrize("interval", ["soon", "0s", "-1s"])
def test_a_wrong_interval_is_refused(shop: Path, interval: str) -> None:
    done = run("maintain", str(shop), "--no-spark", f"--interval={interval}")
    assert done.exit_code == 2
    assert "interval" in done.output or "duration" in done.output


def test_help_names_the_commands() -> None:
    done = run("--help")
    assert done.exit_code == 0
    assert all(name in done.output for name in ("maintain", "health", "check", "tables"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_loop_ends_cleanly(shop: Path, number: int) -> None:
    command = [sys.executable, "-m", "halocline", "maintain", str(shop), "--no-spark"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [*command, "--interval", "1h"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        guard = Timer(120, child.kill)
        guard.start()
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("compact orders"):
                break
        child.send_signal(number)
        rest = child.stdout.read()
        assert child.wait() == 0, rest
        guard.cancel()
    assert "stopped" in rest
    assert "Traceback" not in rest
    with hc.open(shop) as db:
        assert db.check() == []
