"""Whether preflight is right about drawn jobs, asked through a real RAS connection.

`python -m tests.lab.hangs.ras_score FIRST LAST [LARGEST]` prints a row for each kind of fault.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.facts.job import RasLook
from preflight.hang.diagnose.diagnosis import diagnose
from tests.lab.hangs.ras_jobs import FAULT_LINE, SIZES, Drawn, draw
from tests.lab.hangs.ras_mesh import RasMesh

if TYPE_CHECKING:
    from preflight.hang.diagnose.job_state import JobState

_PAYLOAD = str(Path(__file__).parents[3] / "preflight" / "payload")


@dataclass(frozen=True)
class Score:
    """One answer, compared with the draw."""

    drawn: Drawn
    named: frozenset[int]
    line: str
    sentence: str

    @property
    def innocent(self) -> frozenset[int]:
        """Ranks that are named and are not at fault."""
        return self.named - self.drawn.culprits

    @property
    def exact(self) -> bool:
        """All ranks at fault are named, no other, and the line where a stack shows it."""
        if self.drawn.any_of:
            return not self.innocent
        seen = not self.drawn.line or f":{FAULT_LINE} " in self.line
        return self.named == self.drawn.culprits and seen


def score(drawn: Drawn) -> Score:
    """Judge what the service of the drawn job and its nodes show."""
    found = diagnose(asked(drawn))
    ranks = [one.removeprefix("rank ") for one in found.culprits if one.startswith("rank ")]
    return Score(drawn, frozenset(map(int, ranks)), found.line, found.sentence)


def asked(drawn: Drawn) -> JobState:
    """What the nodes of the drawn job show, and what its RAS service answers to a node's client."""
    if _PAYLOAD not in sys.path:
        sys.path.append(_PAYLOAD)
    from stacks import ras_client

    with RasMesh(drawn.ras) as mesh:
        request = {"pid": os.getpid(), "address": mesh.address, "always": True}
        answer = ras_client.answer(request, time.monotonic() + 30)
        if mesh.questions != 1:
            raise RuntimeError(f"asked {mesh.questions} times: {answer.get('why')}")
    look = RasLook(wire=1, nonce="n", host="h", time_s=1, boot_s=1, **answer)
    state: JobState = replace(drawn.state, ras=look)
    return state


def main(first: int, last: int, largest: int = SIZES[-1]) -> None:
    """Print the rows, and the draws that were not answered exactly."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for seed in range(first, last):
        drawn = draw(seed, sizes=tuple(one for one in SIZES if one <= largest))
        its = score(drawn)
        stacks = "no stacks" if drawn.blind else "stacks"
        for kind in (drawn.fault, "all"):
            for seen in (stacks, "both"):
                counts[kind, seen, "jobs"] += 1
                counts[kind, seen, "exact"] += its.exact
                counts[kind, seen, "innocent"] += bool(its.innocent)
        if not its.exact:
            words = f"{seed} {drawn.fault} {stacks} {drawn.world} ranks NCCL {drawn.ras.version}"
            truth, named = sorted(drawn.culprits)[:8], sorted(its.named)[:8]
            sys.stdout.write(f"  {words}: {truth}, named {named}: {its.sentence[:90]}\n")
    for kind, seen in sorted({key[:2] for key in counts}):
        jobs, exact, innocent = (counts[kind, seen, one] for one in ("jobs", "exact", "innocent"))
        sys.stdout.write(f"{kind:10} {seen:10} {exact:5} of {jobs:5} exact, {innocent} innocent\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
