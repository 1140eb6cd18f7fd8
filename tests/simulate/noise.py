"""What a healthy fabric does by itself: jitter, tails, and bursts that hit several at once."""

from __future__ import annotations

from collections import OrderedDict
from random import Random
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from tests.simulate.stream import Template

if TYPE_CHECKING:
    from preflight.fabric.samples import Backend
    from tests.simulate.stream import Rung, Stream

_KEPT_TAKES = 300


class Rare(Struct, frozen=True):
    """Rare long operations of a healthy part: how often, and how long (log-normal)."""

    rate: float
    """Per operation, or per second, as its user says."""
    median_us: float
    log_sd: float


class Unrest(Struct, frozen=True, kw_only=True):
    """What happens to healthy pairs beyond the jitter of single operations."""

    single: Rare = Rare(0, 0, 0)
    """Per operation: one long operation of one pair on one rail, at both ends."""
    host: Rare = Rare(0, 0, 0)
    """Per second and host: a stall that most rails of the host feel at once."""
    leaf: Rare = Rare(0, 0, 0)
    """Per second and leaf: congestion that some endpoints under a leaf feel at once."""
    pair_log_sd: float = 0.0
    """Of one path on one rail in one round."""
    spot_log_sd: float = 0.0
    """Of an endpoint, in all its rounds: no two NICs are alike."""
    hop_us: float = 0.0
    """What a spine between two leaves adds to each operation."""


def drawn(*of: object) -> Random:
    """Numbers that follow from names and seeds alone: the same in every process."""
    return Random(" ".join(map(str, of)))  # noqa: S311 - a simulation keeps no secrets


class Noise(Protocol):
    """A kind of fabric: its program, its healthy samples, and figures that judge power."""

    @property
    def name(self) -> str:
        """As results call it."""

    @property
    def backend(self) -> Backend:
        """As samples have it: gloo or nccl."""

    @property
    def net(self) -> str:
        """What carries a rail, with {rail} in it."""

    @property
    def program(self) -> tuple[Rung, ...]:
        """What each pair runs, in this order."""

    @property
    def lanes(self) -> int:
        """How many pairs that ran at the same time one take holds."""

    @property
    def unrest(self) -> Unrest:
        """What is added to the takes."""

    def take(self, random: Random) -> tuple[tuple[Stream, ...], ...]:
        """Healthy streams: by lane, by rung. Lanes of one take share their bursts."""

    def wire_us(self, size_bytes: int) -> float:
        """The part of an operation's time that bandwidth decides."""

    def typical_us(self, size_bytes: int) -> float:
        """How long a healthy operation takes."""

    def log_sd(self, size_bytes: int) -> float:
        """How far medians of healthy pairs lie apart by the takes alone, in log time."""

    def tail(self, size_bytes: int, over_us: float) -> float:
        """Share of a take's operations that last longer than that at either end."""

    def dispersion(self, over_us: float) -> float:
        """Variance of how many such operations a pair has, over its mean: 1 where none cluster."""


class Pool:
    """Takes by number, each made from the seed and its number alone; the last ones are kept."""

    def __init__(self, noise: Noise, seed: int, size: int = 256) -> None:
        self.noise, self.size = noise, size
        self._seed = seed
        self._kept: OrderedDict[int, tuple[tuple[Template, ...], ...]] = OrderedDict()

    def take(self, number: int) -> tuple[tuple[Template, ...], ...]:
        """Templates by lane, by rung."""
        found = self._kept.get(number)
        if found is None:
            random = drawn(self.noise.name, self._seed, number)
            found = tuple(tuple(map(Template, lane)) for lane in self.noise.take(random))
            self._kept[number] = found
            if len(self._kept) > _KEPT_TAKES:
                self._kept.popitem(last=False)
        return found
