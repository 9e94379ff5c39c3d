"""A Spark program of its own, for tests that kill it: the feed of `orders` into `events`.

python driver.py DATABASE CHECKPOINT SINCE forever|available
"""

from __future__ import annotations

import sys

from halocline import spark as hs

SHOWN = ("id", "name", "_change as kind", "_commit_ts as ts")


def main(path: str, checkpoint: str, since: str, how: str) -> None:
    session = hs.session("local[2]", **{"spark.driver.memory": "1g"})
    feed = session.readStream.format("halocline").options(
        path=path, table="orders", startingTimestamp=since, maxCommitsPerTrigger=1
    )
    sink = feed.load().selectExpr(*SHOWN).writeStream.format("halocline")
    sink = sink.options(path=path, table="events", checkpointLocation=checkpoint)
    if how == "available":
        sink = sink.trigger(availableNow=True)
    query = sink.start()
    print("started", flush=True)
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
