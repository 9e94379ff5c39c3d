"""Errors arrive in another process as what they were: class, fields and message."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from halocline import errors
from halocline.node.faults import from_wire, to_wire
from halocline.node.wire import Failed, decode_reply, encode
from halocline.schema.schema import Schema

SCHEMA = Schema.define({"a": "decimal(12,2)", "b": "timestamptz", "c": int}, ["a", "b"])
KEY = (Decimal("1.50"), datetime(2024, 5, 1, tzinfo=UTC))


def _schema_of(table: str) -> Schema | None:
    return SCHEMA if table == "t" else None


ERRORS = [
    errors.ConflictError("lost", table="t", key=KEY, winner_ts=17),
    errors.ConflictError("lost"),
    errors.DuplicateKeyError("t", [KEY], total=12),
    errors.DuplicateKeyError("t", [KEY], inside=True),
    errors.AlreadyExistsError("table", "t"),
    errors.NotFoundError("snapshot", "s"),
    errors.UsageError("no"),
    errors.SchemaError("too long", column="c", row=3),
    errors.SnapshotExpiredError(3, 9),
    errors.UnavailableError("full", outcome="not_committed"),
    errors.UnavailableError("gone", outcome="unknown"),
    errors.CorruptionError("log/1.log", "bad", offset=7),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_it_was(error: Any) -> None:
    sent = decode_reply(encode(to_wire(error, _schema_of)))
    assert isinstance(sent, Failed)
    back = from_wire(sent, _schema_of)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert {k: v for k, v in vars(back).items() if k != "all_keys"} == {
        k: v for k, v in vars(error).items() if k != "all_keys"
    }


def test_an_error_that_is_not_ours_leaves_the_outcome_open() -> None:
    back = from_wire(to_wire(ZeroDivisionError("oops"), _schema_of), _schema_of)
    assert isinstance(back, errors.UnavailableError)
    assert back.outcome == "unknown"
    assert "oops" in str(back)


@pytest.mark.parametrize(
    "failed",
    [
        Failed("KeyboardInterrupt", {}),
        Failed("ConflictError", {}, b"\xff"),
        Failed("CorruptionError", {"path": 3}),
        Failed("", {"text": 7}),
    ],
)
def test_what_makes_no_sense_is_an_error_all_the_same(failed: Failed) -> None:
    assert isinstance(from_wire(failed, _schema_of), errors.HaloclineError)
