"""A checkpoint and the tail give what the whole log gives, at every readable timestamp."""

from __future__ import annotations

import pytest

from halocline.checkpoint.pointer import POINTER_PATH, read_pointer
from halocline.checkpoint.restore import restore
from halocline.log.names import log_numbers
from tests.unit.checkpoint.history import TINY, Life, compare, open_on, reading, shelf_on


def _live(seed: int, steps: int) -> dict[str, int]:
    """One life; after some steps what an opening would find is held against what is in memory."""
    life = Life(seed)
    seen = {"checkpoints": 0, "truncated": 0, "whole": 0}
    for number in range(steps):
        done = life.step()
        label = f"seed {seed}, step {number} ({done})"
        if number % 7 and done != "reopen":
            continue
        image = life.files.crash_image(all=True)
        restored = restore(image, TINY, shelf_on(image), reading(image))
        compare(life.engine, restored.engine, label)
        pointer = read_pointer(image)
        assert (restored.replay.root is None) == (pointer is None), label
        seen["checkpoints"] += restored.replay.root is not None
        if log_numbers(image)[0] > 1:
            seen["truncated"] += 1
        elif pointer is not None:
            # The same without any checkpoint: all of the log is there.
            image.remove(POINTER_PATH)
            for key in image.objects.list("0"):
                image.objects.delete(key)
            whole = restore(image, TINY, shelf_on(image), reading(image))
            assert whole.replay.root is None
            compare(restored.engine, whole.engine, f"whole log, {label}")
            seen["whole"] += 1
    problems = life.db.check()
    assert not problems, f"seed {seed}: {problems}"
    life.db.close()
    with open_on(life.files, life.clock) as db:
        problems = db.check()
        assert not problems, f"seed {seed}, opened again: {problems}"
    return seen


def _all(seeds: range, steps: int) -> None:
    total = {"checkpoints": 0, "truncated": 0, "whole": 0}
    for seed in seeds:
        for name, count in _live(seed, steps).items():
            total[name] += count
    print(total)
    assert all(total.values())


@pytest.mark.slow
def test_w17_checkpoint_and_tail_give_what_the_whole_log_gives() -> None:
    _all(range(8), 80)


@pytest.mark.sim
def test_w17_new_histories(fresh_seed: int) -> None:
    _all(range(fresh_seed, fresh_seed + 5), 120)
