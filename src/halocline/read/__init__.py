"""Reading: point reads, scans, the change feed, and SQL through DuckDB."""

from halocline.read.changes import read_changes
from halocline.read.duck import Duck
from halocline.read.prune import compile_where
from halocline.read.scan import count_rows, scan_table, take_plan

__all__ = ["Duck", "compile_where", "count_rows", "read_changes", "scan_table", "take_plan"]
