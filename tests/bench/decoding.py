"""One simulated fabric, decoded and held against its truth.

    python -m tests.bench.decoding rdma:16:faulty:3 ...

shows what was planted in each, what was declared of it, what the decoder found.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.fabric.decoding.culprit import FAILURES, Component
from preflight.fabric.decoding.find import find
from tests.bench.fabrics import case, make
from tests.simulate.score import score

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.fabric.decoding.culprit import Culprit
    from preflight.fabric.observed import Observed
    from tests.bench.fabrics import Case
    from tests.simulate.truth import Planted

    Decoder = Callable[[Observed], Sequence[Culprit]]


class Fault(Struct, frozen=True):
    """What became of one planted fault."""

    what: str
    """"spikes endpoint"."""
    where: str
    detectable: bool
    fate: str


class Outcome(Struct, frozen=True, kw_only=True):
    """One fabric, as a line of the long form's file."""

    case: str
    noise: str
    nodes: int
    faulty: bool
    faults: tuple[Fault, ...]
    wrong: tuple[str, ...]
    """Findings that blame healthy parts, in words."""
    decode_s: float
    cpu_s: float


def decoder(observed: Observed) -> Sequence[Culprit]:
    """Ours, with what it says against the fabric as a whole left out: that names nobody."""
    found = [each for one in find(observed).culprits for each in _on_its_rails(one, observed)]
    failed = [one for one in found if one.symptom in FAILURES]
    failed.sort(key=lambda one: one.among[0].rail or 0)
    return [*failed, *(one for one in found if one.symptom not in FAILURES)]


def _on_its_rails(one: Culprit, observed: Observed) -> list[Culprit]:
    """A node with dead rails as its rails: the culprit is the node, the sentence says which."""
    bad = [each for each in observed.tried if each.bad and each.nodes in one.pairs]
    often = Counter(each.rail for each in bad) if one.symptom in FAILURES else Counter()
    most = max(often.values(), default=0)
    rails = sorted(rail for rail, times in often.items() if 2 * times > most)
    if not rails or 2 * len(rails) > len({each.rail for each in observed.tried}):
        return [one]
    return [
        replace(
            one,
            among=tuple(
                Component("endpoint" if part.kind == "node" else part.kind, part.nodes, rail)
                for part in one.among
            ),
        )
        for rail in rails
    ]


def decode(one: Case, decoder: Decoder = decoder) -> Outcome:
    """Simulate, decode, score. Only decoding is timed."""
    made = make(one)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    found = decoder(made.observed)
    decode_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    scored = score(made.planted, found, made.fabric.rails)
    return Outcome(
        case=one.id,
        noise=one.noise,
        nodes=one.nodes,
        faulty=one.faulty,
        faults=tuple(
            Fault(
                f"{planted.fault.kind} {planted.component.kind}",
                planted.component.name,
                planted.detectable,
                fate,
            )
            for planted, fate in zip(made.planted, scored.fates, strict=True)
        ),
        wrong=tuple(map(said, scored.wrong)),
        decode_s=round(decode_s, 4),
        cpu_s=round(cpu_s, 4),
    )


def said(one: Culprit) -> str:
    """A finding in a few words."""
    names = " | ".join(part.name for part in one.among)
    return f"{one.symptom}: {names} ({one.confidence:.2f})"


def _shown(one: Case) -> str:
    made = make(one)
    began_s = time.perf_counter()
    found = decoder(made.observed)
    took_s = time.perf_counter() - began_s
    scored = score(made.planted, found, made.fabric.rails)
    lines = [f"{one.id}: {len(made.observed.digests)} digests, decoded in {took_s:.2f} s"]
    for planted, fate in zip(made.planted, scored.fates, strict=True):
        declared = "detectable" if planted.detectable else "may be missed or in doubt"
        lines.append(
            f"  planted {fate:8s} {_planted(planted)}; {declared} "
            f"(power {planted.power:.4f}, {planted.partners} cleared partners)"
        )
    lines += [f"  found   {'WRONG' if one in scored.wrong else '':8s} {said(one)}" for one in found]
    return "\n".join(lines)


def _planted(planted: Planted) -> str:
    return f"{planted.fault.kind}: {planted.component.kind} {planted.component.name}"


if __name__ == "__main__":
    for text in sys.argv[1:]:
        sys.stdout.write(_shown(case(text)) + "\n")
