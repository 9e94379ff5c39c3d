"""Histories: what may happen to a database, drawn as fifty steps.

    history --draws--> Start, mood, 50 x Step --play--> Twin

A step is a method of Twin and its arguments, drawn before anything runs, so the same history means the
same whatever the engine does. Histories have a mood: some are all about updates, some about DDL, some
about closing and opening. When the two sides disagree, Hypothesis turns every step it can do without
into a pause, makes the rest as plain as it can, and what is left is printed as a little program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

from hypothesis import note
from hypothesis import strategies as st

from tests.model.shapes import AGGREGATES, ORDERS, PLACES, SHAPES, WHERES, Input, Row
from tests.model.twin import SLOTS, Disk, Memory, Twin

STEPS = 60
"""Drawn per history. Some are pauses, which leaves a little more than fifty."""
PASSER_BY = SLOTS - 1
"""A slot whose transactions commit after one step, under the noses of the others."""
NAMES = ("num", "pair", "bare", "temp")
FORMS = ("dict", "list", "arrow")
WRITES = {"insert", "upsert", "update", "update_where", "delete", "delete_where", "create", "drop"}
TOKENS = ("once", "twice", ("app", 1), ("app", 2), ("app", 3), ("job", 1))


@dataclass(frozen=True)
class Step:
    """One call of a method of Twin, and whether the slot's transaction commits right after it."""

    call: str
    arguments: dict[str, Any] = field(default_factory=dict)
    commit: bool = False

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        tail = f"; twin.commit(slot={self.arguments['slot']})" if self.commit else ""
        return f"twin.{self.call}({given}){tail}"

    def run(self, twin: Twin) -> None:
        getattr(twin, self.call)(**self.arguments)
        if self.commit:
            twin.commit(self.arguments["slot"])


PAUSE = Step("pause")


@dataclass(frozen=True)
class History:
    """How the database is opened, what its tables hold at first, and what happens then."""

    bulk_rows: int
    retention_s: int
    rows: tuple[Input, ...]
    steps: tuple[Step, ...]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The notes tell the history up to where it failed; nobody wants to see the pauses."""
        printer.text("<a history, step by step below>")

    def play(self, store: Memory | Disk) -> None:
        """Run it on both sides; AssertionError where they differ."""
        sizes = f"bulk_rows={self.bulk_rows}, retention_s={self.retention_s}"
        note(f"twin = Twin({type(store).__name__}(), {sizes})")
        twin = Twin(store, bulk_rows=self.bulk_rows, retention_s=self.retention_s)
        try:
            for step in (*self._opening(), *self.steps):
                if step != PAUSE:
                    note(str(step))
                step.run(twin)
            note("twin.finish()")
            twin.finish()
        finally:
            twin.abandon()

    def _opening(self) -> list[Step]:
        steps = [
            Step("create", {"slot": 0, "name": shape.name, "shape": shape}) for shape in SHAPES
        ]
        steps += [
            Step("insert", {"slot": 0, "name": shape.name, "rows": rows})
            for shape, rows in zip(SHAPES, self.rows, strict=True)
            if rows.rows
        ]
        return [*steps, Step("commit", {"slot": 0})]


def _partials() -> list[Row]:
    """Values of some columns. Those with `c` come first: without it a row can only be an update."""
    values = {"a": (0, 1, 2, None), "b": ("x", "y", None), "c": (0, 1, 2)}
    found: list[Row] = []
    for names in (("c",), ("a", "c"), ("b", "c"), ("a", "b", "c"), ("a",), ("b",), ("a", "b")):
        picks = product(*(values[name] for name in names))
        found += [dict(zip(names, picked, strict=True)) for picked in picks]
    return found


PARTIALS = _partials()
FULL = [values for values in PARTIALS if "c" in values]
WRONG = [{"c": None}, {"a": 1, "b": "x"}]

values = st.sampled_from([*PARTIALS, WRONG[0]])
wheres = st.sampled_from((*WHERES, *WHERES[:2], *WHERES[:2]))
limits = st.none() | st.integers(0, 5)
lenient = st.booleans()
some_back = st.integers(-1, 12)


@st.composite
def inputs(draw: Any, rows: list[Row], places: int, forms: tuple[str, ...] = FORMS) -> Input:
    """One row or several, in one of three forms.

    Few draws make many rows: neighbouring or scattered places (a stride of 6 meets itself, which
    makes a key come twice) and two sets of values in turn.
    """
    form = draw(st.sampled_from(forms))
    count = 1 if form == "dict" else draw(st.integers(0, 9))
    first = draw(st.integers(0, places - 1))
    stride = draw(st.sampled_from((1, 1, 1, 5, 5, 7, 7, 6)))
    found = [(first + i * stride) % PLACES for i in range(count)]
    pool = st.sampled_from(rows)
    values = draw(pool), draw(pool)
    return Input(form, tuple((place, values[i % 2]) for i, place in enumerate(found)))


@st.composite
def first_rows(draw: Any) -> Input:
    """What a table holds at first: usually the places that narrow histories are about."""
    count, pool = draw(st.sampled_from((6, 6, 6, 12, 0))), st.sampled_from(FULL)
    values = draw(pool), draw(pool)
    return Input("arrow", tuple((place, values[place % 2]) for place in range(count)))


def _step(call: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    """A step; now and then its transaction commits right away. That of the passer-by always does."""
    drawn = st.fixed_dictionaries(arguments)
    if call not in WRITES:
        return drawn.map(lambda given: Step(call, given))
    often = st.integers(0, 9)
    return st.builds(
        lambda given, dice: Step(call, given, dice == 9 or given["slot"] == PASSER_BY),
        drawn,
        often,
    )


def _kinds(slots: int, names: tuple[str, ...], places: int) -> dict[str, st.SearchStrategy[Step]]:
    """Every kind of step, with transactions, tables and keys to choose from."""
    slot = st.sampled_from((*range(slots), PASSER_BY))
    name = st.sampled_from(names)
    place = st.integers(0, places - 1)
    move = st.one_of(st.none(), st.none(), st.none(), place)
    isolation = st.sampled_from(("snapshot", "serializable"))
    begin = {"slot": st.integers(0, slots - 1), "isolation": isolation}
    return {
        "begin": _step("begin_in", **begin, token=st.none()),
        "begin_token": _step("begin_in", **begin, token=st.sampled_from(TOKENS)),
        "begin_back": _step("begin_back", slot=slot, back=some_back),
        "begin_moment": _step("begin_moment", slot=slot, back=some_back, before=st.booleans()),
        "commit": _step("commit_one", choice=st.integers(0, SLOTS - 1)),
        "rollback": _step("rollback_one", choice=st.integers(0, SLOTS - 1)),
        "use_ended": _step("use_ended", choice=st.integers(0, 3)),
        "insert": _step("insert", slot=slot, name=name, rows=inputs([*FULL, *WRONG], places)),
        "upsert": _step("upsert", slot=slot, name=name, rows=inputs([*PARTIALS, *WRONG], places)),
        "update": _step("update", slot=slot, name=name, place=place, values=values, move=move),
        "update_where": _step(
            "update_where", slot=slot, name=name, where=wheres, values=values, move=move
        ),
        "delete": _step("delete", slot=slot, name=name, place=place),
        "delete_where": _step("delete_where", slot=slot, name=name, where=wheres),
        "get": _step("get", slot=slot, name=name, place=place),
        "get_many": _step("get_many", slot=slot, name=name, places=st.lists(place, max_size=6)),
        "range": _step(
            "range",
            slot=slot,
            name=name,
            low=st.none() | place,
            high=st.none() | place,
            reverse=st.booleans(),
            limit=limits,
        ),
        "scan": _step(
            "scan",
            slot=slot,
            name=name,
            where=st.none() | wheres,
            order=st.none() | st.sampled_from(ORDERS),
            limit=limits,
            stream=st.booleans(),
        ),
        "scan_all": _step("scan", slot=slot, name=name),
        "aggregate": _step(
            "aggregate", slot=slot, name=name, other=name, query=st.sampled_from(AGGREGATES)
        ),
        "count": _step("count", name=name, back=st.none() | some_back),
        "tables": _step("tables", slot=slot),
        "changes": _step("changes", name=name, back=some_back, until=st.none() | some_back),
        "create": _step(
            "create", slot=slot, name=name, shape=st.sampled_from(SHAPES), lenient=lenient
        ),
        "drop": _step("drop", slot=slot, name=name, lenient=lenient),
        "gc": _step("gc"),
        "turn_clock": _step("turn_clock", seconds=st.integers(-2, 10)),
        "reopen": _step("reopen", power_loss=st.none() | st.integers(0, 1000)),
        "follow": _step("follow"),
    }


WIDE = _kinds(SLOTS - 1, (*NAMES, *NAMES[:3], "NUM"), PLACES)
NARROW = [_kinds(2, names, 5) for names in (("num",), ("pair",), ("num", "bare"), ("pair", "temp"))]
"""Few transactions, tables and rows, so that they meet."""

ENDS = "begin commit commit rollback"
READS = "get get_many range scan scan_all aggregate tables"
WRITES_ROWS = "insert upsert update update_where delete delete_where"
MOODS = {
    "everything": f"{' '.join(WIDE)} {WRITES_ROWS} commit",
    "rows": f"{ENDS} {WRITES_ROWS} {WRITES_ROWS} {READS}",
    "updates": f"{ENDS} update update update upsert insert delete get scan_all changes",
    "bulk": f"{ENDS} insert upsert update_where delete_where insert update scan_all get range gc",
    "serializable": f"{ENDS} begin begin insert upsert update delete create drop {READS}",
    "tokens": "begin begin_token begin_token commit commit insert insert upsert create gc reopen",
    "ddl": f"{ENDS} create create drop drop insert update tables get scan_all gc changes",
    "past": "insert upsert update delete begin_back begin_moment turn_clock gc count changes scan",
    "restarts": f"{ENDS} {WRITES_ROWS} create drop gc reopen follow follow changes use_ended",
}


@st.composite
def histories(draw: Any) -> History:
    """A whole history."""
    kinds = draw(st.sampled_from((WIDE, *NARROW)))
    mood = draw(st.sampled_from(list(MOODS)))
    step = st.one_of(st.just(PAUSE), *(kinds[kind] for kind in MOODS[mood].split()))
    return History(
        bulk_rows=draw(st.sampled_from((2, 2, 3, 4, 5))),
        retention_s=draw(st.sampled_from((0, 0, 0, 5))),
        rows=tuple(draw(first_rows()) for _ in SHAPES),
        steps=tuple(draw(st.lists(step, min_size=STEPS, max_size=STEPS))),
    )
