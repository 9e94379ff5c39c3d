"""Streams on real Spark: each change once, whatever dies in between."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline import spark as hs
from tests.spark.sources import COLUMNS, OPTIONS, grow, plain, source

pytest.importorskip("pyspark")

from tests.spark import faults

EVENTS = {"id": int, "name": str, "kind": str, "ts": int}
SHOWN = ("id", "name", "_change as kind", "_commit_ts as ts")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop"
    with hc.open(path, options=OPTIONS) as db:
        db.create_table("orders", COLUMNS, primary_key="id")
        db.create_table("copy", COLUMNS, primary_key="id")
        db.create_table("events", EVENTS)
    return path


def finish(writer: Any, checkpoint: Path) -> Any:
    """Run a stream over what there is now."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def events(path: Path) -> Counter[Any]:
    with hc.open(path, read_only=True) as db:
        rows = db.table("events").to_arrow().to_pylist()
        return Counter((r["id"], r["name"], r["kind"], r["ts"]) for r in rows)


def feed(path: Path, since: int) -> Counter[Any]:
    with hc.open(path, read_only=True) as db:
        rows = db.changes("orders", since=since).to_pylist()
        return Counter((r["id"], r["name"], r["_change"], r["_commit_ts"]) for r in rows)


def register(spark: Any) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(faults)
    spark.dataSource.register(faults.FaultySource)


def run_with_faults(
    spark: Any, shop: Path, tmp_path: Path, chance: random.Random, plan: dict[int, str], step: int
) -> tuple[int, int]:
    """Feed of `orders` into `events`, one commit a batch, until everything has arrived; returns
    where the feed began and how often something died. `plan` says in which batches."""
    register(spark)
    folder = tmp_path / "faults"
    folder.mkdir()
    with hc.open(shop, options=OPTIONS) as db:
        since = db.visible_ts
    died = made = 0
    while made <= max(plan):
        with hc.open(shop, options=OPTIONS) as db:
            grow(db, chance, step)
            db.gc()
        for batch in range(made, made + step):
            phase = plan.get(batch, "")
            if phase:
                place = "next" if phase == "write" else str(batch)
                (folder / f"{place}-{phase}").touch()
        made += step
        limits = {"startingTimestamp": since, "maxCommitsPerTrigger": 1}
        while True:
            stream = source(spark.readStream, shop, **limits).load().selectExpr(*SHOWN)
            writer = stream.writeStream.format("halocline_faulty")
            writer = writer.options(path=str(shop), table="events", faults=str(folder))
            try:
                finish(writer, tmp_path / "checkpoint")
                break
            except Exception:
                died += 1
                if died > 2 * len(plan):
                    raise
    return since, died


@pytest.mark.more
def test_every_change_arrives_once_whatever_dies(spark: Any, shop: Path, tmp_path: Path) -> None:
    plan = {0: "before", 1: "write", 2: "after"}
    since, died = run_with_faults(spark, shop, tmp_path, random.Random(11), plan, 3)
    assert died == 3
    assert events(shop) == feed(shop, since)


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(5))
def test_twenty_batches(spark: Any, shop: Path, tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    plan = {batch: chance.choice(faults.PHASES) for batch in range(1, 20, 4)}
    since, died = run_with_faults(spark, shop, tmp_path, chance, plan, 10)
    assert died >= 2, "of tasks that are told to die in one run, all may do so at once"
    assert events(shop) == feed(shop, since)


def test_a_feed_replayed_onto_an_empty_table_is_the_table(
    spark: Any, shop: Path, tmp_path: Path
) -> None:
    with hc.open(shop, options=OPTIONS) as db:
        grow(db, random.Random(3), 3)
    for seed in (4, 5):
        stream = source(spark.readStream, shop, maxRowsPerTrigger=150).load()
        writer = source(stream.writeStream, shop, "copy", onConflict="changes")
        finish(writer, tmp_path / "checkpoint")
        with hc.open(shop, options=OPTIONS) as db:
            assert plain(db.table("copy").to_arrow().to_pylist()) == plain(
                db.table("orders").to_arrow().to_pylist()
            )
            grow(db, random.Random(seed), 2)


@pytest.mark.parametrize("by_path", [False, True], ids=["handle", "path"])
def test_foreach_batch_takes_each_batch_once(
    spark: Any, shop: Path, tmp_path: Path, by_path: bool
) -> None:
    with hc.open(shop, options=OPTIONS) as db:
        with db.begin() as txn:
            txn.insert("orders", [{"id": n, "name": f"n{n}"} for n in range(20)])
        stream = source(spark.readStream, shop).load().drop("_change", "_commit_ts")
        checkpoint = tmp_path / "checkpoint"
        write = hs.foreach_batch(shop if by_path else db, "copy")
        finish(stream.writeStream.foreachBatch(write), checkpoint)
        first = db.visible_ts
        assert db.table("copy").count() == 20
        # As if Spark had died before it could write down that the batch was done.
        shutil.rmtree(checkpoint / "commits")
        assert finish(stream.writeStream.foreachBatch(write), checkpoint).lastProgress
        assert db.visible_ts == first
        with pytest.raises(hc.UsageError, match="foreachBatch"):
            write(spark.range(1), 0)


def test_an_offset_that_has_expired_is_told(spark: Any, shop: Path, tmp_path: Path) -> None:
    with hc.open(shop, options=OPTIONS, retention="0s") as db:
        grow(db, random.Random(8), 2)
        old = db.visible_ts
        grow(db, random.Random(9), 2)
        db.gc()
    stream = source(spark.readStream, shop, startingTimestamp=old).load().selectExpr(*SHOWN)
    with pytest.raises(Exception, match="SnapshotExpiredError"):
        finish(source(stream.writeStream, shop, "events"), tmp_path / "checkpoint")


@pytest.mark.more
def test_all_of_it_works_while_the_database_is_open(
    spark: Any, shop: Path, tmp_path: Path, holder: Any
) -> None:
    """Reads, writes and streams, beside this process or another one that has the database."""
    holder(shop)
    chance = random.Random(12)
    with hc.open(shop, options=OPTIONS) as db:
        for _ in range(2):
            grow(db, chance, 2)
            stream = source(spark.readStream, shop).load()
            writer = source(stream.writeStream, shop, "copy", onConflict="changes")
            finish(writer, tmp_path / "checkpoint")
            expected = plain(db.table("orders").to_arrow().to_pylist())
            assert plain(db.table("copy").to_arrow().to_pylist()) == expected
            read = source(spark.read, shop, "copy").load()
            assert plain(read.toArrow().to_pylist()) == expected
        more = spark.range(1000, 1500).selectExpr("id", "'spark' as name")
        source(more.write, shop).mode("append").save()
        assert db.sql("select count(*) from orders where name = 'spark'")[0][0].as_py() == 500
        with db.begin() as txn:
            assert txn.get("orders", 1499)["name"] == "spark"
        assert db.check() == []


@pytest.fixture(params=["here", "elsewhere"])
def holder(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Who has the database: nobody but the test, or a process that was there before it."""
    started: list[subprocess.Popen[str]] = []

    def hold(path: Path) -> None:
        if request.param == "elsewhere":
            code = "import sys, halocline as hc; db = hc.open(sys.argv[1]); print(); input()"
            command = [sys.executable, "-c", code, str(path)]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            assert process.stdout is not None
            process.stdout.readline()
            started.append(process)

    yield hold
    for process in started:
        process.communicate("\n", timeout=60)
        assert process.returncode == 0


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(6))
def test_a_driver_that_is_killed_at_any_moment(shop: Path, tmp_path: Path, seed: int) -> None:
    """The whole of Spark dies while the table goes on changing."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    with hc.open(shop, options=OPTIONS) as db:
        since = db.visible_ts
        arguments = [str(shop), str(tmp_path / "checkpoint"), str(since)]
        program = start_driver([*arguments, "forever"])
        began = time.monotonic()
        moment = chance.uniform(1.0, 8.0)
        while time.monotonic() - began < moment:
            grow(db, chance, 1)
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        assert program.stdout is not None
        program.stdout.close()
        program = start_driver([*arguments, "available"])
        program.communicate(timeout=600)
        assert program.returncode == 0
        assert events(shop) == feed(shop, since)
        assert db.check() == []


def start_driver(arguments: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("driver.py")), *arguments]
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=Path.cwd()
    )
    assert program.stdout is not None
    assert "started" in program.stdout.readline()
    return program
