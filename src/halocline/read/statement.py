"""SQL text from callers: parsed, checked, and narrowed to what a reader may do.

Only SELECT reaches DuckDB (WITH, UNION and VALUES inside it too), and no other kind of statement
may hide in it: DuckDB runs an INSERT inside a WITH. Tables must be tables of the database or names
the query itself defines; table functions are refused but for the few that only make rows out of
their arguments, because COPY, ATTACH, read_csv and their like reach files.

A `where=` or `order=` is an expression over one table: its own columns, no subquery, no aggregate,
no second statement. Columns are checked here, so that the error names what the caller wrote.

Parsing costs 0.7 ms, so statements are remembered by their text.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import sqlglot
from sqlglot import exp

from halocline.errors import SchemaError, UsageError
from halocline.read.source import quote
from halocline.schema.schema import Schema

ROW_MAKERS = frozenset({"unnest", "generate_series", "range"})
TELLTALES = frozenset({"current_setting", "getenv", "getvariable", "current_database_path"})
ENGINE_NAMES = ("duckdb_", "pragma_", "sqlite_", "pg_")
# fmt: off
UNSTEADY = frozenset(
    [
        "current_catalog", "current_connection_id", "current_database", "current_date",
        "current_localtime", "current_localtimestamp", "current_query", "current_query_id",
        "current_role", "current_schema", "current_schemas", "current_setting", "current_time",
        "current_timestamp", "current_transaction_id", "current_user", "currval", "error",
        "gen_random_uuid", "get_current_time", "get_current_timestamp", "getvariable",
        "in_search_path", "localtime", "localtimestamp", "nextval", "now", "rand", "random",
        "session_user", "setseed", "setval", "sleep_ms", "stats", "today", "transaction_timestamp",
        "txid_current", "user", "uuid", "uuidv4", "uuidv7", "vector_type", "version", "write_log",
    ]
)
# fmt: on
"""Functions that give another answer at another time or place."""
_BEFORE = "select 1 from t where "
_HINTS = {
    ("INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE"): (
        "write with txn.insert, txn.upsert, txn.update, txn.delete, txn.truncate"
    ),
    ("CREATE", "DROP", "ALTER"): (
        "db.create_table, db.alter_table, db.rename_table and db.drop_table define tables"
    ),
    ("SHOW", "DESCRIBE", "SUMMARIZE"): "db.tables() and db.table(name).schema list what there is",
    ("EXPLAIN", "ANALYZE"): "plans are not shown",
    ("SET", "RESET", "PRAGMA", "USE"): "settings are arguments of halocline.open",
    ("COPY", "EXPORT", "ATTACH", "DETACH", "INSTALL", "LOAD"): (
        "queries reach no files: read them into a frame, and write the table that a SELECT gives"
    ),
    ("TRANSACTION", "BEGIN", "COMMIT", "ROLLBACK"): "db.begin() starts a transaction",
}
"""What to do instead, by the kind of a statement."""
_READS = (exp.Select, exp.SetOperation, exp.Subquery)
_OTHERS = (
    exp.Insert,
    exp.Update,
    exp.Delete,
    exp.Merge,
    exp.Create,
    exp.Drop,
    exp.Alter,
    exp.Copy,
    exp.Command,
    exp.Attach,
    exp.Detach,
    exp.Pragma,
    exp.Set,
    exp.Use,
    exp.Into,
    exp.TruncateTable,
    exp.Describe,
    exp.Show,
    exp.Install,
    exp.Analyze,
    exp.Export,
    exp.Kill,
    exp.Transaction,
    exp.Commit,
    exp.Rollback,
)
# We refuse such a statement ourselves: the parser's own warning would only confuse.
logging.getLogger("sqlglot").addFilter(lambda record: "unsupported syntax" not in record.msg)
_PLAIN = frozenset({"expressions", "from", "from_", "kind"})


@dataclass(frozen=True, slots=True)
class Query:
    """A checked SELECT: its text, the tables it names, and the names it defines itself."""

    text: str
    quoted: str
    """The text with every name quoted: for those that use a keyword of DuckDB as a name."""
    tables: tuple[str, ...]
    defined: frozenset[str]


def parse_query(text: str) -> Query:
    """Check a SELECT and list its tables; UsageError otherwise."""
    return _parse_query(_text(text))


@lru_cache(maxsize=512)
def _parse_query(text: str) -> Query:
    tree = _parse_one(text)
    intruder = tree.find(*_OTHERS)
    if not isinstance(tree, _READS) or intruder is not None:
        found = intruder or tree
        kind = (found.name if isinstance(found, exp.Command) else found.key).upper()
        kind = {"TRUNCATETABLE": "TRUNCATE"}.get(kind, kind)
        hint = next((hint for kinds, hint in _HINTS.items() if kind in kinds), "")
        raise UsageError(f"only SELECT runs here, not {kind}{hint and '; '}{hint}")
    _check_functions(tree, text)
    if tree.find(exp.Lock) is not None:
        hint = "use txn.get(table, key, for_update=True)"
        raise UsageError(f"a SELECT locks no rows, FOR UPDATE is not available: {hint}")
    for lateral in tree.find_all(exp.Lateral):
        _check_lateral(lateral)
    defined = {cte.alias_or_name.lower() for cte in tree.find_all(exp.CTE)}
    for name in defined:
        # Outside of its WITH the name would mean a view of DuckDB, which tells of this machine.
        if name.startswith(ENGINE_NAMES):
            raise UsageError(f"WITH may not define {name!r}: the SQL engine has names like that")
    names = [_table_name(table) for table in tree.find_all(exp.Table)]
    tables = dict.fromkeys(name for name in names if name is not None)
    quoted = tree.sql(dialect="duckdb", identify=True)
    return Query(text, quoted, tuple(tables), frozenset(defined))


def _check_functions(tree: exp.Expr, text: str) -> None:
    """Functions that tell of the machine, such as its paths, are no part of a query."""
    for function in tree.find_all(exp.Anonymous):
        if function.name.lower() in TELLTALES:
            raise UsageError(f"function {function.name}() is not allowed in {text!r}")


def parse_where(text: str, schema: Schema, table: str) -> str:
    """Check a predicate over one table; returns it as DuckDB text."""
    text = _text(text)
    if not text.strip():
        raise UsageError('where= must be an SQL expression such as "status = ?"')
    tree = _clause(f"select 1 from t where {text}\n", "where", text)
    bound = _bind(tree.this, schema, table, text)
    return f"({bound.sql(dialect='duckdb', identify=True)})"


def parse_expression(text: str, schema: Schema, table: str) -> tuple[str, set[str]]:
    """Check an expression over one table; returns it as DuckDB text, and the columns it reads."""
    tree = _clause(f"select 1 from t where {_text(text)}\n", "where", text, "expr")
    bound = _bind(tree.this, schema, table, text)
    local = {name.name for each in bound.find_all(exp.Lambda) for name in each.expressions}
    names = {column.parts[0].name for column in bound.find_all(exp.Column)} - local
    return f"({bound.sql(dialect='duckdb', identify=True)})", names


def cut_check(text: str, schema: Schema, table: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Check the expression of a check, and cut it at its columns: the texts between, their ids."""
    if not _text(text).strip():
        raise UsageError('a check is an SQL expression such as "amount > 0"')
    tree = _clause(f"{_BEFORE}{text}\n", "where", text, "checks")
    _check_steady(tree, text)
    _bind(tree.this, schema, table, text)
    local = {name.name for each in tree.find_all(exp.Lambda) for name in each.expressions}
    cuts: list[tuple[int, int, int]] = []
    for column in tree.find_all(exp.Column):
        parts = [part for part in column.parts if isinstance(part, exp.Identifier)]
        if parts[0].name in local:
            continue
        own = parts[0].name.lower() == table.lower() and not _is_column(table, schema)
        named = parts[1] if own and len(parts) > 1 else parts[0]
        id = schema.columns[schema.position(named.name)].id
        cuts.append((parts[0].meta["start"], named.meta["end"] + 1, id))
    if not cuts:
        raise UsageError(f"{text!r} names no column of the table")
    cuts.sort()
    edges = [len(_BEFORE), *(edge for start, stop, _ in cuts for edge in (start, stop))]
    whole = f"{_BEFORE}{text}"
    pairs = zip(edges[::2], [*edges[1::2], len(whole)], strict=True)
    return tuple(whole[start:stop] for start, stop in pairs), tuple(id for _, _, id in cuts)


def bind_check(text: str, schema: Schema) -> exp.Expr:
    """The tree of an expression that `cut_check` has accepted, or that comes from a catalog."""
    tree = _clause(f"{_BEFORE}{text}\n", "where", text, "checks")
    _check_steady(tree, text)
    return _bind(tree.this, schema, "", text)


def _check_steady(tree: exp.Expr, text: str) -> None:
    """An expression that is asked again must give the same answer: no clock, chance, parameter."""
    if tree.find(exp.Placeholder, exp.Parameter, exp.SessionParameter) is not None:
        raise UsageError(f"a check has no parameters: {text!r}")
    for function in tree.find_all(exp.Func):
        called = function.sql(dialect="duckdb")
        name = called.partition("(")[0].strip().lower()
        aged = name == "age" and len(list(function.iter_expressions())) < 2
        if name in UNSTEADY or name.startswith(ENGINE_NAMES) or aged:
            raise UsageError(f"{called} may give another answer each time: no part of a check")


def parse_order(terms: str | Sequence[str], schema: Schema, table: str) -> str:
    """Check an ORDER BY list over one table: its text, or a list of column names."""
    if not isinstance(terms, str):
        if not _is_names(terms):
            raise UsageError("order= must be text such as 'amount desc', or a list of columns")
        return ", ".join(quote(schema.names[schema.position(term)]) for term in terms)
    tree = _clause(f"select 1 from t order by {terms}\n", "order", terms)
    bound = [_bind(term, schema, table, terms) for term in tree.expressions]
    return ", ".join(term.sql(dialect="duckdb", identify=True) for term in bound)


def _is_names(terms: object) -> bool:
    return isinstance(terms, Sequence) and bool(terms) and all(isinstance(t, str) for t in terms)


def part_casts(text: str) -> str:
    """The text with `? ::` for every `?::`, which DuckDB reads as a parameter and its cast.

    The parser takes it for one sign of another dialect.
    """
    if "?::" not in text:
        return text
    tokens = sqlglot.tokenize(text, read="duckdb")
    for token in reversed([t for t in tokens if t.token_type is sqlglot.TokenType.QDCOLON]):
        text = f"{text[: token.start]}? {text[token.start + 1 :]}"
    return text


def check_params(params: Sequence[object] | None) -> list[object]:
    """Parameters as a list; a bare string or a mapping is a mistake."""
    if params is None:
        return []
    if isinstance(params, (str, bytes, dict)) or not isinstance(params, Sequence):
        raise UsageError("params= must be a list or tuple, one value for each ? in order")
    return [value.item() if isinstance(value, np.generic) else value for value in params]


def parse_condition(
    text: str, sides: Mapping[str, Collection[str]]
) -> tuple[str, set[tuple[str, str]]]:
    """Check a predicate over the columns of several named sides.

    Returns it as DuckDB text, and the (side, column) pairs that it names.
    """
    text = _text(text)
    if not text.strip():
        raise UsageError('condition= must be an SQL expression such as "source.a > target.a"')
    bound = _clause(f"select 1 from t where {text}\n", "where", text, "condition").this.copy()
    shown = " or ".join(f"{side}.column" for side in sides)
    used: set[tuple[str, str]] = set()
    for column in list(bound.find_all(exp.Column)):
        parts = [part.name for part in column.parts]
        side = next((side for side in sides if parts[0].lower() == side), None)
        if side is None or len(parts) < 2 or isinstance(column.this, exp.Star):
            raise UsageError(f"name columns as {shown} in condition={text!r}")
        known = {name.lower(): name for name in sides[side]}
        proper = known.get(parts[1].lower())
        if proper is None:
            raise SchemaError(f"{side} has no such column", column=parts[1])
        named = _column([side, proper, *parts[2:]])
        bound = named if column is bound else bound
        column.replace(named)
        used.add((side, proper))
    return f"({bound.sql(dialect='duckdb', identify=True)})", used


@lru_cache(maxsize=512)
def _clause(statement: str, name: str, text: str, said: str = "") -> exp.Expr:
    """The one clause that the text may be; `said` is what a caller knows it by."""
    said = said or name
    tree = _parse_one(statement, shown=text)
    clause = tree.args.get(name) if isinstance(tree, exp.Select) else None
    extra = [key for key, value in tree.args.items() if value and key not in {*_PLAIN, name}]
    if clause is None or extra:
        raise UsageError(f"{said}= may only be an expression over the table, not {text!r}")
    assert isinstance(clause, exp.Expr)
    _check_functions(clause, text)
    for kind, what in (
        (exp.Query, "a subquery"),
        (exp.AggFunc, "an aggregate"),
        (exp.Window, "a window"),
    ):
        if clause.find(kind) is not None:
            raise UsageError(f"{what} is not allowed in {said}={text!r}; use txn.sql")
    return clause


def _bind(tree: exp.Expr, schema: Schema, table: str, text: str) -> exp.Expr:
    """The expression with every column known to exist and no qualifier left."""
    bound = tree.copy()
    local = {name.name for each in bound.find_all(exp.Lambda) for name in each.expressions}
    for column in list(bound.find_all(exp.Column)):
        parts = [part.name for part in column.parts]
        if len(parts) > 1 and parts[0].lower() == table.lower():
            if not _is_column(parts[0], schema):
                plain = _column(parts[1:])
                bound = plain if column is bound else bound
                column.replace(plain)
                parts = parts[1:]
        if isinstance(column.this, exp.Star):
            raise UsageError(f"* is no column in {text!r}")
        if parts[0] not in local:
            schema.position(parts[0])
    return bound


def _column(parts: Sequence[str]) -> exp.Column:
    """A column by its name, with the structs it stands in before it."""
    names = [exp.to_identifier(part, quoted=True) for part in reversed(parts)]
    column, table, db, catalog = (names + [None] * 4)[:4]
    assert column is not None
    return exp.column(column, table, db, catalog)


def _is_column(name: str, schema: Schema) -> bool:
    return name.lower() in (column.lower() for column in schema.names)


def _check_lateral(lateral: exp.Lateral) -> None:
    inner = lateral.this
    if not isinstance(inner, (exp.Subquery, exp.Unnest)) and _function(inner) not in ROW_MAKERS:
        raise UsageError(f"table function {inner.sql(dialect='duckdb')!r} is not allowed")


def _table_name(table: exp.Table) -> str | None:
    """The plain name of a table; None for row makers; UsageError for everything else."""
    shown = table.sql(dialect="duckdb")
    if isinstance(table.this, exp.Identifier):
        if table.args.get("db") or table.args.get("catalog"):
            raise UsageError(f"unknown schema in {shown!r}: name the table alone")
        return str(table.name)
    if _function(table.this) in ROW_MAKERS:
        return None
    raise UsageError(f"table function {shown!r} is not allowed")


def _function(node: object) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    return str(node.sql_name()).lower() if isinstance(node, exp.Func) else ""


def _text(text: object) -> str:
    if not isinstance(text, str):
        raise UsageError(f"SQL must be text, not {type(text).__name__}")
    return text


def _parse_one(text: str, shown: str | None = None) -> exp.Expr:
    named = text if shown is None else shown
    try:
        parsed = sqlglot.parse(part_casts(text), read="duckdb")
    except sqlglot.errors.SqlglotError as error:
        raise UsageError(f"cannot parse {named!r}: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UsageError("the statement is nested too deeply") from None
    # A comment behind the last semicolon is no statement.
    trees = [tree for tree in parsed if tree is not None and not isinstance(tree, exp.Semicolon)]
    if len(trees) != 1:
        raise UsageError(f"expected one statement, found {len(trees)} in {named!r}")
    return trees[0]
