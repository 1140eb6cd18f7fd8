"""Which of a log's exceptions began it: not those that pass on what another rank's end did."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from preflight.triage.explain.blamed import names, proofs
from preflight.triage.explain.model import Explanation
from preflight.triage.explain.watchdog import waiting

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.triage.explain.model import Hit
    from preflight.triage.explain.tracebacks import Raised

ECHOES = frozenset(
    {
        *("ChildFailedError", "DistBackendError", "DistStoreError", "DistNetworkError"),
        *(
            "RendezvousTimeoutError",
            "RendezvousConnectionError",
            "RendezvousClosedError",
            "ProcessRaisedException",
        ),
        *("ProcessExitedException", "SignalException", "CalledProcessError", "SystemExit"),
        *("KeyboardInterrupt", "BrokenPipeError", "ConnectionResetError", "EOFError"),
        *("RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError"),
    }
)
"""Exceptions that tell of somebody else's end, or that have symptoms of their own."""
_WRAPS = re.compile(
    r"NCCL (?:[Ee]rror|communicator was aborted)|nccl\w{0,60}Error|unhandled (?:system|cuda) error"
    r"|Timed out waiting \d+ms for (?:recv|send)|[Cc]onnection (?:closed|reset) by|[Bb]roken pipe"
    r"|Socket Timeout|Application timeout caused pair closure|worker process.{0,40}(?:died|exited)"
)
"""What an exception says that only passes on what a library met: its cause stands elsewhere."""


def survivors(hits: Sequence[Hit]) -> dict[int, int]:
    """Ranks that waited in a collective until it timed out, and the line in which they say so.

    Whoever raises before that has caught it: a dead rank waits for nobody.
    """
    return {one.rank: one.hit.order for one in waiting(hits)}


def own_faults(raised: Sequence[Raised], survived: dict[int, int]) -> list[Raised]:
    """Those that ended their rank, and are no echo of another rank's end."""
    return [
        one
        for one in raised
        if one.kind not in ECHOES
        and not _WRAPS.search(one.said)
        and one.order >= survived.get(-1 if one.speaker.rank is None else one.speaker.rank, 0)
    ]


def of_exceptions(thrown: Sequence[Raised], roots: Collection[int]) -> Explanation:
    """Code that raised: the first rank to do so ended the others.

    `roots`: ranks that torchrun saw fail first.
    """
    seen_first = [one for one in thrown if one.speaker.rank in roots]
    first = _first(seen_first or thrown)
    same = [one for one in thrown if (one.kind, one.said) == (first.kind, first.said)]
    ranks = sorted({one.speaker.rank for one in same if one.speaker.rank is not None})
    place = f" at {first.file}:{first.line}" if first.file else ""
    code = f" ({first.code})" if first.code else ""
    who = first.speaker.words or "a rank"
    named = names(first.speaker)
    if len(ranks) > 1:
        who = f"ranks {', '.join(map(str, ranks[:8]))}{' ...' * (len(ranks) > 8)}"  # noqa: PLR2004
        named = tuple(f"rank {rank}" for rank in ranks[:16])
    said = f": {first.said}" if first.said else ""
    return Explanation(
        category="other",
        culprits=named,
        sentence=f"{who} raised {first.kind}{said}{place}{code}",
        cause="an exception in the script or in a library; what other ranks say after it is echo",
        advice="mend the code at that line; the others only waited for this rank",
        next=with_script("preflight lint SCRIPT", [first]),
        evidence=proofs(one.place for one in [first, *same, *thrown]),
        confidence=0.8,
    )


def with_script(words: str, raised: Sequence[Raised]) -> str:
    """A command of ours with the script that these exceptions name, where all name the same."""
    scripts = {one.script for one in raised if one.kind not in ECHOES and one.script}
    if len(scripts) != 1 or not words.endswith(" SCRIPT"):
        return words
    (script,) = scripts
    return f"{words.removesuffix('SCRIPT')}{shlex.quote(script)}"


def _first(thrown: Sequence[Raised]) -> Raised:
    """By their clocks where all have one, else as they were read."""
    if all(one.time is not None for one in thrown):
        return min(thrown, key=lambda one: (one.time or (), one.order))
    return min(thrown, key=lambda one: one.order)
