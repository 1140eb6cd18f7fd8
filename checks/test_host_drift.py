"""A node that runs another kernel, C library or BIOS than its peers fails in ways they do not."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Majority, Node
from preflight.facts.alike import READINGS
from preflight.facts.peers import others
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown, warn

CHECK = Check("host.drift", stage="facts", tier="prolog", requires=("reach.answer",))

ALIGN = "bring it to what the others run (reimage, update or boot the other kernel), then recheck"
AGREE = "decide what the group shall run and bring all nodes to it, or split the group"


def judge(facts: Facts, usual: dict[str, Majority[str] | None]) -> Verdict:
    """Each reading against the vote of the group; what nobody agrees on is said as such."""
    if facts.machine is None or facts.machine.stack is None:
        return unknown("what it runs could not be read", advice="mount /proc and /sys there")
    if not any(vote is not None and vote.of > 1 for vote in usual.values()):
        return not_run(f"no peers to compare with: kernel {facts.kernel}")
    odd: list[str] = []
    split: list[str] = []
    for word, read in READINGS.items():
        vote, mine = usual.get(word), read(facts)
        if vote is None or mine is None or vote.votes == vote.of:
            continue
        if not vote.decides:
            split.append(
                f"{word} {mine}; no more than {vote.votes} of {vote.of} nodes agree on one"
            )
        elif vote.value != mine:
            odd.append(f"{word} {mine}; {others(vote, vote.value)}")
    told = odd + split
    if told:
        more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
        return warn(told[0] + more, advice=ALIGN if odd else AGREE, findings=told)
    seen = {word: mine for word, read in READINGS.items() if (mine := read(facts))}
    return ok(f"as its group: {', '.join(f'{word} {mine}' for word, mine in seen.items())}")


def test_host_drift(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    usual = {word: node.group.majority(read) for word, read in READINGS.items()}
    conclude(judge(node.facts, usual))
