"""What to do where the last words of a node tell, and where the samples leave it open who it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.agreed import OTHER_PLAN

if TYPE_CHECKING:
    from collections.abc import Collection

_ANOTHER_VERSION = (
    "look for another version of preflight installed on {0}, and at its memory (ECC); run again"
)
_NO_ROOM = ("No space left on device", "No usable temporary directory", "Disk quota exceeded")
_NO_CUDA = ("CUDA did not initialise", "CUDA error")
_LOOK_AT_DRIVER = (
    "on {0}: nvidia-smi, and Xids in the kernel log (dmesg); reset the GPU or reboot, run again"
)
_NO_MEMORY = "on {0}: nvidia-smi tells which process holds the GPU's memory; end it, run again"
_BY_SIGKILL = "its measuring process was killed by SIGKILL"
"""A supervisor's words: nothing but the kernel, or somebody with its rights, does that."""

_LOOK_FOR_OOM = "look at the kernel log on {0} for out-of-memory kills; make room there, run again"
_TWO = 2
_MAKE_ROOM = "make room in /tmp, /var/tmp and /dev/shm of {0} (df -h, df -i); run again"


def advice_on(name: str, error: str) -> str:
    """Return what the operator is to do; nothing where the words alone do not say."""
    if error == OTHER_PLAN:
        return _ANOTHER_VERSION.format(name)
    if "CUDA out of memory" in error:
        return _NO_MEMORY.format(name)
    if any(each in error for each in _NO_CUDA):
        return _LOOK_AT_DRIVER.format(name)
    return _MAKE_ROOM.format(name) if any(each in error for each in _NO_ROOM) else ""


def after_signal(error: str) -> str:
    """Return what to do about a process that the kernel ended, for a name; nothing for others."""
    return _LOOK_FOR_OOM if _BY_SIGKILL in error else ""


def unresolved_advice(said: str, among: Collection[str], partners: str) -> str:
    """Say what to exclude where it is one of several: `it` would be nobody that can be typed."""
    look = said.removesuffix("; run again").partition("; exclude it")[0]
    if len(among) < _TWO:
        return said
    every = "both" if len(among) == _TWO else f"all {len(among)}"
    return f"{look}; exclude {every}, or run again {partners} to tell which it is"


def more_partners(nodes: int, pairs: int) -> str:
    """Say with whom to measure again, where so many pairs of so many nodes did not tell."""
    if nodes <= _TWO:
        return "with a third node"
    every = nodes * (nodes - 1) // 2
    return (
        "beside more nodes" if pairs >= every else "with more pairs (--preflight-sweep=exhaustive)"
    )
