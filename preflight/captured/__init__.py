"""Outputs that somebody captured on a machine, judged by the checks that judge live ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.text import plain
from preflight.facts.model import WIRE, Driver, Facts, Python

if TYPE_CHECKING:
    import re


class Captured(Struct, frozen=True, kw_only=True):
    """One output of a tool, read; a reader returns None for a text that is not of its kind."""

    kind: str
    """In the words of whoever captured it: "nvidia-smi -q", "dmesg", "ibstat"."""
    facts: Facts
    """`bare_facts()` with the sections that the text fills; what it does not tell stays None."""
    checks: tuple[str, ...]
    """Ids of the checks for which these facts are enough."""
    environ: dict[str, str] | None = None
    """The job's environment, where the text is one (or a script that sets one)."""
    environs: dict[str, dict[str, str]] = {}
    """Where a text shows several: by node ("node 1"), or by where it stands ("line 12")."""
    one_job: bool = True
    """Whether `environs` are the nodes of one job, rather than commands in turn."""
    damaged: str = ""
    """What is cut off or garbled, in words. Nothing in a damaged text is proven healthy."""
    advice: str = "capture it again, whole and unedited"
    """What helps: a text may be whole and yet not tell enough."""


def captured(
    kind: str, checks: tuple[str, ...], damaged: str = "", *, advice: str = "", **sections: Any
) -> Captured:
    """A text that fills these sections of the facts, which are enough for these checks."""
    facts = replace(bare_facts(), **sections)
    return advised(Captured(kind=kind, facts=facts, checks=checks, damaged=damaged), advice)


def advised(one: Captured, advice: str) -> Captured:
    """With this advice, if it is any, in place of capturing the text again."""
    return replace(one, advice=advice) if advice else one


def bare_facts(host: str = "captured") -> Facts:
    """Facts of a node that has told nothing yet."""
    return Facts(
        wire=WIRE,
        nonce="captured",
        host=host,
        time_s=0.0,
        boot_s=0.0,
        seconds=0.0,
        user="",
        root=False,
        kernel="",
        python=Python("", ""),
        driver=Driver("untold"),
    )


def lines_of(text: str) -> list[str]:
    """The lines of a text as a tool printed them: no escapes, no control characters, no tabs."""
    return plain(text).expandtabs().splitlines()


_ERROR_LINES = 20


def short_error(text: str, error: re.Pattern[str]) -> re.Match[str] | None:
    """What a tool said in place of an answer: such a text is short, a log is something else."""
    return error.search(text) if len(text.splitlines()) <= _ERROR_LINES else None


def json_of(text: str, half: re.Pattern[str]) -> tuple[Any, str]:
    """The JSON of a text, else None and what is wrong; `half`: how one begins that is cut off."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text), ""
        except (ValueError, RecursionError):
            if half.match(text):
                return None, "the JSON is cut off or garbled"
    return None, ""
