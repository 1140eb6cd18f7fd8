"""The answers of a history as frozen values: reports and commands show them without a database.

Times are seconds since 1970 (UTC). `nights` counts runs: a fleet checked twice in one night has
two.
"""

from __future__ import annotations

from msgspec import Struct

from preflight.history.run_record import PairCoverage


class PastRun(Struct, frozen=True, kw_only=True):
    """One run in the history."""

    id: int
    """Rises from run to run."""
    run: str
    """Its nonce, as in report.json."""
    fleet: str
    """The nodes, folded."""
    started_s: float
    seconds: float
    tier: str
    nodes: int
    ready: int
    not_ready: int
    systemic: bool
    """So many nodes were not ready at once that one shared cause is likelier than that many faults:
    in this run, or in all waves of its sweep together."""
    sweep: str = ""
    """The sweep of which it is a wave; empty for a single run."""
    covered: PairCoverage | None = None
    """None if no pairs were measured."""


class Episode(Struct, frozen=True, kw_only=True):
    """One finding, from the first night that had it to the night in which it was gone."""

    check: str
    about: str
    """"gpu041", "pair gpu041-gpu042", "fleet:all", or a part of the fabric: "leaf s1"."""
    outcome: str
    """Its last outcome: fail, flaky, unknown, warn, waived, broken, lost."""
    sentence: str
    nodes: tuple[str, ...]
    """The nodes that it makes or may make not ready, by their present names."""
    first_s: float
    last_s: float
    nights: int
    """Runs that found it."""
    ended_s: float | None = None
    """When a run checked again and found it gone; None until then."""


class Changes(Struct, frozen=True, kw_only=True):
    """How one run (or the waves of a sweep) differs from the runs before."""

    runs: tuple[PastRun, ...]
    """The runs that are compared, oldest first."""
    before: PastRun | None
    """The last earlier run that checked any of these nodes; if None, everything is new."""
    new: tuple[Episode, ...] = ()
    still: tuple[Episode, ...] = ()
    recovered: tuple[Episode, ...] = ()
    """Checked again and fine."""
    unseen: tuple[Episode, ...] = ()
    """Not known to be repaired: their nodes took part, but the check did not run again."""


class Point(Struct, frozen=True):
    """The number of one night."""

    started_s: float
    value: float


class Trend(Struct, frozen=True, kw_only=True):
    """One unit of a node, or one GPU in whatever slots it was, over the nights."""

    measure: str
    """With its unit: "gemm_tflops", "allreduce_gbs", "allreduce_p50_us"."""
    unit: str
    """"GPU 5", "rail 2", "NUMA node 0", "mlx5_3"; for a GPU that moved, its present slot."""
    under: str
    """The conditions of all these nights: "cuda, torch 2.4.1, driver 550.54"."""
    points: tuple[Point, ...]
    """Oldest first."""


class GpuPlacement(Struct, frozen=True, kw_only=True):
    """The node and slot of a GPU, and since when."""

    uuid: str
    model: str
    node: str
    slot: int
    since_s: float
    until_s: float | None = None


class NodeRecord(Struct, frozen=True, kw_only=True):
    """How often a node was not ready."""

    node: str
    serial: str
    """Empty if it never reported one: then its name identifies it."""
    judged: int
    """Runs that checked it, without those that are `systemic`."""
    bad: int
    """How many of these found it not ready."""
    flaky: int
    """How many of the bad ones had only flaky results."""
    last_bad_s: float | None = None
    checks: tuple[tuple[str, int], ...] = ()
    """(check, runs in which it counted against the node), most frequent first."""


class NodePast(Struct, frozen=True, kw_only=True):
    """The history of one node."""

    standing: NodeRecord
    first_s: float
    last_s: float
    seats: tuple[GpuPlacement, ...] = ()
    """Its GPUs: present ones first, then former ones."""
    episodes: tuple[Episode, ...] = ()
    """Open episodes first, then those that ended last."""
    trends: tuple[Trend, ...] = ()
    namesakes: tuple[str, ...] = ()
    """Serial numbers of other machines that had its name before."""


class GpuPast(Struct, frozen=True, kw_only=True):
    """The history of one GPU, in whatever nodes it was."""

    uuid: str
    model: str
    seats: tuple[GpuPlacement, ...]
    """Oldest first."""
    episodes: tuple[Episode, ...] = ()
    """Findings of its node at that time that name its slot or UUID."""
    trends: tuple[Trend, ...] = ()
