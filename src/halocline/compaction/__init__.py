"""Compaction: objects become better objects.

gather.py   what a planner may know of a table           (stats.py: the form, shape.py: measured)
plan.py     which objects are rewritten together, pure
rewrite.py  files of one group -> files                  (merge.py: one sorted stream out of many,
            runs.py: live rows -> objects)
run.py      job, rewrite, commit, again                  (runner.py: who rewrites, report.py: what
            was done)
"""

from halocline.compaction.gather import Gatherer, policy_of
from halocline.compaction.plan import CompactPolicy, CompactReason, Group, Plan, plan_compaction
from halocline.compaction.report import CompactReport
from halocline.compaction.run import Compactor
from halocline.compaction.runner import LocalRunner, Runner
from halocline.compaction.shape import ObjectShape, measure
from halocline.compaction.stats import InputStats

__all__ = [
    "CompactPolicy",
    "CompactReason",
    "CompactReport",
    "Compactor",
    "Gatherer",
    "Group",
    "InputStats",
    "LocalRunner",
    "ObjectShape",
    "Plan",
    "Runner",
    "measure",
    "plan_compaction",
    "policy_of",
]
