"""Values: parameters of a statement on their way into Spark.

Spark binds them by name, so no value ever becomes part of a statement's text. What Python and Spark
understand differently (naive timestamps, decimals) travels as text, with a cast around it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from halocline.errors import UsageError

_INT64 = 1 << 63


def bound(value: Any) -> tuple[Any, str | None]:
    """What to hand to Spark, and the type to cast it to; None when it has the right one."""
    if value is None or isinstance(value, (bool, float, str)):
        return value, None
    if isinstance(value, int):
        return (value, None) if -_INT64 <= value < _INT64 else _number(str(value), len(str(value)))
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(sep=" "), "timestamp_ntz"
        return value.astimezone(UTC).isoformat(sep=" "), "timestamp"
    if isinstance(value, date):
        return value.isoformat(), "date"
    if isinstance(value, time) and value.tzinfo is None:
        return value.isoformat(), "time"
    if isinstance(value, (bytes, bytearray)):
        return bytes(value), None
    raise UsageError(f"a {type(value).__name__} cannot be a parameter of a query on Spark")


def _decimal(value: Decimal) -> tuple[Any, str]:
    if not value.is_finite():
        raise UsageError(f"{value} cannot be a parameter of a query on Spark")
    scale = max(0, -int(value.as_tuple().exponent))
    return _number(f"{value:f}", len(value.as_tuple().digits) + scale, scale)


def _number(text: str, digits: int, scale: int = 0) -> tuple[str, str]:
    if digits > 38 and scale > 38:
        raise UsageError(f"{text} has more digits than a decimal")
    return text, f"decimal({min(max(digits, scale, 1), 38)}, {scale})"
