"""Secondary indexes: what names the rows of one data object that a condition can mean.

    condition.py  what is asked of a column
    keys.py       columns as bytes that sort
    sorted.py     the kind `sorted`
    registry.py   all kinds, those of other packages too
    content.py    an index object, read by blocks
    build.py      index objects beside data objects
    chooser.py    index or scan, for each object

Start with docs/indexes.md, then sorted.py. A new kind is one file like it, and one line in
registry.py.
"""

from __future__ import annotations

from halocline.index.build import write_beside
from halocline.index.chooser import answer, ask
from halocline.index.condition import Condition, ValueSpan
from halocline.index.registry import kind_named, kind_of

__all__ = ["Condition", "ValueSpan", "answer", "ask", "kind_named", "kind_of", "write_beside"]
