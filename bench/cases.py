"""All cases: what is measured against whom, and what must be reached.

Targets are speed-ups over the peer: 1.1 means that we do the same work in 1/1.1 of its time.
`quick` shortens everything; its ratios are a hint, not a result.

Commits are measured twice. *New*: each round fills a new database. *Steady*: one database that has
seen `WARM_COMMITS` before the clock starts. The difference is SQLite's: its log grows for the first
thousand pages, at twice the cost of a sync, and is overwritten in place from then on.
"""

from __future__ import annotations

from typing import Any

from bench import disk, large, ours, scans, sqlite
from bench.harness import Case, Side, anew

FULL = "SQLite, synchronous=FULL"
NORMAL = "SQLite, synchronous=NORMAL"
WARM_COMMITS = 2000


def cases(*, quick: bool) -> list[Case]:
    """Everything that has a peer."""
    return [
        *_insert_commits(quick),
        _threaded_commits(quick),
        *_gets(quick),
        _bulk(quick),
        *_read_modify_write(quick),
        *_accounts(quick),
        *_scans(quick),
        *_loads(quick),
        *_upserts(quick),
        *_beside_many(quick),
    ]


def _insert_commits(quick: bool) -> list[Case]:
    found = []
    for durability, synchronous, peer, target in (
        ("sync", "full", FULL, 1.1),
        ("async", "normal", NORMAL, 1.2),
    ):
        kind = "durable" if durability == "sync" else "async"
        for state, ops, rounds in _states(quick, durability):
            one_statement = {"synchronous": synchronous, "ops": ops, "explicit": False}
            others = [
                _side("SQLite, one statement per commit", sqlite.insert_commits, one_statement)
            ]
            if durability == "sync":
                others += _disk_limits(ops)
            found.append(
                _in_state(
                    state,
                    name=f"commit-{kind}",
                    title=f"Single-row insert commits, {kind}, 1 thread",
                    ours=_ours(ours.insert_commits, {"durability": durability, "ops": ops}),
                    peer=_side(
                        peer, sqlite.insert_commits, {"synchronous": synchronous, "ops": ops}
                    ),
                    others=tuple(others),
                    target=target,
                    ops=ops,
                    rounds=rounds,
                )
            )
    return found


def _threaded_commits(quick: bool) -> Case:
    ops = 400 if quick else 800
    shared = {"synchronous": "full", "ops": ops, "threads": 8}
    queued = {**shared, "queue": True}
    return Case(
        name="commit-durable-8",
        title="Single-row insert commits, durable, 8 threads",
        ours=_ours(ours.threaded_commits, {"durability": "sync", "ops": ops, "threads": 8}),
        peer=_side(FULL, sqlite.threaded_commits, shared),
        others=(_side("SQLite, queue at a Python lock", sqlite.threaded_commits, queued),),
        target=3.0,
        ops=ops,
        rounds=2 if quick else 9,
        warm_rounds=WARM_COMMITS // ops,
    )


def _gets(quick: bool) -> list[Case]:
    rows, active = (20_000, 2_000) if quick else (100_000, 4_000)
    ops = 2_000 if quick else 20_000
    found = []
    for name, place, keys in (
        ("get-frozen", "frozen pages", (0, rows - active)),
        ("get-active", "the active page", (rows - active, rows)),
    ):
        shared = {"rows": rows, "keys": keys, "ops": ops}
        as_dicts = {**shared, "as_dict": True}
        found.append(
            Case(
                name=name,
                title=f"Point get, {rows:,} rows, from {place}",
                ours=_ours(ours.gets, {**shared, "active": active}),
                peer=_side("SQLite, prepared SELECT", sqlite.gets, shared),
                others=(_side("SQLite, rows as dicts", sqlite.gets, as_dicts),),
                target=1.0,
                ops=ops,
                rounds=3 if quick else 9,
                unit="get",
                note="SQLite answers with a tuple, Halocline with a dict.",
            )
        )
    return found


def _bulk(quick: bool) -> Case:
    rows, batch_rows = (100_000, 10_000) if quick else (1_000_000, 50_000)
    shared = {"rows": rows, "batch_rows": batch_rows}
    return Case(
        name="insert-bulk",
        title=f"Insert of {rows:,} rows, {batch_rows:,} per commit, durable",
        ours=_anew(_ours(ours.bulk_insert, {**shared, "durability": "sync"})),
        peer=_anew(
            _side("SQLite, executemany", sqlite.bulk_insert, {**shared, "synchronous": "full"})
        ),
        target=2.0,
        ops=rows,
        rounds=2 if quick else 3,
        unit="row",
        note="Arrow batches against ready-made tuples; making either is not counted.",
    )


def _read_modify_write(quick: bool) -> list[Case]:
    found = []
    for durability, synchronous, peer, target in (
        ("sync", "full", FULL, 1.05),
        ("async", "normal", NORMAL, 1.0),
    ):
        kind = "durable" if durability == "sync" else "async"
        for state, ops, rounds in _states(quick, durability):
            shared = {"rows": 10_000, "ops": ops}
            theirs = {**shared, "synchronous": synchronous}
            others = _disk_limits(ops) if durability == "sync" else ()
            found.append(
                _in_state(
                    state,
                    name=f"rmw-{kind}",
                    title=f"Read, modify, write: get + update + commit, {kind}",
                    ours=_ours(ours.read_modify_write, {**shared, "durability": durability}),
                    peer=_side(peer, sqlite.read_modify_write, theirs),
                    others=others,
                    target=target,
                    ops=ops,
                    rounds=rounds,
                )
            )
    return found


def _accounts(quick: bool) -> list[Case]:
    """Rows that nobody else wants: what is done for hot rows must cost nothing here."""
    found = []
    for name, durability, synchronous, peer, threads, ops in (
        ("accounts-async", "async", "normal", NORMAL, 1, 4000),
        ("accounts-durable-8", "sync", "full", FULL, 8, 800),
    ):
        ops = 400 if quick else ops
        shared = {"accounts": 1000, "ops": ops, "threads": threads}
        who = "durable, 8 threads" if threads > 1 else "async, 1 thread"
        found.append(
            Case(
                name=name,
                title=f"Transfers between 1,000 accounts through db.run, {who}",
                ours=_ours(ours.transfers, {**shared, "durability": durability}),
                peer=_side(peer, sqlite.transfers, {**shared, "synchronous": synchronous}),
                target=1.0,
                ops=ops,
                rounds=2 if quick else 15,
                warm_rounds=max(1, WARM_COMMITS // ops),
                note="Each thread has accounts of its own.",
            )
        )
    return found


def _scans(quick: bool) -> list[Case]:
    """Our targets are shares of DuckDB's speed on the same files: 0.87 is 1.15 times its time."""
    rows = 1_000_000 if quick else 10_000_000
    shared = {"rows": rows, "batch_rows": rows // 10}
    found = []
    for name, title, queries, target, fresh in (
        ("scan", "three aggregates", scans.AGGREGATES, 0.87, 0),
        ("scan-dirty", "the same, 1 % deleted, 1 % in memory", scans.AGGREGATES, 0.67, rows // 100),
        ("scan-selective", "a filter that rules out objects", scans.selective(rows), 1.0, 0),
        ("scan-arrow", "every row as Arrow", scans.EVERYTHING, 0.87, 0),
    ):
        settings = {**shared, "queries": queries}
        found.append(
            Case(
                name=name,
                title=f"{rows:,} rows x 6 columns in ten objects: {title}",
                ours=_ours(scans.ours, {**settings, "fresh_rows": fresh}),
                peer=_side("DuckDB on the same files", scans.direct, settings),
                others=_at_random({**settings, "fresh_rows": fresh}) if fresh else (),
                target=target,
                ops=1,
                rounds=3 if quick else 9,
                warm_rounds=2,
                unit="run",
            )
        )
    return found


def _at_random(settings: dict[str, Any]) -> tuple[Side, ...]:
    """The deletes of the case itself are evenly spaced, which is kind to a reader."""
    scattered = {**settings, "scattered": True}
    return (_side("Halocline, deleted at random", scans.ours, scattered),)


def _loads(quick: bool) -> list[Case]:
    rows = 1_000_000 if quick else 10_000_000
    shared = {"rows": rows}
    return [
        Case(
            name=f"load-{name}",
            title=f"Bulk insert of {rows:,} rows x 6 columns from Arrow, one transaction",
            ours=_anew(_ours(large.our_load, shared)),
            peer=_anew(_side(peer, start, shared)),
            target=target,
            ops=rows,
            rounds=2 if quick else 5,
            unit="row",
            note=note,
        )
        for name, peer, start, target, note in (
            (
                "delta",
                "deltalake, write_deltalake",
                large.delta_load,
                1.0,
                "Delta enforces no key.",
            ),
            ("duckdb", "DuckDB, primary key", large.duckdb_load, 1.7, ""),
        )
    ]


def _upserts(quick: bool) -> list[Case]:
    rows, count = (1_000_000, 10_000) if quick else (10_000_000, 100_000)
    shared = {"rows": rows, "count": count}
    return [
        Case(
            name=f"upsert-{name}",
            title=f"Upsert of {count:,} random rows of {rows:,}",
            ours=_ours(large.our_upserts, shared),
            peer=_side(peer, start, shared),
            target=target,
            ops=count,
            rounds=2 if quick else 5,
            unit="row",
        )
        for name, peer, start, target in (
            ("delta", "deltalake, merge", large.delta_merges, 6.0),
            ("duckdb", "DuckDB, insert or replace", large.duckdb_replaces, 1.0),
        )
    ]


def _beside_many(quick: bool) -> list[Case]:
    rows = 1_000_000 if quick else 10_000_000
    shared = {"rows": rows, "ops": 200}
    title = f"Single-row insert commits, durable, beside {rows:,} rows in objects"
    return [
        Case(
            name="commit-beside-delta",
            title=title,
            ours=_ours(large.our_commits, shared),
            peer=_side("deltalake, append", large.delta_appends, {**shared, "done": 5}),
            target=20.0,
            ops=200,
            rounds=2 if quick else 9,
        ),
        Case(
            name="commit-beside-nothing",
            title=title,
            ours=_ours(large.our_commits, shared),
            peer=_side("the same, empty table", large.our_commits, {"rows": 0, "ops": 200}),
            target=0.77,
            ops=200,
            rounds=2 if quick else 15,
            warm_rounds=3,
            note="At most 1.3 times the time of the empty table.",
        ),
    ]


def _states(quick: bool, durability: str) -> list[tuple[str, int, int]]:
    """(state, operations per round, rounds) for the cases that are measured twice.

    Many short rounds of durable commits: a disk stalls now and then, for as long as a hundred
    commits take, and the median of many rounds does not notice.
    """
    if quick:
        return [("new", 400, 2), ("steady", 400, 2)]
    steady = (100, 61) if durability == "sync" else (4000, 15)
    return [("new", WARM_COMMITS, 5), ("steady", *steady)]


def _disk_limits(ops: int) -> tuple[Side, ...]:
    """What nobody can beat who syncs each commit."""
    return (
        _side("disk limit", disk.appends, {"ops": ops}),
        _side("disk limit, direct I/O", disk.direct_sectors, {"ops": ops}),
    )


def _in_state(state: str, *, name: str, title: str, **facts: Any) -> Case:
    name, title = f"{name}-{state}", f"{title}, {state} database"
    if state == "new":
        facts["ours"], facts["peer"] = _anew(facts["ours"]), _anew(facts["peer"])
        facts["others"] = tuple(_anew(side) for side in facts.get("others", ()))
        return Case(name=name, title=title, **facts)
    warm = max(1, WARM_COMMITS // facts["ops"])
    return Case(name=name, title=title, warm_rounds=warm, **facts)


def _anew(side: Side) -> Side:
    return Side(name=side.name, start=anew, settings={"start": side.start, **side.settings})


def _ours(start: Any, settings: dict[str, Any]) -> Side:
    return _side("Halocline", start, settings)


def _side(name: str, start: Any, settings: dict[str, Any]) -> Side:
    return Side(name=name, start=start, settings=settings)
