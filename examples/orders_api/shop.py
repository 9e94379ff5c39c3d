"""The shop: its tables, and the transactions that keep them true. No HTTP here.

    customers     id, name
    products      sku, title, price_cents, stock
    orders        id, customer_id, total_cents, placed_at
    order_lines   order_id, line, sku, quantity, price_cents

An order takes its goods out of stock, or nothing happens at all: two customers never buy the last
piece. The caller chooses the order's id, so a request can be sent again when its answer was lost:
the second one finds the order and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import halocline as hc

TABLES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "customers": ({"id": str, "name": str}, ["id"]),
    "products": ({"sku": str, "title": str, "price_cents": int, "stock": int}, ["sku"]),
    "orders": (
        {"id": str, "customer_id": str, "total_cents": int, "placed_at": "timestamptz"},
        ["id"],
    ),
    "order_lines": (
        {"order_id": str, "line": int, "sku": str, "quantity": int, "price_cents": int},
        ["order_id", "line"],
    ),
}

LINES_MAX = 100
Row = dict[str, Any]


class UnknownError(Exception):
    """There is no such customer, product or order."""


class SoldOutError(Exception):
    """There is less of a product than was ordered."""


class Shop:
    """One handle of the database. Every worker process has its own; all threads may share it."""

    def __init__(self, path: Path | str) -> None:
        self.db = hc.open(path)
        for name, (columns, key) in TABLES.items():
            self.db.create_table(name, columns, primary_key=key, if_not_exists=True)

    def close(self) -> None:
        self.db.close()

    def save_customer(self, customer_id: str, name: str) -> Row:
        customer = {"id": customer_id, "name": name}
        self.db.run(lambda txn: txn.upsert("customers", customer))
        return customer

    def save_product(self, sku: str, title: str, price_cents: int) -> Row:
        """A new product has no stock; an old one keeps what it has."""

        def save(txn: hc.Transaction) -> Row:
            row = {"sku": sku, "title": title, "price_cents": price_cents}
            if txn.get("products", sku) is None:
                row["stock"] = 0
            txn.upsert("products", row)
            return _found(txn.get("products", sku), f"product {sku}")

        return self.db.run(save)

    def restock(self, sku: str, quantity: int) -> Row:
        """Goods arrive. Nobody needs to know how many there were, so nobody waits: `hc.add`."""

        def add(txn: hc.Transaction) -> Row:
            _found(txn.get("products", sku), f"product {sku}")
            txn.update("products", sku, {"stock": hc.add(quantity)})
            return {"sku": sku, "added": quantity}

        return self.db.run(add)

    def product(self, sku: str) -> Row:
        with self.db.begin() as txn:
            return _found(txn.get("products", sku), f"product {sku}")

    def order(self, order_id: str) -> Row:
        with self.db.begin() as txn:
            return _order(txn, order_id)

    def place_order(self, order_id: str, customer_id: str, wanted: Mapping[str, int]) -> Row:
        """Sell `wanted`, quantities by sku. An order that is there already is returned as it is."""

        def place(txn: hc.Transaction) -> Row:
            if txn.get("orders", order_id) is not None:
                return _order(txn, order_id)
            _found(txn.get("customers", customer_id), f"customer {customer_id}")
            lines = [
                {"order_id": order_id, "line": number, **_take(txn, sku, quantity)}
                for number, (sku, quantity) in enumerate(wanted.items(), 1)
            ]
            order = {
                "id": order_id,
                "customer_id": customer_id,
                "total_cents": sum(line["quantity"] * line["price_cents"] for line in lines),
                "placed_at": datetime.now(UTC),
            }
            txn.insert("orders", order)
            txn.insert("order_lines", lines)
            return order | {"lines": lines}

        return self.db.run(place)

    def sales(self) -> list[Row]:
        """What each product has brought in, best first: SQL over the rows of this moment."""
        found = self.db.sql(
            """
            select sku, title,
                   cast(sum(quantity) as bigint) as sold,
                   cast(sum(quantity * line.price_cents) as bigint) as cents
            from order_lines line join products using (sku)
            group by sku, title order by cents desc, sku
            """
        )
        return found.to_pylist()


def _take(txn: hc.Transaction, sku: str, quantity: int) -> Row:
    """Take goods out of stock, at today's price.

    This reads the stock before it writes, so two orders for the last piece conflict, and `db.run`
    lets one of them look again. With `hc.add` both would go through.
    """
    product = _found(txn.get("products", sku), f"product {sku}")
    if product["stock"] < quantity:
        raise SoldOutError(f"{product['stock']} of {sku} left")
    txn.update("products", sku, {"stock": product["stock"] - quantity})
    return {"sku": sku, "quantity": quantity, "price_cents": product["price_cents"]}


def _order(txn: hc.Transaction, order_id: str) -> Row:
    order = _found(txn.get("orders", order_id), f"order {order_id}")
    lines = txn.range("order_lines", (order_id, 1), (order_id, LINES_MAX + 1))
    return order | {"lines": lines.to_pylist()}


def _found(row: Row | None, what: str) -> Row:
    if row is None:
        raise UnknownError(f"there is no {what}")
    return row
