"""What a `where=` can be for the rows of some zonemaps: the whole text as one judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlglot

from halocline.read.predicate import number_parameters
from halocline.read.prune import Zones, judge_of
from halocline.read.statement import parse_where
from halocline.schema.schema import Schema

TRUE, FALSE = 1, 2


def judge_where(where: str, params: Sequence[Any], schema: Schema) -> Callable[[Zones], int]:
    """Which of TRUE and FALSE a `where=` can be, its conjuncts together, as a mask."""
    numbered = number_parameters(f"select 1 from t where {parse_where(where, schema, '')}")
    assert numbered is not None
    tree = sqlglot.parse_one(numbered, read="duckdb").args["where"].this
    true = judge_of(tree, params, schema)
    false = judge_of(tree, params, schema, wanted=False)
    return lambda zones: TRUE * true(zones) | FALSE * false(zones)
