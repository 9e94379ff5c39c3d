"""Options: what `.option(name, value)` may say, read once into plain typed values.

    path, table                          where                 every read and write
    uri, serverToken, tlsRoots           instead of path       a database that is served
    at, columns, where, lease            what of it            batch reads
    onConflict, token                    what to do with keys  writes
    changes, startingSnapshot,           from when on          streams (and batches of changes)
    startingTimestamp, maxRowsPerTrigger,
    maxCommitsPerTrigger

Spark hands over texts, in any case. A name that is not known is an error: a typing mistake in
`where` must not read the whole table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple, cast, get_args

from halocline.errors import UsageError
from halocline.options import parse_duration

SinkMode = Literal["error", "ignore", "upsert", "changes"]
LEASE: Final = "1h"
KNOWN: Final = (
    "path",
    "uri",
    "serverToken",
    "tlsRoots",
    "table",
    "at",
    "columns",
    "where",
    "pushdown",
    "lease",
    "onConflict",
    "token",
    "changes",
    "startingSnapshot",
    "startingTimestamp",
    "maxRowsPerTrigger",
    "maxCommitsPerTrigger",
)
_OF_SPARK: Final = frozenset({"checkpointlocation", "querytag"})
"""Options of Spark itself that it hands on to the source."""
_STARTS: Final = ("startingSnapshot", "startingTimestamp")


class Address(NamedTuple):
    """Where a database is: a directory that this machine sees, or a server."""

    path: str = ""
    uri: str = ""
    token: str = ""
    tls_roots: str | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of one read, write or stream; plain values, because they travel."""

    address: Address
    table: str
    at: int | datetime | str | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = None
    lease_s: float = 3600.0
    on_conflict: SinkMode = "error"
    token: str | None = None
    changes: bool = False
    starting_snapshot: int | datetime | str | None = None
    starting_timestamp: int | datetime | str | None = None
    max_rows: int | None = None
    max_commits: int | None = None

    def check_batch_read(self) -> None:
        """Streams have options that mean nothing to a batch."""
        if self.changes:
            raise UsageError(
                "the changes of a table are read as a stream: "
                'session.readStream.format("halocline")'
            )

    def check_stream_read(self) -> None:
        """And the other way round."""
        if not self.changes:
            raise UsageError(
                "a stream gives the changes of a table, with the columns _change and _commit_ts: "
                'say .option("changes", "true") before .load(), or start Spark with '
                "halocline.spark.session()"
            )
        for name, value in (("at", self.at), ("columns", self.columns), ("where", self.where)):
            if value is not None:
                raise UsageError(f"a stream has no option {name}: use the DataFrame's own methods")


def read_options(given: Mapping[str, str]) -> Settings:
    """Check and read the options of a source; UsageError names what is wrong."""
    options = {name.lower(): str(value) for name, value in given.items()}
    known = {name.lower(): name for name in KNOWN}
    for name in options:
        if name not in known and name not in _OF_SPARK and not name.startswith("__"):
            raise UsageError(f"there is no option {name!r}; there are {', '.join(KNOWN)}")
    if _flag(options, "pushdown"):
        raise UsageError(
            "pushdown cannot be right with this version of Spark: it keeps the filters of one "
            "query for the next one of the same DataFrame; give where= instead"
        )
    if all(name.lower() in options for name in _STARTS):
        raise UsageError(f"give {_STARTS[0]} or {_STARTS[1]}, not both")
    return Settings(
        address=_address(options),
        table=_required(options, "table", "the name of a table"),
        at=_moment(options.get("at")),
        columns=_columns(options.get("columns")),
        where=options.get("where"),
        lease_s=parse_duration(options.get("lease", LEASE)),
        on_conflict=_on_conflict(options.get("onconflict", "error")),
        token=options.get("token"),
        changes=_flag(options, "changes"),
        starting_snapshot=_moment(options.get("startingsnapshot")),
        starting_timestamp=_moment(options.get("startingtimestamp")),
        max_rows=_count(options, "maxRowsPerTrigger"),
        max_commits=_count(options, "maxCommitsPerTrigger"),
    )


def _address(options: Mapping[str, str]) -> Address:
    if "uri" not in options:
        path = _required(options, "path", "the directory of the database")
        # Executors may run elsewhere: a relative path counts from where Spark was started.
        return Address(path=str(Path(path).absolute()))
    if "path" in options:
        raise UsageError("give path or uri, not both")
    token = options.get("servertoken", "")
    return Address("", options["uri"], token, options.get("tlsroots"))


def _required(options: Mapping[str, str], name: str, meaning: str) -> str:
    value = options.get(name, "")
    if not value:
        raise UsageError(
            f"option {name!r} is missing: {meaning} (a table made by CREATE TABLE ... USING has no "
            "options: use CREATE TEMPORARY VIEW)"
        )
    return value


def _moment(text: str | None) -> int | datetime | str | None:
    """A timestamp, a date with time and zone, or the name of a snapshot."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _columns(text: str | None) -> tuple[str, ...] | None:
    """Names with commas between them, or a list in JSON."""
    if text is None:
        return None
    names: object = [name.strip() for name in text.split(",")]
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError as error:
            raise UsageError(f"columns={text!r} is not a list of names: {error}") from None
    if not isinstance(names, list) or not all(isinstance(n, str) and n for n in names):
        raise UsageError(f"columns={text!r} is not a list of names")
    if not names or len({name.lower() for name in names}) < len(names):
        raise UsageError("columns= must name at least one column, and each once")
    return tuple(names)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise UsageError(f"{name} is true or false, not {text!r}")
    return text == "true"


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{name} is a whole number above 0, not {text!r}")
    return int(text)


def _on_conflict(text: str) -> SinkMode:
    if text not in get_args(SinkMode):
        raise UsageError(f"onConflict is error, ignore, upsert or changes, not {text!r}")
    return cast("SinkMode", text)
