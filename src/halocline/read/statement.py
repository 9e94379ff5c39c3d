"""SQL text from callers: parsed, checked, and narrowed to what a reader may do.

Only SELECT reaches DuckDB (WITH, UNION, VALUES inside it too). Tables must be tables of the
database or names the query itself defines; table functions are refused but for the few that only
make rows out of their arguments, because COPY, ATTACH, read_csv and their like reach files. A
`where=` is an expression over one table: no subquery, no aggregate, no second statement.

Parsing costs 0.7 ms, so statements are remembered by their text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot import exp

from halocline.errors import UsageError

ROW_MAKERS = frozenset({"unnest", "generate_series", "range"})
_READS = (exp.Select, exp.SetOperation, exp.Subquery)


@dataclass(frozen=True, slots=True)
class Query:
    """A checked SELECT: its text and the tables it reads, as written."""

    text: str
    tables: tuple[str, ...]


@lru_cache(maxsize=512)
def parse_query(text: str) -> Query:
    """Check a SELECT and list its tables; UsageError otherwise."""
    tree = _parse_one(text)
    if not isinstance(tree, _READS):
        kind = tree.key.upper()
        raise UsageError(
            f"only SELECT runs here, not {kind}; write through the transaction's methods"
        )
    if tree.find(exp.Into) is not None:
        raise UsageError("SELECT ... INTO writes a table; use txn.insert with the result")
    defined = {cte.alias_or_name.lower() for cte in tree.find_all(exp.CTE)}
    tables: dict[str, None] = {}
    for table in tree.find_all(exp.Table):
        name = _table_name(table)
        if name is not None and name.lower() not in defined:
            tables[name] = None
    return Query(text, tuple(tables))


@lru_cache(maxsize=512)
def parse_where(text: str) -> str:
    """Check a predicate over one table; returns it as DuckDB text."""
    if not isinstance(text, str) or not text.strip():
        raise UsageError('where= must be an SQL expression such as "status = ?"')
    tree = _parse_one(f"select 1 from t where ({text}\n)")
    where = tree.args.get("where") if isinstance(tree, exp.Select) else None
    extra = [name for name, value in tree.args.items() if value and name not in _WHERE_ARGS]
    if where is None or extra:
        raise UsageError(f"where= may only be an expression, not {text!r}")
    _refuse(where, text)
    return f"({where.this.sql(dialect='duckdb')})"


_WHERE_ARGS = frozenset({"expressions", "from", "from_", "where", "kind"})


@lru_cache(maxsize=512)
def parse_order(text: str) -> str:
    """Check an ORDER BY list over one table."""
    tree = _parse_one(f"select 1 from t order by {text}")
    order = tree.args.get("order") if isinstance(tree, exp.Select) else None
    extra = [name for name, value in tree.args.items() if value and name not in _ORDER_ARGS]
    if order is None or extra:
        raise UsageError(f"order= may only be columns or expressions, not {text!r}")
    _refuse(order, text)
    return ", ".join(term.sql(dialect="duckdb") for term in order.expressions)


_ORDER_ARGS = frozenset({"expressions", "from", "from_", "order", "kind"})


def quote(identifier: str) -> str:
    """The one function that puts a name into generated SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def check_params(params: Sequence[object] | None) -> list[object]:
    """Parameters as a list; a bare string or a mapping is a mistake."""
    if params is None:
        return []
    if isinstance(params, (str, bytes, dict)) or not isinstance(params, Sequence):
        raise UsageError("params= must be a list or tuple, one value for each ? in order")
    return list(params)


def _refuse(tree: exp.Expr, text: str) -> None:
    for kind, name in (
        (exp.Query, "a subquery"),
        (exp.AggFunc, "an aggregate"),
        (exp.Window, "a window"),
    ):
        if tree.find(kind) is not None:
            raise UsageError(f"{name} is not allowed in {text!r}; use txn.sql")


def _table_name(table: exp.Table) -> str | None:
    """The plain name of a table; None for row makers; UsageError for everything else."""
    if isinstance(table.this, exp.Identifier):
        if table.args.get("db") or table.args.get("catalog"):
            raise UsageError(
                f"unknown schema in {table.sql(dialect='duckdb')!r}: name the table alone"
            )
        return str(table.name)
    inner = table.this
    name = (
        inner.name
        if isinstance(inner, exp.Anonymous)
        else inner.sql_name()
        if isinstance(inner, exp.Func)
        else ""
    )
    if str(name).lower() in ROW_MAKERS:
        return None
    raise UsageError(f"table function {table.sql(dialect='duckdb')!r} is not allowed")


def _parse_one(text: str) -> exp.Expr:
    if not isinstance(text, str):
        raise UsageError(f"SQL must be text, not {type(text).__name__}")
    try:
        trees = [tree for tree in sqlglot.parse(text, read="duckdb") if tree is not None]
    except sqlglot.errors.SqlglotError as error:
        raise UsageError(f"cannot parse {text!r}: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UsageError("the statement is nested too deeply") from None
    if len(trees) != 1:
        raise UsageError(f"expected one statement, found {len(trees)}")
    return trees[0]
