"""Places of a log: where reading may begin, and which commits lie behind each.

    file 7 |#####|###########|   file 8 |##|########
           ^     ^                      ^  ^
           ts 40 ts 52                  60 61        the newest commit_ts in front of the place

Commit timestamps rise with the order of entries, so a place with ts 52 has every commit from 53 on
behind it. Whoever needs all commits from T on begins at the last place whose ts is below T. There
is a place at the beginning of every file, and one wherever somebody has noted it: a checkpoint
does, so that the next opening reads from there and not from the beginning of a long file.

A place holds all that the chain of entries needs to go on: the CRC of the entry in front of it, the
order and the LSNs. What is read from it is checked as strictly as from a file's beginning.

Invariants
- Places are noted in log order; their timestamps never fall.
- Notes are made under the commit lock. Forgetting is one step of the interpreter.

Not here: deleting files (allocate.py), which place a checkpoint needs (checkpoint/).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from halocline.log.format import SECTOR, FileHeader
from halocline.log.scan import Cursor


class Place(NamedTuple):
    """In front of one entry."""

    number: int
    epoch: int
    offset: int
    order: int
    """The order of that entry."""
    crc: int
    lsns: tuple[int, int, int]

    def cursor(self) -> Cursor:
        """To read on from here. Whoever has a place knows that all in front of it is durable."""
        return Cursor(
            number=self.number,
            epoch=self.epoch,
            offset=self.offset,
            order=self.order,
            crc=self.crc,
            lsns=[0, *self.lsns],
            synced=self.order - 1,
        )


def beginning(header: FileHeader) -> Place:
    """In front of the first entry of a file."""
    return Place(
        header.number,
        header.epoch,
        SECTOR,
        header.first_order,
        header.previous_crc,
        header.lsns,
    )


class _File(NamedTuple):
    first_order: int
    number: int
    bytes_before: int
    """Of the log, in all files in front of this one; only differences mean anything."""


class Places:
    """The files of one log that is being written, and places in them."""

    def __init__(self, at: Cursor, headers: Iterable[FileHeader] = ()) -> None:
        self._at = at
        """The writer's own: where the next entry goes."""
        self._epoch = 0
        self._files: list[_File] = []
        self._noted: list[tuple[int, Place]] = []
        for header in headers:
            self._add(header)

    def enter(self, header: FileHeader, ts: int) -> None:
        """The writer goes on in a file with this header; `ts` is the newest commit before it."""
        self._add(header)
        self._epoch = header.epoch
        self.note(beginning(header), ts)

    def note(self, place: Place, ts: int) -> None:
        """Remember a place behind all that are known."""
        assert not self._noted or self._noted[-1][0] <= ts, "timestamps rise with the log"
        self._noted.append((ts, place))

    def learn(self, found: Iterable[tuple[int, Place]], ts: int) -> None:
        """What a replay has found in the files before the one that the writer is in.

        `ts` is the newest commit of them all: the writer did not know it when it began.
        """
        mine = [(max(ts, own), place) for own, place in self._noted]
        self._noted = [*found, *mine]

    def here(self) -> Place:
        """Where the next entry goes. Caller holds the commit lock."""
        at = self._at
        lsns = (at.lsns[1], at.lsns[2], at.lsns[3])
        return Place(self._files[-1].number, self._epoch, at.offset, at.order, at.crc, lsns)

    def last_order(self) -> int:
        """Of the newest entry. Caller holds the commit lock."""
        return self._at.order - 1

    def before(self, ts: int) -> tuple[int, Place]:
        """The last place that has every commit from `ts` on behind it, and its own timestamp."""
        place = bisect_left(self._noted, ts, key=lambda noted: noted[0]) - 1
        return self._noted[max(place, 0)]

    def ts_of_file(self, number: int) -> int | None:
        """The newest commit before that file; None when the file is not known any more."""
        return next((ts for ts, place in list(self._noted) if place.number == number), None)

    def first(self) -> Place:
        """The oldest place that is known."""
        return self._noted[0][1]

    def bytes_since(self, place: Place) -> int:
        """Bytes of the log from there to its end."""
        before = {file.number: file.bytes_before for file in list(self._files)}
        end = before[self._files[-1].number] + self._at.offset
        return end - before.get(place.number, 0) - place.offset

    def file_of(self, order: int) -> int:
        """The number of the last file that begins at or before that order."""
        place = bisect_right(self._files, order, key=lambda file: file.first_order)
        return self._files[max(place - 1, 0)].number

    def first_file(self) -> int:
        """The number of the oldest file."""
        return self._files[0].number

    def last_file(self) -> int:
        """The number of the file that is being written."""
        return self._files[-1].number

    def forget_before(self, number: int) -> None:
        """These files are gone."""
        del self._files[: sum(file.number < number for file in self._files)]
        del self._noted[: sum(place.number < number for _, place in self._noted)]

    def _add(self, header: FileHeader) -> None:
        before = self._files[-1].bytes_before + header.previous_end if self._files else 0
        self._files.append(_File(header.first_order, header.number, before))
