"""What one run leaves behind as plain values, and `coverage.json`: what was measured of a fleet.

`coverage.json` holds node names, round numbers and durations. A wrong number in it can only change
which pairs are measured first.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

from preflight.core.files import read_regular
from preflight.errors import UsageError
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


State = Literal["ready", "flaky", "unfit", "unjudged"]
"""Of a node in one run. `flaky`: nothing but k of n tries stands against it."""

BAD: tuple[State, ...] = ("unfit", "flaky")
"""Of these, the ones in which a node is not ready."""

LONGEST = 240
"""Characters of a sentence that are kept; the whole one is in the run's own report."""

LONGEST_WORD = 128
"""Characters of a UUID, a model, or a condition that are kept: a node may say anything."""

DIGITS = 4
"""Of a measured number that are kept: the least effect that is ever judged is 5 %."""


class Slot(Struct, frozen=True, kw_only=True):
    """Where a GPU sat that night."""

    slot: int
    """NVML's number."""
    uuid: str
    model: str = ""


class Machine(Struct, frozen=True, kw_only=True):
    """A node that took part."""

    name: str
    state: State
    serial: str = ""
    """Of its board; empty where it was not told, and then its name stands for it."""
    gpus: tuple[Slot, ...] | None = None
    """None where they were not told: then nothing has moved."""


class Found(Struct, frozen=True, kw_only=True):
    """Whatever is not fine, once per check and component; `verdicts` say the same of it."""

    check: str
    about: str
    """"gpu041", "pair gpu041-gpu042", "fleet:all", or what a sweep blames: "leaf s1"."""
    outcome: str
    sentence: str
    nodes: tuple[str, ...] = ()
    """Those that it condemns, or may; its subject where it condemns nobody."""
    verdicts: int = 1
    own: bool = True
    """Whether `about` is a node or a pair: another fleet that holds it speaks of the same one."""


class Numbers(Struct, frozen=True, kw_only=True):
    """One measure of one node: a number for each of its units."""

    node: str
    measure: str
    """With its unit: "gemm_tflops", "allreduce_gbs"."""
    under: str
    """What must be the same for two nights to be compared: "cuda, torch 2.4.1, deep"."""
    units: tuple[str, ...]
    """"GPU 5", "rail 2", "NUMA node 0", "mlx5_3"."""
    values: tuple[float | None, ...]


class Covered(Struct, frozen=True, kw_only=True):
    """Pairs of nodes, and of leaf switches: measured tonight, and in all nights of this fleet."""

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
    """The version that judged."""
    leaves: dict[str, str] = {}
    """Node name → its leaf switch, of those of which it is known."""
    machines: tuple[Machine, ...]
    found: tuple[Found, ...] = ()
    fine: dict[str, frozenset[str]] = {}
    """By check, whatever was judged and is fine: nodes, pairs, and who is in such a pair."""
    counts: dict[str, dict[str, int]] = {}
    """By check and outcome, how many verdicts there were."""
    numbers: tuple[Numbers, ...] = ()
    folded: str = ""
    """The nodes' names, folded."""
    sweep: str = ""
    """Of which sweep it is a wave, by that sweep's id; empty for a run by itself."""

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes of the run, in its order."""
        return tuple(one.name for one in self.machines)


class Swept(Protocol):
    """Adds a run's rounds to what is known of its fleet, at the moment of writing it down."""

    def __call__(self, past: Past, /) -> tuple[Past, Covered | None]:
        """Return what is known then, and how much that covers; None if no pairs were measured."""
        ...


def unswept(past: Past) -> tuple[Past, Covered | None]:
    """Of a run that measured no pairs: nothing new is known of them."""
    return past, None


OF_DEVICES = frozenset({"gemm_tflops", "sustained_tflops", "memory_gbs"})
"""What a GPU takes along when it moves; all else is its slot's, too, and counts where it is."""

_GPU = "GPU "


def unit_key(owner: str, measure: str, unit: str, under: str) -> str:
    """Name one series. `owner`: the GPU's UUID, or the node's name; `unit`: what is left of it."""
    return f"{owner} {measure} {unit} ({under})"


def of_slot(unit: str, slot: int) -> str | None:
    """What a unit's name says beside its GPU: "GPU 5 with NUMA node 1" is "with NUMA node 1".

    None for what is not that GPU's, or is a way between two.
    """
    own = f"{_GPU}{slot}"
    if unit == own:
        return ""
    if unit.startswith(f"{own} ") and not unit.startswith(f"{own} to "):
        return unit.removeprefix(f"{own} ")
    return None


def of_gpu(unit: str) -> bool:
    """Whether a unit is some GPU's."""
    return unit.startswith(_GPU)


class HistoryError(UsageError):
    """Locked, damaged, read-only, full, or written by a newer preflight: said in one line.

    A run goes on without it; the `history` command has nothing else to tell and ends with it.
    """


Pairing = tuple[str, str]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]
Seconds = Annotated[float, Meta(ge=0, le=1e7)]
Speed = Annotated[float, Meta(gt=0, le=1e6)]
"""GB/s."""


class Done(Struct, frozen=True):
    """The last time a round was measured."""

    run: Annotated[int, Meta(ge=1, le=1 << 40)]
    """The how-many-th run of this fleet that was."""
    pairs: Count
    """How many of its pairs were measured; those of a node that was down were not."""


class Cost(Struct, frozen=True):
    """How long a sweep took, so that the next one is as long as its budget."""

    round_s: Seconds
    """One round."""
    other_s: Seconds
    """All that is no round: logging in, facts, importing torch."""


class Past(Struct, frozen=True, kw_only=True):
    """All that a planner wants to know; empty for a fleet that was never swept."""

    runs: Count = 0
    done: dict[int, Done] = {}
    """By the round's number."""
    suspects: tuple[Pairing, ...] = ()
    """Pairs that were bad when they were last measured."""
    costs: dict[str, Cost] = {}
    """By tier."""
    speeds: dict[str, tuple[Speed, ...]] = {}
    """Of a fleet too small for peers: what each pair reached on each rail in its latest runs."""
    units: dict[str, tuple[float, ...]] = {}
    """Of devices that may have no peers: what each reached in its latest runs, in the unit of its
    measure (`history.units.unit_key`). Read from the nights themselves, never kept here."""


SCHEMA = 1
NAME = "coverage.json"
LARGEST = 16 << 20
"""Bytes; a fleet of 4,096 nodes of which every round was measured takes 100 KiB."""

MOST_FLEETS = 64
"""Fleets that are remembered; the one that was swept longest ago is forgotten first."""


class KnownFleet(Struct, frozen=True, kw_only=True):
    """One fleet."""

    nodes: str
    """Folded, for whoever reads the file."""
    past: Past


class Coverage(Struct, frozen=True, kw_only=True):
    """The whole file: by fleet, the one that was swept last at the end."""

    schema: Annotated[int, Meta(ge=SCHEMA, le=SCHEMA)]
    fleets: dict[str, KnownFleet] = {}

    def past(self, nodes: Sequence[str], leaves: Mapping[str, str]) -> Past:
        """What is known of this very fleet; empty if it was never swept."""
        kept = self.fleets.get(fleet_key(nodes, leaves))
        return kept.past if kept else Past()

    def having(self, nodes: Sequence[str], leaves: Mapping[str, str], past: Past) -> Coverage:
        """Return the file with this fleet's past in the place of what it held."""
        key = fleet_key(nodes, leaves)
        others = [(each, kept) for each, kept in self.fleets.items() if each != key]
        own = KnownFleet(nodes=fold(nodes), past=past)
        return Coverage(schema=SCHEMA, fleets=dict([*others[1 - MOST_FLEETS :], (key, own)]))

    def encode(self) -> bytes:
        """The file's content."""
        return msgspec.json.encode(self) + b"\n"


def read_coverage(folder: Path) -> Coverage:
    """Read a history folder; UsageError if the file is damaged, too large, or no file of ours."""
    path = folder / NAME
    try:
        return msgspec.json.decode(read_regular(path, LARGEST), type=Coverage)
    except FileNotFoundError:
        return Coverage(schema=SCHEMA)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot use the history {path}: {reason}; move it away to begin anew, "
            "or give another folder: --preflight-history=DIR"
        ) from error


def fleet_key(nodes: Sequence[str], leaves: Mapping[str, str]) -> str:
    """Name a fleet: the same nodes on the same leaves have their rounds numbered alike."""
    rows = (f"{name}\t{leaves.get(name, '')}\n" for name in sorted(nodes))
    return hashlib.sha256("".join(rows).encode()).hexdigest()[:32]
