"""Ctrl-C at a chosen bytecode of the engine.

    strike(k, "signal", call)   the signal arrives at the k-th opcode; the interpreter raises
                                KeyboardInterrupt where it looks for signals next
    strike(k, "raise", call)    the k-th call that can be interrupted raises KeyboardInterrupt
                                instead of doing anything: a lock or a system call that gives up

The first is exactly what a user's Ctrl-C does. Raising from a trace function would not be: it can
strike between two opcodes where the interpreter never looks for signals, such as between the end of
a `with` block and the release of its lock, and no Python program could survive that. So the trace
function, at the right moment, hands over to a C function, PyErr_SetInterrupt, that only marks the
signal as arrived; no Python code runs between the mark and the engine's own next step.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

import halocline

Mode = Literal["signal", "raise"]

_PACKAGE = str(Path(halocline.__file__).parent)
_CALLS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "BEFORE_WITH", "LOAD_SPECIAL"}

_mark = ctypes.PYFUNCTYPE(None)(("PyErr_SetInterrupt", ctypes.pythonapi))
# It takes none of the three arguments of a trace function, and never looks at them.
_mark.argtypes = [ctypes.py_object] * 3


class Strike(NamedTuple):
    """What became of one interrupt."""

    hit: bool
    """False: the call had ended before its k-th opcode."""
    returned: bool
    """The call returned: the interrupt came too late, or in a `__del__`, which swallows it."""
    where: str


class _Tracer:
    def __init__(self, k: int, mode: Mode, inside: str, beside: tuple[str, ...] = ()) -> None:
        self.left = k
        self.mode = mode
        self.inside = inside
        self.followed = (_PACKAGE, *beside)
        self.where = ""
        # One object each for as long as we live: the interpreter does not hold on to the trace
        # function that it is just calling.
        self.on_frame, self.on_opcode = self.frame, self.opcode

    def frame(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Called for every new frame: only those of the engine are followed, unless told."""
        if not frame.f_code.co_filename.startswith(self.followed):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self.on_opcode if self.left else _mark

    def opcode(self, frame: FrameType, event: str, argument: Any) -> Any:
        counts = event == "opcode" and (
            self.mode == "signal" or frame.f_lasti in interruptible(frame.f_code)
        )
        if counts and (not self.inside or self._is_inside(frame)):
            self.left -= 1
            if not self.left:
                return self._fire(frame)
        return self.on_opcode

    def _is_inside(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code.co_name != self.inside:
            frame = frame.f_back
        return frame is not None

    def _fire(self, frame: FrameType) -> Any:
        if self.mode == "raise":
            self._note(frame)
            raise KeyboardInterrupt
        # Whichever frame of the engine takes the next step shall mark the signal.
        above: FrameType | None = frame
        while above is not None:
            if above.f_trace is not None:
                above.f_trace = _mark
            above = above.f_back
        return _mark

    def handle(self, number: int, frame: FrameType | None) -> None:
        sys.settrace(None)
        if frame is not None:
            self._note(frame)
        raise KeyboardInterrupt

    def _note(self, frame: FrameType) -> None:
        code = frame.f_code
        self.where = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"


def strike(
    k: int,
    mode: Mode,
    call: Callable[[], object],
    inside: str = "",
    beside: tuple[str, ...] = (),
) -> Strike:
    """Make the call and interrupt it. Main thread only: nobody else gets signals.

    `inside` names a function: then only opcodes count that run while it does. `beside` names files
    outside of the engine whose opcodes count, too.
    """
    tracer = _Tracer(k, mode, inside, beside)
    returned = False
    before, hook = sys.gettrace(), sys.unraisablehook
    handler = signal.signal(signal.SIGINT, tracer.handle)
    sys.unraisablehook = without_interrupts(hook)
    try:
        sys.settrace(tracer.on_frame)
        call()
        returned = True
        sys.settrace(None)
        # The signal may have been marked at the very last opcode: let it come now.
        for _ in range(10):
            pass
    except KeyboardInterrupt:
        return Strike(True, returned, tracer.where)
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGINT, handler)
        sys.unraisablehook = hook
    return Strike(bool(tracer.where), returned, tracer.where)


def without_interrupts(hook: Callable[[Any], object]) -> Callable[[Any], object]:
    """Whatever is raised inside a `__del__` is lost, and Python says so. An interrupt may be."""

    def filtered(lost: Any) -> None:
        if lost.exc_type is not KeyboardInterrupt:
            hook(lost)

    return filtered


def count(mode: Mode, call: Callable[[], object]) -> int:
    """How many opcodes of the engine this call takes."""
    far = 1 << 60
    tracer = _Tracer(far, mode, "")
    before = sys.gettrace()
    sys.settrace(tracer.on_frame)
    try:
        call()
    finally:
        sys.settrace(before)
    return far - tracer.left


@functools.cache
def interruptible(code: CodeType) -> frozenset[int]:
    """Offsets of calls, leaving out those of `__exit__` at the end of a `with` block."""
    instructions = [
        one for one in dis.get_instructions(code) if one.opname not in ("PRECALL", "CACHE")
    ]
    return frozenset(
        one.offset
        for place, one in enumerate(instructions)
        if one.opname in _CALLS and not _leaves_a_with(instructions[max(0, place - 3) : place])
    )


def _leaves_a_with(before: list[dis.Instruction]) -> bool:
    """`__exit__(None, None, None)` is how a `with` block ends; nobody else writes that."""
    return len(before) == 3 and all(
        one.opname == "LOAD_CONST" and one.argval is None for one in before
    )
