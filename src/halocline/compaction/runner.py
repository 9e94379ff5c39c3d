"""Runner: who rewrites the objects of a group; plan, job and commit are the same for all.

Compactor --policy--> how large groups may be      LocalRunner   this process, small groups
          --why_not--> is this one for you?        spark/        executors, all the others
          --rewrite--> Outcome: files, objects that end
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from halocline.compaction.gather import policy_of
from halocline.compaction.plan import CompactPolicy, Group
from halocline.compaction.rewrite import Rewriter
from halocline.compaction.shorten import Outcome
from halocline.options import Options
from halocline.rows.state import TableState
from halocline.rows.tier import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One group to be rewritten in the name of a job."""

    state: TableState
    tier: Tier
    ts: int
    """Rows that had ended by this snapshot are dropped."""
    job_id: int
    group: Group
    go_on: Callable[[], None]
    """To be called now and then; it raises when the work should be broken off."""


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

    def rewrite(self, work: Work) -> Outcome: ...


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

    def rewrite(self, work: Work) -> Outcome:
        rewriter = Rewriter(work.state, work.tier, work.ts, work.job_id, self._options)
        return rewriter.run(work.group, go_on=work.go_on)
