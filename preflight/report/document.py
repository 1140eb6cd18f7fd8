"""`report.json`: the run as data, versioned, complete, and written in one piece."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime
from itertools import chain
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from preflight.check import Tier, is_check_id
from preflight.core.text import plain_json
from preflight.fabric.decoding.sensitivity import SensitivityRow
from preflight.fabric.planner import Coverage
from preflight.fabric.schedule import RoundKind
from preflight.facts.basics import Count
from preflight.fleet.nodeset import check_names
from preflight.report.header import Overrides
from preflight.verdict import Outcome, makes_not_ready

_FOLDED = re.compile(r"(?!-)[A-Za-z0-9_.:%,\[\]-]*")
_TIME = re.compile("[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}(Z|[+-][0-9]{2}:[0-9]{2})")
_DEEPEST = 64
"""The deepest nesting of lists and tables."""
_MOST_BLAMED, _LONGEST = 1 << 23, 4096
"""Most culprits of all verdicts (64 nodes of a switch in 16 rounds: 1 << 16), and characters of
the names that are joined for them; characters of one name."""

SCHEMA = 2
"""Raised by a change that an older reader would misread, and not by additions."""


class FleetRow(Struct, frozen=True, kw_only=True):
    """The nodes of the run, by state."""

    nodes: tuple[str, ...]
    folded: str
    origin: str
    ready: tuple[str, ...]
    not_ready: tuple[str, ...]
    unjudged: tuple[str, ...]
    """No failure was found, but the run ended before it reached all of their expected verdicts."""
    apart: tuple[tuple[str, str], ...]
    exclude: str
    """The not-ready nodes folded, to be pasted after `--exclude=`."""
    left_out: dict[str, str] = {}
    """The unjudged nodes that a sweep left out, and why: they are in use, or drained."""
    leaves: dict[str, str] = {}
    """Node → its leaf switch, where it is known."""


class VerdictRow(Struct, frozen=True, kw_only=True):
    """One verdict on one subject."""

    check: str
    subject: str
    outcome: Outcome
    sentence: str
    advice: str
    evidence: dict[str, Any]
    blame: str = ""
    culprits: tuple[str, ...] = ()
    """The nodes at fault in place of its subject, where it names several."""
    suspects: tuple[str, ...] = ()
    """Nodes one of which is at fault, where no more is known: all of them are not ready."""
    cause: str = ""
    """Verdicts of one subject with the same cause are one finding; empty: the check itself."""
    grant: str = ""
    """What to grant, if an `unknown` only lacks a privilege or something to compare with."""

    @property
    def makes_not_ready(self) -> bool:
        """Whether this verdict makes its subject not ready."""
        return makes_not_ready(self.outcome, self.grant)


class SizeRow(Struct, frozen=True, kw_only=True):
    """One message size of one pair."""

    size_bytes: Count
    iterations: Count
    busbw_gbs: float | None
    p50_us: float
    p99_us: float
    max_us: float


class PairRow(Struct, frozen=True, kw_only=True):
    """One pair on one rail."""

    a: str
    b: str
    rail: Count
    round: Count
    backend: str
    state: str
    sizes: tuple[SizeRow, ...]
    turn: RoundKind = "scheduled"
    """Why it was measured: retests of suspects, repairs for partners of nodes that are down."""
    slow: str = ""
    """"bandwidth", "latency" or "reach", if the pair itself is slow."""
    peers_gbs: float | None = None
    limit_gbs: float | None = None
    """At the largest size that the pair reached: the median of its peers, and the limit."""
    limit_origin: str = ""


class BlameRow(Struct, frozen=True, kw_only=True):
    """One component at fault by the sweep's samples, or the set that contains it."""

    kind: str
    component: str
    sentence: str
    confidence: Annotated[float, Meta(ge=0, le=1)]
    advice: str
    pairs: tuple[str, ...]
    rail: Count | None = None
    """The rail at fault; null: all rails."""
    culprits: tuple[str, ...] = ()
    """The nodes at fault, if the component is a name for several."""


class CoverageRow(Coverage, frozen=True, kw_only=True):
    """How much of the fabric was measured; `*_known` include earlier runs of the history."""

    repairs: Count = 0
    """Pairs outside the scheduled rounds, made for partners of nodes that are down."""
    retests: Count = 0
    """Pairs that were measured again because of a suspect."""
    measured_share: Annotated[float, Meta(ge=0, le=1)] | None = None
    """The share of the rails' time, from first pair to last, that was spent in operations."""


class Report(Struct, frozen=True, kw_only=True):
    """The whole document; `docs/reference/report.md` explains each field."""

    schema: Count = SCHEMA
    preflight: str
    run: str
    started: str
    seconds: float
    tier: Tier
    exit: Annotated[int, Meta(ge=0, le=5)]
    interrupted: bool
    fleet: FleetRow
    expected: Count
    missing: Count
    counts: dict[str, Count]
    verdicts: tuple[VerdictRow, ...]
    pairs: tuple[PairRow, ...]
    blames: tuple[BlameRow, ...]
    suspicions: tuple[str, ...]
    coverage: CoverageRow | None = None
    """None if no pairs were planned."""
    sensitivity: tuple[SensitivityRow, ...] = ()
    """What this run could have missed, per rail of a node: the least tested first, at most 512."""
    overrides: Overrides = Overrides()
    """What the inventory overrides: waivers, checks that are off, numbers."""
    measured_in: tuple[str, ...] = ()
    """Names of the job's variables with which burn-in and sweep ran."""

    def __post_init__(self) -> None:
        """ValueError for an invalid start time: the file may be untrusted."""
        moment(self.started)


Row = TypeVar("Row", bound=Struct)


def row_of(kind: type[Row], *values: Struct, **overrides: Any) -> Row:
    """Build a row of `kind` from the fields of the same names in `values`, and from `overrides`."""
    fields = {
        name: getattr(value, name)
        for value in values
        for name in value.__struct_fields__
        if name in kind.__struct_fields__
    }
    return kind(**{**fields, **overrides})


def refuse_odd_names(report: Report) -> None:
    """ValueError for an invalid name, id or folded list: they are printed and pasted.

    Also for evidence that is nested too deep to be walked through.
    """
    fleet = report.fleet
    node_lists = (fleet.nodes, fleet.ready, fleet.not_ready, fleet.unjudged, fleet.left_out)
    check_names(chain(*node_lists, fleet.leaves, *fleet.apart))
    check_names(chain(*((row.a, row.b) for row in report.pairs)))
    check_names(chain(*((*row.culprits, *row.suspects) for row in report.verdicts)))
    check_names(chain(*(row.culprits for row in report.blames)))
    check_names(row.node for row in report.sensitivity)
    for row in report.verdicts:
        if not is_check_id(row.check):
            raise ValueError(f"{row.check[:60]!a} is not the id of a check")
        if _is_deeper(row.evidence, _DEEPEST):
            raise ValueError(f"evidence of {row.check} is more than {_DEEPEST} levels deep")
    _refuse_excess(report)
    for folded in (fleet.folded, fleet.exclude):
        if not _FOLDED.fullmatch(folded):
            raise ValueError(f"{folded[:60]!a} is not a list of nodes")


def _refuse_excess(report: Report) -> None:
    """ValueError for more findings than a fleet can have; a pair's verdict has one per culprit."""
    verdicts = Counter(row.subject for row in report.verdicts)
    blamed = [
        (row, pair)
        for row in report.blames
        for pair in dict.fromkeys(row.pairs)
        if pair in verdicts
    ]
    findings = sum(verdicts[pair] * max(1, len(row.culprits)) for row, pair in blamed)
    characters = sum(len(row.component) for row, _ in blamed)
    if max(findings, characters) > _MOST_BLAMED or any(
        len(row.component) > _LONGEST for row in report.blames
    ):
        raise ValueError("its blames have too many pairs and culprits, or a name that is too long")


def _is_deeper(value: Any, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not levels or any(_is_deeper(child, levels - 1) for child in parts)


def moment(started: str) -> datetime:
    """Parse when a run began; ValueError if it is not a time since 1970 with its zone."""
    # fromisoformat accepts any character between date and time.
    time = datetime.fromisoformat(started) if _TIME.fullmatch(started) else None
    if time is None or not 1970 <= time.year < 9999:  # noqa: PLR2004
        raise ValueError(f"{started[:40]!a} is not a time since 1970")
    return time


def encode(report: Report) -> bytes:
    """Encode as indented JSON in plain ASCII that ends in a newline.

    Printing the file on a terminal sends it no control character that came from a node.
    """
    return plain_json(report).encode("ascii")
