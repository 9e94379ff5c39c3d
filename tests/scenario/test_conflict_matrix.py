"""The conflict matrix: every pair of operations on one key, as docs/isolation.md decides it.

    document (operations, two matrices) --parsed--> cells --each in many variants--> engine

Two transactions begin on one snapshot, both act on K, the first commits, then the second. The whole
table is compared afterwards, not only K: a transaction that lost must have left nothing, one that
won everything. A variant says how each of the two writes (row by row, or in bulk together with rows
of its own), the isolation, who acts first, what lay behind K, and whether strangers commit.

All of it is played with K in each place: in L0, in an object, in an object with a tombstone in
memory or flushed, and in the middle of a move. All variants of a place share one database, a table
each; when all is done it is opened again and every table must still hold what it held. `make sim`
plays every variant in every place, `make test` two for each cell and place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pytest

import halocline as hc
from tests.scenario.document import tables
from tests.scenario.places import HalfMoved
from tests.store.faulty import FaultyFiles

Row = tuple[Any, Any]
Content = dict[int, Row]

K = 1
STRANGER = 99
SOURCE, TARGET, OWN_OLD, OWN_NEW = 100, 200, 10, 20
"""Keys that belong to one transaction: SOURCE + n moves to K, K moves to TARGET + n, OWN_OLD + n is
there before and OWN_NEW + n is not; bulk changes take them along."""

NAMES = (
    "insert",
    "upsert",
    "upsert a",
    "update a",
    "update b",
    "add a",
    "expr a",
    "key change",
    "key change to K",
    "delete",
    "delete + insert",
)
STATES = ("K exists", "K is absent")


# -- the document --------------------------------------------------------------------------------


def read_alone() -> dict[tuple[str, str], str]:
    """(state, operation) -> what it does alone."""
    header, *rows = tables()["Every pair of operations: operation"]
    assert header == ["operation", "call", *STATES]
    return {(state, row[0]): row[2 + i] for row in rows for i, state in enumerate(STATES)}


def read_matrix() -> dict[tuple[str, str, str], str]:
    """(state, first, second) -> the cell."""
    cells = {}
    for state in STATES:
        header, *rows = tables()[f"{state} at the snapshot: first, second"]
        for row in rows:
            for second, cell in zip(header[1:], row[1:], strict=True):
                cells[state, row[0], second] = cell
    return cells


ALONE = read_alone()
MATRIX = read_matrix()


def row_of(text: str, n: int = 0) -> Row | None:
    """`1 null` -> (1, None); `n` stands for the writer's number."""
    if text == "gone":
        return None
    a, b = (n if word == "n" else None if word == "null" else int(word) for word in text.split())
    return a, b


def fails_at_once(state: str, operation: str) -> bool:
    return ALONE[state, operation].endswith("Error")


# -- the operations ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One of the two transactions: its number, what it writes, and how."""

    n: int
    value: int
    bulk: bool

    def do(self, txn: hc.Transaction, table: str, operation: str, state: str) -> Any:
        """Carry out an operation; the result of its last call."""
        act = _BULK[operation] if self.bulk else _SINGLE[operation]
        return act(self, txn, table, state)

    def leaves(self, operation: str, state: str) -> dict[int, Row | None]:
        """What a commit does to keys other than K. None: gone."""
        changed: dict[int, Row | None] = {}
        if operation == "key change":
            changed[TARGET + self.n] = (0, 0)
        if operation == "key change to K":
            changed[SOURCE + self.n] = None
        if self.bulk:
            changed |= self._own(operation, state)
        return changed

    def _own(self, operation: str, state: str) -> dict[int, Row | None]:
        old, new, v = OWN_OLD + self.n, OWN_NEW + self.n, self.value
        there = state == "K exists"
        effects: dict[str, dict[int, Row | None]] = {
            "insert": {new: (v, v)},
            "upsert": {old: (v, v), new: (v, v)},
            "upsert a": {old: (v, 0), new: (v, None)},
            "update a": {old: (v, 0)},
            "update b": {old: (0, v)},
            "add a": {old: (v, 0)},
            "expr a": {old: (v, 0)},
            "delete": {old: None} if there else {},
            "delete + insert": {new: (v, v)} | ({old: None} if there else {}),
        }
        return effects.get(operation, {})

    def keys(self, state: str) -> str:
        """What a bulk delete takes; only K where there is none, so that nothing is deleted."""
        return f"id in ({K}, {OWN_OLD + self.n})" if state == "K exists" else f"id = {K}"

    def rows(self, *keys: int, columns: str = "ab") -> pa.Table:
        values = {name: pa.array([self.value] * len(keys), pa.int64()) for name in columns}
        return pa.table({"id": pa.array(keys, pa.int64()), **values})

    def row(self, columns: str = "ab") -> dict[str, int]:
        return {"id": K, **dict.fromkeys(columns, self.value)}


Act = Callable[[Writer, hc.Transaction, str, str], Any]


def _delete_insert(writer: Writer, txn: hc.Transaction, table: str, state: str) -> Any:
    assert txn.delete(table, K) is (state == "K exists")
    return txn.insert(table, writer.row())


def _delete_insert_bulk(writer: Writer, txn: hc.Transaction, table: str, state: str) -> Any:
    txn.delete(table, where=writer.keys(state))
    return txn.insert(table, writer.rows(K, OWN_NEW + writer.n))


def _update_bulk(column: str, term: Callable[[int], Any] = int) -> Act:
    return lambda w, txn, t, state: txn.update(
        t, where=f"id in ({K}, {OWN_OLD + w.n})", set={column: term(w.value)}
    )


def _b_plus(value: int) -> Any:
    return hc.expr("b + ?", [value])


_SINGLE: dict[str, Act] = {
    "insert": lambda w, txn, t, state: txn.insert(t, w.row()),
    "upsert": lambda w, txn, t, state: txn.upsert(t, w.row()),
    "upsert a": lambda w, txn, t, state: txn.upsert(t, w.row("a")),
    "update a": lambda w, txn, t, state: txn.update(t, K, {"a": w.value}),
    "update b": lambda w, txn, t, state: txn.update(t, K, {"b": w.value}),
    "add a": lambda w, txn, t, state: txn.update(t, K, {"a": hc.add(w.value)}),
    "expr a": lambda w, txn, t, state: txn.update(t, K, {"a": _b_plus(w.value)}),
    "key change": lambda w, txn, t, state: txn.update(t, K, {"id": TARGET + w.n}),
    "key change to K": lambda w, txn, t, state: txn.update(t, SOURCE + w.n, {"id": K}),
    "delete": lambda w, txn, t, state: txn.delete(t, K),
    "delete + insert": _delete_insert,
}
_BULK: dict[str, Act] = {
    "insert": lambda w, txn, t, state: txn.insert(t, w.rows(K, OWN_NEW + w.n)),
    "upsert": lambda w, txn, t, state: txn.upsert(t, w.rows(K, OWN_OLD + w.n, OWN_NEW + w.n)),
    "upsert a": lambda w, txn, t, state: txn.upsert(
        t, w.rows(K, OWN_OLD + w.n, OWN_NEW + w.n, columns="a")
    ),
    "update a": _update_bulk("a"),
    "update b": _update_bulk("b"),
    "add a": _update_bulk("a", hc.add),
    "expr a": _update_bulk("a", _b_plus),
    "key change": lambda w, txn, t, state: txn.update(
        t, where=f"id = {K}", set={"id": TARGET + w.n}
    ),
    "key change to K": lambda w, txn, t, state: txn.update(
        t, where=f"id = {SOURCE + w.n}", set={"id": K}
    ),
    "delete": lambda w, txn, t, state: txn.delete(t, where=w.keys(state)),
    "delete + insert": _delete_insert_bulk,
}
READS_IN_BULK = frozenset(NAMES) - {"insert", "upsert", "upsert a"}
"""Operations whose bulk form finds its rows by predicate: at serializable that is a read."""


# -- the variants --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How a cell is played. The defaults are the plain case."""

    bulk: tuple[bool, bool] = (False, False)
    isolation: Literal["snapshot", "serializable"] = "snapshot"
    read_first: bool = False
    second_acts_first: bool = False
    equal_values: bool = False
    old_versions: bool = False
    strangers: bool = False

    def writers(self) -> tuple[Writer, Writer]:
        values = (7, 7) if self.equal_values else (1, 2)
        return (
            Writer(n=1, value=values[0], bulk=self.bulk[0]),
            Writer(n=2, value=values[1], bulk=self.bulk[1]),
        )

    def reads(self, operation: str) -> bool:
        """Whether the second transaction, by this variant, has read what the first one writes."""
        by_predicate = self.bulk[1] and operation in READS_IN_BULK
        return self.isolation == "serializable" and (self.read_first or by_predicate)

    def adds_plainly(self, first: str, second: str) -> bool:
        """Whether one of two additions is a plain write, as those of many rows at once are."""
        return first == second == "add a" and any(self.bulk)


FORMS = ((False, False), (False, True), (True, False), (True, True))
VARIANTS = (
    *(Variant(bulk=form) for form in FORMS),
    *(Variant(bulk=form, isolation="serializable") for form in FORMS),
    *(Variant(bulk=form, isolation="serializable", read_first=True) for form in FORMS),
    *(Variant(bulk=(both, both), second_acts_first=True) for both in (False, True)),
    *(Variant(bulk=(both, both), equal_values=True) for both in (False, True)),
    *(Variant(bulk=(both, both), old_versions=True) for both in (False, True)),
    *(Variant(bulk=(both, both), strangers=True) for both in (False, True)),
)


PLACES = ("L0", "object", "tombstone in L0", "flushed tombstone", "in a move")
SAMPLE = 2


def variants(cell: int, place: str, every: bool) -> list[Variant]:
    """All of them, or some: another choice for each cell and place, the same every time."""
    if every:
        return list(VARIANTS)
    first = 7 * cell + 3 * PLACES.index(place)
    return [VARIANTS[(first + 11 * i) % len(VARIANTS)] for i in range(SAMPLE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The database of one place, and what each table must hold when it is opened again."""

    place: str
    db: hc.Database
    expected: dict[str, Content]
    moves: HalfMoved

    def table(self, state: str, variant: Variant) -> tuple[str, Content]:
        """A new table in its starting state, with K in its place."""
        name = f"t{len(self.expected)}"
        content: Content = {SOURCE + n: (n, n) for n in (1, 2)}
        content |= {OWN_OLD + n: (0, 0) for n in (1, 2)}
        if variant.equal_values:
            content |= {SOURCE + n: (7, 7) for n in (1, 2)}
        there = state == "K exists"
        ended = variant.old_versions or "tombstone" in self.place
        schema = {"id": int, "a": int, "b": int}
        with self.db.begin() as txn:
            txn.create_table(name, schema, primary_key="id")
            txn.insert(name, [_dict(key, row) for key, row in content.items()])
            if there or ended:
                txn.insert(name, _dict(K, (0, 0)))
        if "tombstone" in self.place:
            self.db.flush(name)
        if ended:
            self._end_and_begin(name, there, variant)
        if self.place in ("object", "flushed tombstone"):
            self.db.flush(name)
        if self.place == "in a move":
            self.moves.start(self.db, name)
        if there:
            content[K] = (0, 0)
        self.expected[name] = content
        return name, content

    def _end_and_begin(self, name: str, there: bool, variant: Variant) -> None:
        """Versions of K come to an end; the last one is as if it had been the first."""
        with self.db.begin() as txn:
            txn.update(name, K, {"a": 5})
        if not there or variant.old_versions:
            with self.db.begin() as txn:
                txn.delete(name, K)
            if there:
                with self.db.begin() as txn:
                    txn.insert(name, _dict(K, (0, 0)))
        else:
            with self.db.begin() as txn:
                txn.update(name, K, {"a": 0})

    def content(self, name: str) -> Content:
        with self.db.begin() as txn:
            rows = txn.scan(name).to_pylist()
            found = {row["id"]: (row["a"], row["b"]) for row in rows}
            assert len(found) == len(rows), f"a key is there twice: {rows}"
            one = txn.get(name, K)
            assert (None if one is None else (one["a"], one["b"])) == found.get(K)
        return found


def _dict(key: int, row: Row) -> dict[str, Any]:
    return {"id": key, "a": row[0], "b": row[1]}


@pytest.fixture(scope="module", params=PLACES)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    files = FaultyFiles()
    options = hc.Options(page_rows=4, bulk_rows=1, object_rows=16, sql_threads=1, background=False)
    db = hc.Database(files, "matrix", options=options)
    bench = Bench(place=request.param, db=db, expected={}, moves=HalfMoved(files))
    yield bench
    bench.moves.settle()
    if bench.place == "flushed tombstone":
        db.compact()
        db.checkpoint()
    assert not db.check()
    db.close()
    with hc.Database(files, "matrix", options=options) as again:
        assert not again.check()
        reopened = Bench(place="L0", db=again, expected={}, moves=HalfMoved(files))
        wrong = {
            name: (content, found)
            for name, content in bench.expected.items()
            if (found := reopened.content(name)) != content
        }
        assert wrong == {}


# -- the tests -----------------------------------------------------------------------------------


def test_the_document_decides_every_cell() -> None:
    assert set(ALONE) == set(itertools.product(STATES, NAMES))
    assert set(MATRIX) == set(itertools.product(STATES, NAMES, NAMES))
    for (state, first, second), cell in MATRIX.items():
        impossible = fails_at_once(state, first) or fails_at_once(state, second)
        assert (cell == "-") == impossible, (state, first, second)
        assert cell in {"-", "conflict", "gone"} or row_of(cell) is not None


def test_update_against_delete_conflicts_in_both_orders() -> None:
    for update in ("update a", "update b", "upsert", "upsert a"):
        assert MATRIX["K exists", update, "delete"] == "conflict"
        assert MATRIX["K exists", "delete", update] == "conflict"


def test_additions_conflict_with_all_that_writes_the_column_but_additions() -> None:
    for other in NAMES:
        cell = MATRIX["K exists", "add a", other]
        merges = {"add a": "3 0", "update b": "1 2", "insert": "-", "key change to K": "-"}
        assert cell == merges.get(other, "conflict")


def test_the_matrix_is_symmetric_but_for_who_wins() -> None:
    for (state, first, second), cell in MATRIX.items():
        assert (cell == "conflict") == (MATRIX[state, second, first] == "conflict")


@pytest.mark.parametrize("bulk", [False, True], ids=["single", "bulk"])
@pytest.mark.parametrize("operation", NAMES)
@pytest.mark.parametrize("state", STATES)
def test_alone(bench: Bench, state: str, operation: str, bulk: bool) -> None:
    variant = Variant(bulk=(bulk, bulk))
    table, content = bench.table(state, variant)
    writer, _ = variant.writers()
    expected = ALONE[state, operation]
    txn = bench.db.begin()
    if expected == "NotFoundError" and bulk:
        # By predicate an absent row is no error; what it does to other rows is not K's business.
        assert writer.do(txn, table, operation, state) == (0 if "key" in operation else 1)
        txn.rollback()
    elif expected.endswith("Error"):
        with pytest.raises(hc.HaloclineError) as caught:
            writer.do(txn, table, operation, state)
        assert type(caught.value).__name__ == expected
        assert txn.commit() is None  # The call that failed has left nothing.
    elif expected == "nothing":
        assert not writer.do(txn, table, operation, state)
        assert txn.commit() is None
    else:
        writer.do(txn, table, operation, state)
        assert txn.commit() is not None
        _put(content, {K: row_of(expected, 1), **writer.leaves(operation, state)})
    bench.moves.settle()
    assert bench.content(table) == content


CELLS = [key for key, cell in MATRIX.items() if cell != "-"]


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("state", STATES)
def test_pairs(bench: Bench, state: str, first: str, sim: bool) -> None:
    for number, cell in enumerate(CELLS):
        if cell[:2] == (state, first):
            for variant in variants(number, bench.place, sim):
                try:
                    _play(bench, variant, *cell)
                except Exception as error:
                    error.add_note(f"{bench.place}; {state}: {first}, then {cell[2]}; {variant}")
                    raise


def _play(bench: Bench, variant: Variant, state: str, first: str, second: str) -> None:
    db = bench.db
    table, content = bench.table(state, variant)
    operations = (first, second)
    writers = variant.writers()
    txns = (db.begin(isolation=variant.isolation), db.begin(isolation=variant.isolation))
    if variant.read_first:
        for txn in txns:
            assert txn.get(table, K) == (_dict(K, (0, 0)) if state == "K exists" else None)
    if variant.strangers:
        with db.begin() as stranger:
            stranger.insert(table, _dict(STRANGER, (9, 9)))
        content[STRANGER] = (9, 9)
    for i in (1, 0) if variant.second_acts_first else (0, 1):
        writers[i].do(txns[i], table, operations[i], state)
    wrote = [ALONE[state, operation] != "nothing" for operation in operations]

    assert (txns[0].commit() is not None) == wrote[0]
    if variant.isolation == "snapshot":
        bench.moves.settle()  # The move ends between the two commits, or else after both.
    cell = MATRIX[state, first, second]
    if (all(wrote) and variant.reads(second)) or variant.adds_plainly(first, second):
        cell = "conflict"
    if cell == "conflict":
        with pytest.raises(hc.ConflictError) as caught:
            txns[1].commit()
        assert caught.value.table == table
        assert caught.value.winner_ts == txns[0].commit_ts
        _put(content, {K: row_of(ALONE[state, first], writers[0].value)})
        _put(content, writers[0].leaves(first, state))
    else:
        assert (txns[1].commit() is not None) == wrote[1]
        _put(content, {K: _valued(row_of(cell), writers)})
        for i in (0, 1):
            if wrote[i]:
                _put(content, writers[i].leaves(operations[i], state))
    bench.moves.settle()
    assert bench.content(table) == content


def _valued(row: Row | None, writers: tuple[Writer, Writer]) -> Row | None:
    """The document's 1 and 2 as what the two have really written, and 3 as the sum of both."""
    if row is None:
        return None
    values = {0: 0, None: None, 1: writers[0].value, 2: writers[1].value}
    values[3] = writers[0].value + writers[1].value
    return values[row[0]], values[row[1]]


def _put(content: Content, changed: dict[int, Row | None]) -> None:
    for key, row in changed.items():
        if row is None:
            content.pop(key, None)
        else:
            content[key] = row
