"""What two processes say to each other: requests, replies, and the frames they travel in.

    | length u32 | CRC-32 u32 | body: msgpack array [tag, fields ...] |      little-endian

A client sends one request and reads one reply; the next request follows then. Only a Subscribe is
answered with many, for as long as the connection is open. The first request is Hello: before the
token in it has been checked, nothing longer than HELLO_BYTES_MAX is read and nothing else is
answered. Rows travel as the nodes of a commit record, as the log has them: msgpack for few, Arrow
IPC for many.

Everything here is hostile until checked. A body is read as its bytes arrive, never allocated by its
length; the CRC finds bytes that were changed by accident; decoders are typed, and msgspec bounds
every length inside by the bytes that are there. How many bytes that may be: limits.py. No pickle.

VERSION changes whenever a field changes its meaning. Both sides must have the same: processes that
share a database run the same release, or the older one is told so.

Not here: sockets (channel.py), what is done with a request (answers.py), workspaces (parcel.py).
"""

from __future__ import annotations

from struct import Struct
from typing import Annotated, Any, Final, Literal, TypeAlias
from zlib import crc32

import msgspec

from halocline.rows.tokens import Token
from halocline.txn.blind import Counts

VERSION: Final = 1
FRAME_BYTES_MAX: Final = (1 << 30) + (1 << 20)
"""A record of the log, and something around it."""
HELLO_BYTES_MAX: Final = 4096
HEAD: Final = Struct("<II")
ASK: Final = "ask"
"""The action of Arrow Flight that brings a Call."""

_U63 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Name = Annotated[str, msgspec.Meta(max_length=1000)]


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Fields by position; the tag comes first."""


class Hello(_Message, frozen=True, tag="hello"):
    """Who calls. The token is that of the endpoint file."""

    version: int
    token: bytes
    pid: int
    session: _U63 = 0
    """Another connection of a session that is open; 0 begins one."""


class Ping(_Message, frozen=True, tag="ping"):
    """Are you there? Answered with the position."""


class TableReads(_Message, frozen=True):
    """What a serializable transaction has read of one table, keys as `Schema.encode_keys` does."""

    table_id: _U63
    keys: bytes
    ranges: tuple[tuple[bytes | None, bytes | None], ...]
    whole: bool


class BlindNotes(_Message, frozen=True):
    """A job that decides at its commit what becomes of its keys (txn/blind.py)."""

    mode: Literal["upsert", "ignore", "delete"]
    changed: tuple[_U63, ...]
    """Ids of the columns that it writes."""
    absent: tuple[Any, ...]
    held: tuple[Any, ...]
    """Side files that never join the table, as `entry_to_wire` has them."""


class ObjectNotes(_Message, frozen=True):
    """What the record does not say of the files that a transaction has written."""

    table_id: _U63
    job_id: _U63
    files: _U63
    """How many names of the job are used up."""
    successors: tuple[_U63, ...]
    """Ids of data objects that hold successors of updated rows; the others hold new rows."""
    blind: BlindNotes | None = None


class Committed(_Message, frozen=True):
    """The answer to a Commit with blind jobs: what each of them came to, by table."""

    commit_ts: _U63
    counts: dict[int, Counts]


class Commit(_Message, frozen=True, tag="commit"):
    """A workspace: a commit record whose timestamp and RowIDs are still blank."""

    snapshot: _U63
    epoch: _U63
    record: bytes
    token: Token | None = None
    single: bool = False
    """One row and nothing else."""
    ddl: _U63 = 0
    """The catalog transaction that belongs to it; 0: none."""
    created: tuple[_U63, ...] = ()
    dropped: tuple[_U63, ...] = ()
    reads: tuple[TableReads, ...] | None = None
    objects: tuple[ObjectNotes, ...] = ()


class FindToken(_Message, frozen=True, tag="token"):
    """The commit_ts of a token, 0 when it is not known."""

    token: Token


class WaitVisible(_Message, frozen=True, tag="wait"):
    """Answered when that timestamp is visible, or after a second: with the visible one."""

    ts: _U63


class StartJob(_Message, frozen=True, tag="job"):
    """RowIDs and a name for files; `Log a job`, as the owner does for its own."""

    table_id: _U63
    rows: _U63
    job_id: _U63 = 0
    lease_us: _U63 = 0
    ddl: _U63 = 0


class EndJob(_Message, frozen=True, tag="end_job"):
    """The files of this job will not be committed."""

    job_id: _U63


class BeginDdl(_Message, frozen=True, tag="ddl"):
    """Open a catalog transaction at a snapshot; answered with its number."""

    snapshot: _U63


class FindTable(_Message, frozen=True, tag="find_table"):
    """The id of the table of that name as the catalog transaction sees it, 0 for none."""

    ddl: _U63
    name: _Name


class ListTables(_Message, frozen=True, tag="list_tables"):
    """The ids of all tables that the catalog transaction sees."""

    ddl: _U63


class CreateTable(_Message, frozen=True, tag="create_table"):
    """Answered with the id of the new table."""

    ddl: _U63
    name: _Name
    schema: dict[str, Any]
    layout: _Name


class DropTable(_Message, frozen=True, tag="drop_table"):
    """Answered with the id of the table that ends."""

    ddl: _U63
    name: _Name


class EndDdl(_Message, frozen=True, tag="end_ddl"):
    """Forget a catalog transaction."""

    ddl: _U63


class ReadFile(_Message, frozen=True, tag="file"):
    """Bytes of a file that followers read: a log file, the checkpoint pointer, the position.

    At most READ_BYTES_MAX; fewer than asked for only at its end. None when there is no such file.
    """

    path: _Name
    offset: _U63 = 0
    size: _U63 = 0


class ListLog(_Message, frozen=True, tag="list_log"):
    """Names of the log files."""


class ReadObject(_Message, frozen=True, tag="object"):
    """Bytes of an object, as ReadFile."""

    key: _Name
    offset: _U63 = 0
    size: _U63 = 0


class PutObject(_Message, frozen=True, tag="put"):
    """Store a file of a live job of this session."""

    key: _Name
    data: bytes


class PinSnapshot(_Message, frozen=True, tag="pin"):
    """The oldest snapshot that this session reads; NEVER when it reads none."""

    ts: _U63


class ReadTail(_Message, frozen=True, tag="tail"):
    """What was committed from that log entry on, as messages (logtail.py), until they are many.

    `table` narrows it to one. Order 0: from the oldest entry there is.
    """

    order: _U63
    table: _Name | None = None


class Subscribe(_Message, frozen=True, tag="subscribe"):
    """Every commit after that timestamp, as messages, pushed as they come (push.py).

    None: from now on. `table` narrows it to one. Answered with one Pushed after another, until
    somebody hangs up or an error ends it.
    """

    since: _U63 | None = None
    table: _Name | None = None


class ListCheckpoints(_Message, frozen=True, tag="checkpoints"):
    """The checkpoints that can be begun with, newest first: CheckpointFacts."""


CommandName = Literal["flush", "compact", "checkpoint", "gc", "health", "snapshot", "drop_snapshot"]


class Command(_Message, frozen=True, tag="command"):
    """A maintenance call of the database, with the name of a table or snapshot."""

    name: CommandName
    argument: _Name | None = None


Request: TypeAlias = (
    Ping
    | Commit
    | FindToken
    | WaitVisible
    | StartJob
    | EndJob
    | BeginDdl
    | FindTable
    | ListTables
    | CreateTable
    | DropTable
    | EndDdl
    | Command
    | ReadFile
    | ListLog
    | ReadObject
    | PutObject
    | PinSnapshot
    | ReadTail
    | Subscribe
    | ListCheckpoints
)

READS: Final = (
    Ping,
    WaitVisible,
    FindToken,
    ReadFile,
    ListLog,
    ReadObject,
    PinSnapshot,
    ReadTail,
    Subscribe,
    ListCheckpoints,
)
"""What a token for reading may ask for."""
READ_BYTES_MAX: Final = 1 << 24


class Welcome(_Message, frozen=True, tag="welcome"):
    """The answer to Hello."""

    session: _U63
    epoch: _U63
    pid: int


class Position(_Message, frozen=True, tag="position"):
    """Where the owner is."""

    epoch: _U63
    visible_ts: _U63


class Tail(_Message, frozen=True, tag="tail"):
    """Messages, and the order that the next request goes on with."""

    order: _U63
    messages: tuple[bytes, ...]


class Pushed(_Message, frozen=True, tag="pushed"):
    """All that a subscriber wants of the commits with start <= commit_ts <= end.

    The next one begins at end + 1. One that begins where the last has ended, without messages, is
    a sign of life: the first of a subscription is, and one comes in every second of silence.
    """

    start: _U63
    end: _U63
    messages: tuple[bytes, ...]


class CheckpointFacts(_Message, frozen=True):
    """A checkpoint: the newest commit in it, its root file, and what to subscribe from.

    Objects are in it up to `ts`; rows that were still in memory then come after `since`.
    """

    ts: _U63
    key: _Name
    size_bytes: _U63
    since: _U63


class Done(_Message, frozen=True, tag="done"):
    """The result; its type follows from the request."""

    value: msgspec.Raw


class Call(_Message, frozen=True, tag="call"):
    """A request that comes without a connection: who asks, and what. `body` is a Request."""

    version: int
    token: bytes
    session: _U63
    body: bytes


class Returned(_Message, frozen=True, tag="returned"):
    """The answer to a Call. `body` is a Reply."""

    session: _U63
    epoch: _U63
    body: bytes


class Failed(_Message, frozen=True, tag="failed"):
    """An error of errors.py: its class and its fields (faults.py)."""

    kind: _Name
    fields: dict[str, Any]
    keys: bytes | None = None
    """Keys among the fields, as `Schema.encode_keys` of the table writes them."""


Reply: TypeAlias = Done | Failed

encode: Final = msgspec.msgpack.Encoder().encode
decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode
decode_request: Final = msgspec.msgpack.Decoder(Request).decode
decode_reply: Final = msgspec.msgpack.Decoder(Reply).decode
decode_call: Final = msgspec.msgpack.Decoder(Call).decode
decode_returned: Final = msgspec.msgpack.Decoder(Returned).decode


def frame(message: Any) -> bytes:
    """A message, ready to be sent."""
    body = encode(message)
    return HEAD.pack(len(body), crc32(body)) + body
