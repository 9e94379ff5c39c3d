"""`halocline log`: the entries of a log, one line each, their nodes below them, and its end.

    log/00000001.log: epoch 1, begins with entry 1
           1  AC    at 512, 91 bytes
                EPOCH   {"epoch": 1, "ts_ceiling": 65536, "rowid_ceiling": 65536, "closed": false}
           2  AC    at 603, 308 bytes, txn 1, commit_ts 1, 2026-01-31 12:00:00.000000
                DDL_CT  {"table_id": 1, "name": "orders", ...}
    clean: log/00000001.log ends at byte 911 behind entry 2; nothing follows

With `--json` each line is an object, told by its key `entry`, `trouble`, `end`, or `file` alone.
Reading is done in log/inspect.py; here are the words. What cannot be decoded is
shown by its length and the reason, never left out: this command is for logs that nothing else
can read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import typer

from halocline.catalog import ObjectEntry
from halocline.catalog import nodes as ddl
from halocline.cli.errors import DAMAGED, USAGE
from halocline.database.opening import local_files
from halocline.errors import HaloclineError
from halocline.log import format as frames
from halocline.log import record
from halocline.log.format import Entry, FileHeader
from halocline.log.inspect import End, FoundEntry, Trouble, inspect
from halocline.log.names import path_of
from halocline.log.record import decode_body
from halocline.rows import system
from halocline.rows.nodes import read_head
from halocline.rows.reshape import decode_reshapes

Told = dict[str, Any]

_CODES: Final = {"clean": 0, "torn": 0, "corrupt": DAMAGED, "refused": USAGE}
_TYPES: Final = {getattr(frames, name): name for name in ("AC", "CKP", "PC", "RB", "UC")}
_ROWS: Final = {record.DML_A: "DML_A", record.DML_D: "DML_D", record.DML_U: "DML_U"}
_TABLES: Final = {
    record.DDL_CT: "DDL_CT",
    record.DDL_UT: "DDL_UT",
    record.DDL_DT: "DDL_DT",
    record.DDL_CI: "DDL_CI",
    record.DDL_DI: "DDL_DI",
}
_OBJECTS: Final = {record.OBJ_C: "OBJ_C", record.OBJ_D: "OBJ_D", record.PAGE_M: "PAGE_M"}
_SYSTEM: Final[Mapping[int, tuple[str, Any]]] = {
    record.EPOCH: ("EPOCH", system.EpochNode),
    record.FLOOR: ("FLOOR", system.FloorNode),
    record.JOB: ("JOB", system.JobNode),
    record.SNAPSHOT: ("SNAPSHOT", system.SnapshotNode),
    record.SEQUENCE: ("SEQUENCE", system.SequenceNode),
    record.ROOT: ("ROOT", system.CheckpointNode),
}
_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


def show_log(path: Path, *, start_order: int, as_json: bool) -> int:
    """Print a log; returns the exit code."""
    code = 0
    for part in inspect(local_files(path, read_only=True), start_order):
        told = _tell(part)
        for line in [json.dumps(told, default=str)] if as_json else _lines(told):
            typer.echo(line)
        if isinstance(part, End):
            code = _CODES[part.kind]
    return code


# From bytes to plain values.


def _tell(part: FileHeader | FoundEntry | Trouble | End) -> Told:
    if isinstance(part, FileHeader):
        first = {"epoch": part.epoch, "bytes": part.size, "first_order": part.first_order}
        return {"file": path_of(part.number), **first}
    if isinstance(part, FoundEntry):
        return _tell_entry(part.entry) | {"file": path_of(part.number), "offset": part.offset}
    if isinstance(part, Trouble):
        return {"trouble": part.why, "file": part.path, "offset": part.offset}
    where = {"file": part.path, "offset": part.offset, "last_order": part.order}
    return {"end": part.kind, **where, "why": part.why}


def _tell_entry(entry: Entry) -> Told:
    told: Told = {
        "entry": entry.order,
        "type": _TYPES.get(entry.type, f"{entry.type:#x}"),
        "group": entry.group,
        "lsn": entry.lsn,
        "epoch": entry.epoch,
        "bytes": len(entry.payload),
    }
    try:
        told["txn"], info, nodes = record.decode_payload(entry.payload)
        if info is not None:
            told |= {"commit_ts": info.first_ts, "wall_us": info.wall_us, "commits": info.commits}
            told |= {"epoch": info.epoch, "token": info.token}
    except HaloclineError as error:
        return told | {"trouble": str(error)}
    return told | {"nodes": [_tell_node(kind, bytes(body)) for kind, body in nodes]}


def _tell_node(kind: int, body: bytes) -> Told:
    told: Told = {"node": f"{kind:#x}", "bytes": len(body)}
    try:
        if kind in _ROWS:
            told["node"] = _ROWS[kind]
            _, told["table_id"], told["first_rowid"], told["rows"], version = read_head(body)
            if version:
                told["schema_version"] = version
        elif kind in _OBJECTS:
            told["node"] = _OBJECTS[kind]
            told |= _tell_objects(kind, body)
        elif kind in _TABLES:
            told["node"] = _TABLES[kind]
            told |= msgspec.to_builtins(ddl.decode(kind, body))
        elif kind in _SYSTEM:
            told["node"], form = _SYSTEM[kind]
            told |= msgspec.to_builtins(decode_body(body, form))
    except (HaloclineError, ValueError) as error:
        told["trouble"] = str(error)
    return told


def _tell_objects(kind: int, body: bytes) -> Told:
    (found,) = decode_reshapes([(kind, body)])
    told: Told = {
        "job_id": found.job_id,
        "created": [_tell_object(entry) for entry in found.created],
        "ended": found.ended,
        "truncate": found.truncate,
        "rowids": found.ranges,
        "flushed_ts": found.flushed_ts,
    }
    return {"table_id": found.table_id} | {name: value for name, value in told.items() if value}


def _tell_object(entry: ObjectEntry) -> Told:
    stats = entry.stats
    file = "" if entry.file is None else entry.file.key
    return {"id": entry.id, "file": file, "kind": entry.kind, "rows": stats.rows}


# From plain values to lines.


def _lines(told: Told) -> Iterator[str]:
    if "end" in told:
        where = f"{told['file'] or 'the log'} ends at byte {told['offset']}"
        yield f"{told['end']}: {where} behind entry {told['last_order']}; {told['why']}"
    elif "entry" in told:
        yield _entry_line(told)
        for node in told.get("nodes", ()):
            name, rest = node["node"], {k: v for k, v in node.items() if k != "node"}
            yield f"{'':12}{name:<8} {json.dumps(rest, default=str)}"
    elif "trouble" in told:
        yield f"trouble: {told['file']} at byte {told['offset']}: {told['trouble']}"
    else:
        yield f"{told['file']}: epoch {told['epoch']}, begins with entry {told['first_order']}"


def _entry_line(told: Told) -> str:
    words = [f"{told['entry']:>8}  {told['type']:<4} at {told['offset']}, {told['bytes']} bytes"]
    words += [f"{name} {told[name]}" for name in ("txn", "commit_ts", "token") if told.get(name)]
    if told.get("commits", 1) > 1:
        words.append(f"{told['commits']} commits")
    if "wall_us" in told:
        moment = _START + timedelta(microseconds=told["wall_us"])
        words.append(f"{moment:%Y-%m-%d %H:%M:%S.%f}")
    if "trouble" in told:
        words.append(f"trouble: {told['trouble']}")
    return ", ".join(words)
