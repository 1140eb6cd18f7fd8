"""What one run leaves behind, as plain values, by GPU and by node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from preflight.errors import UsageError

if TYPE_CHECKING:
    from preflight.history.coverage_file import Past


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
