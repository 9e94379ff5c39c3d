"""The tuple mover: rows and tombstones leave L0 and become objects.

measure.py     what L0 weighs                          plan.py      what leaves it (pure)
gather.py      rows and tombstones as Arrow            run.py       job, files, commit, trim
pressure.py    writers wait when memory is short       background.py  the thread
"""

from halocline.mover.background import Background
from halocline.mover.plan import L0Stats, MovePlan, MovePolicy, plan_move
from halocline.mover.run import Moved, Mover

__all__ = [
    "Background",
    "L0Stats",
    "MovePlan",
    "MovePolicy",
    "Moved",
    "Mover",
    "plan_move",
]
