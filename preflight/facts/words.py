"""Formats processes, ages and sizes for an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.facts.model import Process

_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
_GIB: Final = 1024
_COMMAND_CHARS: Final = 60


def age(seconds: float) -> str:
    """45 s, 12 min, 2 h 14 min, 3 d 4 h."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min"
    if seconds < _DAY:
        return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:.0f} min"
    return f"{seconds // _DAY:.0f} d {seconds % _DAY // _HOUR:.0f} h"


def memory(mib: float) -> str:
    """512 MiB, 38.5 GiB."""
    return f"{mib:.0f} MiB" if mib < _GIB else f"{mib / _GIB:.1f} GiB"


def process(one: Process) -> str:
    """Pid, program, user and age: pid 42 (python train.py, user alice, started 14 min ago)."""
    command = one.command if len(one.command) <= _COMMAND_CHARS else one.command[:57] + "..."
    known = [command, f"user {one.user}" if one.user else ""]
    if one.pid:
        started = f"started {age(one.age_s)} ago" if one.age_s else ""
        return f"pid {one.pid} ({', '.join(filter(None, [*known, started]))})"
    hidden = "a process that this login may not see"
    return f"{hidden} (user {one.user})" if one.user else hidden


def kill_command(pids: Iterable[int]) -> str:
    """The command that ends processes: SIGTERM first."""
    listed = " ".join(str(pid) for pid in sorted(pids) if pid > 1)
    return f"kill {listed}; if still there after 10 s: kill -9 {listed}"


def count(number: int, noun: str, plural: str = "") -> str:
    """1 GPU, 2 GPUs."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def first_of(sentences: Sequence[str]) -> str:
    """The first sentence, and how many there are besides: "GPU 3 is lost (and 2 more)"."""
    more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
    return sentences[0] + more
