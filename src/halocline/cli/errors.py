"""Errors on the command line: one line that says what to do, and a code for scripts.

0  done     1  problems were found, or something failed     2  wrong call, or not a database
3  not now: another process has it, the disk is full        4  damaged     130  interrupted
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from halocline import errors

TROUBLE = 1
USAGE = 2
UNAVAILABLE = 3
DAMAGED = 4
INTERRUPTED = 130
_CODES: tuple[tuple[type[errors.HaloclineError], int], ...] = (
    (errors.NotFoundError, USAGE),
    (errors.UsageError, USAGE),
    (errors.UnavailableError, UNAVAILABLE),
    (errors.CorruptionError, DAMAGED),
)


@contextmanager
def told() -> Iterator[None]:
    """Turns errors of the engine and of the system into a line on stderr and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except errors.HaloclineError as error:
        say(str(error))
        raise typer.Exit(code_of(error)) from None
    except BrokenPipeError:
        raise  # whoever read us has had enough: typer ends in silence
    except OSError as error:
        say(str(error))
        raise typer.Exit(UNAVAILABLE) from None


def say(text: str) -> None:
    """Prints a line on stderr as it is: paths may hold what rich takes for markup."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True, soft_wrap=True).print(Text(f"halocline: {text}"))


def code_of(error: errors.HaloclineError) -> int:
    """The exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), TROUBLE)
