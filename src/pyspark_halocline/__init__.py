"""The Spark data source `halocline`: `spark.read.format("halocline")`, its writers and its streams.

    source.py   what Spark calls first               options.py   what `.option(...)` may say
    scan.py     batch reads                          parts.py     a snapshot cut into pieces
    live.py     ... of whatever is newest            connect.py   opening the database
    sink.py     writes: rows in, one commit out      travel.py    how rows get to that commit
    feed.py     the change feed as a stream          apply.py     ... and back into a table

Spark finds this package by its name, without registration, wherever it is installed. None of its
code runs in the driver's process: every step is a Python process of its own, so whatever one step
tells the next travels in plain values, and every step that needs the database opens it.

A package of its own, because it stands on the front door of `halocline`; Spark imports all packages
of such a name to look for sources, so nothing heavy is imported before it is needed.
"""

from pyspark_halocline.source import DefaultSource

__all__ = ["DefaultSource"]
