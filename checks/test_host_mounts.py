"""A shared file system that hangs or is missing on one node hangs or kills the whole job."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Majority, Node
from preflight.facts.file_systems import lasting, missing, named, shared, unanswered
from preflight.facts.limits import limit
from preflight.facts.peers import decided
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECK = Check("host.mounts", stage="facts", tier="prolog", requires=("reach.answer",))

HUNG = "see whether its server answers; umount -f -l and mount it again, or reboot"
MOUNT = "mount it as the others have it (mount -a), and see why it was not at boot"

Usual = Majority[tuple[tuple[str, bool], ...]]


def judge(facts: Facts, usual: Usual | None = None) -> Verdict:
    """Who does not answer, then what the other nodes have and this one has not."""
    found = shared(facts)
    if found is None:
        return unknown("its mounts could not be read", advice="see cat /proc/self/mountinfo there")
    silent, said = unanswered(found)
    if silent:
        return fail(said, advice=HUNG, mount=silent)
    absent, said = missing(found, decided(usual))
    if absent:
        return fail(said, advice=MOUNT, mount=absent)
    slow = [one for one in found if one.seconds > limit("mount_slow_s")]
    if slow:
        said = f"{named(slow[0])} took {slow[0].seconds:.1f} s to tell its size"
        return warn(
            f"{said}, at most {limit('mount_slow_s'):g} s are usual",
            advice="look at its server's load and at the network to it",
        )
    told = [one for one in found if one.state == "answered"]
    if not found:
        return not_run("no shared file systems here")
    return ok(
        f"{count(len(told), 'shared file system')} answered",
        mounts=sorted(one.mount for one in found),
    )


def test_host_mounts(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts, node.group.majority(lasting)))
