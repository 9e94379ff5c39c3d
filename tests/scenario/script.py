"""The language of the scenarios: text -> steps. Pure; play.py has the effects.

    a> begin ; b> begin                                   # two sessions, one step each
    a> update orders 7 status='paid' ; get orders 7       # a step without a name stays with `a`
    a> commit as paid                                     # remember the commit_ts under a name
    c> get orders 7                     = {id: 7, status: paid, note: null}
    b> update orders 7 status='late'    = 1
    b> commit                           ! ConflictError "same column"

| step                                                  | what `=` shows                        |
|-------------------------------------------------------|---------------------------------------|
| begin [serializable] [at TS or NAME] [token T]        |                                       |
| commit [as NAME]                                      | NAME of a commit, or nothing          |
| rollback                                              |                                       |
| create T (id int, a str) [key id] [if_not_exists]     |                                       |
|        [check "a > 0"]...                             | checks named c0, c1, ...              |
| drop T [if_exists]                                    |                                       |
| rename T NAME, alter T add COLUMN TYPE or drop COLUMN |                                       |
| tables                                                | names                                 |
| insert T ROW... [as NAME], upsert T ROW... [as NAME]  | how many                              |
| update T KEY col=value... or where "..." col=value... | how many                              |
| delete T KEY, or where "..." [as NAME]                | true or false, or how many            |
| truncate T [as NAME]                                  |                                       |
| get T KEY [for_update]                                | a row or nothing; nobody waits        |
| range T LOW..HIGH [reverse]                           | rows in key order                     |
| scan T [where "..."]                                  | rows in any order                     |
| sql "select ..." [VALUE...]                           | rows; in order if it says `order by`  |
| count T [at NAME]                                     | how many                              |
| changes T since NAME [until NAME]                     | (change, columns...) in order         |
| mark NAME                                             | remembers the newest timestamp        |
| reopen                                                | (closes; open transactions are lost)  |
| flush, compact, checkpoint, gc                        | (upkeep of the whole database)        |

A step outside a transaction is one of its own. A ROW is `{id: 1, a: x}`, or `(1, x)` in the order
of the columns. Values: 7, 1.5, true, null, 'text with blanks', or a bare word, which is text. An
update also takes `n=add(-1)` and `n=expr("m * 2")`. SQL stands in double quotes. `=` and `!` need
blanks around them, the `=` of `col=value` has none.

Every mistake is a ScriptError that starts with file:line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import halocline as hc


class ScriptError(Exception):
    """A script that cannot be read; the message starts with file:line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a step must lead to: values, or an error's name and a part of its message."""

    values: tuple[Any, ...] = ()
    error: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one session. `args` holds what its verb takes, by name."""

    place: str
    text: str
    session: str
    verb: str
    args: Mapping[str, Any]
    wanted: Wanted | None

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclass(frozen=True, slots=True)
class Word:
    """A bare word among values: text, or the name of a commit."""

    text: str


def read_script(path: Path, name: str = "") -> list[Step]:
    """All steps of a file."""
    return parse(path.read_text(encoding="utf-8"), name or path.name)


def parse(text: str, name: str, first_line: int = 1) -> list[Step]:
    """All steps of a text; places are given as name:line."""
    steps: list[Step] = []
    session = ""
    for number, line in enumerate(text.splitlines(), first_line):
        place = f"{name}:{number}"
        tokens = list(_tokens(line, place))
        groups = list(_split(tokens, place))
        for place_in_line, group in enumerate(groups):
            if place_in_line == 0 and group[0].kind != "session":
                raise ScriptError(f"{place}: a line starts with a session, e.g. a> begin")
            if group[0].kind == "session":
                session = group[0].text
                group = group[1:]
            steps.append(_Reader(line, group, place, session).step())
    return steps


# -- tokens --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


_TOKEN = re.compile(
    r"""(?P<blank>\s+)
    | (?P<comment>\#.*)
    | (?P<session>[a-z]\w*>(?=\s|$))
    | '(?P<string>(?:[^']|'')*)'
    | "(?P<sql>[^"]*)"
    | (?P<expect>(?<=\s)[=!](?=\s|$))
    | (?P<assign>(?<=\w)=(?=\S))
    | (?P<mark>[(){},:;])
    | (?P<word>[\w.+-]+)
    """,
    re.VERBOSE,
)


def _tokens(line: str, place: str) -> Iterator[_Token]:
    at = 0
    while at < len(line):
        match = _TOKEN.match(line, at)
        if match is None:
            what = "an unfinished quote" if line[at] in "'\"" else f"{line[at]!r}"
            raise ScriptError(f"{place}: cannot read {what} at column {at + 1}")
        kind = str(match.lastgroup)
        if kind not in {"blank", "comment"}:
            text = match[kind]
            if kind == "session":
                text = text[:-1]
            elif kind == "string":
                text = text.replace("''", "'")
            elif kind in {"expect", "assign", "mark"}:
                kind = text if kind != "assign" else "assign"
            yield _Token(kind, text, at, match.end())
        at = match.end()


def _split(tokens: list[_Token], place: str) -> Iterator[list[_Token]]:
    """Groups between semicolons."""
    if not tokens:
        return
    group: list[_Token] = []
    for token in [*tokens, _Token(";", ";", 0, 0)]:
        if token.kind == ";":
            if not group or (len(group) == 1 and group[0].kind == "session"):
                raise ScriptError(f"{place}: an empty step")
            yield group
            group = []
        else:
            group.append(token)


# -- one step ------------------------------------------------------------------------------------

_INT = re.compile(r"[+-]?\d+")
_FLOAT = re.compile(r"[+-]?\d+\.\d+")
_CONSTANTS = {"null": None, "true": True, "false": False}
_END = _Token("the end of the step", "", 0, 0)


class _Reader:
    """Reads one step from its tokens, left to right."""

    def __init__(self, line: str, tokens: list[_Token], place: str, session: str) -> None:
        self._tokens = tokens
        self._at = 0
        self._place = place
        self._session = session
        self._text = f"{session}> " + line[tokens[0].start : tokens[-1].end]

    def step(self) -> Step:
        verb = self._word("a step")
        read = _VERBS.get(verb)
        if read is None:
            raise self._error(f"there is no step {verb!r}; steps: {', '.join(_VERBS)}")
        args = read(self)
        wanted = self._wanted()
        if self._peek() is not _END:
            raise self._error(f"{verb!r} does not take {self._peek().text!r}")
        return Step(
            place=self._place,
            text=self._text,
            session=self._session,
            verb=verb,
            args=args,
            wanted=wanted,
        )

    # The verbs.

    def _begin(self) -> dict[str, Any]:
        args: dict[str, Any] = {"isolation": "snapshot", "at": None, "token": None}
        while self._peek().kind == "word":
            word = self._word("an option of begin")
            if word in {"snapshot", "serializable"}:
                args["isolation"] = word
            elif word in {"at", "token"}:
                args[word] = self._value()
            else:
                raise self._error(f"begin does not know {word!r}")
        return args

    def _commit(self) -> dict[str, Any]:
        return {"as": self._as()}

    def _nothing(self) -> dict[str, Any]:
        return {}

    def _create(self) -> dict[str, Any]:
        args: dict[str, Any] = {"table": self._word("a table"), "key": None}
        columns: dict[str, str] = {}
        self._take("(")
        while True:
            name = self._word("a column")
            columns[name] = self._take("word", "string", what="a type").text
            if self._take(",", ")").kind == ")":
                break
        if self._skip("key"):
            key = self._value()
            names = list(key) if isinstance(key, tuple) else [key]
            args["key"] = [self._plain(name) for name in names]
        args["columns"] = columns
        args["if_not_exists"] = self._skip("if_not_exists")
        args["checks"] = {}
        while self._skip("check"):
            text = self._take("sql", what='an expression in "double quotes"').text
            args["checks"][f"c{len(args['checks'])}"] = text
        return args

    def _drop(self) -> dict[str, Any]:
        return {"table": self._word("a table"), "if_exists": self._skip("if_exists")}

    def _rename(self) -> dict[str, Any]:
        return {"table": self._word("a table"), "name": self._word("another name")}

    def _alter(self) -> dict[str, Any]:
        table, kind = self._word("a table"), self._word("add or drop")
        column = self._word("a column")
        if kind == "add":
            return {"table": table, "add": {column: self._take("word", what="a type").text}}
        return {"table": table, "drop": [column]}

    def _truncate(self) -> dict[str, Any]:
        return {"table": self._word("a table"), "as": self._as()}

    def _rows(self) -> dict[str, Any]:
        args: dict[str, Any] = {"table": self._word("a table"), "rows": []}
        while self._peek().kind in {"(", "{"}:
            args["rows"].append(self._plain(self._value()))
        if not args["rows"]:
            raise self._error("expected rows, e.g. (1, x) or {id: 1, a: x}")
        return args | {"as": self._as()}

    def _update(self) -> dict[str, Any]:
        args = self._target()
        values: dict[str, Any] = {}
        while self._peek().kind == "word" and self._peek(1).kind == "assign":
            name = self._word("a column")
            self._take("assign")
            values[name] = self._term()
        if not values:
            raise self._error("expected column=value without blanks around the =")
        return args | {"values": values, "as": self._as()}

    def _delete(self) -> dict[str, Any]:
        return self._target() | {"as": self._as()}

    def _get(self) -> dict[str, Any]:
        table, key = self._word("a table"), self._plain(self._value())
        return {"table": table, "key": key, "for_update": self._skip("for_update")}

    def _range(self) -> dict[str, Any]:
        table = self._word("a table")
        low, dots, high = self._word("LOW..HIGH").partition("..")
        if not dots:
            raise self._error("a range is written LOW..HIGH, LOW.., ..HIGH or ..")
        ends = [self._plain(_value_of(end)) if end else None for end in (low, high)]
        return {
            "table": table,
            "low": ends[0],
            "high": ends[1],
            "reverse": self._skip("reverse"),
        }

    def _scan(self) -> dict[str, Any]:
        return {"table": self._word("a table"), "where": self._where()}

    def _sql(self) -> dict[str, Any]:
        text = self._take("sql", what='SQL in double quotes, e.g. sql "select 1"').text
        params = []
        while self._peek().kind in {"word", "string"}:
            params.append(self._plain(self._value()))
        return {"text": text, "params": params}

    def _count(self) -> dict[str, Any]:
        table = self._word("a table")
        return {"table": table, "at": self._value() if self._skip("at") else None}

    def _changes(self) -> dict[str, Any]:
        table = self._word("a table")
        if not self._skip("since"):
            raise self._error("expected since NAME")
        since = self._value()
        return {
            "table": table,
            "since": since,
            "until": self._value() if self._skip("until") else None,
        }

    def _mark(self) -> dict[str, Any]:
        return {"as": self._word("a name")}

    # Parts of steps.

    def _target(self) -> dict[str, Any]:
        """A table and a key, or a table and a predicate."""
        table = self._word("a table")
        where = self._where()
        key = None if where is not None else self._plain(self._value())
        return {"table": table, "where": where, "key": key}

    def _where(self) -> str | None:
        if not self._skip("where"):
            return None
        return self._take("sql", what="a predicate in double quotes").text

    def _as(self) -> str | None:
        return self._word("a name") if self._skip("as") else None

    def _wanted(self) -> Wanted | None:
        if self._peek().kind == "!":
            self._take("!")
            error = self._word("the name of an error")
            message = self._take("sql").text if self._peek().kind == "sql" else ""
            return Wanted(error=error, message=message)
        if self._peek().kind == "=":
            self._take("=")
            values = [self._value()]
            while self._peek() is not _END:
                values.append(self._value())
            return Wanted(values=tuple(values))
        return None

    def _value(self) -> Any:
        token = self._take("word", "string", "(", "{", what="a value")
        if token.kind == "string":
            return token.text
        if token.kind == "word":
            return _value_of(token.text)
        return self._tuple() if token.kind == "(" else self._dict()

    def _term(self) -> Any:
        """A value, an amount that is added, or an expression over the row."""
        if self._peek(1).kind != "(" or self._peek().text not in {"add", "expr"}:
            return self._plain(self._value())
        make = self._word("a term")
        self._take("(")
        if make == "expr":
            term: Any = hc.expr(self._take("sql", what="an expression in double quotes").text)
        else:
            term = hc.add(self._plain(self._value()))
        self._take(")")
        return term

    def _tuple(self) -> tuple[Any, ...]:
        values = []
        while True:
            values.append(self._value())
            if self._take(",", ")").kind == ")":
                return tuple(values)

    def _dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while True:
            name = self._word("a column")
            if name in values:
                raise self._error(f"column {name!r} stands twice")
            self._take(":")
            values[name] = self._value()
            if self._take(",", "}").kind == "}":
                return values

    def _plain(self, value: Any) -> Any:
        return plain(value)

    # Tokens.

    def _peek(self, ahead: int = 0) -> _Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def _take(self, *kinds: str, what: str = "") -> _Token:
        token = self._peek()
        if token.kind not in kinds:
            found = repr(token.text) if token.text else token.kind
            raise self._error(f"expected {what or ' or '.join(kinds)}, found {found}")
        self._at += 1
        return token

    def _word(self, what: str) -> str:
        return self._take("word", what=what).text

    def _skip(self, word: str) -> bool:
        """Take an optional keyword."""
        here = self._peek()
        if here.kind == "word" and here.text == word and self._peek(1).kind != "assign":
            self._at += 1
            return True
        return False

    def _error(self, reason: str) -> ScriptError:
        return ScriptError(f"{self._place}: {reason}, in: {self._text}")


def plain(value: Any) -> Any:
    """Bare words inside a value become text."""
    if isinstance(value, Word):
        return value.text
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def _value_of(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else Word(text)


_VERBS: dict[str, Callable[[_Reader], dict[str, Any]]] = {
    "begin": _Reader._begin,
    "commit": _Reader._commit,
    "rollback": _Reader._nothing,
    "create": _Reader._create,
    "drop": _Reader._drop,
    "rename": _Reader._rename,
    "alter": _Reader._alter,
    "tables": _Reader._nothing,
    "insert": _Reader._rows,
    "upsert": _Reader._rows,
    "update": _Reader._update,
    "delete": _Reader._delete,
    "get": _Reader._get,
    "range": _Reader._range,
    "scan": _Reader._scan,
    "sql": _Reader._sql,
    "count": _Reader._count,
    "changes": _Reader._changes,
    "mark": _Reader._mark,
    "reopen": _Reader._nothing,
    "truncate": _Reader._truncate,
    "flush": _Reader._nothing,
    "compact": _Reader._nothing,
    "checkpoint": _Reader._nothing,
    "gc": _Reader._nothing,
}
VERBS = frozenset(_VERBS)
