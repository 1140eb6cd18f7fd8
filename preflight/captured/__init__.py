"""Outputs that somebody captured on a machine, judged by the checks that judge live ones."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from preflight.facts.model import WIRE, Driver, Facts, Python


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


def captured(kind: str, checks: tuple[str, ...], damaged: str = "", **sections: Any) -> Captured:
    """A text that fills these sections of the facts, which are enough for these checks."""
    facts = replace(bare_facts(), **sections)
    return Captured(kind=kind, facts=facts, checks=checks, damaged=damaged)


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
