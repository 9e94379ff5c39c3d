"""Damage to the objects of an open database: an error that names the file, or the right rows.

    flipped bits, cut, longer, zeroed, exchanged, stale and missing files, of every kind
      --scan, sql, count, get, changes, at=, compact--> right answer | CorruptionError
      --check--> exactly the files that are damaged

Caches are emptied before each trial: what was verified once is otherwise not read again. How single
objects refuse damage is tested in tests/unit/objects/test_hostile.py; here it is the whole way.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halocline import CorruptionError, Database
from halocline.store import LocalFiles
from tests.store.faulty import FaultyFiles
from tests.unit.objects.rig import empty
from tests.unit.read.moving import (
    TINY,
    bulk_delete,
    bulk_insert,
    flush,
    let_go,
    move,
    state_of,
)

Damage = Callable[[random.Random, bytes, bytes], bytes | None]


def _flip(chance: random.Random, data: bytes, other: bytes) -> bytes:
    broken = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 8])):
        broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
    return bytes(broken)


def _zero(chance: random.Random, data: bytes, other: bytes) -> bytes:
    at = chance.randrange((len(data) + 511) // 512) * 512
    return data[:at] + bytes(len(data[at : at + 512])) + data[at + 512 :]


DAMAGES: dict[str, Damage] = {
    "flip": _flip,
    "cut": lambda chance, data, other: data[: chance.randrange(len(data))],
    "longer": lambda chance, data, other: data + chance.randbytes(chance.choice([1, 8, 600])),
    "zero": _zero,
    "other": lambda chance, data, other: other,
    "missing": lambda chance, data, other: None,
}


class Victim:
    """A database with objects of every kind, all of them needed, and what it should answer."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._build()
        self.state = state_of(db, "t")
        self.store = self.state.shelf.objects
        entries = self.state.shape.tier.by_id.values()
        self.whole = {entry.key: self.store.read(entry.key) for entry in entries}
        self.kinds = {entry.key: entry.kind for entry in entries}
        self.questions = self._questions()
        self.answers = {name: ask() for name, ask in self.questions.items()}
        assert db.check() == []

    def _build(self) -> None:
        db = self.db
        db.create_table("t", {"id": int, "text": str, "n": float}, primary_key="id")
        for first in (0, 60, 30):
            with db.begin() as txn:
                rows = range(first, first + 50, 2)
                rows = [n for n in rows if txn.get("t", n) is None]  # type: ignore[assignment]
                txn.insert("t", [{"id": n, "text": f"row {n}" * 5, "n": n / 4} for n in rows])
            move(db, "t")
        bulk_insert(db, "t", [{"id": n, "text": "bulk", "n": None} for n in range(201, 215)])
        self.early = db.visible_ts
        with db.begin() as txn:
            for key in (0, 4, 60, 202):
                txn.delete("t", key)
            for key in (8, 64, 210):
                txn.update("t", key, {"text": "new"})
        flush(db, "t")
        let_go(db, "t")
        bulk_delete(db, "t", [2, 205])
        with db.begin() as txn:
            txn.insert("t", {"id": 999, "text": "l0", "n": 0.0})

    def _questions(self) -> dict[str, Callable[[], Any]]:
        db = self.db

        def read(ask: Callable[[Any], Any], at: int | None = None) -> Any:
            with db.begin(at=at) as txn:
                return ask(txn)

        keys = [0, 2, 8, 30, 66, 205, 207, 210, 999, 1000]
        by_id = "select * from t order by id"
        return {
            "sql": lambda: db.sql(by_id).to_pylist(),
            "sum": lambda: db.sql("select count(*), sum(n), max(text) from t").to_pylist(),
            "then": lambda: db.sql(by_id, at=self.early).to_pylist(),
            "scan": lambda: sorted(
                read(lambda txn: txn.scan("t", columns=["id", "n"])).to_pylist(), key=str
            ),
            "where": lambda: read(
                lambda txn: txn.scan("t", where="id > 205", order="id")
            ).to_pylist(),
            "count": lambda: db.table("t").count(),
            "get": lambda: [read(lambda txn, key=key: txn.get("t", key)) for key in keys],
            "many": lambda: read(lambda txn: txn.get_many("t", keys)).to_pylist(),
            "changes": lambda: sorted(db.changes("t", since=self.early).to_pylist(), key=str),
        }

    def forget(self) -> None:
        """As if the database had just been opened."""
        shelf = self.state.shelf
        empty(shelf.index, shelf.data)
        shelf.reader._verified.clear()

    def harm(self, key: str, data: bytes | None) -> None:
        if data is None:
            self.store.delete(key)
        else:
            self.store.put(key, data)

    def trial(self, chance: random.Random) -> list[str]:
        """Damage one or two files, ask everything, mend; returns what happened."""
        keys = chance.sample(sorted(self.whole), chance.choice([1, 1, 1, 2]))
        damage = chance.choice(list(DAMAGES))
        harmed = {}
        for key in keys:
            other = self.whole[chance.choice([k for k in self.whole if k != key])]
            harmed[key] = DAMAGES[damage](chance, self.whole[key], other)
        harmed = {key: data for key, data in harmed.items() if data != self.whole[key]}
        happened = []
        for key, data in harmed.items():
            self.harm(key, data)
        for name, ask in self.questions.items():
            self.forget()
            happened.append(self._judge(name, ask, harmed, damage))
        problems = self.db.check()
        for key in self.whole:
            named = [problem for problem in problems if f"{key}: " in problem]
            assert bool(named) == (key in harmed), (damage, key, problems)
        for key in harmed:
            self.harm(key, self.whole[key])
        return happened

    def _judge(self, name: str, ask: Callable[[], Any], harmed: Any, damage: str) -> str:
        answer, path = _asked(ask)
        if path:
            assert path in harmed, (damage, name, path)
            return "refused"
        assert repr(answer) == repr(self.answers[name]), (damage, name, harmed.keys())
        return "right"


def _asked(ask: Callable[[], Any]) -> tuple[Any, str]:
    """The answer, or the key of the file that was named instead."""
    try:
        return ask(), ""
    except CorruptionError as error:
        path = error.path
    folder, _, key = path.partition("/")
    assert folder == "objects", path
    return None, key


def victim(where: str, path: Path) -> Victim:
    files: Any = FaultyFiles() if where == "memory" else LocalFiles(path / "db")
    return Victim(Database(files, "victim", options=TINY))


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_no_wrong_row_whatever_happens_to_objects(where: str, memory_path: Path) -> None:
    _run(where, memory_path, seed=1, trials=20)


@pytest.mark.sim
@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("seed", range(100, 117))
def test_no_wrong_row_in_thousands_of_trials(where: str, seed: int, memory_path: Path) -> None:
    _run(where, memory_path, seed=seed, trials=150)


def _run(where: str, path: Path, *, seed: int, trials: int) -> None:
    chance = random.Random(seed)
    broken = victim(where, path)
    with broken.db:
        seen: Counter[str] = Counter()
        for _ in range(trials):
            seen.update(broken.trial(chance))
        assert seen["refused"] > trials, "most questions need the file that was damaged"
        assert seen["right"], "and some do not"
        assert broken.db.check() == []


@pytest.mark.parametrize("kind", ["data", "tombstone"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_compaction_refuses_damaged_inputs_and_changes_nothing(
    damage: str, kind: str, memory_path: Path
) -> None:
    """A page that nobody decodes may be damaged; what is rewritten never comes from one."""
    chance = random.Random(f"{damage} {kind}")
    broken = victim("memory", memory_path)
    db = broken.db
    with db:
        for number in range(30, 90):
            with db.begin() as txn:
                txn.delete("t", number)
        right = db.sql("select * from t order by id").to_pylist()
        for key in [key for key in broken.whole if broken.kinds[key] == kind]:
            other = next(data for k, data in broken.whole.items() if k != key)
            broken.harm(key, DAMAGES[damage](chance, broken.whole[key], other))
            broken.forget()
            assert _asked(db.compact)[1] in ("", key)
            broken.harm(key, broken.whole[key])
            broken.forget()
            assert db.sql("select * from t order by id").to_pylist() == right
        db.compact()
        assert db.sql("select * from t order by id").to_pylist() == right
        assert db.check() == []
