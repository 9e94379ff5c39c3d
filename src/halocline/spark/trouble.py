"""Trouble: what Spark raises, as one of our errors, with one line to read and its own as the cause.

    SQLSTATE of data, names, syntax; a function of the caller's that raised   --> UsageError
    anything else: a lost executor, a full disk, a job that was cancelled     --> UnavailableError

Spark's texts are pages: a stage failure quotes the last failure of a task, which quotes a stack of
Java, which quotes a traceback of Python. The line that helps is the last one of the traceback, else
the condition in brackets of the innermost cause, else the first line that there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from halocline.errors import HaloclineError, UnavailableError, UsageError

REASON_CHARS: Final = 300
CAUSES_MAX: Final = 10
_STATE: Final = re.compile(r"SQLSTATE: (\w{5})")
_OF_THE_INPUT: Final = ("0A", "21", "22", "42", "P0")
"""Classes of SQLSTATE that are the statement's or its data's fault: unsupported, cardinality, data
exceptions such as division by zero, syntax and names, errors that a query raises itself."""
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\] [^\n]*")
_TRACEBACK: Final = "Traceback (most recent call last):"
_RAISED: Final = re.compile(r"^([A-Za-z_][\w.]*)(?:: .*)?$", re.MULTILINE)
_NOT_OURS_TO_MEND: Final = ("OSError", "Error: [Errno", "MemoryError", "halocline.errors.Unavail")


@contextmanager
def told(what: str) -> Iterator[None]:
    """Errors of Spark in this block become ours."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise typed(what, error) from error


def typed(what: str, error: BaseException) -> HaloclineError:
    """UsageError for what the caller can mend, UnavailableError for what may pass."""
    text = text_of(error)
    kind = UsageError if is_of_the_input(text) else UnavailableError
    return kind(f"{what}: {reason_of(text) or type(error).__name__}")


def text_of(error: BaseException) -> str:
    """All that Spark says, the causes of its error last."""
    text = error.getMessage() if isinstance(error, PySparkException) else None
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    texts = [text] if text else []
    for _ in range(CAUSES_MAX):
        if java is None:
            break
        texts.append(java.getMessage())
        java = java.getCause()
    return "\n".join(map(str, filter(None, texts))) or str(error)


def is_of_the_input(text: str) -> bool:
    """Is a statement, its data, or a function of the caller's at fault?"""
    if any(state.startswith(_OF_THE_INPUT) for state in _STATE.findall(text)):
        return True
    raised = _raised(text)
    return bool(raised) and not any(sign in raised for sign in _NOT_OURS_TO_MEND)


def reason_of(text: str) -> str:
    """The one line of it that helps."""
    raised = _raised(text)
    conditions = _CONDITION.findall(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = raised or (conditions[-1] if conditions else lines[0] if lines else "")
    return reason.strip()[:REASON_CHARS]


def _raised(text: str) -> str:
    """The last line of a traceback of Python: what was raised; empty when there is none."""
    _, found, trace = text.partition(_TRACEBACK)
    for line in trace.splitlines() if found else ():
        # Everything else in a traceback is indented.
        if _RAISED.match(line):
            return line
    return ""
