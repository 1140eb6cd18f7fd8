"""Reads pasted outputs of tools, so that the checks of live nodes can judge them."""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.text import printable_lines
from preflight.facts.model import Facts, bare_facts

AGAIN = "capture it again, whole and unedited"


class Captured(Struct, frozen=True, kw_only=True):
    """One parsed output of a tool; a reader returns None for a text of another kind."""

    kind: str
    """The name of the tool: "nvidia-smi -q", "dmesg", "ibstat"."""
    facts: Facts
    """`bare_facts()` with the sections that the text fills; everything else stays None."""
    checks: tuple[str, ...]
    """Ids of the checks for which these facts are enough."""
    environ: dict[str, str] | None = None
    """The job's environment, if the text is one (or a script that sets one)."""
    environs: dict[str, dict[str, str]] = {}
    """If a text shows several environments: by node ("node 1") or by line ("line 12")."""
    one_job: bool = True
    """Whether `environs` are the nodes of one job, rather than commands in turn."""
    damaged: str = ""
    """What is cut off or garbled. A damaged text proves nothing healthy."""
    advice: str = AGAIN
    """What to do: a text may be whole and still hold too little."""


def captured(
    kind: str, checks: tuple[str, ...], damaged: str = "", *, advice: str = "", **sections: Any
) -> Captured:
    """Make a `Captured` from sections of facts and the checks for which they are enough."""
    facts = replace(bare_facts(), **sections)
    return Captured(kind=kind, facts=facts, checks=checks, damaged=damaged, advice=advice or AGAIN)


def lines_of(text: str) -> list[str]:
    """The lines of a text as a tool printed them: no escapes, no control characters, no tabs."""
    return printable_lines(text).expandtabs().splitlines()


_LONGEST_ERROR = 20


def short_error(text: str, error: re.Pattern[str]) -> re.Match[str] | None:
    """An error that a tool printed instead of an answer; only in a short text, not in a log."""
    return error.search(text) if len(text.splitlines()) <= _LONGEST_ERROR else None


def json_of(text: str, beginning: re.Pattern[str]) -> tuple[Any, str]:
    """The JSON of a text, or None and what is wrong; `beginning` matches JSON that is cut off."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text), ""
        except (ValueError, RecursionError):
            if beginning.match(text):
                return None, "the JSON is cut off or garbled"
    return None, ""
