"""The only file here that imports the product's modules: simulated fabrics, decoded, as text.

Where the simulation or the decoder moves, change this file and no golden file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.decoding.find import find
from tests.bench.decoding import decode, decoder
from tests.bench.fabrics import case, make

if TYPE_CHECKING:
    from preflight.fabric.decoding.culprit import Culprit


def decoded(name: str) -> dict[str, list[str] | str]:
    """What the decoder finds in one simulated fabric, in its own order, and what was planted."""
    observed = make(case(name)).observed
    findings, culprits = find(observed), decoder(observed)
    scored = decode(case(name), lambda _: culprits)
    return {
        "found": [_text(one) for one in culprits],
        "doubted": [f"{part.kind} {part.name}" for part in findings.doubted],
        "systemic": findings.systemic,
        "planted": [f"{one.fate}: {one.what} {one.where}" for one in scored.faults],
        "wrong": list(scored.wrong),
    }


def _text(one: Culprit) -> str:
    """Every field; numbers to six digits, which is beyond what a C library's log() changes."""
    words = [
        f"{one.symptom}: " + " | ".join(f"{part.kind} {part.name}" for part in one.among),
        f"confidence {one.confidence:.6g}",
        f"strength {one.strength:.6g}",
        f"pairs {' '.join('-'.join(pair) for pair in one.pairs)}",
        f"cleared partners {one.cleared_partners}",
        f"{one.events} events of {one.operations} operations, worst {one.worst_us:.6g} us",
        f"elsewhere {one.elsewhere:.6g}",
        f"second look {one.second_look or 'clean'}",
    ]
    return "; ".join(words)
