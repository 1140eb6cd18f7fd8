"""Takes a port as the job will, but without the option that would hide a lingering owner."""

from __future__ import annotations

import errno
import socket
import time

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


def is_free(port: int, patience_s: float = 1.0) -> bool:
    """Whether the port could be taken once more, and give it back.

    The last acknowledgements of connections that ended well may still be on their way.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            listener(port).close()
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        else:
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
