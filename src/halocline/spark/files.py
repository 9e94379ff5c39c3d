"""Files: Spark's Parquet reader, told to read exactly what it is given.

No listing, no globbing, nothing skipped because it is missing or damaged, and page checksums are
compared (which costs nothing that could be measured). Days before 1582 are those that were written:
a session that reads files of old Sparks may be set to shift them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

PATTERNS: Final = frozenset("{}[]*?\\")
_OPTIONS: Final = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "recursiveFileLookup": "false",
    "parquet.page.verify-checksum.enabled": "true",
    "datetimeRebaseMode": "CORRECTED",
}


def read_files(session: SparkSession, paths: Sequence[str], schema: StructType) -> DataFrame:
    """Exactly these files, or an error."""
    reader = session.read.schema(schema).options(**_OPTIONS)
    if PATTERNS.isdisjoint(paths[0]):
        return reader.option("__globPaths__", "false").parquet(*paths)
    # With globbing off, Spark reads n files whose names look like patterns n times each: found by
    # test. So it may look for patterns there, and finds none.
    return reader.parquet(*(_escaped(path) for path in paths))


def _escaped(path: str) -> str:
    return "".join(f"\\{char}" if char in PATTERNS else char for char in path)
