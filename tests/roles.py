"""What is inside the role of a handle, for tests that must look there."""

from __future__ import annotations

import halocline as hc
from halocline.database.compute_node import ComputeNode
from halocline.database.maintenance import Maintenance
from halocline.database.owner import Owner


def owner_of(db: hc.Database) -> Owner:
    """The role of a handle that is the owner."""
    assert isinstance(db._role, Owner)
    return db._role


def node_of(db: hc.Database) -> ComputeNode:
    """The role of a handle that is a compute node."""
    assert isinstance(db._role, ComputeNode)
    return db._role


def maintenance_of(db: hc.Database) -> Maintenance:
    """The maintenance of a handle that is the owner."""
    return owner_of(db).maintenance
