"""Objects that others have made become part of a transaction: the tasks of a write, on Spark.

    entries --key columns, an object at a time--> taken? in an object before? --> workspace

The same checks as for rows that arrive as a stream (bulk.py), for rows that never pass through
here: of each object only the keys are read, and only to be looked up.
"""

from __future__ import annotations

from collections.abc import Sequence

from halocline.catalog.entries import ObjectEntry
from halocline.errors import DuplicateKeyError
from halocline.txn.bulk import SHOWN
from halocline.txn.commands import Kind
from halocline.txn.objectparts import ObjectParts, file_of
from halocline.txn.taken import SortedKeys, in_objects, taken_keys
from halocline.txn.workspace import TableChanges


def insert_objects(
    changes: TableChanges, parts: ObjectParts, entries: Sequence[ObjectEntry], snapshot: int
) -> None:
    """Insert the rows of these objects into a table that the transaction has not written yet.

    DuplicateKeyError when a key is taken, or stands in two of them; then nothing is kept.
    """
    assert changes.objects is None, "the first change of its table"
    if changes.schema.primary_key:
        _check(changes, entries, snapshot)
    parts.add(inserts=entries)
    changes.objects = parts
    changes.commands.append(Kind.INSERT)


def _check(changes: TableChanges, entries: Sequence[ObjectEntry], snapshot: int) -> None:
    schema, name = changes.schema, changes.entry.name
    reader = changes.home.shelf.reader
    for place, entry in enumerate(entries):
        rows = reader.read(file_of(entry), schema, columns=list(schema.primary_key), hidden=())
        mine = SortedKeys(schema, rows)
        taken = taken_keys(changes, mine, snapshot)
        if taken:
            raise DuplicateKeyError(name, taken, total=len(taken))
        twice = in_objects(changes, mine, entries[:place])
        if len(twice):
            shown = mine.keys_at(twice[:SHOWN])
            raise DuplicateKeyError(name, shown, inside=True, total=len(twice))
