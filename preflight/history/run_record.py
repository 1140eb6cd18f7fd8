"""The record of one run, and what a fleet's earlier runs measured, as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


State = Literal["ready", "flaky", "not_ready", "unjudged"]
"""The state of a node in one run. `flaky`: only flaky results count against it."""

BAD: tuple[State, ...] = ("not_ready", "flaky")
"""The states in which a node is not ready."""

LONGEST = 240
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
    """One check and component that is not fine, and the number of its `verdicts`."""

    check: str
    about: str
    """"gpu041", "pair gpu041-gpu042", "fleet:all", or a part of the fabric: "leaf s1"."""
    outcome: str
    sentence: str
    nodes: tuple[str, ...] = ()
    """The nodes that it makes or may make not ready; its subject if there are none."""
    verdicts: int = 1
    own: bool = True
    """Whether `about` is a node or a pair: another fleet with it has the same finding."""


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
    preflight: str
    """The version of preflight."""
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
        return tuple(one.name for one in self.machines)


class CoverageUpdate(Protocol):
    """Adds a run's rounds to its fleet's past, called when the run is written."""

    def __call__(self, past: Past, /) -> tuple[Past, PairCoverage | None]:
        """Return the new past and its coverage; None if no pairs were measured."""
        ...


def no_coverage_update(past: Past) -> tuple[Past, PairCoverage | None]:
    """The update of a run that measured no pairs: the past stays."""
    return past, None


OF_DEVICES = frozenset({"gemm_tflops", "sustained_tflops", "memory_gbs"})
"""Measures that move with a GPU; all others depend on its slot, too."""

_GPU = "GPU "


def unit_key(owner: str, measure: str, unit: str, under: str) -> str:
    """Name one series. `owner`: the GPU's UUID or the node's name; `unit`: the rest of its name."""
    return f"{owner} {measure} {unit} ({under})"


def slot_of(unit: str) -> tuple[str, str] | None:
    """A unit's GPU and the rest of its name: "GPU 5 with NUMA node 1" → ("5", "with NUMA node 1").

    None for a unit of no GPU, and for a path between two GPUs.
    """
    if not of_gpu(unit):
        return None
    slot, _, rest = unit.removeprefix(_GPU).partition(" ")
    return None if rest.startswith("to ") else (slot, rest)


def of_slot(unit: str, slot: int) -> str | None:
    """The rest of a unit's name after its GPU; None for a unit of another GPU or of none."""
    own = slot_of(unit)
    return own[1] if own is not None and own[0] == str(slot) else None


def of_gpu(unit: str) -> bool:
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


def read_past(text: str) -> Past:
    """Decode a fleet's stored rounds; HistoryError if they are damaged."""
    try:
        known: Past = msgspec.json.decode(text, type=Past) if text else Past()
    except (ValueError, RecursionError) as error:
        raise HistoryError(
            f"the history's rounds are damaged ({error}); move it away to start a new one, or give "
            "another folder: --preflight-history=DIR"
        ) from error
    else:
        return known


def fleet_key(nodes: Sequence[str], leaves: Mapping[str, str]) -> str:
    """Name a fleet: the same nodes on the same leaves have the same round numbers."""
    import hashlib  # it loads OpenSSL, which a prolog never needs

    rows = (f"{name}\t{leaves.get(name, '')}\n" for name in sorted(nodes))
    return hashlib.sha256("".join(rows).encode()).hexdigest()[:32]
