"""Terms: what an update sets a column to, when that follows from the row itself.

    txn.update("products", 7, {"stock": hc.add(-1), "price": hc.expr("price * 1.1")})

`add` names an amount, so that two transactions can add to one number and both commit. `expr` is an
SQL expression over the row. Any other value is a constant, text included.

Not here: how a term is worked out (txn/assignment.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halocline.errors import UsageError


class Add:
    """An amount that is added to a number."""

    __slots__ = ("amount",)

    def __init__(self, amount: Any) -> None:
        self.amount = amount

    def __repr__(self) -> str:
        return f"hc.add({self.amount!r})"


class Expr:
    """An SQL expression over the columns of a row."""

    __slots__ = ("params", "text")

    def __init__(self, text: str, params: Sequence[Any] | None) -> None:
        self.text = text
        self.params = params

    def __repr__(self) -> str:
        return f"hc.expr({self.text!r})"


def add(amount: Any) -> Add:
    """Add an amount to a column of numbers, in `txn.update`; NULL stays NULL.

    Transactions that add to the same number all commit, in any order.
    """
    if amount is None:
        raise UsageError("hc.add needs a number")
    return Add(amount)


def expr(text: str, params: Sequence[Any] | None = None) -> Expr:
    """Set a column to an SQL expression over the row, in `txn.update`; `?` stands for a parameter.

    Columns that it reads count as written: a transaction that changes one of them conflicts.
    """
    if not isinstance(text, str) or not text.strip():
        raise UsageError('hc.expr needs an SQL expression such as "price * 1.1"')
    return Expr(text, params)
