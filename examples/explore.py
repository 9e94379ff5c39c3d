"""A first half hour with data that somebody else made: two million dirty rows in a CSV file.

    python examples/explore.py [ROWS] [FOLDER]

    make a dirty file --> look at it --> a table with a key and checks --> load, bad rows aside
    --> what was wrong --> questions in SQL and pandas --> mend --> what changed, and the way back

Everything is printed as it is found. The file has what such files have: numbers that are words,
prices with too many decimals, days that do not exist, missing keys, rows that come twice, lines
that are broken.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

import halocline as hc

STATUS = ["new", "paid", "sent", "returned"]


def make_file(path: Path, rows: int) -> None:
    """Orders of a shop, about one in fifty of them wrong in some way."""
    chance = np.random.default_rng(7)
    ids = np.arange(1, rows + 1).astype(object)
    ids[chance.random(rows) < 0.002] = ""
    again = np.flatnonzero(chance.random(rows) < 0.003)
    ids[again] = again // 2 + 1
    price = np.char.mod("%.2f", chance.integers(100, 100_000, rows) / 100).astype(object)
    price[chance.random(rows) < 0.004] = "n/a"
    price[chance.random(rows) < 0.002] = "9.999"
    days = np.datetime64("2025-01-01") + chance.integers(0, 365, rows)
    day = np.datetime_as_string(days).astype(object)
    day[chance.random(rows) < 0.002] = "2025-02-30"
    status = np.array([*STATUS, "Paid?"], object)[
        chance.choice(5, rows, p=[0.3, 0.4, 0.2, 0.095, 0.005])
    ]
    city = np.array(["Rom", "Oslo", "Köln, Süd", ""], object)[chance.integers(0, 4, rows)]
    with path.open("w", encoding="utf-8") as file:
        file.write("id,city,price,day,status\n")
        for line in zip(ids, city, price, day, status, strict=True):
            file.write('{},"{}",{},{},{}\n'.format(*line))
            if line[0] == 1000:
                file.write("this line is broken,1,2,3,4,5,6,7\n")


def main(rows: int = 2_000_000, folder: str | None = None) -> dict[str, int]:
    """Walk through it; returns what was counted on the way."""
    home = Path(folder or tempfile.mkdtemp(prefix="explore-"))
    path = home / "orders.csv"
    make_file(path, rows)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB\n\nWhat is in it?")
    print(hc.read(path, ignore_errors=True).schema)

    with hc.open(home / "shop") as db:
        listed = ", ".join(f"'{one}'" for one in STATUS)
        types = {
            "id": int,
            "city": str,
            "price": "decimal(9,2)",
            "day": "date",
            "status": f"enum({listed})",
        }
        orders = db.create_table("orders", types, primary_key="id")

        begin, bad = time.perf_counter(), list[dict[str, object]]()
        good = db.run(lambda txn: txn.insert("orders", path, reject=bad))
        print(f"\n{good:,} rows in {time.perf_counter() - begin:.1f} s, {len(bad):,} rejected:")
        for column, count in Counter(one["column"] for one in bad).most_common():
            example = next(one for one in bad if one["column"] == column)
            print(f"  {count:>7,}  {column}: {example['reason']}")

        print(f"\n{orders}\n\nWho buys what?")
        by_city = "select city, count(*) n, sum(price) total from orders group by city order by 1"
        print(db.sql(by_city).to_pandas())
        months = "select month(day) as month, avg(price) as mean from orders group by 1 order by 1"
        print(db.sql(months).to_pandas().set_index("month").T.round(2))

        before = db.visible_ts
        mended = [
            {
                "id": int(str(one["values"]["id"])),  # type: ignore[index]
                "price": None,
                "status": "new",
            }
            for one in bad
            if one["column"] == "price" and one["values"]["id"]  # type: ignore[index]
        ]
        fixed = db.run(lambda txn: txn.insert("orders", mended, on_conflict="ignore", reject=[]))
        print(f"\n{fixed or 0:,} rows without a price come in after all.")
        missing = db.run(lambda txn: txn.update("orders", where="city is null", set={"city": "?"}))
        changed = db.changes("orders", since=before).num_rows
        print(f"{missing:,} cities are unknown; {changed:,} changes, and the past is there:")
        unknown = "select count(*) filter (city is null) from orders"
        print(db.sql(unknown, at=before).column(0)[0], "then,", db.sql(unknown).column(0)[0], "now")
        problems = db.check()
        return {"good": good or 0, "bad": len(bad), "fixed": fixed or 0, "problems": len(problems)}


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000, *sys.argv[2:3])
