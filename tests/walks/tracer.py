"""A tracer for walks: which files of the package a call touches, and how often it changes rooms.

    with tracer.recording(): one call --> Walk(files, crossings)

A *file* counts when one of its functions was called. A *crossing* is a call from a file of one room
into a file of another; returns do not count, nor does what lies between (pyarrow, the standard
library). Modules at the top, which every room uses, are one room of their own.

`sys.setprofile` sees one thread. Threads that start while a tracer is installed are seen too, so
that the owner's side of a request is part of the walk; it stays silent outside `recording()`. The
thread that accepts connections looks after its endpoint now and then, and is not seen.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import halocline

SOURCE = str(Path(halocline.__file__).parent.parent) + "/"
OURS = (SOURCE + "halocline/", SOURCE + "pyspark_halocline/")


@dataclass(frozen=True)
class Walk:
    """What one call passed through."""

    files: tuple[str, ...]
    crossings: tuple[tuple[str, str], ...]

    @property
    def rooms(self) -> tuple[str, ...]:
        """Rooms in the order in which they were entered first."""
        return tuple(dict.fromkeys(room_of(file) for file in self.files))


class Tracer:
    """Sees calls in the threads that it is installed in."""

    def __init__(self) -> None:
        self._on = False
        self._files: dict[str, None] = {}
        self._crossings: list[tuple[str, str]] = []

    @contextmanager
    def installed(self) -> Iterator[Tracer]:
        """See this thread, and every thread that starts inside the block."""
        threading.setprofile(self._see_thread)
        sys.setprofile(self._see)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]  # None means: no longer

    def walk(self, call: Callable[[], Any], rounds: int = 5) -> Walk:
        """The shortest of several warm walks: a thread that happened to wait adds no file."""
        call()
        return min((self._walk(call) for _ in range(rounds)), key=_length)

    def _walk(self, call: Callable[[], Any]) -> Walk:
        self._files, self._crossings = {}, []
        self._on = True
        try:
            call()
        finally:
            self._on = False
        return Walk(tuple(self._files), tuple(self._crossings))

    def _see_thread(self, frame: FrameType, event: str, argument: Any) -> None:
        """The first call in a new thread: see it from now on, or never."""
        accepts = threading.current_thread().name == "halocline-service"
        sys.setprofile(None if accepts else self._see)
        if not accepts:
            self._see(frame, event, argument)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._on or event != "call" or not frame.f_code.co_filename.startswith(OURS):
            return
        here = _name(frame)
        self._files[here] = None
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(OURS):
            caller = caller.f_back
        if caller is not None:
            step = room_of(_name(caller)), room_of(here)
            if step[0] != step[1]:
                self._crossings.append(step)


def room_of(file: str) -> str:
    """The room of a file below `src`; modules at the top of the package are one room."""
    package, *rooms, _ = file.split("/")
    if package != "halocline":
        return package
    return rooms[0] if rooms else "top"


def _name(frame: FrameType) -> str:
    return frame.f_code.co_filename[len(SOURCE) :]


def _length(walk: Walk) -> tuple[int, int]:
    return len(walk.files), len(walk.crossings)
