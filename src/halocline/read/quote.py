"""Quoting: how a name or a text enters generated SQL, here and nowhere else."""

from __future__ import annotations


def quote(identifier: str) -> str:
    """Puts a name into generated SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Puts a text into generated SQL."""
    return "'" + text.replace("'", "''") + "'"
