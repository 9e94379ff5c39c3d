"""`hc.read(path)` names a file as input, and `halocline.read` is a room: here they become one.

Python binds the name of a room to its module as soon as one of its files is loaded, so the name
cannot belong to a function as well. The module itself can be called instead.

Not here: how files are read (schema/files.py).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import halocline.read  # noqa: F401 (it is asked for below)
from halocline.schema import files


class ReadRoom(ModuleType):
    """The room of that name, which reads files when it is called."""

    __call__ = staticmethod(files.read)


if TYPE_CHECKING:
    read = files.read
else:
    read = sys.modules["halocline.read"]
    read.__class__ = ReadRoom
