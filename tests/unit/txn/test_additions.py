"""`hc.add` and `hc.expr`: sums that commute wherever the rows are, and what conflicts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline import ConflictError, Database, SchemaError, UsageError
from tests.concurrency.threads import together
from tests.store.faulty import FaultyFiles
from tests.unit.read import moving

PLACES = ["in pages", "in objects", "moved meanwhile"]
COLUMNS = {
    "id": int,
    "n": int,
    "m": int,
    "price": "decimal(6,2)",
    "rate": float,
    "small": "smallint",
    "note": str,
}


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def db(files: FaultyFiles) -> Iterator[Any]:
    with Database(files, "sums", options=moving.TINY) as db:
        db.create_table("t", COLUMNS, primary_key="id")
        with db.begin() as txn:
            rows = [{"id": key, "n": 10, "m": 0, "price": Decimal(5)} for key in range(4)]
            txn.insert("t", rows)
        yield db
        assert not db.check()


def row(db: Any, key: int = 1) -> dict[str, Any]:
    with db.begin() as txn:
        found: dict[str, Any] = txn.get("t", key)
        return found


def before(db: Any, place: str) -> None:
    if place != "in pages":
        db.flush("t")


def meanwhile(db: Any, place: str) -> None:
    if place == "moved meanwhile":
        db.flush("t")
        db.compact("t")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_additions_to_one_number_all_commit(db: Any, place: str, isolation: str) -> None:
    before(db, place)
    several = [db.begin(isolation=isolation) for _ in range(5)]
    for amount, txn in enumerate(several, 1):
        assert txn.update("t", 1, {"n": hc.add(amount)}) == 1
    for txn in reversed(several):
        txn.commit()
        meanwhile(db, place)
    assert row(db)["n"] == 25


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("plain_first", [False, True])
def test_an_addition_conflicts_with_a_plain_write(db: Any, place: str, plain_first: bool) -> None:
    before(db, place)
    adds, writes = db.begin(), db.begin()
    adds.update("t", 1, {"n": hc.add(1)})
    writes.update("t", 1, {"n": 7})
    first, second = (writes, adds) if plain_first else (adds, writes)
    first.commit()
    meanwhile(db, place)
    with pytest.raises(ConflictError, match="the same column"):
        second.commit()
    assert row(db)["n"] == (7 if plain_first else 11)


@pytest.mark.parametrize("place", PLACES)
def test_an_addition_beside_a_write_of_another_column(db: Any, place: str) -> None:
    before(db, place)
    adds, writes = db.begin(), db.begin()
    adds.update("t", 1, {"n": hc.add(1)})
    writes.update("t", 1, {"m": 7})
    writes.commit()
    meanwhile(db, place)
    adds.commit()
    assert (row(db)["n"], row(db)["m"]) == (11, 7)


@pytest.mark.parametrize("place", PLACES)
def test_an_addition_conflicts_with_a_delete(db: Any, place: str) -> None:
    before(db, place)
    adds, deletes, late = db.begin(), db.begin(), db.begin()
    adds.update("t", 1, {"n": hc.add(1)})
    deletes.delete("t", 1)
    late.update("t", 1, {"n": hc.add(1)})
    late.commit()
    with pytest.raises(ConflictError):
        deletes.commit()
    with db.begin() as txn:
        txn.delete("t", 1)
    meanwhile(db, place)
    with pytest.raises(ConflictError, match="deleted"):
        adds.commit()


@pytest.mark.parametrize("look", ["get", "get_many", "range", "scan", "sql", "where"])
def test_a_sum_that_was_read_is_a_plain_write(db: Any, look: str) -> None:
    adds, other = db.begin(), db.begin()
    adds.update("t", 1, {"n": hc.add(1)})
    adds.get("t", 2)  # another row
    other.update("t", 1, {"n": hc.add(1)})
    if look == "get":
        assert adds.get("t", 1)["n"] == 11
    elif look == "get_many":
        assert adds.get_many("t", [1]).column("n").to_pylist() == [11]
    elif look == "range":
        assert adds.range("t", 1, 2).column("n").to_pylist() == [11]
    elif look == "scan":
        assert adds.scan("t", where="id = 1").column("n").to_pylist() == [11]
    elif look == "sql":
        assert adds.sql("select n from t where id = 1").column("n").to_pylist() == [11]
    else:
        assert adds.update("t", where="n = 11", set={"m": 1}) == 1
    other.commit()
    with pytest.raises(ConflictError, match="the same column"):
        adds.commit()


def test_additions_of_one_transaction_add_up(db: Any) -> None:
    ours, theirs = db.begin(), db.begin()
    for amount in (1, 2, 3):
        ours.update("t", 1, {"n": hc.add(amount)})
    ours.update("t", 1, {"m": 5})
    theirs.update("t", 1, {"n": hc.add(100)})
    theirs.commit()
    ours.commit()
    assert (row(db)["n"], row(db)["m"]) == (116, 5)
    with db.begin() as txn:  # a plain write before or after makes the whole a plain write
        txn.update("t", 1, {"n": 1})
        txn.update("t", 1, {"n": hc.add(1)})
        txn.insert("t", {"id": 9, "n": 1})
        txn.update("t", 9, {"n": hc.add(1)})
    assert (row(db)["n"], row(db, 9)["n"]) == (2, 2)
    ours, theirs = db.begin(), db.begin()
    ours.update("t", 1, {"n": hc.add(1)})
    ours.update("t", 1, {"n": 50})
    theirs.update("t", 1, {"n": hc.add(1)})
    theirs.commit()
    with pytest.raises(ConflictError):
        ours.commit()


def test_null_stays_null_and_every_kind_of_number_adds(db: Any) -> None:
    with db.begin() as txn:
        setting = {"price": hc.add(Decimal("0.10")), "rate": hc.add(1), "small": hc.add(1)}
        txn.update("t", 1, setting | {"n": hc.add(-3)})
    assert row(db) | {"m": 0} == {
        "id": 1,
        "n": 7,
        "m": 0,
        "price": Decimal("5.10"),
        "rate": None,
        "small": None,
        "note": None,
    }
    with db.begin() as txn:
        txn.update("t", 1, {"rate": 0.5, "small": 1})
    with db.begin() as txn:
        txn.update("t", 1, {"rate": hc.add(1), "small": hc.add(-2)})
    assert (row(db)["rate"], row(db)["small"]) == (1.5, -1)


@pytest.mark.parametrize(
    ("column", "most", "amount"),
    [
        ("n", 2**63 - 2, 1),
        ("small", 32766, 1),
        ("price", Decimal("9999.98"), Decimal("0.01")),
        ("rate", 1.7e308, 0.09e308),
    ],
)
def test_a_sum_that_does_not_fit_fails_its_transaction_alone(
    db: Any, files: FaultyFiles, column: str, most: Any, amount: Any
) -> None:
    with db.begin() as txn:
        txn.update("t", 1, {column: most})
    several = [db.begin() for _ in range(3)]
    for txn in several:
        txn.update("t", 1, {column: hc.add(amount), "m": hc.add(1)})
    several[0].commit()
    for txn in several[1:]:
        with pytest.raises(SchemaError, match=r"range|does not fit"):
            txn.commit()
    assert (row(db)[column], row(db)["m"]) == (most + amount, 1)
    with db.begin() as txn:  # nothing is poisoned
        txn.update("t", 1, {column: hc.add(-amount)})
    with db.begin() as txn:
        txn.update("t", 1, {column: hc.add(amount)})
        with pytest.raises(SchemaError, match=r"range|does not fit"):
            txn.update("t", 1, {column: hc.add(amount)})
        txn.rollback()
    assert row(db)[column] == most


@pytest.mark.parametrize(
    ("setting", "error", "text"),
    [
        ({"id": hc.add(1)}, SchemaError, "key column"),
        ({"id": hc.expr("id + 1")}, SchemaError, "key column"),
        ({"note": hc.add(1)}, SchemaError, "no number"),
        ({"n": hc.add("x")}, SchemaError, "not an integer"),
        ({"n": hc.add(0.5)}, SchemaError, "column 'n'"),
        ({"n": hc.add(True)}, SchemaError, "column 'n'"),
        ({"price": hc.add(Decimal("0.001"))}, SchemaError, "decimal places"),
        ({"n": hc.add(1), "N": 2}, SchemaError, "twice"),
        ({"n": hc.expr("nope + 1")}, SchemaError, "no such column"),
        ({"n": hc.expr("(select 1)")}, UsageError, "subquery"),
        ({"n": hc.expr("sum(n)")}, UsageError, "aggregate"),
        ({"n": hc.expr("1; drop table t")}, UsageError, "one statement"),
        ({"n": hc.expr("?")}, UsageError, "parameter"),
        ({"n": hc.expr("'abc'")}, UsageError, "abc"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    db: Any, setting: dict[str, Any], error: type[Exception], text: str
) -> None:
    with db.begin() as txn:
        with pytest.raises(error, match=text):
            txn.update("t", 1, setting)
        with pytest.raises(error, match=text):
            txn.update("t", where="id = 1", set=setting)
        assert txn.get("t", 1)["n"] == 10
    for make, wrong in ((hc.add, None), (hc.expr, ""), (hc.expr, 3)):
        with pytest.raises(UsageError):
            make(wrong)


@pytest.mark.parametrize("term", [hc.add(1), hc.expr("n + 1")])
def test_terms_belong_into_update(db: Any, term: Any) -> None:
    with db.begin() as txn:
        for write in (txn.insert, txn.upsert):
            with pytest.raises(SchemaError, match="belongs into update"):
                write("t", {"id": 1, "n": term})
            with pytest.raises(SchemaError, match="belongs into update"):
                write("t", [{"id": 7, "n": 1}, {"id": 8, "n": term}])


def test_an_expression_counts_what_it_reads_as_written(db: Any) -> None:
    ours, other, third = db.begin(), db.begin(), db.begin()
    ours.update("t", 1, {"price": hc.expr("price * 1.1 + n")})
    other.update("t", 1, {"m": 3})
    third.update("t", 1, {"n": hc.add(1)})
    other.commit()
    ours.commit()
    assert (row(db)["price"], row(db)["m"]) == (Decimal("15.50"), 3)
    with pytest.raises(ConflictError, match="the same column"):
        third.commit()
    with db.begin() as txn:
        txn.update("t", 1, {"note": "price"})  # a bare text stays a text
        txn.update("t", 1, {"note": hc.expr("note || ? || cast(n as varchar)", [" of "])})
    assert row(db)["note"] == "price of 10"


@pytest.mark.parametrize("by", ["key", "where", "two calls", "a key that stays"])
def test_a_column_that_is_added_to_and_read_is_a_plain_write(db: Any, by: str) -> None:
    ours, theirs = db.begin(), db.begin()
    setting: dict[str, Any] = {"n": hc.add(1), "m": hc.expr("n * 2")}
    if by == "two calls":
        ours.update("t", 1, {"n": hc.add(1)})
    if by == "where":
        ours.update("t", where="id = 1", set=setting)
    else:
        ours.update("t", 1, setting | ({"id": 1} if by == "a key that stays" else {}))
    theirs.update("t", 1, {"n": hc.add(5)})
    theirs.commit()
    with pytest.raises(ConflictError, match="the same column"):
        ours.commit()
    assert (row(db)["n"], row(db)["m"]) == (15, 0)


def test_a_key_that_stays_makes_no_difference_to_an_addition(db: Any) -> None:
    ours, theirs = db.begin(), db.begin()
    ours.update("t", 1, {"id": 1, "n": hc.add(1)})
    theirs.update("t", 1, {"n": hc.add(5)})
    theirs.commit()
    ours.commit()
    assert row(db)["n"] == 16


@pytest.mark.parametrize(
    "setting", [{"small": hc.add(32767)}, {"small": hc.expr("cast(m + 32767 as smallint)")}]
)
def test_a_sum_that_does_not_fit_is_a_serializable_read(db: Any, setting: dict[str, Any]) -> None:
    with db.begin() as txn:
        txn.update("t", 1, {"small": 1, "m": 1})
    ours = db.begin(isolation="serializable")
    with pytest.raises(UsageError):
        ours.update("t", 1, setting)
    ours.update("t", 2, {"note": "the other one is full"})
    with db.begin() as txn:
        txn.update("t", 1, {"small": 0, "m": 0})
    with pytest.raises(ConflictError, match="was read"):
        ours.commit()


@pytest.mark.parametrize("many", [False, True])
def test_terms_in_updates_by_predicate(db: Any, many: bool) -> None:
    if many:
        with db.begin() as txn:
            keys = range(100, 200)
            rows = {"id": keys, "n": [10] * 100, "m": [0] * 100, "price": [Decimal(5)] * 100}
            txn.insert("t", pa.table({name: pa.array(values) for name, values in rows.items()}))
    with db.begin() as txn:
        setting = {"n": hc.add(1), "price": hc.expr("price * 2"), "note": "x"}
        found = txn.update("t", where="id <> 2", set=setting)
    table = db.table("t").to_arrow().filter(pa.compute.field("id") != 2)
    assert found == table.num_rows == (103 if many else 3)
    assert set(table.column("n").to_pylist()) == {11}
    assert set(table.column("price").to_pylist()) == {Decimal("10.00")}
    assert (row(db, 2)["n"], row(db, 2)["note"]) == (10, None)
    with db.begin() as txn, pytest.raises((SchemaError, UsageError)):
        txn.update("t", where="true", set={"n": hc.add(2**63 - 5)})


def test_changes_tell_sums_and_history_keeps_each_state(db: Any) -> None:
    since = db.begin().snapshot
    ours, theirs = db.begin(), db.begin()
    ours.update("t", 1, {"n": hc.add(1)})
    theirs.update("t", 1, {"n": hc.add(10)})
    theirs.commit()
    ours.commit()
    changes = db.changes("t", since=since).to_pylist()
    assert [one["n"] for one in changes if one["_change"] == "update_after"] == [20, 21]


def test_marks_outlive_checkpoints_and_crashes(files: FaultyFiles) -> None:
    """A transaction that began before all this still adds, and a plain write still loses."""
    for upkeep in ("flush", "checkpoint", "compact"):
        files = FaultyFiles()
        with Database(files, "sums", options=moving.TINY) as db:
            db.create_table("t", COLUMNS, primary_key="id")
            with db.begin() as txn:
                txn.insert("t", {"id": 1, "n": 0})
            late, plain = db.begin(), db.begin()
            late.update("t", 1, {"n": hc.add(1000)})
            plain.update("t", 1, {"n": 5})
            for _ in range(9):
                with db.begin() as txn:
                    txn.update("t", 1, {"n": hc.add(1)})
                getattr(db, upkeep)()
            late.commit()
            with pytest.raises(ConflictError):
                plain.commit()
        image = files.crash_image(none=True)
        with Database(image, "sums", options=moving.TINY) as db:
            assert row(db)["n"] == 1009
            assert not db.check()


@pytest.mark.parametrize("seed", range(8))
def test_random_transactions_against_a_model(seed: int) -> None:
    chance, files = random.Random(seed), FaultyFiles()
    db = Database(files, "sums", options=moving.TINY)
    db.create_table("t", {"id": int, "a": int, "b": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", [{"id": key, "a": 0, "b": key if key % 2 else None} for key in range(3)])
    model: dict[int, dict[str, Any]] = {
        key: {"a": 0, "b": key if key % 2 else None} for key in range(3)
    }
    log: list[dict[int, Any]] = []  # what each commit did: key -> {column: (kind, value)} or None
    opened: list[tuple[Any, int, dict[int, Any]]] = []
    for _ in range(150):
        what = chance.random()
        if what < 0.35 or not opened:
            opened.append((db.begin(), len(log), {}))
        elif what < 0.75:
            txn, _, done = chance.choice(opened)
            _step(chance, txn, done)
        elif what < 0.95:
            txn, since, done = opened.pop(chance.randrange(len(opened)))
            if _meets(done, log[since:]):
                with pytest.raises(ConflictError):
                    txn.commit()
            else:
                txn.commit()
                if done:
                    log.append(done)
                    _apply(model, done)
        else:
            getattr(db, chance.choice(["flush", "checkpoint", "compact"]))()
        with db.begin() as txn:
            rows = txn.scan("t").to_pylist()
        assert {r["id"]: {"a": r["a"], "b": r["b"]} for r in rows} == model
    for txn, _, _ in opened:
        txn.rollback()
    db.close()
    with Database(files.crash_image(none=True), "sums", options=moving.TINY) as db:
        with db.begin() as txn:
            rows = txn.scan("t").to_pylist()
        assert {r["id"]: {"a": r["a"], "b": r["b"]} for r in rows} == model
        assert not db.check()


def _step(chance: random.Random, txn: Any, done: dict[int, Any]) -> None:
    key, column = chance.randrange(3), chance.choice("ab")
    if done.get(key, ...) is None:
        return
    kind, value = chance.choice(["add", "add", "add", "set", "delete"]), chance.randrange(1, 9)
    try:
        if kind == "delete":
            if chance.random() < 0.2 and txn.delete("t", key):
                done[key] = None
            return
        txn.update("t", key, {column: hc.add(value) if kind == "add" else value})
    except hc.NotFoundError:
        return
    before = done.setdefault(key, {}).get(column)
    if kind == "add" and before is not None:
        kind, value = before[0], value if before[1] is None else before[1] + value
    done[key][column] = (kind, value)


def _meets(mine: dict[int, Any], theirs: list[dict[int, Any]]) -> bool:
    for key, columns in mine.items():
        for commit in theirs:
            if key in commit:
                other = commit[key]
                if columns is None or other is None:
                    return True
                both = columns.keys() & other.keys()
                if any((columns[c][0], other[c][0]) != ("add", "add") for c in both):
                    return True
    return False


def _apply(model: dict[int, dict[str, Any]], done: dict[int, Any]) -> None:
    for key, columns in done.items():
        if columns is None:
            del model[key]
            continue
        for column, (kind, value) in columns.items():
            old = model[key][column]
            model[key][column] = value if kind == "set" else None if old is None else old + value


def test_eight_threads_add_to_one_counter_without_a_retry(open_db: Any) -> None:
    db, runs = open_db(), []
    db.create_table("t", {"id": int, "n": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", {"id": 1, "n": 0})

    def add(txn: Any) -> None:
        runs.append(1)
        txn.update("t", 1, {"n": hc.add(1)})

    def work() -> None:
        for _ in range(100):
            db.run(add)

    together(*[work] * 8)
    assert (row(db)["n"], len(runs)) == (800, 800)


def test_an_addition_to_a_row_in_memory_needs_no_round(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was first, the sum is made where the commit is: the general way is not asked."""
    several = [db.begin() for _ in range(8)]
    for number, txn in enumerate(several):
        values = {"n": hc.add(1), "note": "last"} if number == 7 else {"n": hc.add(1)}
        txn.update("t", 1, values)
    with monkeypatch.context() as patch:
        patch.setattr(db.core.own, "commit", lambda txn: pytest.fail("the general way"))
        for txn in several:
            txn.commit()
    assert (row(db)["n"], row(db)["note"]) == (18, "last")


def test_sums_that_do_not_fit_fail_alone_among_threads(db: Any) -> None:
    with db.begin() as txn:
        txn.update("t", 1, {"small": 32_767 - 100, "m": 0})
    acked: list[int] = []
    refused: list[int] = []

    def work() -> None:
        for _ in range(40):
            try:
                db.run(lambda txn: txn.update("t", 1, {"small": hc.add(1), "m": hc.add(2)}))
                acked.append(1)
            except SchemaError:
                refused.append(1)

    together(*[work] * 8)
    assert (len(acked), len(refused)) == (100, 220)
    assert (row(db)["small"], row(db)["m"]) == (32_767, 200)
