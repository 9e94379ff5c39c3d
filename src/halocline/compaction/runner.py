"""Runner: who rewrites the objects of a group; plan, job and commit are the same for all.

Compactor --policy--> how large groups may be      LocalRunner   this process, small groups
          --why_not--> is this one for you?        spark/        executors, all the others
          --rewrite--> Outcome: files, objects that end
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from halocline.compaction.gather import policy_of
from halocline.compaction.plan import CompactPolicy, Group
from halocline.compaction.rewrite import GroupWork, RewriteOutcome, rewrite
from halocline.options import Options
from halocline.rows.state import TableState


class Runner(Protocol):
    """One way to carry out groups."""

    name: str
    """"local": its work is done in this process, one group at a time."""

    def policy(self, state: TableState) -> CompactPolicy:
        """How large its groups may be."""
        ...

    def why_not(self, group: Group) -> str:
        """Why it leaves a group to others; empty when it takes it."""
        ...

    def go_on(self) -> None:
        """Raises when the work is no longer wanted."""
        ...

    def rewrite(self, work: GroupWork) -> RewriteOutcome: ...


class LocalRunner:
    """This process: groups up to `compact_local_bytes`."""

    name = "local"

    def __init__(self, options: Options, go_on: Callable[[], None] | None = None) -> None:
        self._options = options
        self._go_on = go_on

    def policy(self, state: TableState) -> CompactPolicy:
        return policy_of(state, self._options)

    def why_not(self, group: Group) -> str:
        limit = self._options.compact_local_bytes
        return f"larger than compact_local_bytes, {limit}" if group.size_bytes > limit else ""

    def go_on(self) -> None:
        if self._go_on is not None:
            self._go_on()

    def rewrite(self, work: GroupWork) -> RewriteOutcome:
        return rewrite(work)
