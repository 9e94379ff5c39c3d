"""`halocline`: the commands.

    halocline health shop           rows and bytes per tier, and what is owed
    halocline check shop            is every file what it should be?
    halocline tables shop           names, rows, keys
    halocline log shop              entries of the log and where it ends, also of a damaged one
    halocline maintain shop         do what is owed, now and every minute; --once for cron
    halocline settle shop orders    leave files of which every row counts, for other tools
    halocline serve shop            let other machines connect, until Ctrl-C

All but `maintain`, `settle` and `serve` read; all but `serve` work beside the process that has the
database open.

Each command imports what it needs when it runs: `--help` waits for none of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import halocline as hc
from halocline.cli.errors import TROUBLE, told
from halocline.errors import UsageError

app = typer.Typer(
    name="halocline",
    help="Look after Halocline databases.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
DatabasePath = Annotated[Path, typer.Argument(metavar="PATH", help="Directory of the database.")]


@app.command()
def maintain(
    path: DatabasePath,
    once: Annotated[bool, typer.Option("--once", help="One round, then end.")] = False,
    interval: Annotated[str, typer.Option(help="Rest between two rounds: 30s, 5m, 1h.")] = "1m",
    no_spark: Annotated[
        bool, typer.Option("--no-spark", help="Leave what is too large for this process.")
    ] = False,
    retention: Annotated[
        str | None,
        typer.Option(
            help="How long old snapshots stay readable from now on: what is older is collected.",
            show_default="what the database has",
        ),
    ] = None,
) -> None:
    """Move rows into objects, compact, fold tombstones, checkpoint, collect: whatever is owed.

    Goes on until Ctrl-C. Beside a process that has the database open, that one does the work.
    """
    from halocline.cli.maintain import maintain as run_maintain
    from halocline.database.opening import local_files
    from halocline.options import parse_duration

    with told():
        interval_s = parse_duration(interval)
        if not interval_s:
            raise UsageError("the interval must be longer than nothing")
        local_files(path, read_only=True)  # a maintenance command must not make a database
        # No background: it would do the same work beside us, and nobody would be told.
        with hc.open(path, retention=retention, options=hc.Options(background=False)) as db:
            code = run_maintain(db, interval_s=interval_s, once=once, spark=not no_spark)
    raise typer.Exit(code)


@app.command()
def settle(
    path: DatabasePath,
    table: Annotated[str | None, typer.Argument(help="One table; else all.")] = None,
) -> None:
    """Move rows into objects and rewrite objects with dead rows, then print the files.

    Every row of these files counts and none is missing, at the timestamp that stands first.
    """
    from halocline.database.opening import local_files

    with told():
        local_files(path, read_only=True)  # a maintenance command must not make a database
        with hc.open(path, options=hc.Options(background=False)) as db:
            ts = db.settle(table)
            typer.echo(f"settled at {ts}")
            for name in db.tables() if table is None else [table]:
                for file in db.table(name).files(at=ts, exact=True):
                    typer.echo(file)


@app.command()
def serve(
    path: DatabasePath,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes one that is free.")] = 7400,
    tls_cert: Annotated[str | None, typer.Option(help="PEM file: certificate.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="PEM file: its key.")] = None,
    self_signed: Annotated[
        bool,
        typer.Option(
            "--self-signed", help="Make a certificate, once; clients get it as tls_roots."
        ),
    ] = False,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token for reading and writing.")
    ] = None,
    read_token_file: Annotated[
        Path | None, typer.Option(help="File with a token for reading only.")
    ] = None,
) -> None:
    """Own the database and let other machines connect to it, until Ctrl-C.

    An address that others can reach needs a certificate and a token.
    """
    from halocline.cli.serve import find_certificate
    from halocline.cli.serve import serve as run_serve
    from halocline.database.opening import local_files

    with told():
        local_files(path, read_only=True)  # serving must not make a database
        run_serve(
            path,
            host=host,
            port=port,
            tls=find_certificate(path, tls_cert, tls_key, self_signed=self_signed),
            token_file=token_file,
            read_token_file=read_token_file,
        )


@app.command()
def health(path: DatabasePath) -> None:
    """Show rows and bytes per tier, the shape of all tables, and what maintenance is owed."""
    with told(), hc.open(path, read_only=True) as db:
        typer.echo(str(db.health()))


@app.command()
def check(path: DatabasePath) -> None:
    """Verify every file of the database; ends with 1 when something is wrong."""
    with told(), hc.open(path, read_only=True) as db:
        problems = db.check()
        for problem in problems:
            typer.echo(problem)
        if problems:
            raise typer.Exit(TROUBLE)
        typer.echo(f"{len(db.tables())} tables, no problems")


@app.command(
    epilog="Example: halocline log shop --from 1200 --json | jq 'select(.end)'",
)
def log(
    path: DatabasePath,
    start: Annotated[int, typer.Option("--from", min=0, help="The first entry to print.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object in a line.")] = False,
) -> None:
    """Print the entries of the log, their nodes, and where the log ends and why.

    Opens and locks nothing, so a damaged log is shown too; ends with 4 when it is one.
    """
    with told():
        from halocline.cli.log import show_log

        code = show_log(path, start_order=start, as_json=as_json)
    raise typer.Exit(code)


@app.command()
def tables(
    path: DatabasePath,
    schema: Annotated[
        bool, typer.Option("--schema", help="A line for each column, with all that it has.")
    ] = False,
) -> None:
    """List the tables: rows, primary key, columns."""
    from rich.console import Console
    from rich.table import Table

    from halocline.database.display import schema_lines

    with told(), hc.open(path, read_only=True) as db:
        if schema:
            Console().print(
                "\n".join(schema_lines(db)) or "no tables", markup=False, soft_wrap=True
            )
            return
        shown = Table("table", "rows", "primary key", "columns", box=None, header_style="bold")
        for name in db.tables():
            table = db.table(name)
            columns = ", ".join(f"{field.name} {field.type}" for field in table.schema)
            shown.add_row(name, f"{table.count():,}", ", ".join(table.primary_key), columns)
        Console().print(shown, markup=False) if shown.rows else typer.echo("no tables")
