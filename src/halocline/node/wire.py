"""What two processes say to each other: requests, replies, and the frames they travel in.

    | length u32 | CRC-32 u32 | body: msgpack array [tag, fields ...] |      little-endian

The same on the Unix socket of the owner's machine and over TCP with TLS between machines. A client
sends one request and reads one reply; the next request follows then. Only a Subscribe is answered
with many, for as long as the connection is open. The first request is Hello: before the
token in it has been checked, nothing longer than HELLO_BYTES_MAX is read and nothing else is
answered. Rows travel as the nodes of a commit record, as the log has them: msgpack for few, Arrow
IPC for many.

Everything here is hostile until checked. A body is read as its bytes arrive, never allocated by its
length; the CRC finds bytes that were changed by accident; decoders are typed, and msgspec bounds
every length inside by the bytes that are there. How many bytes that may be: limits.py. No pickle.

VERSION changes whenever a field changes its meaning. Both sides must have the same: processes that
share a database run the same release, or the older one is told so.

Not here: sockets (channel.py), what is done with a request (dispatch.py), workspaces
(workspace_wire.py).
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from struct import Struct
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias
from zlib import crc32

import msgspec

from halocline.rows.tokens import Token
from halocline.txn.blind import Counts

VERSION: Final = 1
FRAME_BYTES_MAX: Final = (1 << 30) + (1 << 20)
"""A record of the log, and something around it."""
HELLO_BYTES_MAX: Final = 4096
HEAD: Final = Struct("<II")

U63 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Name = Annotated[str, msgspec.Meta(max_length=1000)]


class WireMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Fields by position; the tag comes first."""


WireSerial = tuple[U63, U63]


class TableReads(WireMessage, frozen=True):
    """What a serializable transaction has read of one table, keys as `Schema.encode_keys` does."""

    table_id: U63
    keys: bytes
    ranges: tuple[tuple[bytes | None, bytes | None], ...]
    whole: bool


class BlindNotes(WireMessage, frozen=True):
    """A job that decides at its commit what becomes of its keys (txn/blind.py)."""

    mode: Literal["upsert", "ignore", "delete"]
    changed: tuple[U63, ...]
    """Ids of the columns that it writes."""
    absent: tuple[Any, ...]
    held: tuple[Any, ...]
    """Side files that never join the table, as `entry_to_wire` has them."""


class ObjectNotes(WireMessage, frozen=True):
    """What the record does not say of the files that a transaction has written."""

    table_id: U63
    jobs: tuple[U63, ...]
    """Jobs that are over when the transaction is; those with leases are told by their files."""
    successors: tuple[U63, ...]
    """Ids of data objects that hold successors of updated rows; the others hold new rows."""
    blind: BlindNotes | None = None
    written: tuple[U63, ...] = ()
    """Ids of the columns that a job has values for; empty: all of the version of its files."""


_Rows = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
"""RowIDs that one request may reserve: there are 2^63, and none is given twice."""


class Request(WireMessage, frozen=True):
    """What is asked for; every subclass is a request."""

    for_readers: ClassVar[bool] = False
    """May a caller with a token for reading ask for it?"""


class Hello(WireMessage, frozen=True, tag="hello"):
    """Who calls. The token is that of the endpoint file, or of the server."""

    version: int
    token: bytes
    pid: int
    session: U63 = 0
    """Another connection of a session that is open; 0 begins one."""


class Ping(Request, frozen=True, tag="ping"):
    """Are you there? Answered with the position."""

    for_readers = True


class Committed(WireMessage, frozen=True):
    """The answer to a Commit with blind jobs: what each of them came to, by table."""

    commit_ts: U63
    counts: dict[int, Counts]


class Commit(Request, frozen=True, tag="commit"):
    """A workspace: a commit record whose timestamp and RowIDs are still blank."""

    snapshot: U63
    epoch: U63
    record: bytes
    token: Token | None = None
    single: bool = False
    """One row and nothing else."""
    ddl: U63 = 0
    """The catalog transaction that belongs to it; 0: none."""
    created: tuple[U63, ...] = ()
    dropped: tuple[U63, ...] = ()
    reads: tuple[TableReads, ...] | None = None
    objects: tuple[ObjectNotes, ...] = ()
    serial: WireSerial = (0, 0)
    """So that it happens once; (0, 0) if its token sees to that."""
    again: bool = False
    """The answer to the first one was lost."""
    ticket: U63 = 0
    """Whose turn it is at contended rows; all its turns are over when this is answered."""


class FindCommit(Request, frozen=True, tag="find"):
    """The commit_ts of a token or a serial, 0 when it is not known."""

    for_readers = True
    token: Token | None
    serial: WireSerial


class TakeTurns(Request, frozen=True, tag="take_turns"):
    """Wait for the turn at these rows: True when it has come, False to ask again.

    `ticket` is a number of the sender's. Its turns end with the commit that names it, with
    EndTurns, and with the session.
    """

    ticket: U63
    rows: tuple[tuple[U63, bytes], ...]
    timeout_ms: U63
    lasts: bool = False


class EndTurns(Request, frozen=True, tag="end_turns"):
    """Give up all turns of a ticket."""

    ticket: U63


class WaitVisible(Request, frozen=True, tag="wait"):
    """Answered when that timestamp is visible, or after a second: with the visible one."""

    for_readers = True
    ts: U63


class StartJob(Request, frozen=True, tag="job"):
    """RowIDs and a name for files; `Log a job`, as the owner does for its own."""

    table_id: U63
    rows: _Rows
    job_id: U63 = 0
    lease_us: U63 = 0
    ddl: U63 = 0


class EndJob(Request, frozen=True, tag="end_job"):
    """The files of this job will not be committed."""

    job_id: U63


class ReserveKeys(Request, frozen=True, tag="keys"):
    """Keys of an identity column for this process: the first and the last of about so many."""

    table_id: U63
    count: U63
    above: U63
    ddl: U63 = 0


class BeginDdl(Request, frozen=True, tag="ddl"):
    """Open a catalog transaction at a snapshot; answered with its number."""

    snapshot: U63


CatalogCall = Literal[
    "table",
    "tables",
    "create_table",
    "alter_table",
    "rename_table",
    "drop_table",
    "create_index",
    "drop_index",
    "end",
]


class CallCatalog(Request, frozen=True, tag="catalog"):
    """A call of a catalog transaction; answered with the ids of the tables that it gives."""

    call: CatalogCall
    ddl: U63
    name: Name = ""
    schema: dict[str, Any] | None = None
    """Of a table that is created or altered."""
    layout: Name = ""
    table: Name = ""
    """Of an index that is created."""
    kind: U63 = 0
    columns: tuple[Name, ...] = ()
    new_name: Name = ""
    """Of a table that is renamed."""


class ReadFile(Request, frozen=True, tag="file"):
    """Bytes of a file that followers read: a log file, the checkpoint pointer, the position.

    At most READ_BYTES_MAX; fewer than asked for only at its end. None when there is no such file.
    """

    for_readers = True
    path: Name
    offset: U63 = 0
    size: U63 = 0


class Look(Request, frozen=True, tag="look"):
    """What is new in the log, for a follower far away: one request for all that a begin needs.

    It has read that log file, "" for none yet, up to that offset.
    """

    for_readers = True
    path: Name
    offset: U63


class Looked(WireMessage, frozen=True):
    """The published position, and the bytes of the log file from the offset up to it.

    No bytes when the position is in another file, or when they are more than LOOK_BYTES_MAX.
    """

    page: bytes
    data: bytes


class ListLog(Request, frozen=True, tag="list_log"):
    """Names of the log files."""

    for_readers = True


class ReadObject(Request, frozen=True, tag="object"):
    """Bytes of an object, as ReadFile."""

    for_readers = True
    key: Name
    offset: U63 = 0
    size: U63 = 0


class PutObject(Request, frozen=True, tag="put"):
    """Store a file of a live job of this session."""

    key: Name
    data: bytes


class PinSnapshot(Request, frozen=True, tag="pin"):
    """The oldest snapshot that this session reads; NEVER when it reads none."""

    for_readers = True
    ts: U63


class Subscribe(Request, frozen=True, tag="subscribe"):
    """Every commit after that timestamp, as messages, pushed as they come (push.py).

    None: from now on. `table` narrows it to one, by its name now or by its id. Answered with one
    Pushed after another, until somebody hangs up or an error ends it.
    """

    for_readers = True
    since: U63 | None = None
    table: Name | U63 | None = None


class ListCheckpoints(Request, frozen=True, tag="checkpoints"):
    """The checkpoints that can be begun with, newest first: CheckpointFacts."""

    for_readers = True


CommandName = Literal[
    "flush",
    "compact",
    "settle",
    "checkpoint",
    "gc",
    "health",
    "snapshot",
    "drop_snapshot",
    "keep_for",
    "build_indexes",
]


class Command(Request, frozen=True, tag="command"):
    """A maintenance call of the database: an owner carries it out, the others send it there."""

    name: CommandName
    argument: Name | None = None
    """A table or a snapshot; of `keep_for` the retention time, in whole microseconds."""


READ_BYTES_MAX: Final = 1 << 24
LOOK_BYTES_MAX: Final = 1 << 20
"""More than that is asked for by itself, with the patience that it needs."""


class Welcome(WireMessage, frozen=True, tag="welcome"):
    """The answer to Hello."""

    session: U63
    epoch: U63
    pid: int


class Position(WireMessage, frozen=True, tag="position"):
    """Where the owner is."""

    epoch: U63
    visible_ts: U63


class Pushed(WireMessage, frozen=True, tag="pushed"):
    """All that a subscriber wants of the commits with start <= commit_ts <= end.

    The next one begins at end + 1. One that begins where the last has ended, without messages, is
    a sign of life: the first of a subscription is, and one comes in every second of silence.
    """

    start: U63
    end: U63
    messages: tuple[bytes, ...]


class CheckpointFacts(WireMessage, frozen=True):
    """A checkpoint: the newest commit in it, its root file, and what to subscribe from.

    Objects are in it up to `ts`; rows that were still in memory then come after `since`.
    """

    ts: U63
    key: Name
    size_bytes: U63
    since: U63


class Done(WireMessage, frozen=True, tag="done"):
    """The result; its type follows from the request."""

    value: msgspec.Raw


class Failed(WireMessage, frozen=True, tag="failed"):
    """An error of errors.py: its class and its fields (faults.py)."""

    kind: Name
    fields: dict[str, Any]
    keys: bytes | None = None
    """Keys among the fields, as `Schema.encode_keys` of the table writes them."""


Reply: TypeAlias = Done | Failed

encode: Final = msgspec.msgpack.Encoder().encode
decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode
decode_request: Final = msgspec.msgpack.Decoder(reduce(or_, Request.__subclasses__())).decode
decode_reply: Final = msgspec.msgpack.Decoder(Reply).decode


def frame(message: Any) -> bytes:
    """A message, ready to be sent."""
    body = encode(message)
    return HEAD.pack(len(body), crc32(body)) + body


def done(value: Any) -> bytes:
    """The frame of an answer."""
    return frame(Done(msgspec.Raw(encode(value))))
