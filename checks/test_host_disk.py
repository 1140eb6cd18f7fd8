"""A job writes to /tmp and to its own folder: a full or read-only disk ends it, often late."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.file_systems import made_so, scarce, unwritable, written_to
from preflight.facts.words import memory
from preflight.verdict import Conclude, Verdict, fail, ok, unknown, warn

CHECK = Check("host.disk", stage="facts", tier="prolog", requires=("reach.answer",))

READ_ONLY = "look for I/O errors in dmesg; drain, check the disk (fsck, smartctl), then remount it"
MADE_SO = (
    "mounted so from the start: see that the job writes elsewhere (a volume, --preflight-report)"
)
FULL = "see df -h, df -i and du -xh --max-depth=1 there; remove what nobody needs"


def judge(facts: Facts) -> Verdict:
    """What takes no file at all, then what soon will not; shared ones that hang are not ours."""
    found = written_to(facts)
    if found is None:
        return unknown(
            "its file systems could not be read", advice="mount /proc; see cat /proc/self/mountinfo"
        )
    seen = [one for one in found if one.free_mib is not None]
    evidence = {one.mount: f"{one.free_mib} of {one.size_mib} MiB free" for one in seen}
    for one in found:
        if why := unwritable(one):
            broken = one.remounted or "Read-only" in why or one.free_mib is None
            if made_so(one):
                return warn(why, advice=MADE_SO, file_systems=evidence)
            return fail(why, advice=READ_ONLY if broken else FULL, file_systems=evidence)
    short = [words for one in found for words in scarce(one)]
    if short:
        more = f" (and {len(short) - 1} more)" if len(short) > 1 else ""
        return warn(short[0] + more, advice=FULL, findings=short, file_systems=evidence)
    hidden = [one for one in found if one.free_mib is None and not one.shared]
    if hidden or not seen:
        what = ", ".join(one.mount for one in hidden) or "what a job writes to"
        return unknown(f"{what} may not be looked at", advice="see df there as the job's user")
    free = ", ".join(f"{memory(one.free_mib or 0)} on {one.mount}" for one in seen)
    return ok(f"free: {free}", file_systems=evidence)


def test_host_disk(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts))
