"""The controller's order to a node, and the account that each end sends.

Both ends exchange a digest of their common plan before they connect, and send it with the account:
the controller, which made the plan, sees which of the two is wrong.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Any, Iterable, NamedTuple

from . import clocks


class Rung(NamedTuple):
    """One size of the ladder, or of the soak."""

    size_bytes: int
    warmup: int
    iterations: int


class StopRule(NamedTuple):
    """When to stop a size: after `nats` of evidence for an `unusual` rate of spikes."""

    spike_us: float
    usual: float
    unusual: float
    nats: float


class PairOfRound(NamedTuple):
    """The pair of one round: ends a and b, our index, the partner's number."""

    round: int
    a: str
    b: str
    rank: int
    partner: int


@dataclass(frozen=True)
class Go:
    """The whole order. Node numbers are in the controller's order."""

    run: str
    index: int
    nodes: int
    rails: int
    backend: str
    address: str
    towards: str
    """Address of another node: we listen on our source address to it."""
    interface: str | None
    """The network interface to use; None: NCCL's choice, or if `pinned` the one with the route to
    the other nodes."""
    store: tuple[str, int] | None
    """Host and port of the sweep's store; None: this node hosts it."""
    ladder: tuple[Rung, ...]
    turns: tuple[PairOfRound | None, ...]
    seed: int
    meet_s: float
    """Time limit for the two ends of a pair to connect."""
    op_s: float
    """Time limit of one all-reduce."""
    box_s: float
    """Time for all counted iterations of one size."""
    pair_s: float
    """Time for one pair: no size starts that would not fit."""
    barrier_s: float
    """Time limit for all ranks to come to the next round."""
    init_s: float = 0.0
    """Time limit to initialise CUDA in a measuring process; 0 with gloo."""
    soak: Rung | None = None
    """One size for a longer time, after the ladder."""
    soak_s: float = 0.0
    """Time for all its counted iterations, in addition to the pair's time."""
    sysfs: str = "/sys"
    """Where NICs' counters are read; another folder in tests."""
    pinned: bool = False
    more: bool = False
    """Wait for more rounds after the last one: suspects may be measured again."""
    stop_rule: StopRule | None = None
    """Stop a size as soon as its spikes prove the pair bad; None: run all iterations. The order
    calls it "stop_rule"."""
    inside: bool = False
    """After the last round, measure the all-reduce among this node's own rails."""
    inside_sizes: tuple[Rung, ...] = ()
    """Larger sizes after the ladder's, only among the rails of one node."""
    domain: tuple[PairOfRound | None, ...] = ()
    """Last of all, pairs with nodes of the same NVLink domain."""
    missing: frozenset[int] = frozenset()
    """Members that do not exist: node number x `rails` + rail, of rails that a node lacks."""
    keep_log: bool = False
    """Send each rail's NCCL log, for a capture."""

    @property
    def steps(self) -> int:
        """Number of steps: the rounds, the all-reduce inside the node, the NVLink domain."""
        return self.domain_step + len(self.domain)

    @property
    def domain_step(self) -> int:
        """The first step over NVLink between nodes, which needs a new process for NCCL."""
        return len(self.turns) + int(self.inside)

    @property
    def own_rails(self) -> list[int]:
        """The rails of this node, in the order of its GPUs."""
        first = self.index * self.rails
        return [rail for rail in range(self.rails) if first + rail not in self.missing]


@dataclass(frozen=True)
class Rail:
    """One rank of the sweep: GPU number `rail` of this node, or a CPU."""

    go: Go
    rail: int
    local: str
    store: tuple[str, int]
    gpu: int = 0
    """CUDA's index of its GPU."""
    mnnvl: bool = False
    """NCCL may use NVLink between nodes, which pairs of the rounds may not."""

    @property
    def member(self) -> int:
        """The rank's number over all nodes and rails."""
        return self.go.index * self.go.rails + self.rail

    @property
    def members(self) -> int:
        """The number of ranks if all nodes had all rails."""
        return self.go.nodes * self.go.rails

    def turn(self, step: int) -> PairOfRound | None:
        """Return the rail's pair of a step; None without one, or if the partner lacks it."""
        go = self.go
        turn = go.turns[step] if step < len(go.turns) else go.domain[step - go.domain_step]
        return None if turn is None or self.partner(turn) in go.missing else turn

    def partner(self, turn: PairOfRound) -> int:
        """The member number of the same rail on the partner."""
        return turn.partner * self.go.rails + self.rail


def read(order: dict[str, Any]) -> Go:
    """Convert the controller's JSON to a Go; TypeError, KeyError or ValueError if invalid."""
    store, stop_rule = order["store"], order.get("stop_rule")
    return Go(
        **dict(
            _rounds(order, 0),
            store=None if store is None else (store[0], store[1]),
            stop_rule=None if stop_rule is None else StopRule(*stop_rule),
            domain=_turns(order.get("domain", ()), 0),
            inside_sizes=tuple(Rung(*rung) for rung in order.get("inside_sizes", ())),
            missing=frozenset(order.get("missing", ())),
        )
    )


def extend(go: Go, more: dict[str, Any]) -> Go:
    """Return the order with more rounds, which are never stopped early and the last to measure."""
    rounds = _rounds(more, len(go.turns))
    rounds.update(turns=go.turns + rounds["turns"], stop_rule=None, inside=False, domain=())
    return replace(go, **rounds)


def _rounds(order: dict[str, Any], first: int) -> dict[str, Any]:
    """Read the turns, numbered from `first` on, and the sizes of these rounds."""
    soak = order.get("soak")
    return dict(
        order,
        turns=_turns(order["turns"], first),
        ladder=tuple(Rung(*rung) for rung in order["ladder"]),
        soak=None if soak is None else Rung(*soak),
    )


def _turns(rows: Iterable[dict[str, Any] | None], first: int) -> tuple[PairOfRound | None, ...]:
    turns = tuple(None if turn is None else PairOfRound(**turn) for turn in rows)
    if any(turn is not None and turn.round != place for place, turn in enumerate(turns, first)):
        raise ValueError("turns out of order")
    return turns


COMMON = (
    "run", "nodes", "rails", "backend", "seed", "meet_s", "op_s", "box_s", "pair_s", "soak_s",
    "barrier_s",
)  # fmt: skip


def digest(go: Go, turn: PairOfRound) -> str:
    """The same at both ends of a pair, and at the controller (docs/internals/wire.md)."""
    numbers = (go.index, turn.partner)
    common: dict[str, Any] = {name: getattr(go, name) for name in COMMON}
    common.update(
        missing=sorted(go.missing),
        ladder=go.ladder,
        soak=go.soak,
        round=turn.round,
        ends=[turn.a, turn.b],
        numbers=numbers[::-1] if turn.rank else numbers,
    )
    text = json.dumps(common, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


ERROR_LIMIT = 300
WHOLE_LIMIT = 508
"""Characters of an error with NCCL's reason; the document takes 512."""

_REASON_LIMIT = 200
"""NCCL's line on a failed completion has the device at its end."""

_PLACE = re.compile(r"^NCCL error in: \S+, ")
"""The place in torch's source, which ProcessGroupNCCL puts before the error."""


def account_of(rail: Rail, step: int, state: str, error: str = "") -> dict[str, Any] | None:
    """Return the event for one step of `Go.steps`; None if this rail takes no part in it."""
    go = rail.go
    if go.inside and step == len(go.turns):
        return account(rail, None, state, error)
    turn = rail.turn(step)
    return (
        None if turn is None else account(rail, turn, state, error, domain=step >= go.domain_step)
    )


def account(
    rail: Rail, turn: PairOfRound | None, state: str, error: str = "", *, domain: bool = False
) -> dict[str, Any]:
    """Return the event for a pair (`domain`: over NVLink), or for the node's own all-reduce.

    `state` as in the controller's samples.
    """
    pair: dict[str, Any] = {"event": "domain" if domain else "pair" if turn else "inside"}
    if turn is not None:
        pair.update(round=turn.round, a=turn.a, b=turn.b)
        if not domain:
            pair["plan"] = digest(rail.go, turn)
    return {
        **pair,
        "rail": rail.rail,
        "backend": rail.go.backend,
        "state": state,
        "error": error,
        "started_s": clocks.now_s(),
        "setup_ms": 0.0,
        "timings": [],
        "moved": [],
        "unread": "",
        "net": "",
        "stepped_s": 0.0,
        "stalls": [],
    }


def short(error: BaseException) -> str:
    """Return the first line of an error, as printable ASCII: torch adds source lines and traces.

    NCCL's reason is added: torch puts it some lines below (getNcclErrorDetailStr, NCCLUtils.cpp).
    """
    text = str(error).strip()
    first = _PLACE.sub("", text.split("\n", 1)[0]) or type(error).__name__
    if first.startswith("["):  # gloo: "[/src/gloo/transport/tcp/pair.cc:5] Timed out ..."
        first = first.partition("] ")[2] or first
    first = first.partition(", keys: ")[0]  # the store's keys do not help an operator
    first = first.partition(" This is typically caused by ")[0]  # gloo's guess at the cause
    last = text.partition("\nLast error:\n")[2].strip().split("\n", 1)[0]
    return because(first, last)


def because(error: str, reason: str) -> str:
    """Add NCCL's reason to an error that lacks it; WHOLE_LIMIT characters at most."""
    error, reason = printable(error, ERROR_LIMIT), printable(reason, 4 * _REASON_LIMIT)
    if len(reason) > _REASON_LIMIT:
        reason = f"{reason[: _REASON_LIMIT - 63]}...{reason[-60:]}"
    return f"{error}; NCCL: {reason}" if reason and reason not in error else error


def printable(text: str, limit: int = 120) -> str:
    """Return the text as printable ASCII of bounded length."""
    plain = text.encode("ascii", "replace").decode("ascii")
    return "".join(character for character in plain if character.isprintable())[:limit]
