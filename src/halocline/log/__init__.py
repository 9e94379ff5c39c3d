"""The commit log: every change is appended here, and everything else follows from it.

    format.py     the bytes of files and entries        record.py   the payload of an entry
    scan.py       walking over entries, torn or corrupt recover.py  opening a log after a crash
    allocate.py   files of zeros, one ahead             tape.py     from memory to the disk
    line.py       leader and followers                  writer.py   reserve, append, wait -> Log
    published.py  how far others may read               follow.py   reading beside the writer
    places.py     where reading may begin               inspect.py  looking at a damaged log

Start with format.py, then writer.py and recover.py. The bytes are in docs/formats/log.md.
"""

from halocline.log.follow import Follower, LogGone
from halocline.log.format import AC, CKP, COMMITS, PARTS, PC, RB, SECTOR, SYSTEM, UC, Entry
from halocline.log.names import path_of
from halocline.log.places import Place
from halocline.log.record import (
    DDL_CD,
    DDL_CI,
    DDL_CT,
    DDL_DD,
    DDL_DI,
    DDL_DT,
    DML_A,
    DML_D,
    DML_U,
    EPOCH,
    FLOOR,
    JOB,
    OBJ_C,
    OBJ_D,
    PAGE_M,
    ROOT,
    SNAPSHOT,
    Info,
    Record,
    decode_payload,
    decode_record,
    encode_commit,
    encode_system_payload,
)
from halocline.log.recover import Recovery, read_log, recover
from halocline.log.writer import Log

__all__ = [
    "AC",
    "CKP",
    "COMMITS",
    "DDL_CD",
    "DDL_CI",
    "DDL_CT",
    "DDL_DD",
    "DDL_DI",
    "DDL_DT",
    "DML_A",
    "DML_D",
    "DML_U",
    "EPOCH",
    "FLOOR",
    "JOB",
    "OBJ_C",
    "OBJ_D",
    "PAGE_M",
    "PARTS",
    "PC",
    "RB",
    "ROOT",
    "SECTOR",
    "SNAPSHOT",
    "SYSTEM",
    "UC",
    "Entry",
    "Follower",
    "Info",
    "Log",
    "LogGone",
    "Place",
    "Record",
    "Recovery",
    "decode_payload",
    "decode_record",
    "encode_commit",
    "encode_system_payload",
    "path_of",
    "read_log",
    "recover",
]
