"""A proxy between clients and the owner that treats connections badly: real sockets, real bytes.

    client --Unix socket or TCP--> Proxy --each chunk: whole | late | half, then cut | lost--> owner

Where to is asked for at every new connection, so a proxy outlives owners. `Weather` says how likely
each fault is; all chances come from one seed. A connection that loses bytes loses all that follow,
too, in both directions: a stream with a hole in it would be a lie that no network tells.
"""

from __future__ import annotations

import random
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

Address = str | tuple[str, int]
"""The path of a Unix socket, or host and port."""
CHUNK_BYTES = 1 << 16
CONNECT_S = 5.0


@dataclass(frozen=True)
class Weather:
    """Chances per chunk, in percent."""

    late: float = 0.0
    late_s_max: float = 0.0
    cut: float = 0.0
    lost: float = 0.0


CALM = Weather()


class Proxy:
    """Listens until it is closed. `address` is what clients connect to."""

    def __init__(
        self, target: Callable[[], Address | None], chance: random.Random, *, tcp: bool = False
    ) -> None:
        """`target` names the owner of the moment; None: there is none, nobody is let through."""
        self.weather = CALM
        self.faults = 0
        """How many there were so far."""
        self._target = target
        self._chance = chance
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._pairs: set[_Pair] = set()
        self._folder = None if tcp else tempfile.TemporaryDirectory(prefix="proxy-")
        self._listener, self.address = _listen(self._folder and self._folder.name)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def cut(self) -> None:
        """Break every connection now."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.cut()

    def close(self) -> None:
        self._stop.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in list(self._threads):
            thread.join(30)
        if self._folder is not None:
            self._folder.cleanup()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = self._reach()
            if far is None:
                near.close()
                continue
            pair = _Pair(near, far)
            with self._lock:
                self._pairs.add(pair)
                self._threads = [one for one in self._threads if one.is_alive()]
            for ends in ((near, far), (far, near)):
                thread = threading.Thread(target=self._pump, args=(pair, *ends), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _reach(self) -> socket.socket | None:
        address = self._target()
        if address is None:
            return None
        sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        try:
            sock.settimeout(CONNECT_S)
            sock.connect(address)
            sock.settimeout(None)
        except OSError:
            sock.close()
            return None
        return sock

    def _pump(self, pair: _Pair, source: socket.socket, target: socket.socket) -> None:
        """Carry bytes one way until either side has had enough."""
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                kind, late_s = self._draw()
                if late_s:
                    self._stop.wait(late_s)
                pair.lossy |= kind == "lost"
                if pair.lossy:
                    continue
                if kind == "cut":
                    target.sendall(data[: len(data) // 2])
                    break
                target.sendall(data)
        pair.cut()
        with self._lock:
            self._pairs.discard(pair)

    def _draw(self) -> tuple[str, float]:
        """What happens to a chunk, and how long it waits before."""
        weather = self.weather
        with self._lock:
            late = self._chance.random() * 100 < weather.late
            late_s = self._chance.random() * weather.late_s_max if late else 0.0
            throw = self._chance.random() * 100
            kind = "cut" if throw < weather.cut else "whole"
            if weather.cut <= throw < weather.cut + weather.lost:
                kind = "lost"
            self.faults += late or kind != "whole"
        return kind, late_s


class _Pair:
    """One connection: both its sockets. Each is closed once nobody reads from it any more."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self._ends = (near, far)
        self.lossy = False

    def cut(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        for end in self._ends:
            end.close()


def _listen(folder: str | None) -> tuple[socket.socket, Address]:
    if folder is not None:
        path = str(Path(folder, "socket"))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        return listener, path
    listener = socket.socket(socket.AF_INET)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener, ("127.0.0.1", listener.getsockname()[1])
