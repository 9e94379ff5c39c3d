"""Versioned metadata: which databases, tables, objects and indexes a timestamp can see.

A small transactional database of its own, in memory, rebuilt from the DDL nodes of the log. Read
`catalog.py` first, then `meta.py` (the rules of every operation) and `versions.py` (one row through
time).
"""

from __future__ import annotations

from halocline.catalog.catalog import Catalog
from halocline.catalog.ddl import CatalogTxn
from halocline.catalog.entries import IndexEntry, ObjectEntry, TableEntry

__all__ = ["Catalog", "CatalogTxn", "IndexEntry", "ObjectEntry", "TableEntry"]
