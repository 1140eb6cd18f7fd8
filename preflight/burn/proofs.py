"""Who computed wrong: by its own proof, or because its exact result is not that of the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from preflight.burn.units import Names
from preflight.facts.burn import Flaw

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from preflight.facts.burned import Burned, Proof
    from preflight.facts.model import Facts

_Same = tuple[str, str, str]
"""What proofs must share to be equal: kind, size, model."""

_WHAT = {
    "product": "an exact product came out wrong",
    "memory": "its memory did not keep what was written",
    "load": "a product under load came out different",
    "p2p": "what arrived was not what was sent",
}


def majorities(fleet: Mapping[str, Burned]) -> dict[_Same, str]:
    """The digest that most devices of one model reached in a fleet, by kind of proof and size.

    Exact results are equal on every device. Without a majority nobody is odd.
    """
    votes: dict[_Same, Counter[str]] = {}
    for burned in fleet.values():
        names = Names(burned, None)
        for proof in burned.proofs:
            if proof.digest and not proof.wrong:
                votes.setdefault(_same(proof, names), Counter())[proof.digest] += 1
    return {
        key: ranked[0][0]
        for key, counter in votes.items()
        if (ranked := counter.most_common(1)) and 1 < ranked[0][1] > counter.total() / 2
    }


def wrong(burned: Burned, facts: Facts | None, usual: Mapping[_Same, str]) -> Iterator[Flaw]:
    """Each device of one node that was wrong in anything, once per proof."""
    names = Names(burned, facts)
    for proof in burned.proofs:
        said = _wrong(proof) or _odd(proof, usual.get(_same(proof, names), ""))
        if said:
            name = names.of(proof.device)
            cause = name if proof.to is None else ""
            to = f" to {names.index(proof.to)}" if proof.to is not None else ""
            yield Flaw(name=name + to, what=said, cause=cause)


def _same(proof: Proof, names: Names) -> _Same:
    return proof.what, proof.size, names.model(proof.device)


def _wrong(proof: Proof) -> str:
    if not proof.wrong:
        return ""
    of = (
        f"{proof.wrong} of {proof.rounds} times"
        if proof.what != "memory"
        else (f"{proof.wrong} words in {proof.rounds} passes over {proof.size}")
    )
    return f"{_WHAT[proof.what]} ({of}; {proof.first})"


def _odd(proof: Proof, usual: str) -> str:
    if not usual or not proof.digest or proof.digest == usual:
        return ""
    return (
        f"{_WHAT[proof.what]}, the same each time: digest {proof.digest}, most devices have {usual}"
    )
