"""Reading: point reads, scans, the change feed, and SQL through DuckDB."""
