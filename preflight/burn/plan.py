"""How long and how large each part of a burn-in is, by tier; the node picks GPUs or CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from preflight.check import Tier
    from preflight.facts.burned import Kind


class Series(Struct, frozen=True, kw_only=True):
    """How often something is timed; each sample repeats it for about `sample_s`."""

    samples: int
    sample_s: float
    warm_s: float = 0.0


class Gemm(Series, frozen=True, kw_only=True):
    """A product of two n x n matrices."""

    n: int


class Copy(Series, frozen=True, kw_only=True):
    """A buffer of so many MiB."""

    mib: int


class Host(Series, frozen=True, kw_only=True):
    """A buffer, and a product of two n x n matrices in float32."""

    mib: int
    n: int


class Integrity(Struct, frozen=True, kw_only=True):
    """Exact n x k by k x n products, and memory patterns over a share of what is free."""

    n: int
    k: int
    products: int
    chunk_mib: int
    most_mib: int
    share: float
    patterns: int


class Launch(Struct, frozen=True, kw_only=True):
    """Samples, each the median of so many launches."""

    samples: int
    launches: int


class Sustained(Struct, frozen=True, kw_only=True):
    """A load without a break, looked at once per window."""

    n: int
    seconds: float
    window_s: float


class Nic(Struct, frozen=True, kw_only=True):
    """Runs of ib_write_bw from a NIC to itself."""

    samples: int
    seconds: int
    bytes: int
    patience_s: float


class Load(Struct, frozen=True, kw_only=True):
    """All parts for one kind of device; None leaves one out. `limit_s`: each part's deadline."""

    limit_s: dict[str, float]
    gemm: Gemm | None = None
    memory: Copy | None = None
    integrity: Integrity | None = None
    launch: Launch | None = None
    sustained: Sustained | None = None
    pcie: Copy | None = None
    p2p: Copy | None = None
    host: Host | None = None
    nic: Nic | None = None


class BurnPlan(Struct, frozen=True, kw_only=True):
    """What every node is asked; which half it does depends on what its torch sees."""

    cuda: Load
    cpu: Load

    def of(self, kind: Kind) -> Load:
        """The half for one kind of device."""
        return self.cuda if kind == "cuda" else self.cpu


_NIC = Nic(samples=2, seconds=1, bytes=65536, patience_s=10)

GPU = Load(
    limit_s={
        "open": 60, "gemm": 30, "memory": 30, "integrity": 60, "launch": 20, "sustained": 30,
        "pcie": 30, "p2p": 20, "host": 60,
    },
    gemm=Gemm(n=8192, samples=9, sample_s=0.1, warm_s=0.5),
    memory=Copy(mib=1024, samples=9, sample_s=0.05, warm_s=0.1),
    integrity=Integrity(
        n=8192, k=256, products=200, chunk_mib=256, most_mib=1 << 20, share=0.8, patterns=2
    ),
    launch=Launch(samples=9, launches=200),
    sustained=Sustained(n=8192, seconds=10, window_s=0.25),
    pcie=Copy(mib=256, samples=7, sample_s=0.02, warm_s=0.02),
    p2p=Copy(mib=256, samples=5, sample_s=0.02, warm_s=0.02),
    host=Host(mib=1024, n=4096, samples=7, sample_s=0.1, warm_s=0.1),
    nic=_NIC,
)  # fmt: skip
"""About 40 s on eight GPUs, most of it the sustained load; estimated, not timed on a fleet."""

CPU = Load(
    limit_s={
        "open": 30, "gemm": 60, "memory": 60, "integrity": 60, "launch": 60, "sustained": 60,
        "pcie": 60, "p2p": 60, "host": 60,
    },
    gemm=Gemm(n=256, samples=9, sample_s=0.03, warm_s=0.05),
    memory=Copy(mib=16, samples=9, sample_s=0.03, warm_s=0.03),
    integrity=Integrity(
        n=512, k=256, products=10, chunk_mib=8, most_mib=32, share=1.0, patterns=1
    ),
    launch=Launch(samples=9, launches=200),
    sustained=Sustained(n=256, seconds=1.0, window_s=0.1),
    host=Host(mib=64, n=512, samples=7, sample_s=0.05, warm_s=0.05),
    nic=_NIC,
)  # fmt: skip
"""CPUs that stand for devices: enough to tell one that is taken or broken, 3 s on two cores."""

LONG_S = 300.0
"""Of the sustained load in tier deep: a heat sink takes minutes to fill."""

FIXED_S: dict[Kind, float] = {"cuda": 45.0, "cpu": 10.0}
"""All but the sustained load, with torch's import: the time that is set aside for it."""

SHARE = 0.6
"""Of the time that is left, what a burn-in may take: the sweep comes after it."""


def burn_plan(tier: Tier) -> BurnPlan:
    """What a tier asks for."""
    plan = BurnPlan(cuda=GPU, cpu=CPU)
    return sustained(plan, LONG_S, cpu_s=10.0) if tier == "deep" else plan


def sustained(plan: BurnPlan, gpu_s: float, cpu_s: float) -> BurnPlan:
    """The same with another length of the sustained load."""
    return BurnPlan(cuda=_lasting(plan.cuda, gpu_s), cpu=_lasting(plan.cpu, cpu_s))


def fitting(plan: BurnPlan, left_s: float) -> BurnPlan:
    """The same with no longer a sustained load than fits into a share of the time that is left."""
    room_s = {kind: left_s * SHARE - fixed_s for kind, fixed_s in FIXED_S.items()}
    return BurnPlan(cuda=_at_most(plan.cuda, room_s["cuda"]), cpu=_at_most(plan.cpu, room_s["cpu"]))


def _at_most(load: Load, room_s: float) -> Load:
    if load.sustained is None or load.sustained.seconds <= room_s:
        return load
    return _lasting(load, max(load.sustained.window_s, room_s))


def _lasting(load: Load, seconds: float) -> Load:
    if load.sustained is None:
        return load
    limits = {**load.limit_s, "sustained": load.limit_s["sustained"] + seconds}
    return replace(load, limit_s=limits, sustained=replace(load.sustained, seconds=seconds))
