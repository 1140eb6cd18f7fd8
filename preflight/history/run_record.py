"""What a run leaves in a history, and what a history answers, as frozen values without a database.

Times are seconds since 1970 (UTC). `nights` counts runs: a fleet checked twice in one night has
two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from preflight.errors import UsageError

State = Literal["ready", "flaky", "not_ready", "unjudged"]
"""The state of a node in one run. `flaky`: all results that count against it are flaky."""

BAD: tuple[State, ...] = ("not_ready", "flaky")
"""The states in which a node is not ready."""

LONGEST_SENTENCE = 240
"""Characters stored of a sentence; the run's own report has all of it."""

LONGEST_WORD = 128
"""Characters stored of a UUID, a model or a condition: a node may send anything."""

DIGITS = 4
"""Digits stored of a measured number: the smallest effect that any check judges is 5 %."""


class Slot(Struct, frozen=True, kw_only=True):
    """The slot of a GPU in that night."""

    slot: int
    """NVML's number."""
    uuid: str
    model: str = ""


class Machine(Struct, frozen=True, kw_only=True):
    """A node that took part."""

    name: str
    state: State
    serial: str = ""
    """Serial number of its board; empty if not reported: then its name identifies it."""
    gpus: tuple[Slot, ...] | None = None
    """None if not reported: then no GPU is taken to have moved."""


class NightFinding(Struct, frozen=True, kw_only=True):
    """One check and component that is not fine."""

    check: str
    about: str
    """"gpu041", "pair gpu041-gpu042", "fleet:all", or a part of the fabric: "leaf s1"."""
    outcome: str
    sentence: str
    nodes: tuple[str, ...] = ()
    """The nodes that it makes or may make not ready; its subject if there are none."""
    is_node_or_pair: bool = True
    """Whether `about` names a node or a pair: it may be in several fleets."""


class Numbers(Struct, frozen=True, kw_only=True):
    """One measure of one node: a number for each of its units."""

    node: str
    measure: str
    """With its unit: "gemm_tflops", "allreduce_gbs"."""
    under: str
    """The conditions under which two nights are comparable: "cuda, torch 2.4.1, deep"."""
    units: tuple[str, ...]
    """"GPU 5", "rail 2", "NUMA node 0", "mlx5_3"."""
    values: tuple[float | None, ...]


class PairCoverage(Struct, frozen=True, kw_only=True):
    """Pairs of nodes and of leaf switches: all, measured tonight, measured in any night."""

    pairs: int
    pairs_run: int
    pairs_known: int
    leaf_pairs: int = 0
    leaf_pairs_run: int = 0
    leaf_pairs_known: int = 0


class Night(Struct, frozen=True, kw_only=True):
    """One run."""

    run: str
    """Its nonce, as in report.json."""
    started_s: float
    """Seconds since 1970, by the controller's clock."""
    seconds: float
    tier: str
    leaves: dict[str, str] = {}
    """Node name → its leaf switch, if known."""
    machines: tuple[Machine, ...]
    findings: tuple[NightFinding, ...] = ()
    fine: dict[str, frozenset[str]] = {}
    """By check, the subjects that were checked and are fine: nodes, pairs, and their nodes."""
    numbers: tuple[Numbers, ...] = ()
    folded: str = ""
    """The nodes' names, folded."""
    sweep: str = ""
    """The id of the sweep of which it is a wave; empty for a single run."""

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes of the run, in order."""
        return tuple(machine.name for machine in self.machines)


CoverageUpdate = Callable[["Past"], tuple["Past", PairCoverage | None]]
"""Adds a run's rounds to its fleet's past, called when the run is written; returns also the new
past's coverage, None if no pairs were measured."""


def no_coverage_update(past: Past) -> tuple[Past, PairCoverage | None]:
    """The update of a run that measured no pairs: the past stays."""
    return past, None


DEVICE_MEASURES = frozenset({"gemm_tflops", "sustained_tflops", "memory_gbs"})
"""Measures that move with a GPU; all others depend on its slot, too."""

_GPU = "GPU "


def unit_key(owner: str, measure: str, unit: str, under: str) -> str:
    """Name one series. `owner`: the GPU's UUID or the node's name; `unit`: the rest of its name."""
    return f"{owner} {measure} {unit} ({under})"


def split_gpu_unit(unit: str) -> tuple[str, str] | None:
    """A unit's GPU and the rest of its name: "GPU 5 with NUMA node 1" → ("5", "with NUMA node 1").

    None for a unit of no GPU, and for a path between two GPUs.
    """
    if not is_gpu_unit(unit):
        return None
    slot, _, rest = unit.removeprefix(_GPU).partition(" ")
    return None if rest.startswith("to ") else (slot, rest)


def is_gpu_unit(unit: str) -> bool:
    """Whether a unit belongs to a GPU."""
    return unit.startswith(_GPU)


class HistoryError(UsageError):
    """A history that is locked, damaged, read-only, full, or of another version: one line.

    A run goes on without the history; the `history` command prints the line and ends.
    """


Pairing = tuple[str, str]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]
Seconds = Annotated[float, Meta(ge=0, le=1e7)]
Speed = Annotated[float, Meta(gt=0, le=1e6)]
"""GB/s."""


class RoundRecord(Struct, frozen=True):
    """The last time a round was measured."""

    run: Annotated[int, Meta(ge=1, le=1 << 40)]
    """The number of that run, counted for this fleet."""
    pairs: Count
    """How many of its pairs were measured; pairs of a node that was down are not counted."""


class Cost(Struct, frozen=True):
    """How long a sweep took, to fit the next one into its budget."""

    round_s: Seconds
    """One round."""
    other_s: Seconds
    """Everything else: logging in, facts, importing torch."""


class Past(Struct, frozen=True, kw_only=True):
    """All that a planner needs to know; empty for a fleet that was never swept."""

    runs: Count = 0
    done: dict[int, RoundRecord] = {}
    """By the round's number."""
    suspects: tuple[Pairing, ...] = ()
    """Pairs that were bad in their last measurement."""
    costs: dict[str, Cost] = {}
    """By tier."""
    speeds: dict[str, tuple[Speed, ...]] = {}
    """For a fleet too small for peers: speeds of each pair and rail in its latest runs."""
    units: dict[str, tuple[float, ...]] = {}
    """For devices that may have no peers: what each reached in its latest runs, in the unit of its
    measure, by `unit_key`. Read from the nights' rows, never stored here."""


def damaged(what: str, reason: str) -> HistoryError:
    """The error for a part of a history that cannot be read."""
    return HistoryError(
        f"the history's {what} are damaged ({reason}); move it away to start a new one, or give "
        "another folder: --preflight-history=DIR"
    )


def read_past(text: str) -> Past:
    """Decode a fleet's stored rounds; HistoryError if they are damaged."""
    try:
        return msgspec.json.decode(text, type=Past) if text else Past()
    except (ValueError, RecursionError) as error:
        raise damaged("rounds", str(error)) from error


def fleet_key(nodes: Sequence[str], leaves: Mapping[str, str]) -> str:
    """Name a fleet: the same nodes on the same leaves have the same round numbers."""
    import hashlib  # it loads OpenSSL, which a prolog never needs

    rows = (f"{name}\t{leaves.get(name, '')}\n" for name in sorted(nodes))
    return hashlib.sha256("".join(rows).encode()).hexdigest()[:32]


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
    """Its last outcome: fail, flaky, unknown, warn, waived, broken, missing."""
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
