"""Where bytes live: files of the operating system, and objects that may live elsewhere.

    files.py     the protocols: File, Files, Lock
    durable.py   how elementary steps of a disk become durable operations (written once)
    local.py     the real disk                                   -> LocalFiles(root)
    objects.py   whole immutable objects: local, memory, S3 ...  -> Objects, LocalObjects, ...
    sequence.py  the numbered operations of a test, and the faults planned for them
    memory.py    files and names in memory that know what has been synced
    simulated.py the disk made of these
    faulty.py    crash images of it                              -> FaultyFiles, FaultyObjects

Start with files.py, then durable.py.
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
