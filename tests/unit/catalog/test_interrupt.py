"""Ctrl-C at every line of a DDL command: the command is whole or absent, and nothing sticks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from halocline import catalog
from halocline.catalog import CatalogTxn
from tests.unit.catalog.driver import Driver, make

CATALOG_ROOM = str(Path(catalog.__file__).parent)


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line that runs inside the catalog, once."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Interrupt | None:
        if not frame.f_code.co_filename.startswith(CATALOG_ROOM):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self

    def strikes(self, act: Callable[[], object]) -> bool:
        """Run with the interrupt armed; was it reached?"""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            act()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def replace(sub: CatalogTxn) -> None:
    sub.drop_table("m")
    make(sub, "M")


def create(sub: CatalogTxn) -> None:
    make(sub, "another")


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("command", [replace, create])
def test_an_interrupted_command_is_whole_or_absent(
    command: Callable[[CatalogTxn], None], ending: str
) -> None:
    for line in range(1, 1000):
        driver = Driver()
        driver.create("m")
        sub = driver.begin()
        make(sub, "other")
        struck = Interrupt(line).strikes(lambda sub=sub: command(sub))  # type: ignore[misc]
        if ending == "commit":
            driver.commit(sub)
        else:
            sub.rollback()
        # What the log got is what the catalog has, and no node is left without a transaction.
        driver.check()
        versions = driver.catalog.versions
        rows = [row for key in versions.name_keys() for row in versions.generations(key)]
        nodes = [node for row in rows for node in row.chain or ()]
        assert {row.owner for row in rows} <= {None}
        assert {node.owner for node in nodes} <= {None}
        if not struck:
            assert line > 50, "the command was interrupted at each of its lines"
            return
    pytest.fail("the command never came to its end")
