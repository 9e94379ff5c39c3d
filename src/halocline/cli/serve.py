"""`halocline serve`: own a database for other machines, until a signal ends it.

Ctrl-C and SIGTERM end it alike: requests that have arrived are answered, then the database is
closed.
"""

from __future__ import annotations

import signal
from pathlib import Path

import typer

import halocline as hc
from halocline.errors import UsageError
from halocline.log.bell import Bell
from halocline.node.certificate import own_certificate


def serve(
    path: Path,
    *,
    host: str,
    port: int,
    tls: tuple[str, str] | None,
    token_file: Path | None,
    read_token_file: Path | None,
) -> None:
    """Serve until a signal comes."""
    stop = Bell()
    before = {
        number: signal.signal(number, lambda *_: stop.ring())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with hc.open(path) as db:
            server = db.serve(
                host,
                port,
                tls=tls,
                token=_token(token_file),
                read_token=_token(read_token_file),
            )
            typer.echo(f"serving {path} at {server.uri}")
            if tls is not None:
                typer.echo(f"certificate: {tls[0]}")
            if token_file is None:
                typer.echo(f"token: {server.token}")
            stop.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def find_certificate(
    path: Path, certificate: str | None, key: str | None, *, self_signed: bool
) -> tuple[str, str] | None:
    """The paths of the certificate and the key that were asked for."""
    if self_signed:
        if certificate or key:
            raise UsageError("--self-signed makes a certificate: leave out --tls-cert, --tls-key")
        return own_certificate(path)
    if certificate and key:
        return certificate, key
    if certificate or key:
        raise UsageError("--tls-cert and --tls-key belong together")
    return None


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"the token cannot be read: {error}") from error
    if not token:
        raise UsageError(f"{file} holds no token")
    return token
