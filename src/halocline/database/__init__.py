"""The front room: what wires the other rooms into a database that people open.

    open, connect --> Database --> a role: owner, compute node, reader --> the rooms

Maintenance, health and the check of a whole database stand here too, as they need every room.
"""
