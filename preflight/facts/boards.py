"""Tables of GPU boards and Xids, and a node's GPU matrix in a form that can be compared.

The table has only boards that are never sold without their NVLinks; a card that takes a bridge
has as many links as its buyer chose.

Each reader is a named function of the facts, so that a group can vote on it
(`Group.majority(nic_distances)`); it returns None, an abstention, for a part that is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from functools import cache
from typing import Any, Final, Literal, TypeVar

import msgspec

from preflight.core.files import shipped_table
from preflight.core.text import natural, whole
from preflight.facts.model import Facts, Gpu, Nic, read_once
from preflight.facts.node import DISTANCES, Distance, pci_distance

T = TypeVar("T")

_MAKER: Final = r"(?:NVIDIA |Tesla )*"


class Board(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of board_links.toml."""

    name: str
    links: int
    gbs: float
    """Bandwidth of all links together, one way, GB/s."""
    fabric: bool
    off_in_mig: bool
    source: str
    date: date
    parts: tuple[int, ...] = ()
    """How many links are up in a virtual machine that has only some GPUs of the `mesh`."""
    mesh: int = 0
    pcie_gen: int | None = None
    """The lowest PCIe generation of any host that it is sold in."""

    memory_gb: int | None = None
    """In units of 10**9 bytes, where the name does not contain it."""
    default_w: int | None = None
    """The lowest power limit that any such board has by default, W."""
    sizes: tuple[int, ...] = ()
    """How many of them a machine, or a rented part of one, has; () where any number is possible."""

    @property
    def link_gbs(self) -> float:
        """Bandwidth of one link, one way, GB/s."""
        return self.gbs / self.links


@cache
def boards() -> dict[str, Board]:
    """Every board whose name determines its NVLinks, by key of board_links.toml."""
    return msgspec.convert(shipped_table(__file__, "board_links.toml"), dict[str, Board])


@cache
def board(name: str) -> Board | None:
    """The board of that name; None for a card that may lack links, or an unknown one."""
    matches = (entry for entry in boards().values() if re.fullmatch(_MAKER + entry.name, name))
    return next(matches, None)


_NAMED_GB: Final = re.compile(r"(?<![\w.])(\d{1,4}) ?GB\b")


_CARDS_GB: Final = {
    "A2": 16, "A10": 24, "A10G": 24, "A16": 16, "A30": 24, "A40": 48,
    "L4": 24, "L20": 48, "L40": 48, "L40S": 48, "T4": 16,
}  # fmt: skip
"""Memory of one GPU of cards that are sold with only one size: NVIDIA's data sheets, 2026-11-26."""


_GH200_GB: Final = 96
"""The least of any; "GH200 480GB" names the memory of its CPU: data sheet, 2026-11-26."""


@cache
def named_memory_gb(name: str) -> int | None:
    """Memory of the board in units of 10**9 bytes, by its name or a table; None: not known."""
    if re.match(_MAKER + "GH200", name):
        return _GH200_GB
    if match := _NAMED_GB.search(name):
        return int(match[1])
    if (entry := board(name)) is not None:
        return entry.memory_gb
    return _CARDS_GB.get(re.sub(_MAKER, "", name, count=1))


def fully_linked_board(gpu: Gpu) -> Board | None:
    """The GPU's board, if NVML lists every link of it; with some links missing, None."""
    entry = board(gpu.name)
    return entry if entry is not None and len(gpu.links or ()) == entry.links else None


def nvlink_gbs(gpus: Sequence[Gpu], rails: int) -> float | None:
    """NVLink bandwidth of each GPU, one way, GB/s, where NVLinks join all GPUs of the node.

    With switches, any number of GPUs gets it; with direct links only all of them together, so
    `rails` must be their number. None where links are down, lead elsewhere, or are not known.
    """
    fully_linked = (fully_linked_board(gpu) for gpu in gpus if not gpu.mig_enabled)
    entries = [entry for entry in fully_linked if entry is not None]
    links = [link for gpu in gpus for link in gpu.links or ()]
    if not entries or len(entries) < len(gpus) or not all(link.up for link in links):
        return None
    switched = all(link.remote_kind == "switch" for link in links)
    bus_ids = {gpu.bus_id.lower() for gpu in gpus}
    meshed = rails == len(gpus) and all(link.remote.lower() in bus_ids for link in links)
    return min(entry.gbs for entry in entries) if switched or meshed else None


def links_must_be_up(gpu: Gpu, gpus: Sequence[Gpu]) -> bool:
    """Whether this GPU is at fault if no link is up, whatever its peers show.

    A GPU alone in a virtual machine has no peer to be linked with.
    """
    entry = fully_linked_board(gpu)
    is_alone = len(gpus) == 1 and gpu.index == 0
    return entry is not None and entry.fabric and not is_alone


_WHOLE_MACHINE: Final = 8
_FEWEST_BEHIND_SWITCHES: Final = 5
"""Up to four GPUs are also joined directly, by as many links as the maker chose."""


def has_switch(gpus: Iterable[Gpu]) -> bool:
    """Whether any NVLink of these GPUs leads to an NVSwitch."""
    return any(link.remote_kind == "switch" for gpu in gpus for link in gpu.links or ())


def fewer_links_than_board(gpus: Sequence[Gpu]) -> list[str]:
    """The expected number of NVLinks of each GPU that has fewer than on any known machine.

    "18 on its board", "6, 8, 12 or 18 on known boards behind switches"; "" where nothing is wrong
    or nothing is known: a virtual machine may have only some GPUs, and lack the links to the
    others.
    """
    counts = [up_links(gpu) for gpu in gpus]
    switched = has_switch(gpus)
    size = max([len(gpus), *(gpu.index + 1 for gpu in gpus)])
    same_counts = not switched and len(set(counts)) == 1
    numbers = sorted({entry.links for entry in boards().values()})
    listed = f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"

    def expected_links(gpu: Gpu, up: int | None) -> str:
        entry = board(gpu.name)
        if up is None or (entry is None and gpu.name):
            return ""
        if entry is None:
            is_small = not switched or size < _FEWEST_BEHIND_SWITCHES
            return "" if is_small or up in numbers else f"{listed} on known boards behind switches"
        is_alone = up == 0 and size == 1
        is_unlinked = not gpu.links and size < _WHOLE_MACHINE
        is_part = same_counts and up in entry.parts and size <= entry.mesh // 2
        is_complete = up >= entry.links or is_alone or is_unlinked or is_part
        return "" if is_complete else f"{entry.links} on its board"

    return list(map(expected_links, gpus, counts))


def links_may_be_off(gpu: Gpu) -> bool:
    """Whether MIG may have switched the GPU's links off: NVML does not report if MIG is on."""
    entry = fully_linked_board(gpu)
    return entry is None or (entry.off_in_mig and gpu.mig_enabled is None)


Codes = tuple[tuple[int, int, str], ...]
"""(a, b, code) for every pair of GPUs a < b, in nvidia-smi's words."""

_SHORT_BUS_ID: Final = 12


def up_links(gpu: Gpu) -> int | None:
    """How many NVLinks of a GPU are up; None where NVML did not answer."""
    return None if gpu.links is None else [link.up for link in gpu.links].count(True)


def link_counts(facts: Facts) -> tuple[int, ...] | None:
    """NVLinks that are up, per GPU; None if a number is not known or MIG switches links off."""
    counts = [None if gpu.mig_enabled else up_links(gpu) for gpu in facts.gpus or ()]
    known = tuple(count for count in counts if count is not None)
    return known if known and len(known) == len(counts) else None


class LinkEnds:
    """The far ends of one GPU's active NVLinks, counted once for all its pairs."""

    def __init__(self, gpu: Gpu) -> None:
        active = [link for link in gpu.links or () if link.up]
        self._bus_id = _short_bus_id(gpu.bus_id)
        self._switched = [link.remote_kind for link in active].count("switch")
        direct = [link.remote for link in active if link.remote_kind != "switch"]
        self._direct_ends = [_short_bus_id(remote) for remote in direct if remote]

    def links_to(self, other: LinkEnds) -> int:
        """Active NVLinks to `other`, through a switch or directly (the # of NV#)."""
        return self._direct_ends.count(other._bus_id) + min(self._switched, other._switched)


def link_ends(gpus: Iterable[Gpu]) -> dict[int, LinkEnds]:
    """The far ends of each GPU's NVLinks, by its index."""
    return {gpu.index: LinkEnds(gpu) for gpu in gpus}


@read_once
def gpu_codes(facts: Facts) -> Codes | None:
    """NVML's own matrix: NV# where NVLinks join two GPUs, else their PCI distance."""
    codes = reported_codes(facts)
    indexes = {gpu.index for gpu in facts.gpus or ()}
    pairs = sum(pair.a in indexes and pair.b in indexes for pair in facts.gpu_pairs or ())
    return codes if codes and len(codes) == pairs else None


def reported_codes(facts: Facts) -> Codes:
    """The matrix of `gpu_codes`, but only the pairs whose connection NVML reports."""
    gpus = facts.gpus or ()
    ends = link_ends(gpus)
    # Where other GPUs have NVLinks, one without a list of links or a bus ID may be at their ends.
    linked = any(map(up_links, gpus))
    unreported = {gpu.index for gpu in gpus if linked and (gpu.links is None or not gpu.bus_id)}
    codes = []
    for pair in facts.gpu_pairs or ():
        if pair.a in ends and pair.b in ends:
            links = ends[pair.a].links_to(ends[pair.b])
            code = f"NV{links}" if links else pair.ancestor
            if code != "unknown" and (links or not {pair.a, pair.b} & unreported):
                codes.append((pair.a, pair.b, code))
    return tuple(codes)


def nearest_nics(gpu: Gpu, nics: tuple[Nic, ...]) -> list[str]:
    """Names of all NICs at the shortest distance from a GPU."""
    distances = _distances(gpu, nics)
    nearest = _shortest(distances)
    names = (nic.name for nic, path in zip(nics, distances, strict=True) if path == nearest)
    return sorted(names, key=natural)


def _distances(gpu: Gpu, nics: tuple[Nic, ...]) -> list[Distance]:
    return [pci_distance(gpu.pci_path, nic.pci_path, gpu.numa, nic.numa) for nic in nics]


def _shortest(distances: list[Distance]) -> Distance:
    return min(set(distances), key=DISTANCES.index, default=DISTANCES[-1])


@read_once
def nic_distances(facts: Facts) -> tuple[Distance, ...] | None:
    """Distance of each GPU's nearest NIC; None without NICs or where a path is not known."""
    if any(nic.pci_path == () for nic in facts.nics or ()):
        return None  # it could not be read, and may be the nearest one
    distances = tuple(_shortest(_distances(gpu, facts.nics or ())) for gpu in facts.gpus or ())
    return distances if distances and "unknown" not in distances else None


@read_once
def gpu_models(facts: Facts) -> frozenset[str]:
    """The models of a node's GPUs."""
    return frozenset(gpu.name for gpu in facts.gpus or () if gpu.name)


@cache
def among(read: Callable[[Facts], T | None], models: frozenset[str]) -> Callable[[Facts], T | None]:
    """The reader by which only nodes with GPUs of these models vote: a group may have several.

    Without a model, as on a node that lost all of its GPUs, every node votes.
    """
    return lambda facts: read(facts) if not models or gpu_models(facts) == models else None


def numa_nodes(facts: Facts) -> tuple[int | None, ...] | None:
    """NUMA node of each GPU."""
    nodes = tuple(gpu.numa for gpu in facts.gpus or ())
    return nodes if any(node is not None for node in nodes) else None


def _short_bus_id(bus_id: str) -> str:
    """Normalize a bus ID: tools print four or eight digits of PCI domain, in either case."""
    return bus_id[-_SHORT_BUS_ID:].lower()


Grade = Literal["fatal", "reset", "configurable", "application", "notice"]
GRADES: tuple[Grade, ...] = ("fatal", "reset", "configurable", "application", "notice")
"""The gravest first."""


class XidInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of `xids.toml`."""

    grade: Grade = msgspec.field(name="class")
    meaning: str
    advice: str
    source: str = ""
    """A key of the table's sources."""
    codes: tuple[int, ...] = ()
    worded: bool = False
    """The word "Fatal" or "Nonfatal" in the log line decides the grade."""


_UNKNOWN_XID: Final = XidInfo(
    "configurable", "not in preflight's catalog", "look it up in NVIDIA's Xid catalog"
)


@cache
def _xid_table() -> dict[str, Any]:
    return shipped_table(__file__, "xids.toml")


@cache
def recovery_xids() -> frozenset[int]:
    """The codes after which NVML's recovery action shows whether the GPU still needs a reset."""
    return frozenset(_xid_table()["in_recovery_action"])


@cache
def advice_on_one_tpc() -> str:
    """The advice for a program's exception that recurs on one TPC of a GPU."""
    return str(_xid_table()["again_on_one_tpc"]["advice"])


@cache
def catalog() -> dict[int, XidInfo]:
    """Every code of `xids.toml`."""
    entries = msgspec.convert(_xid_table()["xid"], list[XidInfo])
    return {code: entry for entry in entries for code in entry.codes}


def xid_info(code: int) -> XidInfo:
    """The entry of a code; an unknown code gets the advice to look it up."""
    return catalog().get(code, _UNKNOWN_XID)


def explain_xid(text: str) -> str:
    """Append the meaning to an Xid counted around a load: "Xid 79 0000:1b:00 (...)"."""
    word, _, rest = text.partition(" ")
    code = whole(rest.partition(" ")[0]) if word == "Xid" else None
    return text if code is None else f"{text} ({xid_info(code).meaning})"
