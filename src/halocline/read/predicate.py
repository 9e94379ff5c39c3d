"""What an SQL statement says about the rows of each table it reads, for pruning objects.

    select ... from orders o join lines l on ... where o.at > ? and l.n = 1 and o.x + l.y = 3
        --filters_of--> orders: [at > $1]      lines: [n = 1]
        --predicate_of(orders, params)--> Predicate --may_match--> read an object, or leave it

A row of a table that fails one of these conjuncts can be left out before the query starts without
changing its result. That is so when the table stands once in the whole statement, in the FROM of
one SELECT whose WHERE has the conjunct, and when no join of that SELECT makes rows of its own where
the table's row is missing: only inner and cross joins may bring the table in, and only inner, cross
and left joins may stand beside it. Everything else (right, full, positional and ASOF joins,
samples, pivots, laterals) means that nothing is said. A conjunct counts if each of its columns is
surely one of the table's: qualified by its name or alias, or unqualified when there is no other
table and no output column of that name.

A `where=` of a scan is the WHERE of a statement over one table, and is read as one.

DuckDB runs the text as it was written; we read it with another parser. So of a conjunct only plain
comparisons of a column with constants count (prune.py), joined by AND, OR and NOT, on whose
precedence all parsers agree.

Invariants
- When in doubt, nothing is pruned: an answer may be slower, never different.
- Parameters are numbered by their position in the text DuckDB gets, not by that in the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import sqlglot
from sqlglot import exp

from halocline.read.conditions import conditions_of
from halocline.read.prune import Predicate, chain, judge_of
from halocline.read.statement import check_params, parse_where, part_casts
from halocline.schema.schema import Schema

_SELECT: Final = frozenset(
    {
        "with",
        "with_",
        "expressions",
        "from",
        "from_",
        "joins",
        "where",
        "group",
        "having",
        "qualify",
        "windows",
        "order",
        "limit",
        "offset",
        "distinct",
    }
)
_TABLE: Final = frozenset(["this", "alias"])
_JOIN: Final = frozenset(["this", "on", "using", "side", "kind"])
_INNER: Final = frozenset(["", "INNER", "CROSS"])
_LEFT: Final = frozenset(["", "OUTER"])
# Unquoted, these are values that DuckDB makes up, whatever columns there are.
_VALUES: Final = frozenset(
    {
        "user",
        "current_user",
        "session_user",
        "current_role",
        "current_catalog",
        "current_schema",
        "current_date",
        "current_time",
        "current_timestamp",
        "localtime",
        "localtimestamp",
    }
)


class Conjunct(NamedTuple):
    """A part of a WHERE: columns unqualified, parameters numbered."""

    tree: exp.Expr
    qualifier: str
    """What qualified its columns; it must not be the name of a column, which may be a struct."""


Filters = Mapping[str, tuple[Conjunct, ...]]


def predicate_of(text: str, table: str, params: Sequence[Any], schema: Schema) -> Predicate | None:
    """What a statement asks of one of its tables; None when it says nothing that helps."""
    conjuncts = filters_of(text).get(table.lower())
    if not conjuncts:
        return None
    known = [part.tree for part in conjuncts if _is_of(part, schema)]
    if not known:
        return None
    judges = [judge_of(tree, params, schema) for tree in known]
    return Predicate(judges, partial(conditions_of, known, params, schema))


def compile_where(
    where: str, params: Sequence[Any] | None, schema: Schema, table: str = ""
) -> Predicate:
    """What a `where=` asks of its table; UsageError for a text that is not a predicate."""
    text = f"select 1 from _view where {parse_where(where, schema, table)}"
    return predicate_of(text, "_view", check_params(params), schema) or Predicate(())


@lru_cache(maxsize=512)
def filters_of(text: str) -> Filters:
    """By table, lower case: conjuncts over that table's columns, which are unqualified in them.

    Parameters are numbered. An unqualified column may still turn out not to be the table's.
    """
    numbered = number_parameters(text)
    if numbered is None:
        return {}
    try:
        tree = sqlglot.parse_one(numbered, read="duckdb")
    except (sqlglot.errors.SqlglotError, RecursionError):
        return {}
    seen: dict[str, int] = {}
    for table in tree.find_all(exp.Table):
        seen[table.name.lower()] = seen.get(table.name.lower(), 0) + 1
    for cte in tree.find_all(exp.CTE):
        seen[cte.alias_or_name.lower()] = 2
    found: dict[str, tuple[Conjunct, ...]] = {}
    for select in tree.find_all(exp.Select):
        for table in _plain_tables(select):
            if seen[table.name.lower()] == 1:
                found[table.name.lower()] = tuple(_conjuncts(select, table))
    return found


def _plain_tables(select: exp.Select) -> list[exp.Table]:
    """Tables of a FROM of which rows that fail the WHERE can be left out beforehand."""
    if _unknown(select, _SELECT) or not isinstance(select.args.get("where"), exp.Where):
        return []
    source = select.args.get("from_") or select.args.get("from")
    if not isinstance(source, exp.From) or _unknown(source, frozenset(["this"])):
        return []
    items = [source.this]
    for join in select.args.get("joins") or []:
        side = str(join.args.get("side") or "").upper()
        kind = str(join.args.get("kind") or "").upper()
        known = side in ("", "LEFT") and kind in (_LEFT if side else _INNER)
        if _unknown(join, _JOIN) or not known:
            return []
        if not side:
            items.append(join.this)
    return [item for item in items if _is_plain(item)]


def _is_plain(item: exp.Expr) -> bool:
    """A table by its name, perhaps with an alias: no sample, pivot, version or column names."""
    if type(item) is not exp.Table or not isinstance(item.this, exp.Identifier):
        return False
    alias = item.args.get("alias")
    return not _unknown(item, _TABLE) and (
        alias is None or not _unknown(alias, frozenset(["this"]))
    )


def _conjuncts(select: exp.Select, table: exp.Table) -> Iterator[Conjunct]:
    name = table.alias_or_name.lower()
    taken = {item.alias.lower() for item in select.expressions if isinstance(item, exp.Alias)}
    for part in chain(select.args["where"].this, exp.And):
        bound = _bind(part, name, {name, *taken}, alone=not select.args.get("joins"))
        if bound is not None:
            yield bound


def _bind(part: exp.Expr, name: str, taken: set[str], *, alone: bool) -> Conjunct | None:
    """The conjunct with its columns unqualified; None if one of them may be another table's."""
    if part.find(exp.Query, exp.Lambda, exp.Star, exp.Window) is not None:
        return None
    bound = exp.Paren(this=part.copy())
    qualifier = ""
    for column in list(bound.find_all(exp.Column)):
        parts = column.parts
        if len(parts) == 1:
            plain = column.name.lower()
            made_up = plain in _VALUES and not column.this.args.get("quoted")
            if not alone or plain in taken or made_up:
                return None
        elif len(parts) == 2 and parts[0].name.lower() == name:
            column.replace(exp.column(exp.to_identifier(column.name, quoted=True)))
            qualifier = name
        else:
            return None
    return Conjunct(bound, qualifier)


def _is_of(part: Conjunct, schema: Schema) -> bool:
    """Are all columns of the conjunct columns of the table, and its qualifier none of them?"""
    names = {name.lower() for name in schema.names}
    if part.qualifier in names:
        return False
    return all(column.name.lower() in names for column in part.tree.find_all(exp.Column))


def number_parameters(text: str) -> str | None:
    """The text with every `?` replaced by `$1`, `$2` and so on; None when it has both kinds."""
    try:
        text = part_casts(text)
        tokens = sqlglot.tokenize(text, read="duckdb")
    except sqlglot.errors.SqlglotError:
        return None
    marks = [token for token in tokens if token.token_type is sqlglot.TokenType.PLACEHOLDER]
    if marks and any(token.text == "$" for token in tokens):
        return None
    for number in range(len(marks), 0, -1):
        at = marks[number - 1].start
        if text[at] != "?":
            return None
        text = f"{text[:at]}${number} {text[at + 1 :]}"
    return text


def _unknown(node: exp.Expr, known: frozenset[str]) -> bool:
    return any(value for name, value in node.args.items() if name not in known)
