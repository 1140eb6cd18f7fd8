"""Every RDMA NIC carries to itself what its peers do: its slot and its engine, without a cable."""

from __future__ import annotations

from msgspec.structs import replace

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.burn import Burn
from preflight.facts.burn_words import conclude as held
from preflight.verdict import Conclude, Outcome, Verdict, not_run, unknown

CHECK = Check(
    "burn.nic",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

SLOW = "look at PCIe generation and width of {0}, its firmware, and its error counters"
FAILED = "run ib_write_bw by hand on it, against 127.0.0.1; look at memlock and the port's state"


def judge(burn: Burn | None) -> Verdict:
    """A NIC that cannot be measured is unknown; without perftest nothing is said of any."""
    if burn is not None and burn.state == "measured":
        failed = [one.removeprefix("nic ") for one in burn.troubles if one.startswith("nic ")]
        if burn.nic_absent:
            return not_run(burn.nic_absent)
        verdict = held(burn, ("nic_gbits",), what="loopback", advice=SLOW)
        if failed and verdict.outcome is not Outcome.FAIL:
            verdict = unknown(f"ib_write_bw failed on {'; '.join(failed)}", advice=FAILED)
        if burn.nics_no_time:
            return replace(verdict, sentence=verdict.sentence + _no_time(burn, len(failed)))
        return verdict
    return held(burn, ("nic_gbits",), what="loopback", advice=SLOW)


def _no_time(burn: Burn, failed: int) -> str:
    left = burn.nics_no_time
    nics = len(left) + len(burn.of("nic_gbits")) + failed
    return f"; no time for {len(left)} of {nics} NICs: {', '.join(left)}"


def test_burn_nic(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.burn))
