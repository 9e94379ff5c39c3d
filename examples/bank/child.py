"""The process that gets killed in chapter 3: it makes transfers until it dies.

    python -m bank.child DIRECTORY THREADS SEED      (started by crash.py)

Once the bank is open it says "ready" and its first number on standard output, then a line for each
transfer after `db.run` has returned: number, source, target, cents. A line is one small write into
a pipe, so it arrives whole or not at all. When the parent goes away, the process ends.
"""

from __future__ import annotations

import itertools
import os
import sys

import halocline as hc
from bank import tables
from bank.writers import Writers

STANDARD_OUTPUT = 1


def main() -> None:
    """Open the bank and never stop."""
    place, threads, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    db = hc.open(place)
    first = tables.next_number(db)
    numbers = itertools.count(first)
    os.write(STANDARD_OUTPUT, b"ready %d\n" % first)
    with Writers(threads, lambda index: tables.transfers(db, numbers, seed + index, _acknowledge)):
        sys.stdin.read()
        # Standard input has ended: the parent is gone and nobody will kill us, so we go ourselves.
        os._exit(1)


def _acknowledge(number: int, source: int, target: int, cents: int) -> None:
    os.write(STANDARD_OUTPUT, b"%d %d %d %d\n" % (number, source, target, cents))


if __name__ == "__main__":
    main()
