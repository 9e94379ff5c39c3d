"""What is measured without a peer, or brings its own: memory, opening, replay, and Spark.

    cases.py      two sides in turns, one ratio
    measured.py   one function each, which reports lines of its own

The functions are in the files that the imports name; here is how large each of them is.
"""

from __future__ import annotations

from bench import alters, budget, engine, hot, nodes, sparkcases, starting, tiers
from bench.harness import Measurement


def measurements(*, quick: bool) -> list[Measurement]:
    """Everything that has none."""
    local = [*_memory(quick), *_hot(quick), *_tiers(quick), *_alters(quick)]
    return [*local, *sparkcases.measurements(quick=quick)]


def _memory(quick: bool) -> list[Measurement]:
    tails = (2_500, 5_000, 10_000) if quick else (25_000, 50_000, 100_000)
    return [
        Measurement(
            name="start",
            title="Fresh processes: until a first row is in the database",
            measure=starting.starting,
            settings={"rounds": 5 if quick else 15},
        ),
        Measurement(
            name="replay",
            title="Replay at open, single-row commits",
            measure=engine.replay,
            settings={"tails": tails},
        ),
        Measurement(
            name="open",
            title="Opening from a checkpoint",
            measure=engine.opening,
            settings={
                "commits": 1_000 if quick else 10_000,
                "tables": 20 if quick else 100,
                "rounds": 5 if quick else 15,
            },
        ),
        Measurement(
            name="memory",
            title="Memory per row of L0",
            measure=engine.memory,
            # A little more than whole pages, so that nearly every row is in a frozen one.
            settings={
                "bulk_rows": 100_000 if quick else 500_000,
                "single_rows": 16_484 if quick else 65_636,
            },
        ),
    ]


def _hot(quick: bool) -> list[Measurement]:
    """Targets are shares of SQLite's throughput; ten rows have none, but nobody may starve."""
    found = []
    for shape, what, target in (
        ("counter", "One counter, read and written", 0.5),
        ("add", "One counter, hc.add", 1.2),
        ("ten", "Ten hot rows, two per transaction in random order", 0.0),
    ):
        for processes in (1,) if shape == "ten" else (1, 4):
            who = f"{processes} processes x 8 threads" if processes > 1 else "8 threads"
            settings = {
                "name": shape,
                "processes": processes,
                "target": target,
                "rounds": 2 if quick else 7,
                "seconds": 1.0 if quick else 2.0,
            }
            found.append(
                Measurement(
                    name=f"hot-{shape}-{8 * processes}",
                    title=f"{what}, durable, {who}",
                    measure=hot.hot,
                    settings=settings,
                )
            )
    return found


def _tiers(quick: bool) -> list[Measurement]:
    return [
        Measurement(
            name="point-object",
            title="Point get out of objects",
            measure=tiers.point_object,
            settings={
                "rows": 1_000_000 if quick else 10_000_000,
                "reads": 500 if quick else 5_000,
            },
        ),
        Measurement(
            name="writers-beside",
            title="Durable commits beside the mover and an endless query",
            measure=tiers.writers_beside,
            settings={
                "rows": 1_000_000 if quick else 10_000_000,
                "seconds": 2.0 if quick else 8.0,
            },
        ),
        Measurement(
            name="memory-budget",
            title="Memory while a table outgrows its budget",
            measure=budget.memory_budget,
            settings={
                "budget_mib": 256,
                "times": 4 if quick else 20,
                "upserts": 5 if quick else 40,
                "singles": 500 if quick else 5_000,
            },
        ),
        Measurement(
            name="nodes",
            title="Other processes on the same database",
            measure=nodes.nodes,
            settings={"rounds": 2 if quick else 7, "seconds": 1.0 if quick else 2.0},
        ),
        Measurement(
            name="node-tls",
            title="Another process, over TLS on loopback",
            measure=nodes.tls,
            settings={"rounds": 2 if quick else 7},
        ),
        Measurement(
            name="node-large",
            title="Other processes beside a large table",
            measure=nodes.large,
            settings={
                "rows": 1_000_000 if quick else 10_000_000,
                "rounds": 2 if quick else 7,
            },
        ),
    ]


def _alters(quick: bool) -> list[Measurement]:
    rows = 1_000_000 if quick else 10_000_000
    return [
        Measurement(
            name="alter",
            title="Alter of a large table, durable, against a commit of one row",
            measure=alters.alter,
            settings={"rows": rows, "rounds": 40 if quick else 200},
        ),
        Measurement(
            name="alter-scan",
            title="SQL over a table of four schema versions against one of the newest",
            measure=alters.scan,
            settings={"rows": rows, "rounds": 5 if quick else 21},
        ),
    ]
