"""Objects: whole immutable files under a key, on this machine or in a remote store.

    objects/, checkpoint/ ---> Objects ---> LocalObjects     a folder of this machine
                                       |--> PyarrowObjects   S3, GCS, HDFS, ...
                                       '--> MemoryObjects    tests, throw-away databases

A key is a path inside one folder or bucket ("7/31-1.parquet"), fenced like the paths of Files.

How a put becomes atomic depends on the store:
- a local folder: through LocalFiles.write (temporary name, sync, rename, sync of the directory),
  so it is durable too;
- S3, GCS, Azure: the object appears when the upload is complete;
- anything else (HDFS, fsspec): temporary name, then a move.

Invariants
- A reader never sees half an object, and `list` shows a temporary one only when asked to.
- Whatever is missing raises FileNotFoundError, in every store.

Not here: digests and caching (objects/).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from pyarrow import fs

from halocline.errors import UsageError
from halocline.store.files import (
    TEMPORARY,
    Buffer,
    MovedError,
    check_directory,
    check_path,
    parent,
)
from halocline.store.files import PathList as Keys
from halocline.store.local import LocalFiles

_ATOMIC_UPLOADS: Final = frozenset({"s3", "gcs", "abfs"})


class Objects(Protocol):
    """A flat store of immutable objects."""

    def put(self, key: str, data: Buffer) -> None:
        """Store the whole object; a part of it is never seen."""
        ...

    def put_new(self, key: str, data: Buffer) -> None:
        """Store an object whose key must be free; FileExistsError. For uncoordinated writers."""
        ...

    def read(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        """A range of it, or all; short only at its end. FileNotFoundError."""
        ...

    def size(self, key: str) -> int: ...

    def list(self, folder: str = "", *, temporary: bool = False) -> Keys:
        """Keys below a folder, at any depth, sorted; none when it is missing.

        With `temporary`, instead, what crashed writers left half-written: only good to delete.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete an object; FileNotFoundError when it is not there."""
        ...


class MemoryObjects:
    """Objects in a dict."""

    def __init__(self) -> None:
        self._content: dict[str, bytes] = {}

    def put(self, key: str, data: Buffer) -> None:
        self._content[check_path(key)] = bytes(data)

    def put_new(self, key: str, data: Buffer) -> None:
        if self._content.setdefault(check_path(key), mine := bytes(data)) is not mine:
            raise _taken(key)

    def read(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        return self._get(key)[offset : None if size is None else offset + size]

    def size(self, key: str) -> int:
        return len(self._get(key))

    def list(self, folder: str = "", *, temporary: bool = False) -> Keys:
        if temporary:
            return []
        start = f"{check_directory(folder)}/" if folder else ""
        return sorted(key for key in list(self._content) if key.startswith(start))

    def delete(self, key: str) -> None:
        self._get(key)
        self._content.pop(key, None)

    def _get(self, key: str) -> bytes:
        data = self._content.get(check_path(key))
        if data is None:
            raise _missing(key)
        return data


class LocalObjects:
    """Objects in a folder below the root of local files, which the database may hold as well."""

    def __init__(self, files: LocalFiles, folder: str = "") -> None:
        self._files = files
        self._start = f"{folder}/" if folder else ""
        self._made: set[str] = set()

    def put(self, key: str, data: Buffer) -> None:
        with self._folder_of(key):
            self._files.write(self._at(key), data)

    def put_new(self, key: str, data: Buffer) -> None:
        with self._folder_of(key):
            self._files.write_new(self._at(key), data)

    def read(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        file = self._files.open_read(self._at(key))
        try:
            return file.pread(max(0, file.size() - offset) if size is None else size, offset)
        finally:
            file.close()

    def size(self, key: str) -> int:
        file = self._files.open_read(self._at(key))
        try:
            return file.size()
        finally:
            file.close()

    def list(self, folder: str = "", *, temporary: bool = False) -> Keys:
        start = f"{self._start}{check_directory(folder)}".rstrip("/")
        cut = len(self._start)
        paths = self._files.walk(start)
        return sorted(path[cut:] for path in paths if path.endswith(TEMPORARY) == temporary)

    def delete(self, key: str) -> None:
        check_path(key.removesuffix(TEMPORARY))
        self._files.remove(self._start + key)

    def _at(self, key: str) -> str:
        return self._start + check_path(key)

    def _make_folder(self, key: str) -> None:
        folder = parent(self._at(key))
        if folder not in self._made:
            self._files.makedirs(folder)
            self._made.add(folder)

    @contextmanager
    def _folder_of(self, key: str) -> Iterator[None]:
        """The folder is there while something is written into it; else MovedError says so."""
        self._make_folder(key)
        try:
            yield
        except FileNotFoundError as error:
            self._files.check_root()
            folder = parent(self._at(key))
            text = f"the folder {folder} was removed while it was in use: bring it back"
            raise MovedError(text) from error


class PyarrowObjects:
    """Objects in one folder of any file system that pyarrow knows."""

    def __init__(self, filesystem: fs.FileSystem, folder: str) -> None:
        while isinstance(filesystem, fs.SubTreeFileSystem):
            folder = f"{filesystem.base_path.rstrip('/')}/{folder.lstrip('/')}"
            filesystem = filesystem.base_fs
        self._fs = filesystem
        self._folder = folder.rstrip("/")
        self._made: set[str] = set()

    @staticmethod
    def open(where: str | os.PathLike[str]) -> Objects:
        """The store at a URI such as s3://bucket/folder, or in a local folder."""
        where = os.fspath(where)
        if "://" not in where:
            return LocalObjects(LocalFiles(where))
        try:
            filesystem, folder = fs.FileSystem.from_uri(where)
        except (ValueError, NotImplementedError) as error:
            # The address may hold credentials, so the message does not repeat it.
            scheme = where.partition("://")[0]
            raise UsageError(f"objects cannot live at this {scheme}:// address") from error
        if isinstance(filesystem, fs.LocalFileSystem):
            return LocalObjects(LocalFiles(folder))
        return PyarrowObjects(filesystem, folder)

    def put(self, key: str, data: Buffer) -> None:
        at = self._at(key)
        if self._fs.type_name in _ATOMIC_UPLOADS:
            self._upload(at, data)
        else:
            self._make_folder(key)
            self._upload(at + TEMPORARY, data)
            self._fs.move(at + TEMPORARY, at)

    def put_new(self, key: str, data: Buffer) -> None:
        """Stores an object whose key must be free; two writers at once are not told apart."""
        if self._fs.get_file_info(self._at(key)).type != fs.FileType.NotFound:
            raise _taken(key)
        self.put(key, data)

    def read(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        with self._fs.open_input_file(self._at(key)) as file:
            # A size from a damaged catalog must not make us allocate more than there is.
            rest = max(0, file.size() - offset)
            count = rest if size is None else min(size, rest)
            # Beyond the end, some file systems of pyarrow raise even for no bytes at all.
            data: bytes = file.read_at(count, offset) if count else b""
            return data

    def size(self, key: str) -> int:
        info = self._fs.get_file_info(self._at(key))
        if info.type != fs.FileType.File:
            raise _missing(key)
        size: int = info.size
        return size

    def list(self, folder: str = "", *, temporary: bool = False) -> Keys:
        at = self._at(folder) if check_directory(folder) else self._folder
        selector = fs.FileSelector(at, allow_not_found=True, recursive=True)
        start = len(self._folder) + 1
        return sorted(
            info.path[start:]
            for info in self._fs.get_file_info(selector)
            if info.type == fs.FileType.File and info.path.endswith(TEMPORARY) == temporary
        )

    def delete(self, key: str) -> None:
        check_path(key.removesuffix(TEMPORARY))
        self._fs.delete_file(f"{self._folder}/{key}")

    def _at(self, key: str) -> str:
        return f"{self._folder}/{check_path(key)}"

    def _make_folder(self, key: str) -> None:
        folder = parent(key)
        if folder in self._made:
            return
        self._fs.create_dir(f"{self._folder}/{folder}".rstrip("/"), recursive=True)
        self._made.add(folder)

    def _upload(self, at: str, data: Buffer) -> None:
        # Not "with": leaving it after an error would close, and so publish, half an object.
        stream = self._fs.open_output_stream(at)
        stream.write(data)
        stream.close()


def _taken(key: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), key)


def _missing(key: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)
