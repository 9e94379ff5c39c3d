"""A stream of Spark's into a table, queried while it runs: here, and in Spark through a live view.

    python examples/streams/sink_and_query.py [DIRECTORY]

Each micro-batch is one commit, and a query that is stopped and started again writes none of them
twice. The table is an ordinary one all the while: transactions, point reads and SQL see every batch
as soon as it has committed, and so does a view in Spark, each time it is asked.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import halocline as hc
from halocline import spark as hs

CLICKS = 200
BATCHES = 3


def main(home: Path) -> list[int]:
    """Three batches, with queries between; returns how many clicks each of them saw."""
    session = hs.session()
    seen = []
    with hc.open(home / "site") as db:
        db.create_table("clicks", {"id": int, "page": int}, primary_key="id")
        session.sql(
            "create or replace temporary view clicks using halocline "
            f"options (path '{db.path}', table 'clicks')"
        )
        for batch in range(BATCHES):
            # New files arrive, the stream takes what is new ...
            rows = session.range(batch * CLICKS, (batch + 1) * CLICKS)
            rows.selectExpr("id", "id % 7 as page").write.mode("append").parquet(str(home / "new"))
            query = (
                session.readStream.schema("id bigint, page bigint")
                .parquet(str(home / "new"))
                .writeStream.format("halocline")
                .option("path", db.path)
                .option("table", "clicks")
                .option("checkpointLocation", str(home / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            # ... and everybody sees it.
            ours = db.table("clicks").count()
            (there,) = session.sql("select count(*) from clicks").collect()[0]
            print(f"batch {batch + 1}: {ours} clicks here, {there} in Spark")
            seen += [ours, there]
    return seen


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
