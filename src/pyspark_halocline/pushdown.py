"""Filters that Spark hands over, as a predicate of ours.

    df.where("amount > 100")  --Spark--> GreaterThan(("amount",), 100)  --> "amount" > ?, [100]

They leave out files by their zonemaps, and rows before they travel to Spark. All of them are given
back as not fulfilled, so Spark looks at every row again: what it calls equal stays its own affair,
and here a filter that is in doubt is simply not used.

A reader that takes filters fails unless `spark.sql.python.filterPushdown.enabled` is true, which is
why this is an option.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import datasource as ds

from halocline.read.statement import quote
from pyspark_halocline.scan import TableReader

_COMPARED: Final = {
    ds.EqualTo: "=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}
_VALUES: Final = (bool, int, str, Decimal, date, datetime)
"""Types whose order Spark and DuckDB agree on; floats have signed zeros and NaN."""


class FilteringReader(TableReader):
    """A reader that takes Spark's filters into account."""

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:  # noqa: N802
        """Remember what we can use; Spark applies all of them again."""
        texts, params = [], []
        for one in filters:
            found = as_predicate(one)
            if found is not None:
                texts.append(found[0])
                params += found[1]
        self._pushed = " and ".join(texts) or None
        self._params = tuple(params)
        return filters


def as_predicate(one: ds.Filter) -> tuple[str, list[Any]] | None:
    """A filter as text and parameters; None when it is none of the plain ones."""
    if isinstance(one, ds.Not):
        return None
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1:  # a field of a struct
        return None
    name = quote(attribute[0])
    if isinstance(one, ds.IsNull | ds.IsNotNull):
        return f"{name} is {'not ' if isinstance(one, ds.IsNotNull) else ''}null", []
    if isinstance(one, ds.In):
        values = list(one.value)
        if not values or not all(isinstance(value, _VALUES) for value in values):
            return None
        return f"{name} in ({', '.join('?' * len(values))})", values
    sign = _COMPARED.get(type(one))
    if sign is None or not isinstance(one.value, _VALUES):  # type: ignore[attr-defined]
        return None
    return f"{name} {sign} ?", [one.value]  # type: ignore[attr-defined]
