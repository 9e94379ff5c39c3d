"""`halocline serve`, from its first line to SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import halocline as hc


def _start(path: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "halocline", "serve", str(path), "--port", "0", *options]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )


def test_a_served_database_is_used_from_elsewhere_and_closed_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with hc.open(path) as db:
        db.create_table("t", {"id": int}, "id")
    (tmp_path / "token").write_text("  a long secret \n")
    process = _start(path, "--token-file", str(tmp_path / "token"))
    try:
        assert process.stdout is not None
        uri = process.stdout.readline().split()[-1]
        with hc.connect(uri, "a long secret") as afar, hc.open(path) as near:
            assert afar.role == near.role == "node"
            for key, db in enumerate((afar, near, afar)):
                with db.begin() as txn:
                    txn.insert("t", {"id": key})
            assert afar.table("t").count() == near.table("t").count() == 3
    finally:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "secret" not in said
    with hc.open(path) as db:
        assert db.role == "owner"
        assert db.table("t").count() == 3
        assert not db.check()


def test_a_certificate_is_made_and_named(tmp_path: Path) -> None:
    """Clients get the file that is printed; the next server has the same certificate."""
    path = tmp_path / "db"
    with hc.open(path) as db:
        db.create_table("t", {"id": int}, "id")
    (tmp_path / "token").write_text("a long secret")
    for key in range(2):
        token = ["--token-file", str(tmp_path / "token")]
        process = _start(path, "--self-signed", "--host", "0.0.0.0", *token)
        try:
            assert process.stdout is not None
            port = process.stdout.readline().rpartition(":")[2].strip()
            label, certificate = process.stdout.readline().split()
            assert label == "certificate:"
            if not key:
                (tmp_path / "copy.pem").write_bytes(Path(certificate).read_bytes())
            uri, roots = f"halocline://127.0.0.1:{port}", str(tmp_path / "copy.pem")
            with hc.connect(uri, "a long secret", tls_roots=roots) as db, db.begin() as txn:
                txn.insert("t", {"id": key})
        finally:
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
    with hc.open(path) as db:
        assert db.table("t").count() == 2
        assert not db.check()


@pytest.mark.parametrize(
    "options",
    [
        ["--host", "0.0.0.0"],
        ["--token-file", "missing"],
        ["--tls-cert", "missing"],
        ["--tls-cert", "missing", "--tls-key", "missing"],
        ["--tls-cert", "missing", "--self-signed"],
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(tmp_path: Path, options: list[str]) -> None:
    hc.open(tmp_path / "db").close()
    process = _start(tmp_path / "db", *options)
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Traceback" not in said
