"""Cut: end a connection of this process whose other side takes nothing any more.

gRPC gives a server no way to break off a call that waits for its client to read, and a server that
stops waits for all calls. So the socket under it is found among the files of this process, by its
two addresses, and shut down: the call then fails, and its thread is free.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import unquote

FILES: Final = "/dev/fd"
Address = tuple[IPv4Address | IPv6Address, int]


def cut(port: int, peer: str) -> bool:
    """End the connection that a client (`ipv4:192.0.2.1:4711`) has to this port of ours."""
    wanted = _address_of(peer)
    if wanted is None:
        return False
    return any(name.isdecimal() and _cut(int(name), port, wanted) for name in os.listdir(FILES))


def _cut(descriptor: int, port: int, wanted: Address) -> bool:
    with suppress(OSError, ValueError):  # closed meanwhile, or not connected
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            if sock.getsockname()[1] != port or _plain(*sock.getpeername()[:2]) != wanted:
                return False
            sock.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _address_of(peer: str) -> Address | None:
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    try:
        return _plain(host.strip("[]"), int(port))
    except ValueError:
        return None


def _plain(host: str, port: int) -> Address:
    """An IPv4 address may be written as one of IPv6."""
    found = ip_address(host.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found, port
