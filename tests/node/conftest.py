"""One owner, and the ways to it, for the tests of this folder.

A file may say what it wants: OPTIONS of all handles, COLUMNS of the table t, ROWS that are in it,
TABLES that are there besides, by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import halocline as hc
from halocline.node import Server
from halocline.node.certificate import own_certificate
from tests.node.handles import far as connect

BARE = hc.Options(background=False)
COLUMNS = {"id": int, "v": int}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The paths of a certificate that signs itself, and of its key."""
    return own_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def options(request: pytest.FixtureRequest) -> hc.Options:
    found: hc.Options = getattr(request.module, "OPTIONS", BARE)
    return found


@pytest.fixture
def owner(
    tmp_path: Path, options: hc.Options, request: pytest.FixtureRequest
) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db", options=options) as db:
        db.create_table("t", getattr(request.module, "COLUMNS", COLUMNS), "id")
        for name, columns in getattr(request.module, "TABLES", {}).items():
            db.create_table(name, columns, "id")
        with db.begin() as txn:
            txn.insert("t", [{"id": n, "v": n} for n in range(getattr(request.module, "ROWS", 0))])
        yield db
        if not db.core.closed:
            assert not db.check()


@pytest.fixture
def node(owner: hc.Database, options: hc.Options) -> Iterator[hc.Database]:
    """A process of the owner's machine."""
    with hc.open(owner.path, options=options) as db:
        assert db.role == "node"
        yield db


@pytest.fixture
def server(owner: hc.Database, certificate: tuple[str, str]) -> Server:
    """The owner's door for other machines, with TLS."""
    return owner.serve(tls=certificate, read_token="only looking")


@pytest.fixture
def far(server: Server, certificate: tuple[str, str], options: hc.Options) -> Iterator[hc.Database]:
    """A handle of another machine."""
    with connect(server, certificate, options=options) as db:
        assert db.role == "node"
        yield db
