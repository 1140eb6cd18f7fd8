"""Who came to Lightning's start: a log that ends there tells who did not, or who came twice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from preflight.triage.explain.blamed import proofs
from preflight.triage.explain.model import Alternative, Explanation

if TYPE_CHECKING:
    from preflight.triage.explain.scan import Found

_LATER = 10
"""So many lines may follow: warnings that are printed while it waits."""


def of_members(found: Found) -> Explanation | None:
    """What the first words of the processes tell where nothing else does; None for nothing.

    Nobody is accused: the processes of another node may write elsewhere. Rank 0 alone says that
    all have come, so without it a log is no witness.
    """
    facts = [hit for hit in found.hits if hit.symptom.id == "members"]
    came = Counter(int(hit.fields["member"]) for hit in facts if "member" in hit.fields)
    sizes = {int(hit.fields["of"]) for hit in facts if "of" in hit.fields}
    if 0 not in came or len(sizes) != 1 or any("registered" in hit.fields for hit in facts):
        return None
    missing = sorted(set(range(max(sizes))) - set(came))
    if not missing or found.lines - max(hit.order for hit in facts) > _LATER:
        return None
    words = ", ".join(map(str, missing[:8])) + " ..." * (len(missing) > 8)  # noqa: PLR2004
    away = f"{len(came)} of {max(sizes)} ranks came, and the lines end there; not so: {words}"
    evidence = proofs(hit.place for hit in facts)
    if came[0] > 1:
        return Explanation(
            category="env_misconfig",
            culprits=(),
            sentence=f"two processes came as rank 0, and none as {words}",
            cause="two nodes were started with the same NODE_RANK, or two jobs write here",
            advice="give each node its own NODE_RANK, and start with one launcher only",
            next="launch.fits, env.ranks",
            evidence=evidence,
            confidence=0.7,
            alternatives=(Alternative("timeout_rank_missing", away, 0.0),),
        )
    return Explanation(
        category="timeout_rank_missing",
        culprits=(),
        sentence=away,
        cause="a node did not start its processes, or they cannot reach the first one",
        advice="look whether the other nodes' processes run, what they were told of NODE_RANK and "
        "MASTER_ADDR, and at the way to that port",
        next="net.ports, launch.fits",
        evidence=evidence,
        confidence=0.5,
    )
