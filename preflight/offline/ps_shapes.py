"""Rows of `ps aux`, `ps x`, `ps -ef` and `ps -eLf` without their header, as grep leaves them.

Each has so many columns of its own kind (shares, sizes, a terminal, a time) that one row is enough.
"""

from __future__ import annotations

import re
from typing import Final

_PID: Final = r"(?P<pid>[0-9]{1,10})"
_STATE: Final = r"(?P<state>[RSDTtWXZI][<NLsl+]{0,5})"
_TTY: Final = r"(?:\?|-|[a-z][a-z0-9]*(?:/[0-9]+)?)"
_TIME: Final = r"(?:[0-9]+-)?[0-9]+:[0-9]{2}(?::[0-9]{2})?"
_START: Final = r"(?:[0-9]{2}:[0-9]{2}(?::[0-9]{2})?|[A-Z][a-z]{2} ?[0-9]{2}|[0-9]{4})"
_BEHIND: Final = rf"{_TIME}\s+(?P<command>\S.*)$"
_SHAPES: Final = (
    re.compile(
        rf"^(?P<user>\S+)\s+{_PID}\s+[0-9.]+\s+[0-9.]+\s+[0-9]+\s+[0-9]+\s+{_TTY}\s+{_STATE}\s+"
        rf"{_START}\s+{_BEHIND}"
    ),
    re.compile(rf"^\s*{_PID}\s+{_TTY}\s+{_STATE}\s+{_BEHIND}"),
    re.compile(
        rf"^(?P<user>\S+)\s+{_PID}\s+(?P<ppid>[0-9]{{1,10}})\s+(?:[0-9]+\s+)?[0-9]+\s+(?:[0-9]+\s+)?"
        rf"{_START}\s+{_TTY}\s+{_BEHIND}"
    ),
)
_GREP: Final = re.compile(r"(?:\S*/)?[ef]?grep\s")
_DEFUNCT: Final = "<defunct>"


def columns(line: str) -> dict[str, str] | None:
    """Return user, pid, ppid, state and command as far as the row has them; None for another."""
    found = next((match for shape in _SHAPES if (match := shape.match(line))), None)
    if found is None:
        return None
    told = {name: word for name, word in found.groupdict().items() if word}
    if told["command"].rstrip().endswith(_DEFUNCT):
        told.setdefault("state", "Z")
    return told


def is_search(command: str) -> bool:
    """Whether it is the grep that the listing went through."""
    return _GREP.match(command) is not None


def unbracketed(command: str, state: str) -> str:
    """The name of a process that has no command line any more, unless it is one of the kernel's.

    ps sets both in brackets; threads of the kernel lead no session and have no threads themselves.
    """
    dying = command.startswith("[") and not command.rstrip().endswith(_DEFUNCT)
    return command.strip("[] ") if dying and set(state) & set("sl+") else command
