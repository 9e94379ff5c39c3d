"""Spark: everything that touches many objects, on a laptop or on a cluster.

    session.py   a session with fitting settings          scan.py    a table as a DataFrame
    types.py     the engine's types in Spark's words      attach.py  all tables as views
    pins.py      snapshots a session still reads          lease.py   rows that are in no object
    query.py     SQL of the local engine, on Spark        dialect.py what it means there
    load.py      load, delete, update                     merge.py   merge, with conditions
    job.py       write jobs, from the driver's side       base.py    the table they meet
    task.py      what an executor does in a write job     probe.py   finding keys there
    attempts.py  which task, which attempt of it          lines.py   what a task tells the driver
    compact.py   compaction, from the driver's side       rewrite.py what an executor does in it
    maintain.py  all that is owed, again and again        collect.py a job watched, broken off
    workers.py   do executors have the package            files.py   Spark's reader, told exactly
    condition.py which rows a merge means
    register.py  the data source `halocline`              stream.py  micro-batches as jobs

The one room that imports pyspark. Executors only read and write objects; the one commit happens in
the process that has the database open.
"""

from halocline.spark.attach import Views, attach
from halocline.spark.compact import compact
from halocline.spark.job import LoadReport
from halocline.spark.load import delete, load, update
from halocline.spark.maintain import maintain
from halocline.spark.merge import merge
from halocline.spark.pins import release
from halocline.spark.register import register
from halocline.spark.scan import table
from halocline.spark.session import session
from halocline.spark.stream import foreach_batch

__all__ = [
    "LoadReport",
    "Views",
    "attach",
    "compact",
    "delete",
    "foreach_batch",
    "load",
    "maintain",
    "merge",
    "register",
    "release",
    "session",
    "table",
    "update",
]
