"""The language of the scenarios: what it reads, and how it complains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenario.play import EVERYWHERE, ScenarioFailure, play
from tests.scenario.script import ScriptError, Step, Wanted, Word, parse


def one(text: str) -> Step:
    (step,) = parse(text, "x.txt")
    return step


def test_a_line_holds_steps_of_several_sessions() -> None:
    steps = parse("a> begin ; b> begin\n\n# nothing\na> commit ; begin   # again", "x.txt")
    assert [(step.session, step.verb, step.place) for step in steps] == [
        ("a", "begin", "x.txt:1"),
        ("b", "begin", "x.txt:1"),
        ("a", "commit", "x.txt:4"),
        ("a", "begin", "x.txt:4"),
    ]


def test_values_are_typed() -> None:
    step = one("a> insert t (1, -2, 1.5, true, null, word, 'it''s # = ; ok') {id: 2, a: x-y}")
    assert step.args["rows"] == [
        (1, -2, 1.5, True, None, "word", "it's # = ; ok"),
        {"id": 2, "a": "x-y"},
    ]


def test_assignments_and_expectations_are_told_apart() -> None:
    step = one("a> update t 7 status='paid' n=-3 = 1")
    assert step.args["key"] == 7
    assert step.args["values"] == {"status": "paid", "n": -3}
    assert step.wanted == Wanted(values=(1,))


def test_terms_are_values_of_updates() -> None:
    step = one('a> update t 7 n=add(-3) m=expr("n * 2") a=add = 1')
    assert repr(step.args["values"]) == "{'n': hc.add(-3), 'm': hc.expr('n * 2'), 'a': 'add'}"


def test_expectations() -> None:
    assert one("a> commit").wanted is None
    assert one("a> commit = first").wanted == Wanted(values=(Word("first"),))
    assert one("a> scan t = (1, x) (2, y)").wanted == Wanted(
        values=((1, Word("x")), (2, Word("y")))
    )
    assert one('a> commit ! ConflictError "same column"').wanted == Wanted(
        error="ConflictError", message="same column"
    )


def test_begin_create_range_and_sql_take_their_options() -> None:
    assert one("a> begin serializable token (app, 3)").args == {
        "isolation": "serializable",
        "at": None,
        "token": (Word("app"), 3),
    }
    assert one("a> create t (id int, p 'decimal(12,2)') key (id, p) if_not_exists").args == {
        "table": "t",
        "columns": {"id": "int", "p": "decimal(12,2)"},
        "key": ["id", "p"],
        "if_not_exists": True,
        "checks": {},
    }
    assert one('a> create t (id int) key id check "id > 0" check "id < 9"').args["checks"] == {
        "c0": "id > 0",
        "c1": "id < 9",
    }
    assert one("a> range t 2..").args == {"table": "t", "low": 2, "high": None, "reverse": False}
    assert one('a> sql "select 1; -- # = !" 5 x').args == {
        "text": "select 1; -- # = !",
        "params": [5, "x"],
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("begin", "x.txt:3: a line starts with a session"),
        ("a> ", "x.txt:3: an empty step"),
        ("a> begin ;", "x.txt:3: an empty step"),
        ("a> begin ; ; commit", "x.txt:3: an empty step"),
        ("a> frobnicate t", "x.txt:3: there is no step 'frobnicate'; steps: begin, commit"),
        ("a> get t", "x.txt:3: expected a value, found the end of the step, in: a> get t"),
        ("a> get t 1 2", "x.txt:3: 'get' does not take '2', in: a> get t 1 2"),
        ("a> get t 'x", "x.txt:3: cannot read an unfinished quote at column 10"),
        ("a> update t 1 a = 5", "x.txt:3: expected column=value without blanks"),
        ("a> update t 1", "x.txt:3: expected column=value without blanks"),
        ("a> insert t", "x.txt:3: expected rows"),
        ("a> insert t (1, 2", "x.txt:3: expected , or ), found the end of the step"),
        ("a> insert t {id: 1, id: 2}", "x.txt:3: column 'id' stands twice"),
        ("a> range t 5", "x.txt:3: a range is written LOW..HIGH"),
        ("a> sql select", "x.txt:3: expected SQL in double quotes"),
        ("a> begin sometimes", "x.txt:3: begin does not know 'sometimes'"),
        ("a> changes t", "x.txt:3: expected since NAME"),
        ("a> commit =", "x.txt:3: expected a value, found the end of the step"),
        ("a> commit !", "x.txt:3: expected the name of an error"),
        ("a> get t @", "x.txt:3: cannot read '@' at column 10"),
        ("a> create t id int", "x.txt:3: expected (, found 'id'"),
    ],
)
def test_mistakes_name_file_and_line(text: str, complaint: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parse(f"# one\na> begin\n{text}\n", "x.txt")
    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a> get t 1 = (1, 3)", "expected (1, 3)\n  got      (1, 2)"),
        ("a> get t 2 = (1, 2)", "expected (1, 2)\n  got      None"),
        ("a> get t 1 = nothing", "expected None\n  got      {'id': 1, 'a': 2}"),
        ("a> scan t = (1, 2) (1, 2)", "expected [(1, 2), (1, 2)]\n  got      [(1, 2)]"),
        ("a> scan t = nothing", "expected []\n  got      [{'id': 1, 'a': 2}]"),
        ("a> get t 1 ! NotFoundError", "expected NotFoundError\n  got      {'id': 1"),
        ("a> get nowhere 1", "expected no error\n  got      NotFoundError: table 'nowhere'"),
        ("a> get nowhere 1 ! UsageError", "expected UsageError\n  got      NotFoundError"),
        ('a> get u 1 ! NotFoundError "xyz"', "expected NotFoundError with 'xyz'\n"),
        ("a> delete t 1 = 1", "expected 1\n  got      True"),
        ("a> commit", "session a is in no transaction"),
        ("a> begin ; begin", "session a is in a transaction already"),
        ("a> begin at nowhere", "no commit was named 'nowhere'"),
        ("a> begin ; insert t (2, 2) as x", "nothing commits here"),
        ("a> tables = u", "expected ['u']\n  got      ['t']"),
    ],
)
def test_a_wrong_result_names_the_step(text: str, complaint: str, tmp_path: Path) -> None:
    steps = parse(f"s> create t (id int, a int) key id ; insert t (1, 2)\n{text}", "x.txt")
    with pytest.raises(ScenarioFailure) as caught:
        play(steps, tmp_path / "db", EVERYWHERE[0])
    assert str(caught.value).startswith("x.txt:2: a> ")
    assert complaint in str(caught.value)
