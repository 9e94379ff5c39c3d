"""What is measured on Spark: reading, altered tables, compaction, write jobs. In warmed sessions.

Peers are Spark's own reader and writer on the same rows; limits are on the ratio of times.
"""

from __future__ import annotations

from bench import alters, sparkcompact, sparkread, sparkwrite
from bench.harness import Measurement


def measurements(*, quick: bool) -> list[Measurement]:
    """Through Spark next to Spark's own reader and writer; limits are on the ratio of times."""
    scale, rounds = (0.1, 2) if quick else (1, 5)
    return [
        Measurement(
            name="spark-scan",
            title="Spark, lineitem through hs.table against read.parquet on the same files",
            measure=sparkread.scan,
            settings={"scale": scale, "rounds": rounds},
        ),
        Measurement(
            name="spark-planning",
            title="Spark, planning a table of many objects",
            measure=sparkread.planning,
            settings={"objects": 1000, "tombstones": 100_000},
        ),
        Measurement(
            name="spark-tpch",
            title="Spark, 22 queries of TPC-H through hs.attach against views over the same files",
            measure=sparkread.queries,
            settings={"scale": scale, "rounds": 1 if quick else 3},
        ),
        Measurement(
            name="spark-compact",
            title="Compaction on Spark: 100 overlapping objects, 5 % dead",
            measure=sparkcompact.spark_compact,
            settings={
                "rows": 1_000_000 if quick else 10_000_000,
                "objects": 100,
                "rounds": 1 if quick else 3,
            },
        ),
        Measurement(
            name="alter-spark",
            title="Spark, a table of four schema versions against one of the newest",
            measure=alters.spark,
            settings={"rows": 1_000_000 if quick else 10_000_000, "rounds": 3 if quick else 9},
        ),
        *sparkwrite.measurements(quick=quick),
    ]
