"""Where bytes live: files of the operating system, and objects that may live elsewhere.

    files.py     the protocols: File, Files, Lock
    durable.py   how elementary steps of a disk become durable operations (written once)
    local.py     the real disk                                   -> LocalFiles(root)
    objects.py   whole immutable objects: local, memory, S3 ...  -> Objects, LocalObjects, ...

Start with files.py, then durable.py. Tests run the same durable operations on a disk in memory that
fails and crashes on demand.
"""

from halocline.store.files import File, Files, Identity, Lock, LockedError, MovedError
from halocline.store.local import LocalFiles
from halocline.store.objects import LocalObjects, MemoryObjects, Objects, PyarrowObjects

__all__ = [
    "File",
    "Files",
    "Identity",
    "LocalFiles",
    "LocalObjects",
    "Lock",
    "LockedError",
    "MemoryObjects",
    "MovedError",
    "Objects",
    "PyarrowObjects",
]
