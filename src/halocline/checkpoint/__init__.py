"""Checkpoints, opening from them, and garbage collection.

    run.py        make a checkpoint                    restore.py    open from one, and the tail
    capture.py    the state at one moment              load.py       a state from its files
    root.py       the root file                        objectlist.py the objects of one table
    pointer.py    where the newest is                  seal.py       digests around small files

    gc.py         the floor, and all that goes by it   horizon.py    who holds the floor back
    sweep.py      files that nobody will need          report.py     what a run has done
    pins.py       snapshots of other processes         leases.py     and of none
    snapshots.py  snapshots with names

Start with run.py and restore.py, then gc.py. The bytes are in docs/formats/checkpoint.md.
"""

from halocline.checkpoint.gc import Collector
from halocline.checkpoint.pins import PinFile, Pins
from halocline.checkpoint.report import CheckpointReport, GcReport
from halocline.checkpoint.run import Checkpoints
from halocline.checkpoint.snapshots import Snapshot

__all__ = [
    "CheckpointReport",
    "Checkpoints",
    "Collector",
    "GcReport",
    "PinFile",
    "Pins",
    "Snapshot",
]
