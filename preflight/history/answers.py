"""What a history tells, as frozen values: reports and commands need no database to show them.

Times are seconds since 1970 (UTC). `nights` counts runs: a fleet that is judged twice in one night
has two.
"""

from __future__ import annotations

from msgspec import Struct

from preflight.history.run_record import Covered


class Ran(Struct, frozen=True, kw_only=True):
    """One run that is remembered."""

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
    """So many were not ready at once that one shared cause is likelier than that many faults: in
    this run, or in all waves of its sweep together."""
    sweep: str = ""
    """Of which sweep it is a wave; empty for a run by itself."""
    covered: Covered | None = None
    """None where no pairs were measured."""


class Episode(Struct, frozen=True, kw_only=True):
    """One finding, from the night of its first sight to the one in which it was gone."""

    check: str
    about: str
    """"gpu041", "pair gpu041-gpu042", "fleet:all", or what a sweep blames: "leaf s1"."""
    outcome: str
    """As it was last seen: fail, flaky, unknown, warn, waived, broken, lost."""
    sentence: str
    nodes: tuple[str, ...]
    """Those that it condemns or may, by the names that they have now."""
    first_s: float
    last_s: float
    nights: int
    """Runs that saw it."""
    ended_s: float | None = None
    """The run that looked and found it gone; None while nobody has."""


class Changes(Struct, frozen=True, kw_only=True):
    """What one run (or several, a sweep's waves) says that is not what the runs before said."""

    runs: tuple[Ran, ...]
    """The runs that are told of, the first one first."""
    before: Ran | None
    """The last run before them that looked at any of these nodes; without one, all is new."""
    new: tuple[Episode, ...] = ()
    still: tuple[Episode, ...] = ()
    recovered: tuple[Episode, ...] = ()
    """Judged again, and fine."""
    unseen: tuple[Episode, ...] = ()
    """Not mended as far as anybody knows: their nodes took part, but nobody looked again."""


class Point(Struct, frozen=True):
    """One night's number."""

    started_s: float
    value: float


class Trend(Struct, frozen=True, kw_only=True):
    """One unit of a node, or one GPU wherever it sat, over the nights."""

    measure: str
    """With its unit: "gemm_tflops", "allreduce_gbs", "allreduce_p50_us"."""
    unit: str
    """"GPU 5", "rail 2", "NUMA node 0", "mlx5_3"; of a GPU that moved, the slot it is in now."""
    under: str
    """What was the same in all these nights: "cuda, torch 2.4.1, driver 550.54"."""
    points: tuple[Point, ...]
    """The oldest one first."""


class Seat(Struct, frozen=True, kw_only=True):
    """Where a GPU sat, and since when."""

    uuid: str
    model: str
    node: str
    slot: int
    since_s: float
    until_s: float | None = None


class Standing(Struct, frozen=True, kw_only=True):
    """How often a node was not ready."""

    node: str
    serial: str
    """Empty where it never told one: its name stands for it."""
    judged: int
    """Runs that judged it, without those that are `systemic`."""
    bad: int
    """Of these, runs in which it was not ready."""
    flaky: int
    """Of the bad ones, those in which nothing but k of n tries stood against it."""
    last_bad_s: float | None = None
    checks: tuple[tuple[str, int], ...] = ()
    """What stood against it and in how many runs, the most frequent first."""


class NodePast(Struct, frozen=True, kw_only=True):
    """All that is known of one node."""

    standing: Standing
    first_s: float
    last_s: float
    seats: tuple[Seat, ...] = ()
    """Its GPUs, those that it lost after those that it has."""
    episodes: tuple[Episode, ...] = ()
    """What is open first, then what ended last."""
    trends: tuple[Trend, ...] = ()
    namesakes: tuple[str, ...] = ()
    """Serial numbers of other machines that bore its name before."""


class GpuPast(Struct, frozen=True, kw_only=True):
    """One GPU, wherever it sat."""

    uuid: str
    model: str
    seats: tuple[Seat, ...]
    """The first one first."""
    episodes: tuple[Episode, ...] = ()
    """What stood against a node while this GPU sat in it, and names its slot or UUID."""
    trends: tuple[Trend, ...] = ()
