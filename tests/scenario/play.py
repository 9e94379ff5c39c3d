"""Runs the steps of a scenario against a real database, in one placement after another.

    steps (script.py) --Player--> Database of a placement --> results compared with what is wanted

A placement says where rows come to lie and by which way they get there: L0, objects with their
tombstones in memory or in objects, in the middle of a move, as Arrow, in objects that were written
before their commit. The same script must give the same results in all of them; a new layout or
runner is one more entry in EVERYWHERE, with a `writer` of its own if it writes in another way.

After the last step the database is checked, closed and opened again: every table must look the
same, now and at every remembered timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import halocline as hc
from tests.scenario.places import Flushed, HalfMoved, Moved, Still
from tests.scenario.script import Step, Wanted, Word, plain
from tests.store.faulty import FaultyFiles

Rows = list[dict[str, Any]]


class ScenarioFailure(AssertionError):
    """A step that led elsewhere; the message starts with file:line."""


# -- placements ----------------------------------------------------------------------------------


class Single:
    """Writes row by row, by key: what most programs do."""

    def insert(self, txn: hc.Transaction, table: str, rows: Rows) -> int:
        return txn.insert(table, rows if len(rows) > 1 else rows[0])

    def upsert(self, txn: hc.Transaction, table: str, rows: Rows) -> int:
        return txn.upsert(table, rows if len(rows) > 1 else rows[0])

    def update(self, txn: hc.Transaction, table: str, key: Any, values: dict[str, Any]) -> int:
        return txn.update(table, key, values)

    def delete(self, txn: hc.Transaction, table: str, key: Any) -> bool:
        return bool(txn.delete(table, key))


class Arrow(Single):
    """Hands rows over as Arrow tables, so that more than `bulk_rows` of them travel as such."""

    def insert(self, txn: hc.Transaction, table: str, rows: Rows) -> int:
        return sum(txn.insert(table, part) for part in _tables(txn, table, rows))

    def upsert(self, txn: hc.Transaction, table: str, rows: Rows) -> int:
        return sum(txn.upsert(table, part) for part in _tables(txn, table, rows))


class ArrowByPredicate(Arrow):
    """Finds rows by predicate instead of by key, so that updates and deletes go the bulk way.

    A serializable transaction would then have read the whole table: there it writes by key. So
    does one that adds, as additions to many rows at once are plain writes.
    """

    def update(self, txn: hc.Transaction, table: str, key: Any, values: dict[str, Any]) -> int:
        adds = any(not isinstance(value, str | int | float | None) for value in values.values())
        if adds or txn.serializable or txn.get(table, key) is None:
            return super().update(txn, table, key, values)
        where, params = _by_key(txn, table, key)
        return txn.update(table, where=where, params=params, set=values)

    def delete(self, txn: hc.Transaction, table: str, key: Any) -> bool:
        if txn.serializable or txn.get(table, key) is None:
            return super().delete(txn, table, key)
        where, params = _by_key(txn, table, key)
        return bool(txn.delete(table, where=where, params=params))


def _tables(txn: hc.Transaction, table: str, rows: Rows) -> list[pa.Table]:
    """One Arrow table per set of columns that rows name; nearly always one."""
    schema = txn.changes_of(table).schema.arrow
    groups: dict[frozenset[str], Rows] = {}
    for row in rows:
        groups.setdefault(frozenset(row), []).append(row)
    found = []
    for names, group in groups.items():
        if names <= set(schema.names):
            fields = [item.with_nullable(True) for item in schema if item.name in names]
            found.append(pa.Table.from_pylist(group, schema=pa.schema(fields)))
        else:
            found.append(pa.Table.from_pylist(group))  # The engine shall refuse it.
    return found


def _by_key(txn: hc.Transaction, table: str, key: Any) -> tuple[str, list[Any]]:
    names = txn.changes_of(table).schema.primary_key
    where = " and ".join(f'"{name}" = ?' for name in names)
    return where, list(key) if isinstance(key, tuple) else [key]


def _tiny(**given: int) -> hc.Options:
    """Small pages and objects. Zeros, which Options may refuse, make one row many for a test."""
    options = hc.Options(
        page_rows=4,
        sequence_block=4,
        object_rows=16,
        log_file_bytes=16384,
        log_file_bytes_first=8192,
        sql_threads=1,
        background=False,
    )
    for name, value in given.items():
        object.__setattr__(options, name, value)
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the rows of a scenario lie and how they get there."""

    name: str
    options: hc.Options = field(default_factory=_tiny)
    writer: Single = field(default_factory=Single)
    place: type[Still] = Still
    on_disk: bool = False
    nodes: int = 0
    """Handles beside the owner's that commit through it: session `a` is that of the first of them,
    `b` of the second, and so on in turn."""


EVERYWHERE = (
    Placement(name="memory"),
    Placement(name="arrow", options=_tiny(bulk_rows=0), writer=ArrowByPredicate()),
    Placement(name="objects", place=Flushed, on_disk=True),
    Placement(name="moved", place=Moved),
    Placement(name="half-moved", place=HalfMoved),
    Placement(
        name="bulk-objects",
        options=_tiny(bulk_rows=0, object_rows_min=0),
        writer=ArrowByPredicate(),
    ),
    Placement(name="node", on_disk=True, nodes=1),
    Placement(
        name="nodes-bulk",
        options=_tiny(bulk_rows=0, object_rows_min=0),
        writer=ArrowByPredicate(),
        on_disk=True,
        nodes=2,
    ),
)
RARELY = (Placement(name="nodes-objects", on_disk=True, nodes=2, place=Flushed),)
"""Placements that cost too much for every run."""


# -- playing -------------------------------------------------------------------------------------


def play(steps: Sequence[Step], path: Path, placement: Placement) -> None:
    """Run a whole script in a new database at `path`; ScenarioFailure at the first wrong step."""
    player = Player(path, placement)
    try:
        for step in steps:
            player.do(step)
            player.move()
        player.finish(steps[-1] if steps else None)
    finally:
        player.close()


class Player:
    """A database, its sessions, and the timestamps that the script has named."""

    def __init__(self, path: Path, placement: Placement) -> None:
        self._path = path
        self._placement = placement
        self._files = FaultyFiles()
        self._place = placement.place(self._files)
        self._db = self._open()
        self._nodes = self._join()
        self._sessions: dict[str, hc.Transaction] = {}
        self._names: dict[str, int | None] = {}

    def do(self, step: Step) -> None:
        """Run one step and compare."""
        try:
            result = getattr(self, "_" + step.verb)(step)
        except ScenarioFailure:
            raise
        except Exception as error:
            _compare_error(step, error)
            return
        if step.wanted is not None and step.wanted.error:
            raise ScenarioFailure(f"{step}\n  expected {step.wanted.error}\n  got      {result!r}")
        if step.wanted is not None:
            self._compare(step, step.wanted, result)

    def finish(self, last: Step | None) -> None:
        """What is committed is what is found again."""
        for txn in self._sessions.values():
            txn.rollback()
        self._sessions.clear()
        before = self._everything()
        self._reopen_database()
        after = self._everything()
        if before != after:
            raise ScenarioFailure(
                f"{last}\n  after opening again\n  expected {before}\n  got      {after}"
            )

    def move(self) -> None:
        """Rows go where the placement has them."""
        self._place.after(self._db)

    def close(self) -> None:
        self._place.settle()
        for node in self._nodes:
            node.close()
        self._db.close()

    # Verbs. Each returns what `=` is compared with.

    def _begin(self, step: Step) -> None:
        if step.session in self._sessions:
            raise ScenarioFailure(f"{step}\n  session {step.session} is in a transaction already")
        args = step.args
        self._sessions[step.session] = self._database(step).begin(
            at=self._ts(step, args["at"]), isolation=args["isolation"], token=plain(args["token"])
        )

    def _commit(self, step: Step) -> int | None:
        txn = self._end(step)
        commit_ts = txn.commit()
        self._name(step.args["as"], commit_ts)
        return commit_ts

    def _rollback(self, step: Step) -> None:
        self._end(step).rollback()

    def _create(self, step: Step) -> None:
        args = step.args
        with self._txn(step) as txn:
            txn.create_table(
                args["table"],
                {name: _TYPES.get(kind, kind) for name, kind in args["columns"].items()},
                args["key"],
                if_not_exists=args["if_not_exists"],
                checks=args["checks"],
            )

    def _drop(self, step: Step) -> None:
        with self._txn(step) as txn:
            txn.drop_table(step.args["table"], if_exists=step.args["if_exists"])

    def _rename(self, step: Step) -> None:
        with self._txn(step) as txn:
            txn.rename_table(step.args["table"], step.args["name"])

    def _alter(self, step: Step) -> None:
        added = {name: _TYPES.get(kind, kind) for name, kind in step.args.get("add", {}).items()}
        with self._txn(step) as txn:
            txn.alter_table(step.args["table"], add=added, drop=step.args.get("drop", ()))

    def _tables(self, step: Step) -> list[str]:
        with self._txn(step) as txn:
            return txn.tables()

    def _insert(self, step: Step) -> int:
        with self._txn(step) as txn:
            rows = self._rows(txn, step)
            return self._placement.writer.insert(txn, step.args["table"], rows)

    def _upsert(self, step: Step) -> int:
        with self._txn(step) as txn:
            rows = self._rows(txn, step)
            return self._placement.writer.upsert(txn, step.args["table"], rows)

    def _update(self, step: Step) -> int:
        table, values = step.args["table"], step.args["values"]
        with self._txn(step) as txn:
            if step.args["where"] is not None:
                return txn.update(table, where=step.args["where"], set=values)
            return self._placement.writer.update(txn, table, step.args["key"], values)

    def _delete(self, step: Step) -> int | bool:
        table = step.args["table"]
        with self._txn(step) as txn:
            if step.args["where"] is not None:
                return txn.delete(table, where=step.args["where"])
            return self._placement.writer.delete(txn, table, step.args["key"])

    def _truncate(self, step: Step) -> None:
        with self._txn(step) as txn:
            txn.truncate(step.args["table"])

    def _get(self, step: Step) -> dict[str, Any] | None:
        with self._txn(step) as txn:
            locks = {"for_update": True, "timeout": 0} if step.args["for_update"] else {}
            return txn.get(step.args["table"], step.args["key"], **locks)

    def _range(self, step: Step) -> Rows:
        args = step.args
        with self._txn(step) as txn:
            found = txn.range(args["table"], args["low"], args["high"], reverse=args["reverse"])
            return list(found.to_pylist())

    def _scan(self, step: Step) -> Rows:
        with self._txn(step) as txn:
            return list(txn.scan(step.args["table"], where=step.args["where"]).to_pylist())

    def _sql(self, step: Step) -> Rows:
        with self._txn(step) as txn:
            return list(txn.sql(step.args["text"], step.args["params"]).to_pylist())

    def _count(self, step: Step) -> int:
        table = step.args["table"]
        if step.session in self._sessions:
            txn = self._sessions[step.session]
            return int(txn.sql(f'select count(*) as n from "{table}"').column("n")[0].as_py())
        return self._database(step).table(table).count(at=self._ts(step, step.args["at"]))

    def _changes(self, step: Step) -> Rows:
        args = step.args
        since, until = self._ts(step, args["since"]), self._ts(step, args["until"])
        feed = self._database(step).changes(args["table"], since=since, until=until)
        events = feed.to_pylist()
        # Commits come in order; inside one, what ends comes before what begins, in any order.
        events.sort(key=lambda event: (event["_commit_ts"], _begins(event), _cells(event)))
        return [{"_change": event["_change"], **_columns(event)} for event in events]

    def _mark(self, step: Step) -> None:
        self._name(step.args["as"], self._database(step).visible_ts)

    def _reopen(self, step: Step) -> None:
        self._sessions.clear()
        self._reopen_database()

    def _flush(self, step: Step) -> None:
        self._upkeep(self._database(step).flush)

    def _compact(self, step: Step) -> None:
        self._upkeep(self._database(step).compact)

    def _checkpoint(self, step: Step) -> None:
        self._upkeep(self._database(step).checkpoint)

    def _gc(self, step: Step) -> None:
        self._upkeep(self._database(step).gc)

    # Private.

    def _upkeep(self, work: Callable[[], object]) -> None:
        """A move that is under way would have to end first."""
        self._place.settle()
        work()

    def _open(self) -> hc.Database:
        options = self._placement.options
        if self._placement.on_disk:
            return hc.open(self._path, options=options)
        return hc.Database(self._files, str(self._path), options=options)

    def _join(self) -> list[hc.Database]:
        """Handles that commit through the owner."""
        options = self._placement.options
        return [hc.open(self._path, options=options) for _ in range(self._placement.nodes)]

    def _database(self, step: Step) -> hc.Database:
        """The handle of a session; with more than one node the owner takes part as well."""
        handles = self._nodes if len(self._nodes) == 1 else [*self._nodes, self._db]
        return handles[sum(step.session.encode()) % len(handles)]

    def _reopen_database(self) -> None:
        self._place.settle()
        for database in [*self._nodes, self._db]:
            assert not database.check()
            database.close()
        self._db = self._open()
        self._nodes = self._join()
        for database in [*self._nodes, self._db]:
            assert not database.check()

    @contextmanager
    def _txn(self, step: Step) -> Iterator[hc.Transaction]:
        """The session's transaction, or one for this step alone."""
        current = self._sessions.get(step.session)
        if current is not None:
            if step.args.get("as") is not None:
                raise ScenarioFailure(f"{step}\n  nothing commits here: `as` belongs to commit")
            yield current
            return
        with self._database(step).begin() as txn:
            yield txn
        self._name(step.args.get("as"), txn.commit_ts)

    def _end(self, step: Step) -> hc.Transaction:
        if step.session not in self._sessions:
            raise ScenarioFailure(f"{step}\n  session {step.session} is in no transaction")
        return self._sessions.pop(step.session)

    def _name(self, name: str | None, ts: int | None) -> None:
        if name is not None:
            self._names[name] = ts

    def _ts(self, step: Step, value: Any) -> Any:
        """A timestamp, or the one that was given this name."""
        if not isinstance(value, Word):
            return value
        if value.text not in self._names:
            raise ScenarioFailure(f"{step}\n  no commit was named {value.text!r}")
        return self._names[value.text]

    def _rows(self, txn: hc.Transaction, step: Step) -> Rows:
        names = txn.changes_of(step.args["table"]).schema.names
        return [
            row if isinstance(row, dict) else dict(zip(names, row, strict=True))
            for row in step.args["rows"]
        ]

    def _everything(self) -> dict[Any, Any]:
        """Every table, now and at every timestamp that has a name."""
        seen: dict[Any, Any] = {}
        for name, ts in {"now": None, **self._names}.items():
            with self._db.begin(at=ts) as txn:
                for table in txn.tables():
                    rows = txn.scan(table).to_pylist()
                    seen[name, table] = sorted(repr(tuple(row.values())) for row in rows)
        return seen

    def _compare(self, step: Step, wanted: Wanted, result: Any) -> None:
        expected: Any
        found: Any
        if step.verb in _ROWS:
            expected, found = _as_rows(wanted.values, result)
            ordered = step.verb != "scan" and not (
                step.verb == "sql" and "order by" not in step.args["text"].lower()
            )
            same = expected == found if ordered else _same_bag(expected, found)
        elif step.verb == "tables":
            names = () if wanted.values == (_NOTHING,) else wanted.values
            expected, found = [plain(name) for name in names], result
            same = expected == found
        elif step.verb == "commit" and wanted.values != (_NOTHING,):
            expected, found = self._ts(step, wanted.values[0]), result
            same = expected == found
        else:
            expected, found = _one(step, wanted.values), result
            if isinstance(expected, tuple) and isinstance(found, Mapping):
                found = tuple(found.values())
            same = expected == found and isinstance(expected, bool) == isinstance(found, bool)
        if not same:
            raise ScenarioFailure(f"{step}\n  expected {expected!r}\n  got      {found!r}")


# -- comparing -----------------------------------------------------------------------------------

_NOTHING = Word("nothing")
_ROWS = frozenset({"range", "scan", "sql", "changes"})
_TYPES: dict[str, Any] = {"int": int, "str": str, "float": float, "bool": bool}


def _as_rows(values: tuple[Any, ...], rows: Rows) -> tuple[list[Any], list[Any]]:
    """Both sides in one form: dicts if the script has dicts, else tuples; a lone value is 1 x 1."""
    if values == (_NOTHING,):
        return [], list(rows)
    if values and isinstance(values[0], dict):
        return [plain(value) for value in values], list(rows)
    expected = [plain(value if isinstance(value, tuple) else (value,)) for value in values]
    return expected, [tuple(row.values()) for row in rows]


def _same_bag(one: list[Any], other: list[Any]) -> bool:
    """Equal but for the order. By ==, not by hash or text: 30 and Decimal("30") are equal."""
    rest = list(other)
    for row in one:
        if row not in rest:
            return False
        rest.remove(row)
    return not rest


def _begins(event: Mapping[str, Any]) -> bool:
    return event["_change"] in {"insert", "update_after"}


def _columns(event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if not name.startswith("_")}


def _cells(event: Mapping[str, Any]) -> str:
    return repr(list(_columns(event).values()))


def _one(step: Step, values: tuple[Any, ...]) -> Any:
    if len(values) != 1:
        raise ScenarioFailure(f"{step}\n  {step.verb} has one result, the script {len(values)}")
    return None if values == (_NOTHING,) else plain(values[0])


def _compare_error(step: Step, error: Exception) -> None:
    wanted = step.wanted
    name = type(error).__name__
    if wanted is None or wanted.error != name or wanted.message not in str(error):
        shown = "no error" if wanted is None or not wanted.error else f"{wanted.error}"
        shown += f" with {wanted.message!r}" if wanted is not None and wanted.message else ""
        raise ScenarioFailure(f"{step}\n  expected {shown}\n  got      {name}: {error}") from error
