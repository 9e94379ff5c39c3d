"""What a `where=` can be for the rows of some zonemaps: the whole text as one judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlglot

from halocline.read.predicate import number_parameters
from halocline.read.prune import Judge, judge_of
from halocline.read.statement import parse_where
from halocline.schema.schema import Schema


def judge_where(where: str, params: Sequence[Any], schema: Schema) -> Judge:
    """The judge of a `where=`, its conjuncts together."""
    numbered = number_parameters(f"select 1 from t where {parse_where(where, schema, '')}")
    assert numbered is not None
    tree = sqlglot.parse_one(numbered, read="duckdb")
    return judge_of(tree.args["where"].this, params, schema)
