"""`halocline log`: healthy logs, damaged ones, and what is no log at all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from typer.testing import CliRunner, Result

import halocline as hc
from halocline.cli import app
from halocline.log.format import SEAL, SECTOR, VERSION
from halocline.log.record import encode_system_payload
from halocline.store import LocalFiles
from tests.unit.log.rig import commit, start

SMALL = hc.Options(log_file_bytes=65536, log_file_bytes_first=65536, background=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["log", *arguments])


def told(path: Path, *arguments: str) -> list[dict[str, Any]]:
    """The lines of --json, each parsed."""
    return [json.loads(line) for line in run(str(path), "--json", *arguments).output.splitlines()]


def entries(path: Path, *arguments: str) -> list[dict[str, Any]]:
    return [line for line in told(path, *arguments) if "entry" in line]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A closed database whose log has a node of most kinds."""
    path = tmp_path / "shop"
    with hc.open(path, options=SMALL) as db:
        db.create_table("orders", {"id": int, "note": str}, primary_key="id")
        for number in range(3):
            with db.begin(token=f"order {number}") as txn:
                txn.insert("orders", {"id": number, "note": "x"})
        with db.begin() as txn:
            txn.update("orders", 1, {"note": "y"})
            txn.delete("orders", 2)
        db.flush()
        db.checkpoint()
    return path


@pytest.fixture
def long_shop(tmp_path: Path) -> Path:
    """A closed database of at least four log files."""
    path = tmp_path / "long"
    with hc.open(path, options=SMALL) as db:
        db.create_table("orders", {"id": int, "note": str}, primary_key="id")
        for number in range(30):
            with db.begin() as txn:
                txn.insert("orders", {"id": number, "note": "x" * 10_000})
    assert len(list((path / "log").glob("*.log"))) >= 4
    return path


def change(path: Path, number: int, edit: Callable[[bytearray], None]) -> None:
    """Change the bytes of a log file, as a disk or a crash does."""
    file = path / "log" / f"{number:08d}.log"
    data = bytearray(file.read_bytes())
    edit(data)
    file.write_bytes(data)


def test_a_healthy_log_shows_entries_nodes_and_a_clean_end(shop: Path) -> None:
    done = run(str(shop))
    assert done.exit_code == 0, done.output
    assert done.output.startswith("log/00000001.log: epoch 1, begins with entry 1\n")
    for name in ("EPOCH", "DDL_CT", "DML_A", "DML_U", "DML_D", "JOB", "OBJ_C", "PAGE_M", "ROOT"):
        assert re.search(rf"^ +{name} +{{", done.output, re.MULTILINE), name
    assert re.search(r"token order 2, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.]\d{6}\n", done.output)
    assert re.search(r"\nclean: log/00000001.log ends at byte \d+ behind entry \d+", done.output)


def test_json_lines_parse_and_say_the_same(shop: Path) -> None:
    lines = told(shop)
    first, *middle, end = lines
    assert first == {"file": "log/00000001.log", "epoch": 1, "bytes": 65536, "first_order": 1}
    assert [line["entry"] for line in middle] == list(range(1, len(middle) + 1))
    assert end["end"] == "clean"
    assert end["last_order"] == len(middle)
    nodes = [node for line in middle for node in line["nodes"]]
    assert [node["name"] for node in nodes if node["node"] == "DDL_CT"] == ["orders"]
    assert [node["first_rowid"] for node in nodes if node["node"] == "DML_A"] == [1, 2, 3]
    stamps = [line["commit_ts"] for line in middle if "commit_ts" in line]
    assert stamps == sorted(set(stamps))
    assert not any("trouble" in line for line in [*lines, *nodes])


def test_no_row_is_shown(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db") as db:
        db.create_table("people", {"id": int, "name": str}, primary_key="id")
        with db.begin() as txn:
            txn.insert("people", {"id": 1, "name": "somebody's name"})
    assert "somebody" not in run(str(tmp_path / "db")).output


def test_from_leaves_out_what_is_older(shop: Path, long_shop: Path) -> None:
    assert entries(shop, "--from", "4")[0]["entry"] == 4
    whole = entries(long_shop)
    for first in (1, 7, len(whole)):
        assert entries(long_shop, "--from", str(first)) == whole[first - 1 :]
    assert entries(long_shop, "--from", "100000") == []
    assert told(long_shop, "--from", "100000")[-1] == told(long_shop)[-1]
    assert run(str(shop), "--from", "-1").exit_code == 2


def test_it_works_beside_the_process_that_has_the_database_open(shop: Path) -> None:
    with hc.open(shop) as db:
        before = len(entries(shop))
        with db.begin() as txn:
            txn.insert("orders", {"id": 77, "note": "z"})
        done = run(str(shop))
        assert done.exit_code == 0
        assert len(entries(shop)) == before + 1
        with db.begin() as txn:
            txn.insert("orders", {"id": 78, "note": "z"})


def test_looking_changes_nothing(shop: Path) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in shop.rglob("*") if path.is_file()}

    before = content()
    run(str(shop))
    assert content() == before


def test_a_torn_tail_is_named_and_is_no_failure(shop: Path) -> None:
    whole = told(shop)
    last, end = whole[-2], whole[-1]
    (shop / "published").unlink()  # it knows that the tail was durable: no crash can tear it then
    change(shop, 1, lambda data: data.__setitem__(end["offset"] - 1, 0))
    done = run(str(shop))
    assert done.exit_code == 0
    *_, torn = told(shop)
    assert torn["end"] == "torn"
    assert torn["last_order"] == last["entry"] - 1
    assert torn["offset"] <= last["offset"]
    assert "never arrived whole" in torn["why"]
    assert len(entries(shop)) == last["entry"] - 1
    with hc.open(shop) as db:  # as promised: opening cuts it off
        assert db.table("orders").count() == 2


def test_a_flipped_bit_is_damage(shop: Path) -> None:
    third = entries(shop)[2]
    place = third["offset"] + 45
    change(shop, 1, lambda data: data.__setitem__(place, data[place] ^ 1))
    done = run(str(shop))
    assert done.exit_code == 4
    assert [line["entry"] for line in entries(shop)] == [1, 2]
    end = told(shop)[-1]
    assert (end["end"], end["offset"], end["last_order"]) == ("corrupt", third["offset"], 2)
    assert "entry 3" in end["why"]


def test_behind_damage_the_next_file_is_shown(long_shop: Path) -> None:
    whole = entries(long_shop)
    second = [line for line in whole if line["file"] == "log/00000002.log"]
    change(long_shop, 2, lambda data: data.__setitem__(second[1]["offset"] + 60, 0x77))
    assert run(str(long_shop)).exit_code == 4
    lines = told(long_shop)
    trouble = next(line for line in lines if "trouble" in line)
    assert trouble["file"] == "log/00000002.log"
    assert trouble["offset"] == second[1]["offset"]
    lost = [line["entry"] for line in second[1:]]
    shown = [line["entry"] for line in lines if "entry" in line]
    assert shown == [line["entry"] for line in whole if line["entry"] not in lost]
    assert "in a file that was complete" in lines[-1]["why"]
    with pytest.raises(hc.CorruptionError, match="in a file that was complete"):
        hc.open(long_shop, read_only=True)


def test_a_missing_file_is_named(long_shop: Path) -> None:
    whole = entries(long_shop)
    (long_shop / "log" / "00000002.log").unlink()
    done = run(str(long_shop))
    assert done.exit_code == 4
    assert "trouble: log/00000002.log at byte 0: the log file is missing" in done.output
    end = told(long_shop)[-1]
    assert (end["end"], end["file"]) == ("corrupt", "log/00000002.log")
    assert entries(long_shop) == [line for line in whole if line["file"] != "log/00000002.log"]


def test_a_missing_beginning_is_named(long_shop: Path) -> None:
    (long_shop / "log" / "00000001.log").unlink()
    assert run(str(long_shop)).exit_code == 4
    end = told(long_shop)[-1]
    assert (end["end"], end["file"]) == ("corrupt", "log/00000001.log")


def test_a_damaged_header_of_a_file_is_named(long_shop: Path) -> None:
    change(long_shop, 3, lambda data: data.__setitem__(20, data[20] ^ 4))
    done = run(str(long_shop))
    assert done.exit_code == 4
    assert "trouble: log/00000003.log at byte 0: damaged file header" in done.output


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_file_of_another_version_is_refused_by_its_number(shop: Path, version: int) -> None:
    def edit(data: bytearray) -> None:
        data[8:12] = version.to_bytes(4, "little")
        body = bytes(data[: SECTOR - SEAL.size])
        data[SECTOR - SEAL.size : SECTOR] = SEAL.pack(crc32(body), data[SECTOR - 1])

    change(shop, 1, edit)
    done = run(str(shop))
    if version == 1:
        assert done.exit_code == 0
        return
    assert done.exit_code == 2
    assert f"log format version {version}" in done.output
    assert told(shop)[-1]["end"] == "refused"


def test_what_cannot_be_decoded_is_shown_by_its_reason(tmp_path: Path) -> None:
    """An entry whose frame is right and whose payload is not: somebody wrote it so."""
    log, _ = start(LocalFiles(tmp_path), SMALL)
    commit(log, b"no payload", 1)
    commit(log, bytes(encode_system_payload(9, [(0x77, b"a node of tomorrow")])), 2)
    log.close()
    done = run(str(tmp_path))
    assert done.exit_code == 0, done.output
    first, second = entries(tmp_path)
    assert "ends inside a field" in first["trouble"]
    assert second["nodes"] == [{"node": "0x77", "bytes": 18}]


@pytest.mark.parametrize("what", ["absent", "empty", "other", "file"])
def test_what_is_no_database_is_a_wrong_call(tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    if what == "file":
        path.write_text("hello")
    elif what != "absent":
        path.mkdir()
    if what == "other":
        (path / "letter.txt").write_text("hello")
    done = run(str(path))
    assert done.exit_code == 2
    assert str(path) in done.stderr
