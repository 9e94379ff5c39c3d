"""A catalog with a clock and a log: what the engine does around it, in a few lines."""

from __future__ import annotations

from halocline.catalog import Catalog, CatalogTxn, TableEntry
from halocline.catalog.history import capture, definitions, restore
from halocline.schema.schema import Schema

SCHEMA = Schema.define({"id": int, "note": str}, "id")


class Driver:
    """One timestamp sequence, one log, one catalog."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.now = 0
        self.log: list[tuple[int, list[tuple[int, bytes]]]] = []

    def begin(self) -> CatalogTxn:
        return self.catalog.begin(self.now)

    def commit(self, sub: CatalogTxn) -> int:
        """The commit pipeline of the engine; returns the commit timestamp."""
        sub.prepare()
        nodes = sub.nodes()
        self.now += 1
        sub.commit(self.now)
        self.log.append((self.now, nodes))
        return self.now

    def create(self, name: str) -> TableEntry:
        """Create a table in a transaction of its own; the committed entry."""
        sub = self.begin()
        table_id = make(sub, name).id
        self.commit(sub)
        entry = self.catalog.table_by_id(table_id)
        assert entry is not None
        return entry

    def drop(self, name: str) -> int:
        """Drop a table in a transaction of its own; the commit timestamp."""
        sub = self.begin()
        sub.drop_table(name)
        return self.commit(sub)

    def replayed(self) -> Catalog:
        """A catalog made from the log alone."""
        catalog = Catalog()
        for commit_ts, nodes in self.log:
            for node_type, payload in nodes:
                catalog.apply(node_type, payload, commit_ts)
        return catalog

    def written_down(self) -> Catalog:
        """A catalog made from what a checkpoint keeps of this one."""
        history = capture(self.catalog)
        catalog = Catalog()
        restore(
            catalog,
            definitions(history),
            history.next_table_id,
            history.last_ddl_ts,
            history.floor,
        )
        assert catalog.next_table_id == self.catalog.next_table_id
        return catalog

    def check(self) -> None:
        """The replayed catalog equals the live one, now and at every timestamp before."""
        assert_equal(self.catalog, self.replayed(), self.now)
        assert_equal(self.catalog, self.written_down(), self.now)


def make(sub: CatalogTxn, name: str) -> TableEntry:
    return sub.create_table(name, SCHEMA, layout="clustered", options={})


def names(tables: list[TableEntry]) -> list[str]:
    return [entry.name for entry in tables]


def assert_equal(live: Catalog, other: Catalog, now: int) -> None:
    """Nothing that a reader can ask tells the two catalogs apart."""
    assert live.last_ddl_ts == other.last_ddl_ts
    ids = set()
    for ts in range(now + 2):
        assert live.tables(ts) == other.tables(ts)
        for entry in live.tables(ts):
            ids.add(entry.id)
            assert other.table(entry.name, ts) == live.table(entry.name, ts) == entry
    for table_id in ids:
        assert live.table_by_id(table_id) == other.table_by_id(table_id)
