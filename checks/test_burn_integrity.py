"""Every device computes and remembers right, to the bit: silent corruption ruins a model."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.burn import Burn
from preflight.facts.burn_words import unjudged
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown

CHECK = Check(
    "burn.integrity",
    stage="local",
    tier="standard",
    requires=("reach.answer", "host.driver_hung", "gpu.count"),
    disturbs=True,
    drains=True,
)


def judge(burn: Burn | None) -> Verdict:
    """A single wrong bit condemns, whatever else is known; no proof is no pass."""
    if burn is not None and burn.wrong:
        first = burn.wrong[0]
        names = dict.fromkeys(flaw.name for flaw in burn.wrong)
        more = f"; also {', '.join([*names][1:5])}" if len(names) > 1 else ""
        return fail(
            f"{first.name}: {first.what}{more}",
            advice=f"take {first.name} out of service now and run dcgmi diag -r 3 on it",
            cause=f"wrong bits of {first.name}",
            flaws=[f"{flaw.name}: {flaw.what}" for flaw in burn.wrong],
        )
    nothing = unjudged(burn, "proof of integrity")
    if burn is None or (nothing is not None and not burn.stopped):
        return nothing or not_run("no proof of integrity was measured")
    lost = len({flaw.cause for flaw in burn.lost if flaw.cause})
    if burn.proven + lost < burn.devices or not burn.devices:
        if nothing is not None:
            return nothing
        said = f"{burn.proven} of {count(burn.devices, 'device')} proved that their bits are right"
        return unknown(said, advice="run again, or with a longer --preflight-budget")
    if not burn.proven:
        return not_run("no device came through (burn.device)", blocked=True)
    return ok(
        f"{count(burn.proven, 'device')}: {burn.proofs} products and passes over memory, every bit "
        "right",
    )


def test_burn_integrity(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.burn))
