"""The power goes at every operation of a life with moves, compaction, checkpoints and GC.

    operation n of the script --crash--> image --open--> verify
                                            '--crash at each operation of that opening--> verify

Whatever the crash hits, a file of the checkpoint, its CKP entry, the pointer, the deletion of old
log files or of old checkpoints: what is left opens with every acknowledged commit in it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from halocline.log.names import log_numbers
from tests.roles import maintenance_of
from tests.sim.history import (
    Life,
    bulk_insert,
    bulk_upsert,
    copy_of,
    create,
    delete,
    digest,
    drop,
    insert,
    open_on,
    update,
    verify,
)
from tests.sim.moments import Lives, live
from tests.store.faulty import FaultyFiles, SimulatedCrash

MODES = ["sync", "async"]
PARTS = 8
"""The long run is cut into tests of some minutes each."""


def script(life: Life) -> None:
    """Five checkpoints in three openings; rows leave L0 before, between and after them."""
    text = "x" * 120
    life.open()
    life.commit(create("accounts"), create("ledger"))
    life.commit(bulk_insert("accounts", *[(n, f"bulk {n}", n) for n in range(10, 22)]))
    life.commit(insert("ledger", (1, "first")), token="load-1")
    life.db.flush("accounts")
    life.db.checkpoint()
    life.commit(update("accounts", 11, balance=5), delete("accounts", 12))
    life.commit(create("later"), insert("later", (1, text)))
    life.db.flush("accounts")
    life.commit(bulk_upsert("accounts", *[(n, "changed", n) for n in range(15, 27)]))
    life.db.flush("accounts")
    assert life.db.compact("accounts").groups
    life.commit_together("accounts", *[(n, "together", n) for n in range(30, 34)])
    checkpoints = maintenance_of(life.db).checkpoints
    checkpoints.run(everything=False)
    life.commit_together("accounts", *[(n, "together", n) for n in range(34, 37)])
    life.commit(insert("ledger", (2, text)), update("later", 1, text="new"))
    life.collect()
    life.commit(drop("later"), insert("ledger", (3, text)))
    life.close()
    life.open()
    life.commit(insert("accounts", (1, "again", 1)), delete("accounts", 15, 16))
    life.db.checkpoint()
    life.commit(create("later"), insert("later", (7, "reborn")), token="load-2")
    life.collect()
    life.commit(update("accounts", 11, owner=text))
    life.db.checkpoint()
    life.commit(insert("ledger", (4, text), (5, text)))
    life.close()
    life.open()
    life.commit(insert("accounts", (2, "late", 2)))
    life.db.checkpoint()
    life.commit(delete("accounts", 1))


def _run(durability: str, lives: Lives, seeds: range, openings: int) -> Counter[str]:
    """Crash at each of these, and in every `openings`-th image also while it is opened."""
    counts: Counter[str] = Counter(points=len(lives))
    verified: set[tuple[bytes, int]] = set()
    for point, life in lives.items():
        images = [life.files.crash_image(seed) for seed in seeds]
        for image in [*images, life.files.crash_image(none=True)]:
            counts["images"] += 1
            known = (digest(image), len(life.stamps))
            if known in verified:
                continue
            verified.add(known)
            label = f"crash {point}, {durability}"
            verify(copy_of(image), life, label, at_least=life.durable(), seed=point.number)
            counts["verified"] += 1
            if counts["verified"] % openings == 0:
                counts["openings"] += _crash_while_opening(life, image, label)
    return counts


def _crash_while_opening(life: Life, image: FaultyFiles, label: str) -> int:
    probe = copy_of(image)
    db = open_on(probe, life.durability)
    numbers = probe.crash_points()
    db.close()
    for number in numbers:
        files = copy_of(image)
        files.crash(number)
        with pytest.raises(SimulatedCrash):
            open_on(files, life.durability)
        where = f"{label}; then at its opening's {files.operations[-1]}"
        again = files.crash_image(number)
        verify(again, life, where, at_least=life.durable(), seed=number)
    return len(numbers)


@pytest.mark.parametrize("durability", MODES)
def test_the_script_is_repeatable(durability: str) -> None:
    lives = [Life(FaultyFiles(), durability) for _ in range(2)]
    for life in lives:
        assert life.play(script)
    first, second = (life.files.operations for life in lives)
    assert first == second
    assert log_numbers(lives[0].files)[0] > 1, "the log was never truncated"
    paths = {operation.path.partition("/")[0] for operation in first}
    assert {"0", "1", "log"} <= paths
    kinds = Counter(operation.kind for operation in first)
    assert kinds["put"] > 10
    assert kinds["delete"] > 2
    for life in lives:
        life.stop()


def test_crash_at_every_operation_of_a_life_with_checkpoints() -> None:
    """All of them, none is left out; one image with and one without what was not synced."""
    counts = _run("sync", live("sync", script), range(1), openings=30)
    print(dict(counts))
    assert counts["points"] > 300
    assert counts["openings"]


@pytest.mark.sim
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("durability", MODES)
def test_crash_with_new_seeds_in_a_life_with_checkpoints(
    durability: str, part: int, fresh_seed: int
) -> None:
    lives = live(durability, script, fresh_seed)
    some = dict(list(lives.items())[part::PARTS])
    print(dict(_run(durability, some, range(fresh_seed, fresh_seed + 3), openings=8)))
