"""Who has a TCP port: the kernel's tables say it even where the owner's files are hidden."""

from __future__ import annotations

LISTEN = "0A"

_LEAST = 10
"""Fields up to the inode."""


class Socket:
    """One line of /proc/net/tcp or tcp6."""

    __slots__ = ("inode", "port", "state", "uid")

    def __init__(self, line: str) -> None:
        """Parse a line; ValueError for the heading and anything else."""
        fields = line.split()
        if len(fields) < _LEAST or not fields[0].endswith(":"):
            raise ValueError("not a line of /proc/net/tcp")
        self.port = int(fields[1].rpartition(":")[2], 16)
        """Local port."""
        self.state = fields[3]
        self.uid = int(fields[7])
        self.inode = fields[9]
        """"0" once no process has it open any more."""


def tcp() -> list[Socket]:
    """Return every TCP socket of this network namespace, both families."""
    sockets = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii", errors="replace") as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            try:
                sockets.append(Socket(line))
            except ValueError:
                continue
    return sockets
