"""Parts of a text that no reader knows: a fault may be in them, so they are named.

A reader takes the lines that it knows, wherever they are, and does not report the rest. So this
module has, in line_forms.toml, the forms of the lines that each tool prints.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from preflight.captured.dmesg import KIND, is_kernel_line, split_stamp
from preflight.core.files import shipped_table

_FEWEST_LINES: Final = 5
"""Shorter parts are ignored: every ticket has a heading, a date or a sentence between outputs."""
_MOST_PARTS: Final = 8
"""At most this many parts are named; the last one covers all that follow it."""
_LONGEST_LINE: Final = 1000
"""Characters of a line that are compared with the forms."""

_TABLE: Final = shipped_table(__file__, "line_forms.toml")
_NO_FACTS: Final = re.compile(f"^(?:{'|'.join(_TABLE['no_facts'])})")
"""Lines without facts about a machine: prompts, echoed commands, dates, banners."""
_FORMS: Final = {
    kind: re.compile(f"^(?:{'|'.join(_TABLE['shared'].get(form, form) for form in forms)})")
    for kind, forms in _TABLE["forms"].items()
}
_ANY_LINE: Final = {"launch script", "a tree of /sys as JSON", "interfaces as JSON"}
"""A script may contain any line, and a document fills its text."""


def unread(text: str, kinds: Collection[str]) -> list[tuple[int, int]]:
    """Return first and last line of each part that fits none of `kinds`, the kinds in the text."""
    if set(kinds) <= _ANY_LINE:
        return []
    parts = list(_unknown_parts(text, [_FORMS[kind] for kind in kinds if kind in _FORMS], kinds))
    listed, rest = parts[: _MOST_PARTS - 1], parts[_MOST_PARTS - 1 :]
    return [*listed, (rest[0][0], rest[-1][1])] if rest else listed


def _unknown_parts(
    text: str, forms: Collection[re.Pattern[str]], kinds: Collection[str]
) -> Iterator[tuple[int, int]]:
    first = last = count = 0
    for number, line in enumerate(text.splitlines(), 1):
        start = line[:_LONGEST_LINE]
        if _NO_FACTS.match(start):
            continue
        if any(form.match(start) for form in forms) or (
            KIND in kinds and (split_stamp(start)[2] or is_kernel_line(start))
        ):
            if count >= _FEWEST_LINES:
                yield first, last
            count = 0
            continue
        first = first if count else number
        last, count = number, count + 1
    if count >= _FEWEST_LINES:
        yield first, last


def wrapped_line(text: str) -> str:
    """Say which line of a kernel log is the rest of the one above it; "" without one.

    A terminal wrapped it, and a fault may be torn in two. The kernel's own second lines are
    indented.
    """
    continuation, stamped = "", False
    for line in text.splitlines():
        if split_stamp(line)[2]:
            if continuation:
                return f"its lines are wrapped: {continuation[:40].strip()!a} has no time"
            stamped = True
        elif stamped and not line[:1].isspace() and not _NO_FACTS.match(line[:_LONGEST_LINE]):
            continuation = continuation or ("" if line.startswith("-- ") else line)
    return ""
