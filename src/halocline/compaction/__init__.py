"""Compaction: objects become better objects.

stats.py is what a planner may know, shape.py measures it, plan.py decides (pure).
"""

from halocline.compaction.plan import CompactPolicy, CompactReason, Group, Plan, plan_compaction
from halocline.compaction.shape import Shape, measure
from halocline.compaction.stats import ObjectStats

__all__ = [
    "CompactPolicy",
    "CompactReason",
    "Group",
    "ObjectStats",
    "Plan",
    "Shape",
    "measure",
    "plan_compaction",
]
