"""A stream of Spark's into a table, queried here while it runs.

    python examples/streams/sink_and_query.py [DIRECTORY]

Spark counts clicks per page and writes the counts as they change; each micro-batch is one commit,
and a query that is stopped and started again writes none of them twice. The table is an ordinary
one all the while: transactions, point reads and SQL see every batch as soon as it has committed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import halocline as hc
from halocline import spark as hs

CLICKS = 200
BATCHES = 3


def main(home: Path) -> int:
    """Three batches, with a query between; returns how many clicks were counted."""
    session = hs.session()
    with hc.open(home / "site") as db:
        db.create_table("pages", {"page": int, "clicks": int}, primary_key="page")
        clicks = home / "clicks"
        for batch in range(BATCHES):
            # New files arrive ...
            rows = session.range(batch * CLICKS, (batch + 1) * CLICKS).selectExpr("id % 7 as page")
            rows.write.mode("append").parquet(str(clicks))
            # ... the stream takes what is new ...
            counts = (
                session.readStream.schema("page bigint")
                .parquet(str(clicks))
                .groupBy("page")
                .count()
                .withColumnRenamed("count", "clicks")
            )
            query = (
                counts.writeStream.format("halocline")
                .option("path", db.path)
                .option("table", "pages")
                .option("onConflict", "upsert")
                .option("checkpointLocation", str(home / "checkpoint"))
                .outputMode("update")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            # ... and everybody sees it.
            total = db.sql("select sum(clicks) as n from pages").column("n")[0].as_py()
            print(f"batch {batch + 1}: {int(total)} clicks on {db.table('pages').count()} pages")
    return int(total)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
