"""The commit log: every change is appended here, and everything else follows from it.

    format.py     the bytes of files and entries        record.py   the payload of an entry
    scan.py       walking over entries, torn or corrupt recover.py  opening a log after a crash
    allocate.py   files of zeros, one ahead             tape.py     from memory to the disk
    line.py       leader and followers                  writer.py   reserve, append, wait -> Log
    published.py  how far others may read               follow.py   reading beside the writer
    places.py     where reading may begin               inspect.py  looking at a damaged log

Start with format.py, then writer.py and recover.py. The bytes are in docs/formats/log.md.
"""

from halocline.log.follow import Follower
from halocline.log.places import Place
from halocline.log.recover import Recovery, recover
from halocline.log.writer import Log

__all__ = ["Follower", "Log", "Place", "Recovery", "recover"]
