"""Small fabrics made by hand, with faults put where a test wants them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from preflight.fabric.observed import Digest, Observed, PairResult, Standout
from preflight.fabric.schedule import circle_rounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.fabric.samples import PairState

    Where = Callable[[str, str, int], bool]

SIZES = {8: 20.0, 1 << 20: 30.0, 64 << 20: 1400.0}
"""Bytes, and what they take on a healthy rail, microseconds."""


def never(a: str, b: str, rail: int) -> bool:
    """Nowhere."""
    del a, b, rail
    return False


@dataclass
class Made:
    """`Made(nodes=8, rails=2, slow=lambda a, b, rail: "n3" in (a, b)).observed()`."""

    nodes: int = 8
    rails: int = 1
    slow: Where = never
    factor: float = 1.3
    late: str = ""
    """A host that begins some operations 10 ms late."""
    spiky: Where = never
    spikes: int = 5
    apart_s: float = 1.0
    """Between two spikes."""
    one_sided: bool = False
    """Spikes show at one end only, without a gap: a loss in one direction."""
    failed: Where = never
    state: PairState = "hung"
    leaves: dict[str, str] = field(default_factory=dict)
    again: tuple[tuple[str, str], ...] = ()
    """Pairs that are measured once more, each in a round of its own."""
    operations: int = 2000
    seed: int = 1

    def observed(self) -> Observed:
        """What a sweep over all pairs (or the usual rounds) shows."""
        noise = random.Random(self.seed)  # noqa: S311  a fabric for tests, no secret
        names = [f"n{number + 1}" for number in range(self.nodes)]
        tried: list[PairResult] = []
        digests: list[Digest] = []
        rounds = circle_rounds(names)
        for number, around in enumerate((*rounds, *((pair,) for pair in self.again))):
            for a, b in around:
                for rail in range(self.rails):
                    bad = self.failed(a, b, rail)
                    state: PairState = self.state if bad else "measured"
                    tried.append(PairResult(a=a, b=b, rail=rail, round=number, state=state))
                    if not bad:
                        digests += self._sizes(a, b, rail, number, noise)
        return Observed(
            nodes=tuple(names),
            backend="nccl",
            tried=tuple(tried),
            digests=tuple(digests),
            leaves=self.leaves,
            retested=len(rounds) if self.again else 0,
        )

    def _sizes(self, a: str, b: str, rail: int, number: int, noise: random.Random) -> list[Digest]:
        made: list[Digest] = []
        for size, typical_us in SIZES.items():
            slower = self.factor if size > 64 << 10 and self.slow(a, b, rail) else 1.0
            p50_us = typical_us * slower * (1 + noise.uniform(-0.02, 0.02))
            made.append(
                Digest(
                    a=a,
                    b=b,
                    rail=rail,
                    round=number,
                    size_bytes=size,
                    operations=self.operations,
                    loaded_s=self.operations * p50_us / 1e6,
                    best_us=p50_us * 0.98,
                    p50_us=p50_us,
                    p99_us=p50_us * 1.3,
                    p999_us=p50_us * 1.6,
                    most_us=p50_us * 2,
                    standouts=self._standouts(a, b, rail, p50_us) if size == 8 else (),
                    cut_us=5 * p50_us,
                )
            )
        return made

    def _standouts(self, a: str, b: str, rail: int, p50_us: float) -> tuple[Standout, ...]:
        made: list[Standout] = []
        for number in range(self.spikes):
            at_s, place = 1000.0 + self.apart_s * number, 100 * number
            if self.late in (a, b):
                first, second = (p50_us, 10_000.0) if a == self.late else (10_000.0, p50_us)
                gaps = (9_990.0, 1.0) if a == self.late else (1.0, 9_990.0)
                made.append(Standout(at_s, place, first, second, *gaps))
            if self.spiky(a, b, rail):
                other = p50_us if self.one_sided else 10_000.0
                made.append(Standout(at_s, place, 10_000.0, other, 1.0, 1.0))
        return tuple(made)
