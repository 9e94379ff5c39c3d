"""Attach: every table of a database as a temporary view, all of them at one snapshot.

    with hs.attach(session, db) as views:
        session.sql("select ... from orders join customers ...")     one snapshot for both
        views.refresh()                                              all move on together

A view is a plan over files, so creating one reads nothing. The views of a handle always show the
same snapshot: `refresh` replaces them all before it lets go of the old one.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from halocline.spark.owner import SparkOwner, check_owner
from halocline.spark.pins import SessionPin
from halocline.spark.scan import frame
from halocline.spark.sessions import prepare
from halocline.spark.types import quoted


class Views:
    """The tables of one database as temporary views of one session."""

    def __init__(self, session: SparkSession, owner: SparkOwner, at: Any, prefix: str) -> None:
        self._session = session
        self._owner = owner
        self._prefix = prefix
        self._names: list[str] = []
        self._pin: SessionPin | None = None
        self.refresh(at)

    def __repr__(self) -> str:
        return f"<Views of {self._owner.path} at {self.ts}: {', '.join(self._names)}>"

    def __enter__(self) -> Views:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def ts(self) -> int:
        """The snapshot that all views show; 0 when they are gone."""
        return 0 if self._pin is None else self._pin.ts

    @property
    def names(self) -> list[str]:
        """The names of the views."""
        return list(self._names)

    def refresh(self, at: Any = None) -> int:
        """Show the newest snapshot, or another one, in all views; returns its timestamp."""
        prepare(self._session)
        pin = SessionPin(self._session, self._owner, at, handle=True)
        try:
            with self._owner.begin(at=pin.ts) as txn:
                tables = txn.tables()
            frames = {name: frame(self._session, self._owner, name, pin) for name in tables}
        except BaseException:
            pin.release()
            raise
        for name, rows in frames.items():
            rows.createOrReplaceTempView(quoted(self._prefix + name))
        for view in set(self._names) - {self._prefix + name for name in tables}:
            self._session.catalog.dropTempView(view)
        self._names = [self._prefix + name for name in tables]
        old, self._pin = self._pin, pin
        if old is not None:
            old.release()
        return pin.ts

    def close(self) -> None:
        """Drop the views and let go of the snapshot. Closing twice is fine."""
        for view in self._names:
            self._session.catalog.dropTempView(view)
        self._names = []
        pin, self._pin = self._pin, None
        if pin is not None:
            pin.release()


def attach(session: SparkSession, db: Any, at: Any = None, prefix: str = "") -> Views:
    """Register every table as a temporary view `prefix + name`, at one common snapshot."""
    return Views(session, check_owner(db), at, prefix)
