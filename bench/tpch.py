"""TPC-H: its tables as databases of ours, and its queries.

    tpchgen-cli --> Parquet files --bulk insert--> tables with their primary keys, in objects

The query texts are in tpch.sql.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

import halocline as hc

KEYS: Final = {
    "region": ["r_regionkey"],
    "nation": ["n_nationkey"],
    "supplier": ["s_suppkey"],
    "customer": ["c_custkey"],
    "part": ["p_partkey"],
    "partsupp": ["ps_partkey", "ps_suppkey"],
    "orders": ["o_orderkey"],
    "lineitem": ["l_orderkey", "l_linenumber"],
}
BATCH_ROWS: Final = 1_000_000


def generate(directory: Path, scale: float, *tables: str) -> None:
    """Make the files `<table>.parquet` of these tables."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    names = ",".join(tables or KEYS)
    command = [str(program), "parquet", "-s", str(scale), f"--output-dir={directory}"]
    done = subprocess.run(
        [*command, f"--tables={names}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"tpchgen-cli failed: {done.stderr}")


def load(db: hc.Database, directory: Path, *tables: str) -> None:
    """Insert the files; every row ends up in an object."""
    for name in tables or KEYS:
        file = pq.ParquetFile(directory / f"{name}.parquet")
        schema = _canonical(file.schema_arrow)
        db.create_table(name, schema, primary_key=KEYS[name])
        batches: list[pa.RecordBatch] = []
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            batches.append(batch)
            if sum(one.num_rows for one in batches) >= BATCH_ROWS:
                _insert(db, name, batches, schema)
                batches = []
        _insert(db, name, batches, schema)
    db.flush()


def queries() -> dict[int, str]:
    """The texts by number."""
    text = Path(__file__).with_name("tpch.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- (\d+)$", text, flags=re.MULTILINE)
    return {int(parts[at]): parts[at + 1].strip() for at in range(0, len(parts), 2)}


def _insert(db: hc.Database, name: str, batches: list[pa.RecordBatch], schema: pa.Schema) -> None:
    if batches:
        with db.begin() as txn:
            txn.insert(name, pa.Table.from_batches(batches).cast(schema))


def _canonical(schema: pa.Schema) -> pa.Schema:
    views = {pa.string_view(): pa.string(), pa.large_string(): pa.string()}
    return pa.schema([pa.field(f.name, views.get(f.type, f.type), True) for f in schema])
