"""Many processes, one database: the owner's door, and compute nodes that come through it.

Start with wire.py (what is said), then workspace_wire.py (a workspace on its way), dispatch.py
(what the owner does) and link.py (how the owner is found, and what happens when it is gone).
"""

from halocline.node.link import Link, Local
from halocline.node.routes import FarRoute, LockHeldError, NearRoute
from halocline.node.server import Server
from halocline.node.service import Service

__all__ = [
    "FarRoute",
    "Link",
    "Local",
    "LockHeldError",
    "NearRoute",
    "Server",
    "Service",
]
