"""L0, the row tier: pages, memtree, deletion buffer, and the one fold of a commit record.

Start with state.py (a table) and engine.py (the database); page.py, memtree.py and deletes.py are
their three parts.
"""

from halocline.rows.engine import EngineState
from halocline.rows.state import TableState

__all__ = ["EngineState", "TableState"]
