"""Calling back without holding on: a database that its program forgets can go, whoever it has told
how to be reached."""

from __future__ import annotations

import weakref
from typing import Any

from halocline.errors import UnavailableError


def weakly(owner: Any, method: Any) -> Any:
    """The method, without keeping its owner in memory."""
    ref = weakref.ref(owner)

    def call(*arguments: Any) -> Any:
        found = ref()
        if found is None:
            raise UnavailableError("the database is closed")
        return method(found, *arguments)

    return call
