"""Requests for files: those of the owner's, for those who cannot read them, on other machines.

    ReadFile, ListLog --> the log          Look --> the published position, and what is new
    ReadObject, PutObject --> objects

Only names that the engine itself gives to files are taken: none of them leads out of the database.
"""

from __future__ import annotations

import re
from typing import Final

from halocline.errors import ConflictError, UnavailableError, UsageError
from halocline.log.names import path_of
from halocline.node.served import Served
from halocline.node.session import Session
from halocline.node.wire import (
    LOOK_BYTES_MAX,
    READ_BYTES_MAX,
    ListLog,
    Look,
    Looked,
    PutObject,
    ReadFile,
    ReadObject,
)
from halocline.objects.shelf import job_of

_FILES: Final = re.compile(r"published|log/(\d{8,20}\.log|checkpoint)", re.ASCII)
_OBJECTS: Final = re.compile(
    r"\d{1,20}/(\d{1,20}-\d{1,20}\.\d{1,10}\.)?\d{1,20}-\d{1,20}\.(parquet|checkpoint)", re.ASCII
)


def read_file(owner: Served, session: Session, request: ReadFile) -> bytes | None:
    if not _FILES.fullmatch(request.path):
        raise UsageError(f"{request.path!r} is not a file that others may read")
    try:
        file = owner.files.open_read(request.path)
    except FileNotFoundError:
        return None
    try:
        return file.pread(min(request.size, READ_BYTES_MAX), request.offset)
    finally:
        file.close()


def look(owner: Served, session: Session, request: Look) -> Looked:
    page, position = owner.core.own.log.published()
    data = b""
    if position is not None and request.path == path_of(position.file):
        size = position.offset - request.offset
        if 0 < size <= LOOK_BYTES_MAX:
            data = session.read_log(owner.files, request.path, size, request.offset)
    return Looked(page, data)


def list_log(owner: Served, session: Session, request: ListLog) -> list[str]:
    return [name for name in owner.files.list("log") if _FILES.fullmatch(f"log/{name}")]


def read_object(owner: Served, session: Session, request: ReadObject) -> bytes | None:
    if not _OBJECTS.fullmatch(request.key):
        raise UsageError(f"{request.key!r} is not the key of an object")
    size = min(request.size, READ_BYTES_MAX)
    try:
        return owner.core.engine.shelf.objects.read(request.key, request.offset, size)
    except FileNotFoundError:
        return None


def put_object(owner: Served, session: Session, request: PutObject) -> None:
    if not _OBJECTS.fullmatch(request.key):
        raise UsageError(f"{request.key!r} is not the key of an object")
    core = owner.core
    job = session.job(core, job_of(request.key))
    if job is None or job.job_id not in core.engine.jobs:
        raise ConflictError("the job that wrote its files is not live any more")
    if request.key.partition("/")[0] != str(job.table_id):
        raise UsageError(f"{request.key!r} is not a file of table {job.table_id}")
    try:
        core.engine.shelf.objects.put(request.key, request.data)
    except OSError as error:
        raise UnavailableError(f"object {request.key} cannot be written: {error}") from error
