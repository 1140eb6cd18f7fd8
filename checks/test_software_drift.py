"""All nodes of a group have the same torch, CUDA, NCCL and cuDNN in the job's Python."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Group
from preflight.facts.software import READ_IT, UNREAD, Drift, drifts, torch_of
from preflight.fleet.nodeset import fold
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn
from preflight.view import FleetView

CHECK = Check("software.drift", stage="facts", tier="quick", requires=("reach.answer",))

_SAME = "point them to one image or environment (inventory key python), or leave them out"


def judge(groups: tuple[Group, ...]) -> Verdict:
    """Name the nodes that differ from most of their group; without a majority nobody is named."""
    compared = [group for group in groups if len(group.facts) > 1]
    if not compared:
        return not_run("one node in each group: nothing to compare")
    unread = [
        name for group in compared for name, facts in group.facts.items() if facts.software is None
    ]
    found = [drift for group in compared for drift in drifts(group)]
    if found:
        return _drifted(sorted(found, key=lambda drift: not drift.grave))
    if unread:
        return unknown(f"{UNREAD} on {fold(unread)}", advice=READ_IT, culprits=unread)
    versions = {group.name: group.majority(torch_of) for group in compared}
    if all(usual is None or usual.value == "none" for usual in versions.values()):
        return not_run("no torch in the job's Python: name it with --preflight-python")
    said = "; ".join(
        f"torch {usual.value} on {usual.votes}" for usual in versions.values() if usual
    )
    return ok(f"{said} nodes")


def _drifted(found: list[Drift]) -> Verdict:
    """The worst kind alone decides; the rest is evidence."""
    first = found[0]
    alike = [drift for drift in found if drift.grave == first.grave]
    told = [
        f"{one.what} {one.has} on {one.node}, {one.usual} {one.whom}"
        if one.usual
        else f"{one.what} {one.has} on {one.node}, and there is no majority"
        for one in alike
    ]
    more = f" (and {len(told) - 3} more)" if len(told) > 3 else ""  # noqa: PLR2004  a sentence
    conclude = fail if first.grave else warn
    return conclude(
        "; ".join(told[:3]) + more,
        advice=_SAME,
        culprits=sorted({one.node for one in alike if one.usual}),
        drifts=[one._asdict() for one in found],
    )


def test_software_drift(fleet: FleetView, conclude: Conclude) -> None:
    """Joins the groups and the judgement; the frame does the rest."""
    conclude(judge(tuple(fleet.groups.values())))
