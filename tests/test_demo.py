"""The demo keeps its promises: a short form of it, run the way a person runs it.

plain       output for a log: ASCII, every claim held, the data left with --keep is the bank
interrupted Ctrl-C on a terminal: a partial report, exit code 130, nothing left behind
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import halocline

ROOT = Path(__file__).resolve().parent.parent
SECONDS_MAX = 280

CLAIMS = (
    "Money is never made or lost",
    "All of a transfer, or nothing",
    "kill -9 loses nothing",
    "and leaves nothing half-done",
    "A bad DELETE is undone",
    "The past stays as it was",
    "At the end",
    "The past moves along",
    "until nobody wants it",
    "Rows move, nothing changes",
)
CLAIMS_OF_SPARK = (
    "A bulk load beside writers",
    "DuckDB and Spark agree",
    "Fresh for Spark",
    "Nobody waited for Spark",
)
CHAPTERS = ("== 1 ", "== 2 ", "== 3 ", "== 4 ", "== 5 ", "== 6 ")
SPEED = re.compile(
    r"^ (Transfers, 2 threads|Inserts, 1 thread) +([\d,]+) +([\d,]+) +([\d.]+)x$",
    re.MULTILINE,
)
CONTROL = re.compile(r"[^\n\x20-\x7e]")


def command(*arguments: str) -> list[str]:
    """The demo, two threads of it."""
    return [sys.executable, str(ROOT / "examples" / "demo.py"), "--threads", "2", *arguments]


def environment() -> dict[str, str]:
    """Ours, in which the package is found whether or not it is installed."""
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color"}


def test_a_short_demo_in_plain_lines_proves_every_claim(tmp_path: Path) -> None:
    done = subprocess.run(
        command("--seconds", "1", "--plain", "--keep", "--dir", str(tmp_path)),
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    assert not CONTROL.search(done.stdout)
    assert not [line for line in done.stdout.splitlines() if line != line.rstrip()]
    story, report = done.stdout.split("== Report: ")
    assert [title for title in CHAPTERS if title not in story] == []
    for claim in (*CLAIMS, *(CLAIMS_OF_SPARK if _has_java() else ())):
        assert re.search(rf"^ ok +{re.escape(claim)} ", report, re.MULTILINE), report
    assert not re.search(r"^ NOT ", report, re.MULTILINE)
    _check_speeds(report)
    _check_kept(report, tmp_path)
    assert "Before compaction: " in report
    assert "The same as a picture: demo.svg" in report
    assert (tmp_path / "demo.svg").read_text(encoding="utf-8").startswith("<svg ")


@pytest.mark.more
def test_without_java_the_demo_says_so_and_does_the_rest(tmp_path: Path) -> None:
    done = subprocess.run(
        command("--seconds", "1", "--plain", "--dir", str(tmp_path)),
        env=environment() | {"JAVA_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = done.stdout.split("== Report: ")[1]
    assert "Spark was not shown" in report
    assert "Spark needs Java 17" in " ".join(report.split())
    assert "Money is never made or lost" in report


def _has_java() -> bool:
    from halocline.spark.java import JAVA_MIN, find_java, major_version

    java = find_java()
    return java is not None and major_version(java) >= JAVA_MIN


def _check_speeds(report: str) -> None:
    """The ratio is that of the two figures that stand beside it."""
    speeds = SPEED.findall(report)
    assert len(speeds) == 2, report
    for _, ours, peer, ratio in speeds:
        expected = int(ours.replace(",", "")) / int(peer.replace(",", ""))
        assert abs(float(ratio) - expected) < 0.01 + 0.01 * expected


def _check_kept(report: str, home: Path) -> None:
    """With --keep the bank is where the report says, as sound as it says."""
    [place] = home.glob("demo-*")
    assert f"The bank was in {place.name}/bank" in report
    transfers = re.search(r"after ([\d,]+) +transfers", " ".join(report.split()))
    assert transfers
    with halocline.open(place / "bank") as db:
        [seen] = db.sql(
            "select sum(balance) as total, count(*) as accounts, "
            "(select count(*) from transfers) as transfers from accounts"
        ).to_pylist()
        assert not db.check()
    assert (seen["total"], seen["accounts"]) == (1_000 * 1_000_00, 1_000)
    assert seen["transfers"] == int(transfers[1].replace(",", ""))


def test_ctrl_c_on_a_terminal_ends_the_demo_politely(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    demo = subprocess.Popen(
        command("--seconds", "60", "--dir", str(tmp_path)),
        env=environment(),
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        seen = _read(ours, until=b"durable transfers so far")
        demo.send_signal(signal.SIGINT)
        seen += _read(ours, until=None)
        assert demo.wait(SECONDS_MAX) == 130
    finally:
        demo.kill()
        demo.wait()
        os.close(ours)
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", seen.decode())
    assert "Report: stopped after" in text
    assert "✓  Money is never made or lost" in text
    assert "Traceback" not in text
    # The cursor that the live picture has hidden is back.
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l") >= 0
    assert not list(tmp_path.iterdir())
    assert not _processes_in(demo.pid)


def _read(terminal: int, until: bytes | None) -> bytes:
    """What the terminal shows, up to some text or to the end."""
    seen, deadline = b"", time.monotonic() + SECONDS_MAX
    while until is None or until not in seen:
        assert time.monotonic() < deadline, seen
        try:
            some = os.read(terminal, 4096)
        except OSError:
            some = b""  # Linux reports the end of the other side so; macOS reads nothing.
        if not some:
            assert until is None, seen
            break
        seen += some
    return seen


def _processes_in(session: int) -> list[str]:
    """Processes that still run in the demo's session or below it."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid=,sess=,args="], capture_output=True, text=True, check=True
    )
    rows = [line.split(None, 3) for line in listed.stdout.splitlines()]
    return [row[3] for row in rows if str(session) in row[1:3]]
