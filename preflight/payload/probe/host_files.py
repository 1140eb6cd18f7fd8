"""Small files of /proc and /sys, several lines of them; a missing number is an error, never 0."""

from __future__ import annotations

import os
import re

LIMIT = 256 << 10


def lines(path: str, limit: int = LIMIT) -> list[str]:
    """Return the lines of a file; OSError if it cannot be read."""
    # Buffered: one bare read of a file of /proc brings a page at most, and no error.
    with open(path, "rb") as file:
        return file.read(limit).decode("utf-8", "replace").splitlines()


def attempt_lines(path: str) -> list[str]:
    """Return the same, or [] where it cannot be read."""
    try:
        return lines(path)
    except OSError:
        return []


def whole(path: str) -> int:
    """Return the one whole number in a file; OSError or ValueError if there is none."""
    return int(" ".join(lines(path)))


def numbered(folder: str, pattern: str) -> list[str]:
    """Return the entries of a folder that match, in the order of their numbers."""
    try:
        names = [name for name in os.listdir(folder) if re.match(pattern + r"$", name)]
    except FileNotFoundError:
        return []
    return sorted(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def cpus_in(text: str) -> int:
    """Count the CPUs of a list such as "0-31,64-95"; ValueError if it is none."""
    total = 0
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def keyed(found: list[str]) -> dict[str, str]:
    """Return "Name: value" lines as they stand in /proc; the first of a name counts."""
    table: dict[str, str] = {}
    for line in found:
        name, colon, value = line.partition(":")
        if colon:
            table.setdefault(name.strip(), value.strip())
    return table
