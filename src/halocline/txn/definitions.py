"""What a transaction asks of the catalog when it creates or alters a table.

    txn.create_table --new_schema---> Schema
    txn.alter_table  --alter_table--> next Schema --> TableDdl (catalog/ddl.py, or at the owner)

A table that a transaction alters is out of its reach until it commits: its rows have the old shape
up to there. So a table is altered in one transaction, and written in another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from halocline.catalog import TableDdl
from halocline.catalog.names import check_layout
from halocline.errors import NotFoundError, UsageError
from halocline.options import Options
from halocline.schema.evolve import KINDS, alter
from halocline.schema.schema import Schema
from halocline.txn.workspace import Workspace


def new_schema(
    schema: Any,
    primary_key: str | Sequence[str] | None,
    layout: str,
    comment: str,
    options: Options,
) -> Schema:
    """The schema of a table that is created."""
    check_layout(layout)
    longest = options.key_bytes_max
    return Schema.define(schema, primary_key, comment=comment, key_bytes_max=longest)


def alter_table(work: Workspace, ddl: TableDdl, name: str, changes: Mapping[str, Any]) -> None:
    """Give a table its next schema; it is there for others when the transaction commits."""
    if unknown := [one for one in changes if one not in KINDS]:
        raise UsageError(f"alter_table takes {', '.join(KINDS)}, not {unknown[0]}")
    entry = ddl.table(name)
    if entry is None:
        raise NotFoundError("table", name)
    work.check_untouched(entry)
    ddl.alter_table(entry, alter(entry.schema, **changes))
    work.by_name.clear()
