"""One difference of a node from its peers or from what is expected, and the verdict on several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from preflight.core.text import first_finding
from preflight.facts.node import Group, Majority
from preflight.verdict import Verdict, fail, warn


class Deviation(Struct, frozen=True):
    """One difference from what is expected. `grave`: the node, or its job, fails because of it."""

    sentence: str
    advice: str
    grave: bool = True


def on_most(vote: Majority[Any], group: Group) -> str:
    """As in: on 12 of 13 nodes of group train."""
    return f"on {vote.holders} of group {group.name}"


def conclude_deviations(odd: Iterable[Deviation], **evidence: Any) -> Verdict | None:
    """A failure if one deviation is grave, else a warning; None where there is none."""
    deviations = sorted(odd, key=lambda deviation: not deviation.grave)
    if not deviations:
        return None
    worst, findings = deviations[0], [deviation.sentence for deviation in deviations]
    fail_or_warn = fail if worst.grave else warn
    return fail_or_warn(first_finding(findings), advice=worst.advice, findings=findings, **evidence)
