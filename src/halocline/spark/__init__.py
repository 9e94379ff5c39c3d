"""Spark: everything that touches many objects, on a laptop or on a cluster.

    sessions.py  a session with fitting settings          scan.py     a table as a DataFrame
    types.py     the engine's types in Spark's words      views.py    all tables as views
    pins.py      snapshots a session still reads          lease.py    rows that are in no object
    query.py     SQL of the local engine, on Spark        dialect.py  what it means there
    writes.py    load, delete, update, merge              condition.py which rows a merge means
    job.py       write jobs, from the driver's side       task.py     what an executor does in one
    probe.py     finding keys there                       worker.py   what all tasks share
    runner.py    compaction, from the driver's side       rewrite.py  what an executor does in it
    maintenance.py all that is owed, again and again      collect.py  a job watched, broken off
    datasource.py the data source `halocline`             stream.py   micro-batches as jobs
    files.py     Spark's reader, told exactly             trouble.py  Spark's errors as ours

No module has the name of something that this package exports: `import halocline.spark.writes`
gives the module, `halocline.spark.load` is the function.

The one room that imports pyspark. Executors only read and write objects; the one commit happens in
the process that has the database open.
"""

from halocline.spark.datasource import register
from halocline.spark.job import LoadReport
from halocline.spark.maintenance import maintain
from halocline.spark.pins import release
from halocline.spark.runner import compact, settle
from halocline.spark.scan import table
from halocline.spark.sessions import session
from halocline.spark.stream import foreach_batch
from halocline.spark.views import Views, attach
from halocline.spark.writes import delete, load, merge, update

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
    "settle",
    "table",
    "update",
]
