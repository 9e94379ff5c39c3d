"""Write skew: two transactions read the same rows, each writes another one of them.

At least one doctor must be on call. Each may leave if somebody else stays, and all try at once.
Under snapshot isolation all could leave, because they write different rows. Serializable lets only
those commit whose reads still hold. Every way to read is tried: each is remembered differently.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import halocline as hc
from tests.concurrency.threads import PATIENCE_S, together

Look = Callable[[hc.Transaction], int]

LOOKS: dict[str, Look] = {
    "get": lambda txn: sum(txn.get("doctor", i)["on_call"] for i in range(DOCTORS)),
    "get_many": lambda txn: sum(
        txn.get_many("doctor", range(DOCTORS)).column("on_call").to_pylist()
    ),
    "range": lambda txn: sum(txn.range("doctor", 0, DOCTORS).column("on_call").to_pylist()),
    "scan": lambda txn: txn.scan("doctor", where="on_call = 1").num_rows,
    "sql": lambda txn: int(txn.sql("select sum(on_call) as n from doctor").to_pylist()[0]["n"]),
}
DOCTORS = 3


@pytest.fixture
def db(tmp_path: Path) -> hc.Database:
    with hc.open(tmp_path / "db") as db:
        db.create_table("doctor", {"id": int, "on_call": int, "shift": int}, primary_key="id")
        with db.begin() as txn:
            txn.insert("doctor", [{"id": i, "on_call": 1, "shift": 0} for i in range(DOCTORS)])
        yield db
        assert not db.check()


def _everybody_on_call(db: hc.Database) -> None:
    with db.begin() as txn:
        txn.update("doctor", where="true", set={"on_call": 1})


def _on_call(db: hc.Database) -> int:
    with db.begin() as txn:
        return LOOKS["get"](txn)


@pytest.mark.parametrize("how", LOOKS)
def test_doctors_who_all_try_to_leave_at_once_never_leave_nobody(db: hc.Database, how: str) -> None:
    """Each runs until it has left or may not: exactly one stays."""
    rounds = 60
    gate = threading.Barrier(DOCTORS)

    def leave(txn: hc.Transaction, me: int) -> None:
        if LOOKS[how](txn) > 1:
            txn.update("doctor", me, {"on_call": 0})

    def doctor(me: int) -> None:
        for _ in range(rounds):
            gate.wait(PATIENCE_S)
            db.run(lambda txn: leave(txn, me), retries=1000, isolation="serializable")
            if gate.wait(PATIENCE_S) == 0:
                assert _on_call(db) == 1
                _everybody_on_call(db)
            gate.wait(PATIENCE_S)

    together(*(lambda me=me: doctor(me) for me in range(DOCTORS)))


@pytest.mark.parametrize("how", LOOKS)
def test_of_doctors_who_have_all_looked_only_one_may_leave(db: hc.Database, how: str) -> None:
    """All have read before anybody writes, so all but the first commit must fail."""
    rounds = 60
    gate = threading.Barrier(DOCTORS)
    left: list[int] = []
    winners: list[int] = []

    def doctor(me: int) -> None:
        for _ in range(rounds):
            txn = db.begin(isolation="serializable")
            assert LOOKS[how](txn) == DOCTORS
            gate.wait(PATIENCE_S)
            txn.update("doctor", me, {"on_call": 0})
            try:
                txn.commit()
                left.append(me)
            except hc.ConflictError as error:
                winners.append(error.winner_ts - txn.snapshot)
            if gate.wait(PATIENCE_S) == 0:
                assert len(left) == 1
                left.clear()
                _everybody_on_call(db)
            gate.wait(PATIENCE_S)

    together(*(lambda me=me: doctor(me) for me in range(DOCTORS)))
    assert winners == [1] * (DOCTORS - 1) * rounds


@pytest.mark.parametrize("how", ["range", "scan", "sql"])
def test_of_those_who_saw_room_for_one_more_only_one_gets_in(db: hc.Database, how: str) -> None:
    """Predicate write skew: everybody inserts a row that the others' reads would have covered."""
    looks: dict[str, Look] = {
        "range": lambda txn: txn.range("doctor", 100, 200).num_rows,
        "scan": lambda txn: txn.scan("doctor", where="id between 100 and 199").num_rows,
        "sql": lambda txn: txn.sql("select * from doctor where id >= 100").num_rows,
    }
    rounds, threads = 60, 3
    gate = threading.Barrier(threads)

    def join(txn: hc.Transaction, me: int) -> None:
        if looks[how](txn) == 0:
            txn.insert("doctor", {"id": 100 + me, "on_call": 1})

    def newcomer(me: int) -> None:
        for _ in range(rounds):
            gate.wait(PATIENCE_S)
            db.run(lambda txn: join(txn, me), retries=1000, isolation="serializable")
            if gate.wait(PATIENCE_S) == 0:
                with db.begin() as txn:
                    assert looks[how](txn) == 1
                    txn.delete("doctor", where="id >= 100")
            gate.wait(PATIENCE_S)

    together(*(lambda me=me: newcomer(me) for me in range(threads)))
