"""Versioned metadata: which tables a timestamp can see.

A small transactional map of its own, in memory, rebuilt from the DDL nodes of the log. Read
`catalog.py` first, then `tables.py` (the rules of every operation) and `versions.py` (one name
through time).
"""

from __future__ import annotations

from halocline.catalog.catalog import Catalog
from halocline.catalog.ddl import CatalogTxn, TableDdl
from halocline.catalog.entries import ObjectEntry, SchemaVersion, TableEntry
from halocline.catalog.indexes import IndexEntry

__all__ = [
    "Catalog",
    "CatalogTxn",
    "IndexEntry",
    "ObjectEntry",
    "SchemaVersion",
    "TableDdl",
    "TableEntry",
]
