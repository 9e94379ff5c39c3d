"""The change feed of a table into plain Parquet files, for tools that know nothing of this engine.

    python examples/streams/changes_to_parquet.py [DIRECTORY]

The stream begins with the rows that are there and goes on with every insert, update and delete.
Stopped and started again, it goes on where it was: nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import halocline as hc
from halocline import spark as hs


def main(home: Path) -> list[tuple[int, str, str]]:
    """Export twice, with changes in between; returns what the files then say."""
    session = hs.session()
    with hc.open(home / "shop") as db:
        db.create_table("orders", {"id": int, "status": str}, primary_key="id")
        with db.begin() as txn:
            txn.insert("orders", [{"id": number, "status": "new"} for number in range(3)])
        export(session, db.path, home)
        with db.begin() as txn:
            txn.update("orders", 1, {"status": "paid"})
            txn.delete("orders", 2)
        export(session, db.path, home)
    feed = session.read.parquet(str(home / "feed")).orderBy("_commit_ts", "id", "_change")
    feed.show()
    return [(row["id"], row["status"], row["_change"]) for row in feed.collect()]


def export(session: object, path: str, home: Path) -> None:
    """Everything that is new, as files of their own."""
    changes = (
        session.readStream.format("halocline")  # type: ignore[attr-defined]
        .option("path", path)
        .option("table", "orders")
        .load()
    )
    query = (
        changes.writeStream.format("parquet")
        .option("path", str(home / "feed"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
