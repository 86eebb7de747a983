"""Picks a free port on loopback, for a process that is started next."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST, _EPHEMERAL_ELSEWHERE = 10_000, 32_768
_TRIES = 200


def free_port() -> int:
    """Return a port that no process listens on now.

    It lies below the ephemeral ports. The operating system may give an ephemeral port to any outgoing connection before
    the process listens; the process could not listen then.

    Raises:
        OSError: all ports that were tried are in use.
    """
    for _ in range(_TRIES):
        port = _LEAST + secrets.randbelow(_first_ephemeral() - _LEAST)
        with socket.socket() as probe:
            if not _taken(probe, port):
                return port
    raise OSError(f"expected a free port on 127.0.0.1 from {_LEAST} on, got {_TRIES} that are in use")


def _taken(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        return True
    return False


def _first_ephemeral() -> int:
    """The first ephemeral port of this system; a default where it is unknown or leaves too few ports below."""
    if not _EPHEMERAL.exists():
        return _EPHEMERAL_ELSEWHERE
    first = int(_EPHEMERAL.read_text(encoding="utf-8").split()[0])
    return first if first > 2 * _LEAST else _EPHEMERAL_ELSEWHERE
