"""`report.json`: the run as data, versioned, complete, and written in one piece."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime
from itertools import chain
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from preflight.check import Tier, is_check_id
from preflight.core.text import plain_json
from preflight.fabric.schedule import Turn
from preflight.fleet.nodeset import check_names
from preflight.report.header import Overrides
from preflight.verdict import Outcome, condemns

_FOLDED = re.compile(r"(?!-)[A-Za-z0-9_.:%,\[\]-]*")
_TIME = re.compile("[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}(Z|[+-][0-9]{2}:[0-9]{2})")
_DEEPEST = 64
"""Lists and tables within each other."""
_MOST_BLAMED, _LONGEST = 1 << 23, 4096
"""Culprits of all verdicts (a leaf switch of 64 nodes in 16 rounds: 1 << 16); characters."""

SCHEMA = 1
"""Raised by a change that an older reader would misread. Additions do not raise it."""


Count = Annotated[int, Meta(ge=0, le=1 << 53)]
"""What a float, and so Prometheus, holds exactly."""


class FleetRow(Struct, frozen=True, kw_only=True):
    """Who was judged."""

    nodes: tuple[str, ...]
    folded: str
    origin: str
    ready: tuple[str, ...]
    not_ready: tuple[str, ...]
    unjudged: tuple[str, ...]
    """Nothing condemns them, but the run ended before all was judged that it owed on them."""
    apart: tuple[tuple[str, str], ...]
    exclude: str
    """The not-ready nodes folded, ready to be pasted after `--exclude=`."""
    left_out: dict[str, str] = {}
    """Of the unjudged, those that a sweep was not to look at, and why: somebody uses them."""
    leaves: dict[str, str] = {}
    """Node → its leaf switch, of those of which it is known."""


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
    """The nodes it condemns in place of its subject, where it names several."""
    suspects: tuple[str, ...] = ()
    """The nodes among which the culprit lies, where no more is known: all are not ready."""
    cause: str = ""
    """Verdicts of one subject with the same cause are one finding; empty: the check itself."""
    grant: str = ""
    """What to grant, where an `unknown` only lacks a privilege or something to compare with."""

    @property
    def condemns(self) -> bool:
        """Whether it makes its subject not ready."""
        return condemns(self.outcome, self.grant)


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
    turn: Turn = "scheduled"
    """Why it was measured: retests of suspects, repairs for partners of nodes that are down."""
    slow: str = ""
    """"bandwidth", "latency" or "reach" where it is slow by itself."""
    peers_gbs: float | None = None
    limit_gbs: float | None = None
    """At the largest size that it reached: the median of its peers, and the limit."""
    limit_origin: str = ""


class BlameRow(Struct, frozen=True, kw_only=True):
    """One component that the sweep's samples condemn, or the set among which it lies."""

    kind: str
    component: str
    sentence: str
    confidence: Annotated[float, Meta(ge=0, le=1)]
    advice: str
    pairs: tuple[str, ...]
    rail: Count | None = None
    """The one rail that is meant; null: all of them."""
    culprits: tuple[str, ...] = ()
    """The nodes at fault, where the component is a name for several."""


class CoverageRow(Struct, frozen=True, kw_only=True):
    """How much of the fabric was measured; `*_known` count earlier runs of a history as well."""

    rounds: Count
    rounds_total: Count
    seed: Count
    pairs: Count
    pairs_run: Count
    pairs_known: Count | None
    runs_left: Count | None
    topology: str
    leaf_pairs: Count
    leaf_pairs_run: Count
    leaf_pairs_known: Count | None
    repairs: Count = 0
    """Pairs of which no scheduled round holds any: made for partners of nodes that are down."""
    retests: Count = 0
    """Pairs that were measured again, since something through them was in doubt."""
    measured_share: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Of the rails' time from their first pair's start to their last one's end: in operations."""


class MissedSizeRow(Struct, frozen=True, kw_only=True):
    """The same for spikes that come at operations of one size only."""

    size_bytes: Count
    operations: Count
    loaded_s: float
    over_us: float
    one_in: float | None
    every_s: float | None


class MissedRow(Struct, frozen=True, kw_only=True):
    """How sharp the look at a rail of a node was; null: no rate or loss would have been named."""

    node: str
    rail: Count
    operations: Count
    loaded_s: float
    pairs: Count
    one_in: float | None
    every_s: float | None
    slower: float | None
    events: Count | None = None
    """How many spikes would have been named; null: others had too many to tell them apart."""
    sizes: tuple[MissedSizeRow, ...] = ()


class Report(Struct, frozen=True, kw_only=True):
    """The whole document; `docs/report.md` explains each field."""

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
    lost: Count
    counts: dict[str, Count]
    verdicts: tuple[VerdictRow, ...]
    pairs: tuple[PairRow, ...]
    blames: tuple[BlameRow, ...]
    suspicions: tuple[str, ...]
    coverage: CoverageRow | None = None
    """None where no pairs were to be measured."""
    missed: tuple[MissedRow, ...] = ()
    """What this run could have missed, per rail of a node: the dullest looks first, at most 512."""
    overrides: Overrides = Overrides()
    """What the inventory laid over the checks: waivers, switches, numbers."""
    measured_in: tuple[str, ...] = ()
    """Names of the job's variables that burn-in and sweep ran with."""

    def __post_init__(self) -> None:
        """ValueError for a time that no clock shows: the file may be from anybody."""
        moment(self.started)


Row = TypeVar("Row", bound=Struct)


def row_of(kind: type[Row], *values: Struct, **own: Any) -> Row:
    """A row that takes its fields from those of the same name in `values`, and else from `own`."""
    fields = {
        name: getattr(value, name)
        for value in values
        for name in value.__struct_fields__
        if name in kind.__struct_fields__
    }
    return kind(**{**fields, **own})


def refuse_odd_names(report: Report) -> None:
    """ValueError for a name, an id or a folded list that is none: they are printed and pasted.

    Also for evidence so deep that who walks through it would come to no end.
    """
    fleet = report.fleet
    every = (fleet.nodes, fleet.ready, fleet.not_ready, fleet.unjudged, fleet.left_out)
    check_names(chain(*every, fleet.leaves, *fleet.apart))
    check_names(chain(*((row.a, row.b) for row in report.pairs)))
    check_names(chain(*((*row.culprits, *row.suspects) for row in report.verdicts)))
    check_names(chain(*(row.culprits for row in report.blames)))
    check_names(row.node for row in report.missed)
    for row in report.verdicts:
        if not is_check_id(row.check):
            raise ValueError(f"{row.check[:60]!a} is no id of a check")
        if _is_deeper(row.evidence, _DEEPEST):
            raise ValueError(f"evidence of {row.check} is more than {_DEEPEST} levels deep")
    _refuse_endless(report)
    for folded in (fleet.folded, fleet.exclude):
        if not _FOLDED.fullmatch(folded):
            raise ValueError(f"{folded[:60]!a} is no list of nodes")


def _refuse_endless(report: Report) -> None:
    """ValueError for more findings than a fleet has: of each verdict of a pair, each culprit."""
    verdicts = Counter(row.subject for row in report.verdicts)
    findings = sum(
        verdicts[pair] * max(1, len(row.culprits))
        for row in report.blames
        for pair in dict.fromkeys(row.pairs)
    )
    if findings > _MOST_BLAMED or any(len(row.component) > _LONGEST for row in report.blames):
        raise ValueError("its blames have too many pairs and culprits, or a name that is too long")


def _is_deeper(value: Any, levels: int) -> bool:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not levels or any(_is_deeper(one, levels - 1) for one in below)


def moment(started: str) -> datetime:
    """When a run began; ValueError where that is no time since 1970 with its zone."""
    # fromisoformat takes any character between date and time.
    when = datetime.fromisoformat(started) if _TIME.fullmatch(started) else None
    if when is None or not 1970 <= when.year < 9999:  # noqa: PLR2004
        raise ValueError(f"{started[:40]!a} is no time since 1970")
    return when


def encode(report: Report) -> bytes:
    """Encode as indented JSON in plain ASCII that ends in a newline.

    Whoever prints the file on a terminal meets no control character that a node made up.
    """
    return plain_json(report).encode("ascii")


def json_schema() -> dict[str, Any]:
    """Describe the document as JSON Schema; `docs/report.schema.json` holds a copy of this."""
    return schema_of(Report, f"preflight report.json, schema {SCHEMA}")


def schema_of(kind: type[Struct], title: str) -> dict[str, Any]:
    """Describe any document as JSON Schema."""
    (root,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **root,
        "$defs": definitions,
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    return plain
