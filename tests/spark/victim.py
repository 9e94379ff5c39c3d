"""A driver that loads a table and is killed on the way: python -m tests.spark.victim <db> <stage>

writing        as soon as a task has written a file
committing     when the commit record is in the log's buffer and nobody has been told
acknowledged   when the commit has been acknowledged
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import halocline as hc
from halocline import spark as hs

ROWS, TOKEN = 6_000, "night 1"
OPTIONS = hc.Options(object_rows=512, row_group_rows=256, page_rows=128, background=False)


def rows(session: Any) -> Any:
    """Half of the keys are new, the others update what is there."""
    return session.range(ROWS).selectExpr("id", "'job' as name", "id * 2 as amount")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_when_files_appear(folder: Path) -> None:
    known = set(folder.rglob("*.parquet"))
    while not set(folder.rglob("*.parquet")) - known:
        time.sleep(0.001)
    die()


def die_at_the_log(db: Any) -> None:
    committer = db.core.committer
    apply = committer.log_prepared

    def applied(*given: Any) -> Any:
        apply(*given)
        die()

    committer.log_prepared = applied


def main(path: str, stage: str) -> None:
    session = hs.session("local[2]", **{"spark.driver.memory": "1g"})
    given = rows(session)
    db = hc.open(path, options=OPTIONS)
    if stage == "writing":
        watch = Path(path) / "objects"
        threading.Thread(target=die_when_files_appear, args=(watch,), daemon=True).start()
    if stage == "committing":
        die_at_the_log(db)
    hs.load(given, db, "orders", on_conflict="upsert", token=TOKEN)
    die()


if __name__ == "__main__":
    main(*sys.argv[1:])
