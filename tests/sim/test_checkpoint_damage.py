"""Damage to what an opening reads: the right rows, or an error that names the file. Never less.

    root, object lists, commit times, pointer: flipped, cut, longer, zeroed, exchanged, stale, gone
      --open--> from this checkpoint, the one before, or the whole log: the same rows
            '-> CorruptionError

The log is damaged in test_damage.py, objects in test_object_damage.py and unit/objects.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest

from halocline import CorruptionError
from halocline.checkpoint.pointer import POINTER_PATH
from tests.sim.history import Life, copy_of, open_on, read_state
from tests.sim.test_checkpoint_crash import script
from tests.sim.test_object_damage import DAMAGES
from tests.store.faulty import FaultyFiles

POINTER = "the pointer"


@cache
def _closed() -> tuple[FaultyFiles, str, list[str]]:
    """A database with two checkpoints, what is in it, and the files that they consist of."""
    life = Life(FaultyFiles())
    assert life.play(script)
    life.db.checkpoint()
    life.db.checkpoint()
    state = repr(read_state(life.db))
    kept = sorted(life.db.core.engine.kept_files)
    life.close()
    assert life.files.exists(POINTER_PATH)
    return life.files, state, [*kept, POINTER]


def _read(files: FaultyFiles, key: str) -> bytes:
    if key != POINTER:
        return files.objects.read(key)
    return files.read(POINTER_PATH)


def _put(files: FaultyFiles, key: str, data: bytes | None) -> None:
    if key != POINTER:
        if data is None:
            files.objects.delete(key)
        else:
            files.objects.put(key, data)
        return
    files.remove(POINTER_PATH)
    if data is not None:
        files.write(POINTER_PATH, data)


def _trial(chance: random.Random) -> str:
    """Damage one file or two, open, mend nothing; what came of it."""
    whole, state, keys = _closed()
    files = copy_of(whole)
    kind = chance.choice([*DAMAGES, *["flip"] * 6])
    harmed = chance.sample(keys, chance.choice([1, 1, 1, 2]))
    for key in harmed:
        other = _read(whole, chance.choice([one for one in keys if one != key]))
        _put(files, key, DAMAGES[kind](chance, _read(whole, key), other))
    named = ""
    try:
        db = open_on(files)
    except CorruptionError as error:
        named = error.path
    if named:
        assert named.removeprefix("objects/") in {*harmed, POINTER_PATH}, (kind, harmed, named)
        return "refused"
    with db:
        assert repr(read_state(db)) == state, (kind, harmed)
        db.begin().rollback()
    return "right"


def _run(seed: int, trials: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    counts = Counter(_trial(chance) for _ in range(trials))
    print(dict(counts))
    assert counts["right"]


def test_no_damage_to_a_checkpoint_gives_wrong_rows() -> None:
    _run(1, 120)


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(100, 110))
def test_no_damage_to_a_checkpoint_gives_wrong_rows_in_many_trials(seed: int) -> None:
    _run(seed, 500)
