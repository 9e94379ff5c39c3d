"""Objects that tasks of streams and upserts make: once, whole, and right beside other writers.

No session is needed: writers, tasks and commits run as Spark would run them.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline.errors import ConflictError, DuplicateKeyError, NotFoundError, SchemaError
from tests.spark.sources import OPTIONS

pytest.importorskip("pyspark")

from halocline.spark.types import spark_schema
from pyspark_halocline import DefaultSource, sink, travel
from pyspark_halocline.travel import join_upsert

COLUMNS = {"id": int, "name": str, "note": str}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows are many."""
    monkeypatch.setattr(travel, "MESSAGE_BYTES", 1200)
    monkeypatch.setattr(sink, "CHUNK_ROWS", 40)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db", options=OPTIONS, retention="0s") as db:
        db.create_table("orders", COLUMNS, primary_key="id")
        db.create_table("events", COLUMNS)
        yield db
        if not db.core.closed:
            assert db.check() == []


def frame(ids: Any, name: str = "new") -> pa.Table:
    ids = list(ids)
    notes = [f"{name} {key} " + "x" * 40 for key in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [name] * len(ids), "note": notes})


def writer_of(db: hc.Database, rows: pa.Table, table: str = "orders", **options: Any) -> Any:
    """The writer of a stream. Spark makes another one for the commit."""
    source = DefaultSource({"path": db.path, "table": table, **options})
    return pickle.loads(pickle.dumps(source.streamWriter(spark_schema(rows.schema), False)))


def tasks(writer: Any, rows: pa.Table, count: int = 2) -> list[Any]:
    """What the tasks of a micro-batch tell."""
    size = -(-rows.num_rows // count)
    parts = [rows.slice(start, size) for start in range(0, rows.num_rows, size)]
    messages = [pickle.loads(pickle.dumps(writer.write(iter(p.to_batches())))) for p in parts]
    for message in messages:
        message.query = "query"
    return messages


def put(db: hc.Database, rows: pa.Table, batch: int, table: str = "orders", **options: Any) -> Any:
    messages = tasks(writer_of(db, rows, table, **options), rows)
    writer_of(db, rows, table, **options).commit(messages, batch)
    return messages


def names(db: hc.Database) -> dict[int, str]:
    return {row["id"]: row["name"] for row in db.table("orders").to_arrow().to_pylist()}


def files(db: hc.Database) -> set[str]:
    return {file.name for file in Path(db.path, "objects").rglob("*.parquet")}


def test_each_micro_batch_is_taken_once(db: hc.Database) -> None:
    for table in ("orders", "events"):
        first = put(db, frame(range(200)), 0, table)
        made = [one.key for message in first for one in message.made]
        assert len({key.partition("-")[0] for key in made}) == 2, "a job for each task"
        assert not db.core.engine.jobs, "which ends with the commit"
        before = db.visible_ts
        put(db, frame(range(200)), 0, table)  # Spark had not written down that it was done
        assert db.table(table).count() == 200
        assert db.visible_ts == before
        assert not db.core.engine.jobs
    db.gc()
    assert len(files(db)) == sum(len(db.table(table).files()) for table in ("orders", "events"))


def test_few_rows_of_a_stream_stay_rows(db: hc.Database) -> None:
    before = db.core.engine.last_job_id
    messages = put(db, frame(range(3)), 0)
    assert all(message.data and not message.made for message in messages)
    assert not db.table("orders").files()
    assert db.core.engine.last_job_id == before, "nobody was asked for anything"
    assert db.table("orders").count() == 3


def test_rows_that_take_no_room_become_objects_in_time(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(travel, "MESSAGE_BYTES", 1 << 30)
    monkeypatch.setattr(travel, "MESSAGE_ROWS", 100)
    (message,) = tasks(writer_of(db, frame([1]), "events"), frame([1] * 1000), 1)
    assert message.made
    writer_of(db, frame([1]), "events").commit([message], 0)
    assert db.table("events").count() == 1000


def test_attempts_share_no_file_and_only_the_one_that_won_counts(db: hc.Database) -> None:
    rows = frame(range(100))
    writer = writer_of(db, rows)
    (lost,), (won,) = tasks(writer, rows, 1), tasks(writer, rows, 1)
    writer.abort([lost], 0)
    writer_of(db, rows).commit([won], 0)
    (late,) = tasks(writer, rows, 1)
    keys = [{one.key for one in message.made} for message in (lost, won, late)]
    assert not keys[0] & keys[1]
    assert not keys[2] & (keys[0] | keys[1])
    db.gc()
    assert len(files(db)) == sum(map(len, keys)), "whoever still runs has a lease"
    assert {Path(file).name for file in db.table("orders").files()} == {
        Path(key).name for key in keys[1]
    }


def test_rows_that_travel_as_files_go_with_the_commit_of_their_stream(db: hc.Database) -> None:
    messages = put(db, frame(range(200)).drop_columns("note"), 0, onConflict="upsert")
    assert all(message.files and not message.made for message in messages)
    assert db.table("orders").count() == 200
    assert not db.core.engine.jobs
    db.gc()
    assert files(db) == {Path(file).name for file in db.table("orders").files()}


def test_tasks_on_other_machines_ask_nobody(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = frame(range(200))
    writer = writer_of(db, rows)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    messages = tasks(writer, rows)
    assert all(message.data and not message.made for message in messages)
    writer_of(db, rows).commit(messages, 0)
    assert db.table("orders").count() == 200


@pytest.mark.parametrize("closed", [False, True])
def test_upserts_update_and_insert(db: hc.Database, closed: bool) -> None:
    with db.begin() as txn:
        txn.insert("orders", frame(range(150), "old"))  # objects
    with db.begin() as txn:
        txn.insert("orders", frame(range(150, 170), "old").to_pylist())  # memory
        txn.delete("orders", 3)
    since = db.visible_ts
    shuffled = list(range(100, 300))
    random.Random(1).shuffle(shuffled)
    if closed:
        db.close()
    rows = frame([*shuffled, 3])
    messages = tasks(writer_of(db, rows, onConflict="upsert"), rows, 3)
    few = tasks(writer_of(db, rows, onConflict="upsert"), frame([5]), 1)
    assert all(message.made for message in messages)
    assert few[0].data
    writer_of(db, rows, onConflict="upsert").commit([*messages, *few], 7)
    with hc.open(db.path, options=OPTIONS) as again:
        expected = {n: "new" if n >= 100 or n in (3, 5) else "old" for n in range(300)}
        assert names(again) == expected
        kinds = Counter(again.changes("orders", since=since).column("_change").to_pylist())
        assert kinds == {"insert": 131, "update_before": 71, "update_after": 71}
        assert not again.core.engine.jobs
        again.compact("orders")
        assert names(again) == expected
        assert again.check() == []


def test_a_key_that_comes_twice_is_told_and_nothing_is_left(db: hc.Database) -> None:
    with db.begin() as txn:
        txn.insert("orders", frame(range(50), "old"))
    before = names(db)
    for ids, keys in (([*range(100), 4], [4]), ([*range(60), 7, *range(60, 99)], [7])):
        for mode in ("upsert", "error"):
            shown = [key + 100 * (mode == "error") for key in keys]
            rows = frame(one + 100 * (mode == "error") for one in ids)
            with pytest.raises(DuplicateKeyError) as caught:
                put(db, rows, 0, onConflict=mode)
            assert caught.value.inside_input
            assert caught.value.keys == shown
            assert names(db) == before
            assert not db.core.engine.jobs
    db.gc()
    assert len(files(db)) == len(db.table("orders").files())


def test_what_a_write_that_failed_has_made_is_collected(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_halocline.travel.FILE_BYTES", 4000)
    with pytest.raises(SchemaError, match="id"):
        put(db, pa.concat_tables([frame(range(400)), frame([None])]), 0, onConflict="upsert")
    assert files(db)
    writer = writer_of(db, frame([1]), onConflict="upsert")
    messages = tasks(writer, frame(range(200)))
    db.drop_table("orders")
    with pytest.raises(NotFoundError):
        writer.commit(messages, 0)
    assert not db.core.engine.jobs
    db.gc()
    assert not files(db)


def test_a_key_of_texts_that_comes_twice(db: hc.Database) -> None:
    db.create_table("words", {"word": str, "note": str}, primary_key="word")
    words = [f"word {n}" for n in range(100)]
    rows = pa.table({"word": [*words, "word 4"], "note": ["x" * 50] * 101})
    with pytest.raises(DuplicateKeyError, match="word 4"):
        put(db, rows, 0, "words", onConflict="upsert")
    put(db, rows.slice(0, 100), 1, "words", onConflict="upsert")
    put(db, rows.slice(10), 2, "words", onConflict="upsert")
    assert db.table("words").count() == 100


@pytest.mark.parametrize("seed", range(6))
def test_others_never_make_an_upsert_fail(db: hc.Database, seed: int) -> None:
    """It behaves as if it had run at its commit, whatever came after its snapshot."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    model = dict.fromkeys(range(0, 200, 2), "old")
    with db.begin() as txn:
        txn.insert("orders", frame(model, "old"))
    for batch in range(4):
        ids = chance.sample(range(300), 120)
        rows = frame(ids, f"batch {batch}")
        messages = tasks(writer_of(db, rows, onConflict="upsert"), rows, 2)
        made = [one for message in messages for one in message.made]
        rest = list(travel.travelled(db.core.engine.shelf.objects, messages))
        txn = db.begin()
        join_upsert(txn, "orders", made, rest)
        for _ in range(chance.choice([0, 1, 5])):
            beside(db, model, chance)
        model |= dict.fromkeys(ids, f"batch {batch}")
        txn.commit()
        assert names(db) == model
        assert db.check() == []


def beside(db: hc.Database, model: dict[int, str], chance: random.Random) -> None:
    """Somebody else's transaction: some rows, or many, or the mover."""
    what = chance.choice(["few", "many", "delete", "flush"])
    free = [key for key in range(300) if key not in model]
    with db.begin() as txn:
        if what == "few":
            for key in chance.sample(sorted(model), 5):
                txn.update("orders", key, {"name": "other"})
                model[key] = "other"
            for key in chance.sample(free, min(len(free), 5)):
                txn.insert("orders", {"id": key, "name": "other"})
                model[key] = "other"
        elif what == "many":
            ids = chance.sample(range(300), 150)
            txn.upsert("orders", frame(ids, "bulk"))
            model |= dict.fromkeys(ids, "bulk")
        elif what == "delete":
            for key in chance.sample(sorted(model), 10):
                txn.delete("orders", key)
                del model[key]
    if what == "flush":
        db.flush("orders")


def test_truncate_wins_over_an_upsert_that_met_rows(db: hc.Database) -> None:
    with db.begin() as txn:
        txn.insert("orders", frame(range(150), "old"))
    messages = tasks(writer_of(db, frame([1]), onConflict="upsert"), frame(range(100, 200)))
    made = [one for message in messages for one in message.made]
    txn = db.begin()
    join_upsert(txn, "orders", made, [])
    with db.begin() as other:
        other.truncate("orders")
    with pytest.raises(ConflictError, match="truncated"):
        txn.commit()
    writer_of(db, frame([1]), onConflict="upsert").commit(messages, 0)  # runs once more
    assert db.table("orders").count() == 100


@pytest.mark.parametrize("mode", ["upsert", "error", "ignore"])
def test_a_write_goes_on_when_its_table_is_altered_meanwhile(db: hc.Database, mode: str) -> None:
    put(db, frame(range(10), "old"), 1)
    rows = frame(range(10, 100) if mode == "error" else range(5, 100))
    messages = tasks(writer_of(db, rows, onConflict=mode), rows)
    started = writer_of(db, rows, onConflict=mode)
    db.alter_table("orders", add={"level": hc.Column(int, default=7)}, rename={"name": "title"})
    db.run(lambda txn: txn.update("orders", 5, {"level": 8}))
    started.commit(messages, 2)
    found = db.table("orders").to_arrow().sort_by("id").to_pylist()
    assert [row["id"] for row in found] == list(range(100))
    first = {"upsert": 5, "error": 10, "ignore": 10}[mode]
    assert [row["title"] for row in found] == ["old"] * first + ["new"] * (100 - first)
    assert [row["level"] for row in found] == [7] * 5 + [8] + [7] * 94


def test_a_write_of_a_column_that_was_dropped_meanwhile_says_so(db: hc.Database) -> None:
    rows = frame(range(100))
    messages = tasks(writer_of(db, rows), rows)
    started = writer_of(db, rows)
    db.alter_table("orders", drop=["note"])
    with pytest.raises(SchemaError, match="dropped or changed column 'note': run it again"):
        started.commit(messages, 1)
    assert db.table("orders").count() == 0
