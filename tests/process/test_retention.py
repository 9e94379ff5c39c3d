"""How long the past stays readable is a property of the database, whoever owns it at the moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import halocline
from halocline.checkpoint.gc import Collector
from halocline.log.record import BODY_VERSION, decode_body
from halocline.rows.engine import RETENTION_US, EngineState
from halocline.rows.system import FloorNode
from tests.process.children import SMALL
from tests.process.nursery import Child, Nursery
from tests.roles import maintenance_of

HOUR_US = 3_600_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


def _kept_us(db: Any) -> int:
    return int(db.core.engine.retention_us)


def _open(path: Path, **arguments: Any) -> Any:
    return halocline.open(path, options=SMALL, **arguments)


def test_the_newest_opening_that_names_a_time_counts(path: Path) -> None:
    with _open(path) as db:
        assert _kept_us(db) == RETENTION_US == 24 * HOUR_US
    with _open(path, retention="3h"):
        pass
    with _open(path) as db:
        assert _kept_us(db) == 3 * HOUR_US
        db.create_table("t", {"id": int}, "id")
        db.checkpoint()
    with _open(path, read_only=True, retention="9h") as db:
        assert _kept_us(db) == 3 * HOUR_US, "a reader decides nothing"
    with _open(path, retention=0) as db:
        assert _kept_us(db) == 0
        db.checkpoint()
    with _open(path) as db:
        assert _kept_us(db) == 0


def test_a_process_that_takes_over_keeps_the_time(nursery: Nursery, path: Path) -> None:
    with _open(path, retention="1h"):
        pass
    owner = Child(nursery, "owner", path=str(path), retention="3h")
    with _open(path) as db:
        assert _kept_us(db) == 3 * HOUR_US
        owner.kill()
        db.create_table("t", {"id": int}, "id")
        assert db.role == "owner"
        assert _kept_us(db) == 3 * HOUR_US
    with _open(path) as db:
        assert _kept_us(db) == 3 * HOUR_US
        assert not db.check()


def test_a_second_process_may_name_a_time_too(nursery: Nursery, path: Path) -> None:
    owner = Child(nursery, "owner", path=str(path), retention="3h")
    owner.ask("create")
    with _open(path, retention="5h") as db:
        assert db.role == "node"
        with db.begin() as txn:
            txn.tables()
        assert _kept_us(db) == 5 * HOUR_US
    owner.kill()
    with _open(path) as db:
        assert _kept_us(db) == 5 * HOUR_US


def test_a_longer_time_is_known_before_the_first_collection(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that was closed for long and is opened with more patience loses nothing."""
    with _open(path, retention=0):
        pass
    seen: list[int] = []

    def step(self: Collector) -> None:
        seen.append(self._core.engine.retention_us)

    monkeypatch.setattr(Collector, "step", step)
    with _open(path, retention="2h") as db:
        db.create_table("t", {"id": int}, "id")
        background = maintenance_of(db).background
        assert background is not None
        background.wake()
    assert set(seen) <= {2 * HOUR_US}


def test_a_time_that_is_none_is_a_usage_error(path: Path) -> None:
    with pytest.raises(halocline.UsageError, match="duration"):
        _open(path, retention="soon")
    with _open(path), pytest.raises(halocline.UsageError, match="duration"):
        _open(path, retention=-1)


def test_a_floor_alone_leaves_the_time_as_it_was() -> None:
    plain = BODY_VERSION + msgspec.msgpack.encode({"floor": 7})
    assert decode_body(plain, FloorNode) == FloorNode(floor=7, retention_us=None)
    engine = EngineState(SMALL)
    engine.raise_floor(FloorNode(floor=3, retention_us=HOUR_US))
    engine.raise_floor(FloorNode(floor=7))
    assert (engine.floor, engine.retention_us) == (7, HOUR_US)
