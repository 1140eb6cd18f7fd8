"""What to do about a node that could not take part in a sweep, where its last words tell."""

from __future__ import annotations

from preflight.fabric.agreed import OTHER_PLAN

_ANOTHER_VERSION = (
    "look for another version of preflight installed on {0}, and at its memory (ECC); run again"
)
_NO_ROOM = ("No space left on device", "No usable temporary directory", "Disk quota exceeded")
_MAKE_ROOM = "make room in /tmp, /var/tmp and /dev/shm of {0} (df -h, df -i); run again"


def advice_on(name: str, error: str) -> str:
    """Return what the operator is to do; nothing where the words alone do not say."""
    if error == OTHER_PLAN:
        return _ANOTHER_VERSION.format(name)
    return _MAKE_ROOM.format(name) if any(each in error for each in _NO_ROOM) else ""
