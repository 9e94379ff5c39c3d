"""Many processes, one database: the owner's door, and compute nodes that come through it.

Start with wire.py (what is said), then workspace_wire.py (a workspace on its way), dispatch.py
(what the owner does) and link.py (how the owner is found, and what happens when it is gone).
"""

from halocline.node.link import Link, Local, NobodyError
from halocline.node.server import Server
from halocline.node.server_link import ServerLink
from halocline.node.service import Service

__all__ = [
    "Link",
    "Local",
    "NobodyError",
    "Server",
    "ServerLink",
    "Service",
]
