"""Damage to the log of a closed database: an error that names the file, or no difference at all.

    flipped bits, cut files, missing files, files exchanged or from elsewhere
      --open--> CorruptionError (and not a byte was changed) | exactly the same database

There is no third outcome: never a shorter history, never another error.
"""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halocline import CorruptionError, Database
from halocline.store import LocalFiles
from tests.clock import ManualClock
from tests.sim.history import TINY, Life, State, read_state, script

CLAIM_BYTES = 8
PAGE_BYTES = 160
NAMED = re.compile(r"log/\d{8}\.log|published")


class Damaged:
    """A database directory that can be broken and mended again."""

    def __init__(self, root: Path, *, closed: bool, seed: int = 7) -> None:
        self.root = root
        life = Life(LocalFiles(root), seed=seed)
        script(life)
        if closed:
            life.close()
        self.state: State = life.states[-1]
        self.stamp = life.stamps[-1]
        self.whole = self._read()
        if not closed:
            # As a killed process leaves it: without the last record, with a tail of zeros.
            life.close()
            self.mend()

    def _read(self) -> dict[str, bytes]:
        return {
            file.relative_to(self.root).as_posix(): file.read_bytes()
            for file in sorted(self.root.rglob("*"))
            if file.is_file()
        }

    @property
    def logs(self) -> list[str]:
        """Log files in use; a spare has nothing to lose."""
        return [path for path, data in self.whole.items() if path.startswith("log/") and any(data)]

    def mend(self) -> None:
        shutil.rmtree(self.root)
        for path, data in self.whole.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self.root / path).write_bytes(data)

    def put(self, path: str, data: bytes | None) -> None:
        (self.root / path).unlink()
        if data is not None:
            (self.root / path).write_bytes(data)

    def outcome(self, label: str, *, read_only: bool = False) -> str:
        """Open it: the path that the CorruptionError names, or "" when nothing is missing."""
        before = self._read()
        damage = None
        try:
            with self._open(read_only) as db:
                assert read_state(db) == self.state, f"another history: {label}"
                assert db.visible_ts == self.stamp, f"another history: {label}"
                assert not db.check(), label
        except CorruptionError as error:
            damage = error
        if damage is None:
            return ""
        after = self._read()
        for found in (before, after):
            # In front of the position stands the claim, which every opening for writing draws.
            page = found.get("published", b"")[CLAIM_BYTES:]
            found["published"] = page.ljust(PAGE_BYTES - CLAIM_BYTES, b"\0")
        changed = {path for path in before | after if before.get(path) != after.get(path)}
        assert changed <= {"LOCK"}, f"{changed} changed by an opening that failed: {label}"
        assert NAMED.fullmatch(damage.path), f"{damage} names no file: {label}"
        return damage.path

    def _open(self, read_only: bool) -> Any:
        return Database(
            LocalFiles(self.root),
            str(self.root),
            read_only=read_only,
            retention="30s",
            options=TINY,
            clock=ManualClock(9, wall_us=1_800_000_000_000_000),
        )


@pytest.fixture(params=["closed", "killed"])
def damaged(request: pytest.FixtureRequest, memory_path: Path) -> Iterator[Damaged]:
    damaged = Damaged(memory_path / "db", closed=request.param == "closed")
    yield damaged
    damaged.mend()
    assert damaged.outcome("mended again") == ""


def _flip(data: bytes, chance: random.Random, bits: int) -> tuple[bytes, list[int]]:
    content = bytearray(data)
    places = [chance.randrange(len(content) * 8) for _ in range(bits)]
    for place in places:
        content[place // 8] ^= 1 << place % 8
    return bytes(content), places


def _flip_many(damaged: Damaged, count: int, seed: int) -> Counter[bool]:
    chance = random.Random(seed)
    found: Counter[bool] = Counter()
    for number in range(count):
        path = chance.choice(damaged.logs)
        data, places = _flip(damaged.whole[path], chance, chance.choice([1, 1, 1, 2, 8]))
        if data == damaged.whole[path]:
            continue
        label = f"bits {places} of {path} flipped, seed {seed}, number {number}"
        read_only = number % 3 == 0
        damaged.put(path, data)
        named = damaged.outcome(label, read_only=read_only)
        found[bool(named)] += 1
        if named:
            damaged.put(path, damaged.whole[path])
        else:
            damaged.mend()
    return found


def test_flipped_bits_are_found_or_harmless(damaged: Damaged) -> None:
    found = _flip_many(damaged, 150, seed=11)
    print("found, harmless:", found[True], found[False])
    assert found[True] > 50


@pytest.mark.sim
def test_many_flipped_bits_are_found_or_harmless(damaged: Damaged, fresh_seed: int) -> None:
    _flip_many(damaged, 500, seed=fresh_seed)


def test_a_flip_in_every_byte_of_the_last_entries_is_found(damaged: Damaged) -> None:
    """The end of the log is where a damaged entry could pass for a torn one."""
    path = damaged.logs[-1]
    data = damaged.whole[path]
    end = len(data.rstrip(b"\0"))
    for at in range(max(512, end - 130), end):
        bit = at % 8
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        if damaged.whole[path][at] == 0:
            continue  # Padding between entries.
        damaged.put(path, bytes(flipped))
        label = f"bit {bit} of byte {at} of {path} flipped"
        assert damaged.outcome(label) == path, f"not found: {label}"
        damaged.put(path, data)


def test_published_page_damaged(damaged: Damaged) -> None:
    chance = random.Random(3)
    whole = damaged.whole["published"]
    for number in range(20):
        data, places = _flip(whole, chance, 1)
        damaged.put("published", data)
        named = damaged.outcome(f"bit {places} of published flipped", read_only=number % 2 == 0)
        assert named == ""
        damaged.mend()


def test_cut_files(damaged: Damaged) -> None:
    chance = random.Random(5)
    for path in damaged.logs:
        data = damaged.whole[path]
        end = len(data.rstrip(b"\0"))
        sizes = {chance.choice([0, 1, 511, 512]), end - 1, chance.randrange(end), len(data) - 1}
        for size in sorted(sizes):
            if not 0 <= size < len(data):
                continue
            damaged.put(path, data[:size])
            label = f"{path} cut from {len(data)} to {size} bytes"
            named = damaged.outcome(label)
            assert named or size >= end, f"not found: {label}"
            assert named in ("", path) or size < 512, f"{named} is named: {label}"
            damaged.mend()


def test_longer_files(damaged: Damaged) -> None:
    """Zeros behind the end are harmless; anything else must not count as entries."""
    for path in damaged.logs:
        tail = random.Random(path).choice([bytes(512), b"\xa5" * 512, b"x" * 37])
        damaged.put(path, damaged.whole[path] + tail)
        damaged.outcome(f"{path} with {len(tail)} more bytes {tail[:1]!r}")
        damaged.mend()


def test_missing_files(damaged: Damaged) -> None:
    for path in damaged.logs:
        for read_only in (False, True):
            damaged.put(path, None)
            label = f"{path} missing, read_only={read_only}"
            named = damaged.outcome(label, read_only=read_only)
            # A last file that is gone is missed by the published position.
            assert named == path, f"{named or 'nothing'} is named: {label}"
            damaged.mend()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_missing_beginning_is_never_a_shorter_history(memory_path: Path, read_only: bool) -> None:
    """Files that stand for themselves: the later ones do not need the first."""
    root = memory_path / "db"
    with Database(LocalFiles(root), "db", options=TINY) as db:
        db.create_table("a", {"id": int, "text": str}, primary_key="id")
        for key in range(4):
            with db.begin() as txn:
                txn.insert("a", {"id": key, "text": "x" * 300})
    with Database(LocalFiles(root), "db", options=TINY) as db:
        db.create_table("b", {"id": int}, primary_key="id")
    files = sorted((root / "log").iterdir())
    for file in files[:-1]:
        file.unlink()
    with pytest.raises(CorruptionError) as error:
        Database(LocalFiles(root), "db", options=TINY, read_only=read_only)
    assert error.value.path in {f"log/{file.name}" for file in files[:-1]}


@pytest.mark.parametrize("read_only", [False, True])
def test_several_missing_files(damaged: Damaged, read_only: bool) -> None:
    count = len(damaged.logs)
    for first, last in [(0, 2), (0, count - 1), (count - 2, count), (1, count), (0, count)]:
        for path in damaged.logs[first:last]:
            damaged.put(path, None)
        label = f"files {first + 1} to {last} of {count} missing"
        assert damaged.outcome(label, read_only=read_only), f"not found: {label}"
        damaged.mend()


def test_the_whole_log_folder_missing(damaged: Damaged) -> None:
    """The other names say that there was a database: a new one must not take its place."""
    shutil.rmtree(damaged.root / "log")
    assert damaged.outcome("no log folder")
    assert not (damaged.root / "log" / "00000001.log").exists()


def test_zeroed_files(damaged: Damaged) -> None:
    """A file full of zeros looks like one that was never used."""
    for path in damaged.logs:
        damaged.put(path, bytes(len(damaged.whole[path])))
        assert damaged.outcome(f"{path} full of zeros"), f"{path} full of zeros: not found"
        damaged.mend()


def test_a_lost_header_sector(damaged: Damaged) -> None:
    for path in damaged.logs:
        data = damaged.whole[path]
        damaged.put(path, bytes(512) + data[512:])
        label = f"{path} without its first sector"
        assert damaged.outcome(label), f"not found: {label}"
        damaged.mend()


def test_a_lost_sector_of_a_sealed_file(damaged: Damaged) -> None:
    """Zeros in the middle look torn, but a file that was complete cannot be torn."""
    for path in damaged.logs[:-1]:
        data = damaged.whole[path]
        end = len(data.rstrip(b"\0"))
        for at in range(512, end - 512, 512):
            damaged.put(path, data[:at] + bytes(512) + data[at + 512 :])
            label = f"sector {at} of {path} zeroed"
            assert damaged.outcome(label) == path, f"not found: {label}"
            damaged.put(path, data)


def test_exchanged_files(damaged: Damaged) -> None:
    chance = random.Random(6)
    for _ in range(20):
        one, other = chance.sample(damaged.logs, 2)
        damaged.put(one, damaged.whole[other])
        damaged.put(other, damaged.whole[one])
        label = f"{one} and {other} exchanged"
        assert damaged.outcome(label) in (one, other), f"not found: {label}"
        damaged.mend()


def test_copied_files(damaged: Damaged) -> None:
    for one, other in zip(damaged.logs, damaged.logs[1:], strict=False):
        damaged.put(other, damaged.whole[one])
        label = f"{other} replaced by {one}"
        assert damaged.outcome(label) == other, f"not found: {label}"
        damaged.mend()


def test_foreign_files(damaged: Damaged, memory_path: Path) -> None:
    """The same file of another database that has had the very same life."""
    foreign = Damaged(memory_path / "other", closed=True, seed=8)
    for path in damaged.logs:
        damaged.put(path, foreign.whole[path])
        label = f"{path} of another database"
        named = damaged.outcome(label)
        # If the first is foreign, it is the others that do not belong to it.
        assert named == path or (path == damaged.logs[0] and named == damaged.logs[1]), label
        damaged.mend()


def test_an_older_copy_of_the_last_file(memory_path: Path) -> None:
    """Restoring one file from a backup is a shorter history."""
    damaged = Damaged(memory_path / "db", closed=True)
    path = damaged.logs[-1]
    data = damaged.whole[path]
    end = len(data.rstrip(b"\0"))
    for cut in (end - 60, end - 300, 700):
        damaged.put(path, data[:cut] + bytes(len(data) - cut))
        label = f"{path} as it was at byte {cut}"
        assert damaged.outcome(label) == path, f"not found: {label}"
        damaged.mend()


def test_a_file_that_is_no_log_is_left_alone(damaged: Damaged) -> None:
    for name in ("notes.txt", "00000001.log.bak", "1.log", "00000099.tmp"):
        (damaged.root / "log" / name).write_bytes(b"mine")
    assert damaged.outcome("foreign names in the log folder") == ""
    assert (damaged.root / "log" / "notes.txt").read_bytes() == b"mine"
    assert (damaged.root / "log" / "00000001.log.bak").read_bytes() == b"mine"
