"""Calling back without holding on: a database that its program forgets can go, whoever it has told
how to be reached."""

from __future__ import annotations

import weakref
from typing import Any

from halocline.errors import UnavailableError


def weakly(owner: Any, method: Any, otherwise: Any = None) -> Any:
    """The method, without keeping its owner in memory; what to do when that is gone."""
    ref = weakref.ref(owner)

    def call(*arguments: Any) -> Any:
        found = ref()
        if found is None and otherwise is not None:
            return otherwise(*arguments)
        if found is None:
            raise UnavailableError("the database is closed")
        return method(found, *arguments)

    return call
