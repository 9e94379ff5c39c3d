"""Staged files: what the tasks of a Spark job leave for the process that commits it.

    <database>/staging/<job>.<until>.lease    empty: the job may need its files until then, wall us
                       <job>.<any>.arrow      rows on their way to a commit
                       <job>.plan             what one run of a query reads; a draft of it: .draft

    task    lease --> files --> its message          commit    lease --> reads the files --> end
    owner   GC: files of jobs without a lease that runs; the leases go first

A staged file is no object: no table refers to it and no snapshot needs it. A job that needs one
that is gone fails as a whole and is run again, so a lease that ends too early costs work, never
rows. No process that writes such files is sure to see the end of the job, hence leases: each task
that stages something takes one, and the commit another.

Why nothing is taken from a job that runs. Its lease is there before its first file. We list files
first and leases afterwards: a file that was listed had a lease then, and it is still there unless
it has run out. Files that appear after the first listing are left to the next sweep.

A clock that jumps ahead ends leases early. Files with other names are not ours and stay.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from halocline.checkpoint.leases import lease_end_us
from halocline.clock import Clock
from halocline.store import Files

FOLDER: Final = "staging"
LEASE: Final = ".lease"
ENDINGS: Final = (".arrow", ".plan", ".draft")


def hold_staged(root: str, clock: Clock, job: str, seconds: float) -> Path:
    """Keep the files of a job from being removed for this long; returns their folder."""
    assert job
    assert "." not in job
    folder = Path(root, FOLDER)
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / f"{job}.{lease_end_us(clock, seconds)}{LEASE}").touch(mode=0o600)
    return folder


def end_staged(files: Files, job: str) -> tuple[int, int]:
    """Remove the leases of a job that is over, then its files; how many, and their bytes."""
    names = [name for name in files.list(FOLDER) if _job_of(name) == job]
    return _remove(files, names)


def sweep_staged(files: Files, clock: Clock) -> tuple[int, int]:
    """Remove what jobs have left whose leases are over: how many files, and their bytes."""
    listed = files.list(FOLDER)
    if not listed:
        return 0, 0
    leases = [name for name in files.list(FOLDER) if name.endswith(LEASE)]
    now_us = clock.wall_us()
    live = {_job_of(name) for name in leases if _until(name) > now_us}
    lapsed = [name for name in leases if _until(name) <= now_us]
    dead = [name for name in listed if name.endswith(ENDINGS) and _job_of(name) not in live]
    return _remove(files, [*lapsed, *dead])


def _remove(files: Files, names: list[str]) -> tuple[int, int]:
    count = size_bytes = 0
    for name in sorted(names, key=lambda name: not name.endswith(LEASE)):
        # Gone already: somebody else sweeps, too. What cannot be removed is tried again next time.
        with suppress(OSError):
            size = 0 if name.endswith(LEASE) else _size(files, f"{FOLDER}/{name}")
            files.remove(f"{FOLDER}/{name}")
            count += not name.endswith(LEASE)
            size_bytes += size
    return count, size_bytes


def _size(files: Files, path: str) -> int:
    file = files.open_read(path)
    try:
        return file.size()
    finally:
        file.close()


def _job_of(name: str) -> str:
    return name.partition(".")[0]


def _until(name: str) -> int:
    """When a lease ends; one whose name makes no sense has ended."""
    text = name.removesuffix(LEASE).partition(".")[2]
    return int(text) if text.isascii() and text.isdecimal() else 0
