"""Child processes that start in milliseconds, for tests that kill many of them.

    test --"fork", work, arguments, descriptors--> nursery (one process, engine imported once)
                                                     '--fork--> child: work(arguments, descriptors)
    test <------ acknowledgements, through a pipe -------------'
    test --SIGKILL--> child;  test --"wait"--> nursery: reaped, so all its locks are gone

Importing the engine takes most of a second, forking a process that has imported it ten
milliseconds. The nursery itself never opens a database and has one thread, so a fork is safe.

This file is both sides: the class `Nursery` for tests, and the program that they start.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
MESSAGE_BYTES_MAX = 65536


class Nursery:
    """The tests' side."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(60)
        self.children: list[Child] = []
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            cwd=ROOT,
        )
        theirs.close()

    def fork(self, work: str, arguments: dict[str, Any], descriptors: Sequence[int] = ()) -> int:
        """Run `tests.process.children.<work>`, or `<file>.<work>`, in a new process; its pid."""
        message = json.dumps({"do": "fork", "work": work, "arguments": arguments}).encode()
        socket.send_fds(self._socket, [message], descriptors)
        return int(self._answer())

    def wait(self, pid: int) -> int:
        """Wait until a child has ended and been reaped; its exit code, negative for a signal."""
        self._socket.send(json.dumps({"do": "wait", "pid": pid}).encode())
        return int(self._answer())

    def kill(self, pid: int) -> None:
        """kill -9, and wait until nothing is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.wait(pid)

    def pause(self, pid: int) -> None:
        """Stop a child, and wait until it stands still.

        The signal alone is not enough: on a busy machine the thread that takes it may wait for the
        processor while the others go on.
        """
        self._socket.send(json.dumps({"do": "pause", "pid": pid}).encode())
        self._answer()

    def end_children(self) -> None:
        """Kill what a test that failed has left running, so that the next one does not fail too."""
        while self.children:
            self.children[0].kill()

    def close(self) -> None:
        self._socket.close()
        self._process.wait(20)

    def _answer(self) -> bytes:
        answer = self._socket.recv(MESSAGE_BYTES_MAX)
        assert answer, "the nursery has died"
        return answer


class Child:
    """A child that answers questions: `ask("insert", key=1)` calls its function of that name."""

    def __init__(self, nursery: Nursery, work: str, **arguments: Any) -> None:
        their_input, self._input = os.pipe()
        self._output, their_output = os.pipe()
        self._nursery = nursery
        self.pid = nursery.fork(work, arguments, [their_input, their_output])
        os.close(their_input)
        os.close(their_output)
        self._answers = os.fdopen(self._output, "r", encoding="utf-8")
        nursery.children.append(self)
        self.said = self._read()

    def ask(self, question: str, **arguments: Any) -> Any:
        os.write(self._input, json.dumps({"do": question, **arguments}).encode() + b"\n")
        return self._read()

    def kill(self) -> None:
        self._nursery.kill(self.pid)
        self._close()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, it stands still."""
        self._nursery.pause(self.pid)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def end(self) -> int:
        """Close its input: it ends by itself."""
        os.close(self._input)
        self._input = -1
        code = self._nursery.wait(self.pid)
        self._close()
        return code

    def _read(self) -> Any:
        line = self._answers.readline()
        assert line, f"process {self.pid} ended without an answer"
        return json.loads(line)

    def _close(self) -> None:
        self._nursery.children.remove(self)
        self._answers.close()
        if self._input >= 0:
            os.close(self._input)


# -- the program ---------------------------------------------------------------------------------


def _serve(channel: socket.socket) -> None:
    importlib.import_module("tests.process.children")
    importlib.import_module("halocline.database.doors")  # loaded late otherwise: see `open`
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, 8)
        if not message:
            return
        request = json.loads(message)
        if request["do"] == "fork":
            file, _, name = request["work"].rpartition(".")
            module = importlib.import_module(f"tests.process.{file or 'children'}")
            pid = os.fork()
            if not pid:
                channel.close()
                _run(getattr(module, name), request["arguments"], descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            channel.send(str(pid).encode())
        elif request["do"] == "pause":
            os.kill(request["pid"], signal.SIGSTOP)
            os.waitpid(request["pid"], os.WUNTRACED)
            channel.send(b"paused")
        else:
            _, status = os.waitpid(request["pid"], 0)
            channel.send(str(os.waitstatus_to_exitcode(status)).encode())


def _run(work: Any, arguments: dict[str, Any], descriptors: list[int]) -> None:
    """In the child; never returns."""
    code = 1
    try:
        work(*descriptors, **arguments)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        _serve(channel)
