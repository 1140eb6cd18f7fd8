"""Takes a port as the job will, but without the option that would hide a lingering owner."""

from __future__ import annotations

import errno
import socket

BACKLOG = 4096
"""Every node of the fleet may knock at the master in the same instant."""


def listener(port: int) -> socket.socket:
    """Listen on every address, IPv6 and IPv4 where both exist; OSError says why it cannot be.

    Never SO_REUSEADDR: a port whose old connections linger must show.
    """
    try:
        return _listening(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT):
            raise
    return _listening(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 (as the job's store does)


def is_free(port: int) -> bool:
    """Whether the port could be taken once more, and give it back."""
    try:
        listener(port).close()
    except OSError:
        return False
    return True


def _listening(family: int, address: str, port: int) -> socket.socket:
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        taken.bind((address, port))
        taken.listen(BACKLOG)
    except OSError:
        taken.close()
        raise
    taken.settimeout(0)
    return taken
