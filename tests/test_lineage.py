"""docs/lineage.md and the tests hold each other: no rule without an answer, no id without a rule.

    | id | rule | met | tests |      met: as written, differently, in part, decided, not yet

Tests are found by reading the files, not by importing them. A name on the page may end in `*`, and
may be that of a scenario.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from typing import NamedTuple

from tests.test_tidy import ROOT, report

PAGE = ROOT / "docs" / "lineage.md"
SIZES = {
    "L": 18, "F": 10, "I": 20, "B": 6, "W": 23, "C": 13, "T": 28, "M": 8,
    "R": 11, "K": 8, "H": 5, "G": 8, "N": 11, "X": 12, "D": 23,
}  # fmt: skip
"""How many rules of each letter the documents have; they are numbered from 1."""

STATES = ("as written", "differently", "in part", "decided", "not yet")
ROW = re.compile(r"^\| ([A-Z]-\d\d) \|(.*)\|$")
QUOTED = re.compile(r"`((?:test_)?[a-z0-9_]+(?:\*|[.]txt)?)`")
REASON = re.compile(r"\(decisions/(\d{4})[^)]*\)|\b(D-\d\d)\b")
TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
IDS = re.compile(r"^(?:test_)?((?:[a-z]\d\d_)+)")


class Rule(NamedTuple):
    """One row of the page."""

    id: str
    rule: str
    met: str
    tests: list[str]


@functools.cache
def rules() -> list[Rule]:
    """The rows of all tables of the page."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if row := ROW.match(line):
            rule, met, tests = (cell.strip() for cell in row[2].split("|"))
            found.append(Rule(row[1], rule, met, QUOTED.findall(tests)))
    return found


@functools.cache
def all_tests() -> frozenset[str]:
    """Names of test functions and of scenarios."""
    found = {path.name for path in (ROOT / "tests" / "scenario").glob("*.txt")}
    for path in (ROOT / "tests").rglob("test_*.py"):
        found.update(TEST.findall(path.read_text(encoding="utf-8")))
    return frozenset(found)


def ids_of(name: str) -> list[str]:
    """The ids that a name begins with: test_w19_h05_... has W-19 and H-05."""
    carried = IDS.match(name)
    return (
        [f"{part[0].upper()}-{part[1:]}" for part in carried[1].split("_")[:-1]] if carried else []
    )


def named(rule: Rule) -> set[str]:
    """The tests that a row names."""
    return {name for pattern in rule.tests for name in fnmatch.filter(all_tests(), pattern)}


def test_every_rule_of_the_documents_has_one_row() -> None:
    wanted = [f"{letter}-{n:02}" for letter, size in SIZES.items() for n in range(1, size + 1)]
    assert [rule.id for rule in rules()] == wanted


def test_every_row_says_how_its_rule_is_met() -> None:
    offences = []
    for rule in rules():
        state = next((state for state in STATES if rule.met.startswith(state)), None)
        if state is None:
            offences.append(f"{rule.id}: {rule.met!r} begins with none of {', '.join(STATES)}")
        elif not rule.rule:
            offences.append(f"{rule.id}: no rule")
        elif state == "not yet" and rule.met != "not yet":
            offences.append(f"{rule.id}: what is there in part is 'in part'")
        elif state == "not yet" and rule.tests:
            offences.append(f"{rule.id}: is not yet met, but names tests")
        elif state == "decided" and not rule.id.startswith("D-"):
            offences.append(f"{rule.id}: only disagreements are decided")
        elif state == "differently" and not REASON.search(rule.met):
            offences.append(f"{rule.id}: differs without a decision")
        elif state != "not yet" and not rule.tests:
            offences.append(f"{rule.id}: no test")
    report("a rule has a test, a decision, or is not yet met", offences)


def test_every_test_on_the_page_exists() -> None:
    report(
        "a test that the page names exists",
        [
            f"{rule.id}: {pattern}"
            for rule in rules()
            for pattern in rule.tests
            if not fnmatch.filter(all_tests(), pattern)
        ],
    )


def test_every_reason_on_the_page_exists() -> None:
    decisions = {path.name[:4] for path in (ROOT / "docs" / "decisions").glob("*.md")}
    known = {rule.id for rule in rules()}
    offences = []
    for rule in rules():
        for decision, row in REASON.findall(rule.met):
            if (decision and decision not in decisions) or (row and row not in known):
                offences.append(f"{rule.id}: {decision or row}")
    report("a decision that the page names exists", offences)


def test_every_id_in_the_name_of_a_test_is_a_rule_that_names_it() -> None:
    by_id = {rule.id: rule for rule in rules()}
    offences = []
    for name in sorted(all_tests()):
        for id in ids_of(name):
            if id not in by_id:
                offences.append(f"{name}: the page has no {id}")
            elif by_id[id].met == "not yet":
                offences.append(f"{name}: the page says that {id} is not yet met")
            elif name not in named(by_id[id]):
                offences.append(f"{name}: the row of {id} does not name it")
    report("the page knows every test that carries an id", offences)
