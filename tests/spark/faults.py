"""The data source with a sink that dies once in each of the batches and phases it is told to.

    write    a task fails in the middle of its rows
    before   the process that commits dies before it has committed
    after    ... after it has committed, and before Spark hears of it

A file says what has happened already, because every step runs in a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark_halocline import DefaultSource, travel
from pyspark_halocline.sink import StreamWriter

PHASES = ("write", "before", "after")
OBJECT_BYTES = 1500
"""Tasks with more than so many bytes of rows make objects: of the test's commits some do."""


class FaultyWriter(StreamWriter):
    """Dies at the places that files in a folder name: `<batch>-<phase>`."""

    folder: str

    def write(self, iterator: Iterator[Any]) -> Any:
        self._die("write", None)
        travel.MESSAGE_BYTES = OBJECT_BYTES  # type: ignore[misc]
        return super().write(iterator)

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        self._die("before", batchId)
        super().commit(messages, batchId)
        self._die("after", batchId)

    def _die(self, phase: str, batch: int | None) -> None:
        name = f"{'next' if batch is None else batch}-{phase}"
        try:
            Path(self.folder, name).unlink()
        except FileNotFoundError:
            return
        if phase == "write":
            raise RuntimeError("a task is lost")
        os._exit(9)


class FaultySource(DefaultSource):
    """`halocline`, but for its sink."""

    @classmethod
    def name(cls) -> str:
        return "halocline_faulty"

    def streamWriter(self, schema: Any, overwrite: bool) -> FaultyWriter:  # noqa: N802
        options = dict(self.options)
        folder = options.pop("faults")
        writer = FaultyWriter(DefaultSource(options)._settings(), schema, overwrite=overwrite)
        writer.folder = folder
        return writer
