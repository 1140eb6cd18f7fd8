"""What to do about a rank that is elsewhere, and what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.triage.diagnose.lost import lint_of
from preflight.triage.diagnose.places import CODE, channel_words

if TYPE_CHECKING:
    from preflight.triage.diagnose.seat import Seat

EVEN = "make the ranks do equally many steps: drop_last=True, equal batches, join()"
_ADVICE = {
    "data": "find out why its next batch does not come: its workers, files, share of the data",
    "checkpoint": "let it finish, or look at the file system; raise the time-out of the group for "
    "such work (init_process_group(timeout=...)), or let all ranks save",
    "end": EVEN,
    "compile": "let it finish; compile before the first collective, and share the cache",
    "download": "take the request off the step's way; let one rank do it before the others start",
    "debugger": "leave the debugger, or run one process only under it",
    "lock": "see what holds the lock: a thread of its own, or another process",
    "process": "see what the process that it started does",
}
_EXIT = (
    "read its own output first: an error may have ended its script (preflight explain LOG), or it "
    "ran out of steps before the others (drop_last=True, equal batches, join())"
)
_BY_CHANNEL = {
    "waits for a file system": "look at the file system: mount, server, dmesg of its node",
    "waits for a disk": "look at the disk: iostat, dmesg of its node",
    "waits for a pipe": "see who holds the pipe's other end (ls -l /proc/PID/fd), and why it is "
    "silent",
    "waits for a lock on a file": "see who holds the lock (/proc/locks, lsof FILE)",
    "waits for a process that it started": _ADVICE["process"],
    "waits for somebody to type": "it asks for input, which nobody gives: take that out of the job",
}
"""What to do about a line of the user's own, by what the kernel says that it sleeps in."""

_OTHERWISE = (
    "look at that line: let all ranks do it, or make it short; what one rank does alone must "
    "end before the group's time-out"
)


def next_of(seat: Seat) -> str:
    """The node where it is at work by itself; the script where its way is what differs."""
    if exits(seat):
        return "preflight explain LOG"
    if seat.place is None or seat.place.kind in ("data", "checkpoint", "io", "download"):
        return f"pytest --preflight --preflight-nodes={seat.node}"
    return lint_of((seat,)) if seat.place.user is not None else ""


def advice_for(seat: Seat) -> str:
    """By what it is at, else by what the kernel says that it sleeps in."""
    if exits(seat):
        return _EXIT
    kind = seat.place.kind if seat.place else ""
    if kind == CODE and (said := _BY_CHANNEL.get(channel_words(seat.look.wait_channel))):
        return said
    return _ADVICE.get(kind, _OTHERWISE)


def exits(seat: Seat) -> bool:
    """Whether it has left its script, and only threads of its own keep it alive."""
    return seat.place is not None and seat.place.op == "exit"
