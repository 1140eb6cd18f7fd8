"""How much room is left where jobs write. Runs on the node: Python 3.8, standard library only."""

import os

SCRATCH = "/tmp"


def collect(request):
    """Return the free space in GiB."""
    room = os.statvfs(SCRATCH)
    return {"path": SCRATCH, "free_gib": round(room.f_bavail * room.f_frsize / 2**30, 3)}
