"""What child processes do: move money until they are killed, or answer questions.

Every function takes the descriptors that the test has sent along, then its arguments.
"""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import halocline
from halocline import (
    ConflictError,
    DuplicateKeyError,
    HaloclineError,
    Options,
    UnavailableError,
)
from halocline.node.certificate import own_certificate

SMALL = Options(log_file_bytes=64 * 1024, log_file_bytes_first=8 * 1024, sequence_block=1000)
ACCOUNTS = 20
BALANCE = 100


def create_bank(db: Any) -> None:
    with db.begin() as txn:
        txn.create_table("accounts", {"id": int, "balance": int}, "id")
        txn.create_table("transfers", {"id": int, "source": int, "target": int}, "id")
        txn.insert("accounts", [{"id": n, "balance": BALANCE} for n in range(ACCOUNTS)])


def move_money(output: int, path: str, durability: str, first: int, writers: int) -> None:
    """Transfer until killed. Each acknowledgement is one line: id of the transfer, commit_ts."""
    db = halocline.open(path, durability=durability, options=SMALL)  # type: ignore[arg-type]
    if "accounts" not in db.tables():
        create_bank(db)
    os.write(output, b"open %d\n" % db.visible_ts)
    threads = [
        threading.Thread(target=_transfer, args=(db, output, first + n * 1_000_000))
        for n in range(writers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _transfer(db: Any, output: int, number: int) -> None:
    chance = random.Random(number)
    while True:
        number += 1
        source, target = chance.sample(range(ACCOUNTS), 2)
        stamp: list[Any] = []

        def move(txn: Any) -> None:
            for account, amount in ((source, -1), (target, 1)):  # noqa: B023 runs at once
                balance = txn.get("accounts", account)["balance"]
                txn.update("accounts", account, {"balance": balance + amount})
            row = {"id": number, "source": source, "target": target}  # noqa: B023
            txn.insert("transfers", row)
            stamp[:] = [txn]  # noqa: B023

        db.run(move, retries=1000)
        # One write of less than PIPE_BUF bytes: lines of several threads never mix.
        os.write(output, b"%d %d\n" % (number, stamp[0].commit_ts))


def move_money_together(output: int, path: str, first: int) -> None:
    """One of many processes that transfer until they are killed, whoever is the owner.

    Says `ack id commit_ts`, or `lost id` when nobody can tell what became of it.
    """
    while True:
        try:
            db = halocline.open(path, options=SMALL)
            break
        except UnavailableError:  # between two owners, on a machine with much to do
            continue
    os.write(output, b"open %s\n" % db.role.encode())
    chance = random.Random(first)
    number = first
    while True:
        number += 1
        source, target = chance.sample(range(ACCOUNTS), 2)
        try:
            stamp = _transfer_once(db, number, source, target)
            os.write(output, b"ack %d %d %s\n" % (number, stamp, db.role.encode()))
        except UnavailableError as error:
            if error.outcome == "unknown":
                os.write(output, b"lost %d\n" % number)


def draw_keys(output: int, path: str, threads: int) -> None:
    """One of several processes that draw keys until they are killed, whoever is the owner.

    Says `drew thread key` before the commit, and `ack thread key` when it is over.
    """
    while True:
        try:
            db = halocline.open(path, options=SMALL)
            break
        except UnavailableError:
            continue

    def draw(thread: int) -> None:
        for step in itertools.count():
            rows: Any = {"by": thread} if step % 3 else [{"by": thread}] * 5
            txn = db.begin()
            try:
                stored = txn.insert("keys", rows, returning=["id"])
                drawn = [stored["id"]] if step % 3 else stored["id"].to_pylist()
                told = b"".join(b" %d" % key for key in drawn)
                os.write(output, b"drew %d%s\n" % (thread, told))
                if step % 7 == 6:
                    txn.rollback()
                    continue
                txn.commit()
                os.write(output, b"ack %d%s\n" % (thread, told))
            except (ConflictError, UnavailableError):
                txn.rollback()

    drawing = [threading.Thread(target=draw, args=(thread,)) for thread in range(threads)]
    for thread in drawing:
        thread.start()
    for thread in drawing:
        thread.join()


def insert_together(output: int, path: str, first: int) -> None:
    """The same with single rows: keys of its own, and some that all of them try to take."""
    while True:
        try:
            db = halocline.open(path, options=SMALL)
            break
        except UnavailableError:
            continue
    number = first
    while True:
        number += 1
        key = number if number % 4 else -(number - first)
        try:
            with db.begin() as txn:
                txn.insert("transfers", {"id": key, "source": first, "target": 0})
            os.write(output, b"ack %d %d %s\n" % (key, txn.commit_ts or 0, db.role.encode()))
        except DuplicateKeyError:
            assert key < 0, f"nobody else inserts {key}"
        except ConflictError:
            continue  # somebody was faster, or the next owner cannot look back so far
        except UnavailableError as error:
            if error.outcome == "unknown":
                os.write(output, b"lost %d\n" % key)


def count_up(output: int, path: str, first: int) -> None:
    """Count in a row of its own, sometimes in one for all as well, until killed. Says `ack` after
    each, and `error` if it is ever told anything but the result."""
    db = halocline.open(path, options=SMALL)
    os.write(output, b"open %s\n" % db.role.encode())
    number = first
    while True:
        number += 1
        rows = [first, 0] if number % 3 == 0 else [first]
        try:
            db.run(lambda txn: _bump(txn, rows), retries=10_000)  # noqa: B023 runs at once
        except HaloclineError as error:
            os.write(output, b"error %r\n" % str(error).encode())
        else:
            os.write(output, b"ack %d 0 %s\n" % (number, db.role.encode()))


def count_hot(output: int, path: str, first: int, threads: int = 3, times: int = 1 << 40) -> None:
    """Threads that all count in the row 0 and each in one of its own, as often as told.

    Says `ack` after each, and `error` if it is ever told anything but the result.
    """
    db = halocline.open(path, options=SMALL)
    os.write(output, b"open %s\n" % db.role.encode())

    def work(row: int) -> None:
        for number in range(1, times + 1):
            lock = number % 2 == 0
            try:
                db.run(lambda txn: _bump_hot(txn, row, lock))  # noqa: B023 runs at once
            except HaloclineError as error:
                os.write(output, b"error %r\n" % str(error).encode())
            else:
                os.write(output, b"ack %d 0 %s\n" % (row + number, db.role.encode()))

    rows = [first + place * 10_000 for place in range(threads)]
    workers = [threading.Thread(target=work, args=(row,)) for row in rows]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    db.close()


def add_up(output: int, path: str, first: int, threads: int = 3) -> None:
    """Threads that add to rows which all add to, until killed. Says `ack` after each, and `error`
    if it is ever told anything but the result.

    Even numbers are added to row -1, all alone; for odd ones 1 to row 0 and to a row of its own.
    """
    db = halocline.open(path, options=SMALL)
    os.write(output, b"open %s\n" % db.role.encode())

    def work(row: int) -> None:
        db.run(lambda txn: txn.insert("counters", {"id": row, "n": 0}))
        for number in itertools.count(1):
            amounts = {0: 1, row: 1} if number % 2 else {-1: row + number}
            try:
                db.run(lambda txn: _add(txn, amounts))  # noqa: B023 runs at once
            except HaloclineError as error:
                os.write(output, b"error %r\n" % str(error).encode())
            else:
                os.write(output, b"ack %d 0 %s\n" % (row + number, db.role.encode()))

    workers = [
        threading.Thread(target=work, args=(first + place * 10_000,)) for place in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _add(txn: Any, amounts: dict[int, int]) -> None:
    for key, amount in amounts.items():
        txn.update("counters", key, {"n": halocline.add(amount)})


def _bump_hot(txn: Any, row: int, lock: bool) -> None:
    if lock:
        txn.get("counters", 0, for_update=True)
    _bump(txn, [0, row])


def _bump(txn: Any, rows: list[int]) -> None:
    for key in rows:
        row = txn.get("counters", key)
        if row is None:
            txn.insert("counters", {"id": key, "n": 1})
        else:
            txn.update("counters", key, {"n": row["n"] + 1})


def _transfer_once(db: Any, number: int, source: int, target: int) -> int:
    while True:
        try:
            with db.begin() as txn:
                for account, amount in ((source, -1), (target, 1)):
                    balance = txn.get("accounts", account)["balance"]
                    txn.update("accounts", account, {"balance": balance + amount})
                txn.insert("transfers", {"id": number, "source": source, "target": target})
            return int(txn.commit_ts)
        except ConflictError:
            continue


# -- a child that answers ------------------------------------------------------------------------


def owner(
    input: int,
    output: int,
    path: str,
    serve: bool = True,
    background: bool = True,
    **arguments: Any,
) -> None:
    """Has the database open and does what it is asked to do."""
    options = replace(SMALL, serve=serve, background=background)
    try:
        db = halocline.open(path, options=options, **arguments)
    except HaloclineError as error:
        _say(output, {"error": type(error).__name__, "text": str(error)})
        return
    _say(output, {"open": True})
    answers: dict[str, Callable[..., Any]] = {
        "create": lambda: db.create_table("t", {"id": int, "text": str}, "id") and None,
        "insert": lambda first, count=1, size=10: _insert(db, first, count, size),
        "count": lambda: db.table("t").count(),
        "role": lambda: db.role,
        "sum": lambda: _sum(db),
        "check": db.check,
        "close": db.close,
        "limit": _limit,
        "serve": lambda: [(server := db.serve()).uri, server.token],
        "serve_tls": lambda: [(server := db.serve(tls=own_certificate(path))).uri, server.token],
        "state": lambda: _state(db),
        "size": lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "fork": lambda how: _fork(db, how),
        "fork_and_stay": lambda: _fork_and_stay(input, output),
        "fork_and_open": lambda path: _fork_and_open(path, create=True),
        "fork_and_read": lambda path: _fork_and_open(path, read_only=True),
    }
    _answer(input, output, answers)
    db.close()


def _answer(input: int, output: int, answers: dict[str, Callable[..., Any]]) -> None:
    """Do what is asked, line by line, until nobody asks any more."""
    for line in os.fdopen(input, "r", encoding="utf-8"):
        request = json.loads(line)
        do = answers[request.pop("do")]
        try:
            _say(output, {"value": do(**request)})
        except HaloclineError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
            _say(output, answer | {"outcome": getattr(error, "outcome", None)})


def reader(input: int, output: int, path: str) -> None:
    """Has the database open for reading and holds a snapshot of table `t` for as long as told."""
    db = halocline.open(path, read_only=True, options=SMALL)
    held: list[Any] = []
    _say(output, {"open": True})

    def hold(at: int | None = None) -> int:
        held.append(db.begin(at=at))
        return int(held[-1].snapshot)

    def stream() -> None:
        """From now on hold only a stream of the table; its transaction is over."""
        txn = held.pop()
        held.append(txn.scan("t", stream=True))
        txn.rollback()

    def look(way: str) -> list[list[int]]:
        txn = held[-1]
        if way == "scan":
            table = txn.scan("t").sort_by("id")
        elif way == "get_many":
            table = txn.get_many("t", list(range(200)))
        elif way == "range":
            table = txn.range("t")
        elif way == "sql":
            table = txn.sql("select * from t order by id")
        else:
            table = txn.read_all().sort_by("id")
        return [table.column("id").to_pylist(), table.column("v").to_pylist()]

    _answer(
        input,
        output,
        {
            "hold": hold,
            "stream": stream,
            "look": look,
            "let_go": held.clear,
            "fork": lambda: _fork_and_leave(held),
            "check": db.check,
        },
    )
    db.close()


def _fork_and_leave(held: list[Any]) -> None:
    """A forked child lets go of what it has inherited, finalizers and all."""
    pid = os.fork()
    if not pid:
        held.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)


def read_again_and_again(output: int, path: str, rounds: int) -> None:
    """Open, read, close: each time the rows of one commit, all of them."""
    for _ in range(rounds):
        with halocline.open(path, read_only=True, options=SMALL) as db:
            for _ in range(3):
                with db.begin() as txn:
                    rows = txn.get_many("t", list(range(40))).to_pylist()
                    seen = txn.scan("t").sort_by("id").to_pylist()
                assert rows == seen, (rows, seen)
                assert len(rows) == 40
                assert len({row["v"] for row in rows}) == 1, rows
    os.write(output, b"done\n")


def _say(output: int, answer: Any) -> None:
    os.write(output, json.dumps(answer).encode() + b"\n")


def _limit(bytes: int | None) -> None:
    """From now on no file of this process grows beyond that: a disk that is full for real."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if bytes is None else bytes, hard))


def _insert(db: Any, first: int, count: int, size: int) -> int:
    for key in range(first, first + count):
        with db.begin() as txn:
            txn.insert("t", {"id": key, "text": "x" * size})
    return int(txn.commit_ts)


def _sum(db: Any) -> int:
    with db.begin() as txn:
        return sum(txn.scan("accounts").column("balance").to_pylist())


def _state(db: Any) -> list[Any]:
    """All that a stranger must not change."""
    names = [snapshot.name for snapshot in db.snapshots()]
    return [db.visible_ts, names, {t: db.table(t).to_arrow().to_pylist() for t in db.tables()}]


def _fork(db: Any, how: str) -> Any:
    """What a forked child meets when it uses its parent's handle."""
    txn = db.begin()
    txn.insert("t", {"id": -1, "text": "from the child"})
    table = db.table("t")
    receiver, sender = multiprocessing.Pipe(duplex=False)
    if how == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(
            target=_use_handles, args=(db, txn, table, sender)
        )
        process.start()
        found = receiver.recv()
        process.join(20)
        txn.rollback()
        return found
    pid = os.fork()
    if not pid:
        _use_handles(db, txn, table, sender)
        if how == "close":
            db.close()
        if how == "exit":
            # Ends the interpreter, finalizers and all.
            raise SystemExit(0)
        os._exit(0)
    found = receiver.recv()
    os.waitpid(pid, 0)
    txn.rollback()
    return found


def _fork_and_stay(input: int, output: int) -> int:
    """A child that outlives us; it lets go of our pipes so that nobody takes it for us."""
    pid = os.fork()
    if not pid:
        os.close(input)
        os.close(output)
        signal.pause()
    return pid


def _fork_and_open(path: str, create: bool = False, **arguments: Any) -> list[str]:
    """In a forked child: a database of its own."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if not pid:
        with halocline.open(path, options=SMALL, **arguments) as db:
            if create:
                db.create_table("t", {"id": int})
            sender.send([*db.tables(), *db.check()])
        os._exit(0)
    found: list[str] = receiver.recv()
    os.waitpid(pid, 0)
    return found


def _use_handles(db: Any, txn: Any, table: Any, sender: Any) -> None:
    uses: dict[str, Callable[[], Any]] = {
        "begin": db.begin,
        "begin at": lambda: db.begin(at=1),
        "run": lambda: db.run(lambda txn: txn.get("t", 1)),
        "sql": lambda: db.sql("select 1 as one"),
        "tables": db.tables,
        "table": lambda: db.table("t"),
        "create_table": lambda: db.create_table("u", {"id": int}),
        "drop_table": lambda: db.drop_table("t"),
        "changes": lambda: db.changes("t", since=0),
        "gc": db.gc,
        "check": db.check,
        "count": table.count,
        "to_arrow": table.to_arrow,
        "get": lambda: txn.get("t", 1),
        "insert": lambda: txn.insert("t", {"id": -2}),
        "commit": txn.commit,
    }
    found = {}
    for name, use in uses.items():
        try:
            use()
            found[name] = "works"
        except HaloclineError as error:
            found[name] = type(error).__name__
        except BaseException as error:
            found[name] = repr(error)
    sender.send(found)


def insert_rows(output: int, path: str, count: int) -> None:
    """Insert rows one by one and say what became of each; go on after an error, then read."""

    def say(what: str, value: object) -> None:
        os.write(output, f"{what} {value}\n".encode())

    try:
        db = halocline.open(path, options=SMALL)
    except HaloclineError as error:
        say("closed", type(error).__name__)
        return
    try:
        db.create_table("t", {"id": int, "text": str}, "id", if_not_exists=True)
        for key in range(count):
            try:
                with db.begin() as txn:
                    txn.insert("t", {"id": key, "text": "x" * 200})
                say("acked", key)
            except UnavailableError as error:
                say(error.outcome, key)
        say("read", db.table("t").count())
    except UnavailableError as error:
        say("table", error.outcome)
    try:
        db.close()
    except UnavailableError as error:
        say("close", error.outcome)


def try_open_as(output: int, path: str, user: int, **arguments: Any) -> None:
    """Open as another user; says which error that is."""
    os.setgid(user)
    os.setuid(user)
    try:
        halocline.open(path, **arguments).close()
        _say(output, {"open": True})
    except BaseException as error:
        typed = isinstance(error, HaloclineError)
        _say(output, {"error": type(error).__name__, "typed": typed, "text": str(error)})


def work_as(
    output: int, path: str, user: int, groups: list[int], number: int, hold: bool = False
) -> None:
    """Write a row as another user, and everything that puts files beside it; then close, or wait.

    What a member of the group would load from files of root's is loaded before.
    """
    _work_on(f"{path}-{number}", number)
    os.setgroups(groups)
    os.setgid(user)
    os.setuid(user)
    os.umask(0o077)
    try:
        db = _work_on(path, number, keep=True)
        count = db.table("t").count()
        _say(output, {"role": db.role, "rows": count, "problems": list(map(str, db.check()))})
    except BaseException as error:
        typed = isinstance(error, HaloclineError)
        _say(output, {"error": type(error).__name__, "typed": typed, "text": str(error)})
        return
    if hold:
        signal.pause()
    db.close()


def _work_on(path: str, number: int, *, keep: bool = False) -> halocline.Database:
    db = halocline.open(path)
    db.create_table("t", {"id": int}, primary_key="id", if_not_exists=True)
    with db.begin() as txn:
        txn.insert("t", {"id": number})
    db.flush()
    db.checkpoint()
    db.gc()
    db.sql("select count(*) as n from t")
    db.table("t").count()
    db.check()
    if not keep:
        db.close()
    return db


def here() -> str:
    """The machine's name, as an error message would say it."""
    return socket.gethostname()
