"""The shop over HTTP: FastAPI in front, one database underneath, any number of worker processes.

    SHOP=/var/lib/shop uvicorn app:app --app-dir examples/orders_api --workers 4

Every worker opens the same directory. One of them is its owner and writes the log; the others send
their commits to it. When the owner dies, another worker takes over, and its requests go on.

Routes are plain functions: FastAPI runs them in threads, which may share the database.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from shop import LINES_MAX, Shop, SoldOutError, UnknownError

import halocline as hc


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.shop = Shop(os.environ.get("SHOP", "shop-data"))
    yield
    app.state.shop.close()


app = FastAPI(title="Orders", lifespan=lifespan)


def current_shop(request: Request) -> Shop:
    return request.app.state.shop


TheShop = Annotated[Shop, Depends(current_shop)]
Quantity = Annotated[int, Field(gt=0, le=1_000_000)]


class CustomerIn(BaseModel):
    name: str = Field(min_length=1)


class ProductIn(BaseModel):
    title: str = Field(min_length=1)
    price_cents: int = Field(ge=0, le=10**12)


class OrderIn(BaseModel):
    customer_id: UUID
    items: dict[str, Quantity] = Field(min_length=1, max_length=LINES_MAX)
    """Quantities by sku."""


@app.put("/customers/{customer_id}")
def save_customer(customer_id: UUID, body: CustomerIn, shop: TheShop) -> dict[str, Any]:
    return shop.save_customer(str(customer_id), body.name)


@app.put("/products/{sku}")
def save_product(sku: str, body: ProductIn, shop: TheShop) -> dict[str, Any]:
    return shop.save_product(sku, body.title, body.price_cents)


@app.post("/products/{sku}/restock")
def restock(sku: str, quantity: Quantity, shop: TheShop) -> dict[str, Any]:
    return shop.restock(sku, quantity)


@app.get("/products/{sku}")
def product(sku: str, shop: TheShop) -> dict[str, Any]:
    return shop.product(sku)


@app.put("/orders/{order_id}")
def place_order(order_id: UUID, body: OrderIn, shop: TheShop) -> dict[str, Any]:
    """Send it again with the same id when no answer came: it is placed once."""
    return shop.place_order(str(order_id), str(body.customer_id), body.items)


@app.get("/orders/{order_id}")
def order(order_id: UUID, shop: TheShop) -> dict[str, Any]:
    return shop.order(str(order_id))


@app.get("/sales")
def sales(shop: TheShop) -> list[dict[str, Any]]:
    return shop.sales()


@app.get("/health")
def health(shop: TheShop) -> dict[str, Any]:
    """Which process answers, and what it is to the database: owner or node."""
    return {"pid": os.getpid(), "role": shop.db.role, "is_well": shop.db.health().is_well}


@app.exception_handler(UnknownError)
def unknown(request: Request, error: UnknownError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status_code=404)


@app.exception_handler(SoldOutError)
def sold_out(request: Request, error: SoldOutError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status_code=409)


@app.exception_handler(hc.ConflictError)
@app.exception_handler(hc.UnavailableError)
def try_again(request: Request, error: hc.HaloclineError) -> JSONResponse:
    """Between two owners, or too many rivals for one row. The same request may be sent again."""
    return JSONResponse({"detail": str(error)}, status_code=503, headers={"Retry-After": "1"})
