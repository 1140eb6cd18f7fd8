"""Every node has room for a job's scratch files.

## Why
A job that cannot write its checkpoint dies at the first one, hours after it began.

## Fix
Remove what earlier jobs left under the scratch folder.
"""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Extra, Node
from preflight.verdict import Conclude, Verdict, fail, ok, unknown

CHECK = Check("site.scratch_space", stage="facts", requires=("reach.answer",))

LEAST_GIB = 0.01
"""For this example; a site writes what its jobs need."""


def judge(said: Extra) -> Verdict:
    """Compare the room that is left with what a job needs; no answer is no pass."""
    if said.error:
        return unknown(said.error, advice="run sections/scratch.py on the node by hand")
    free_gib, path = said.data["free_gib"], said.data["path"]
    seen = f"{free_gib:g} GiB free under {path}, {LEAST_GIB:g} needed"
    if free_gib < LEAST_GIB:
        return fail(seen, advice=f"remove what earlier jobs left under {path}", free_gib=free_gib)
    return ok(seen, free_gib=free_gib)


def test_site_scratch_space(preflight_node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement."""
    conclude(judge(preflight_node.facts.section("site.scratch")))
