"""The tuple mover: rows and tombstones leave L0 and become objects.

plan.py decides (pure). What it decides is carried out elsewhere in this room.
"""

from halocline.mover.plan import (
    L0Stats,
    MovePlan,
    MovePolicy,
    plan_move,
    plan_moves,
)

__all__ = ["L0Stats", "MovePlan", "MovePolicy", "plan_move", "plan_moves"]
