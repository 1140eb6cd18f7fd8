"""What statistics and blame are given: one fabric as it was seen, real, recorded or simulated.

As JSON this is the short form of stored samples (docs/samples.md); the long one is the `Sweep` with
every iteration, from which `observe` makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.advice import OWN_CAUSES
from preflight.fabric.digest import Digest, digests
from preflight.fabric.measure import joint_state, lost_accounts, lost_words
from preflight.fabric.samples import Moved, PairState, StallKind
from preflight.fabric.uncollected import uncollected

if TYPE_CHECKING:
    from preflight.fabric.samples import End, PairSamples, Sweep


STOOD_STILL = "its measuring process stood still"
"""What a supervisor says of a measuring process of its own that it had to kill."""

_DIED = ("its measuring process was killed by", "its measuring process ended by itself")
_STOPPED = "it was stopped by a signal"

BETWEEN_WAYS = " / "
"""Stands between what carried either end, where they differ."""


class Stood(Struct, frozen=True, array_like=True):
    """How often and for how long at most one end stood still in a pair."""

    what: StallKind
    times: int
    most_ms: float


class Tried(Struct, frozen=True, kw_only=True):
    """What became of one pair on one rail in one round, besides its times."""

    a: str
    b: str
    rail: int
    round: int
    state: PairState = "measured"
    """The worse of both ends'."""
    stood_still: str = ""
    """The one end whose own measuring process hung or died; the other merely lost its partner."""
    error: str = ""
    moved_a: tuple[Moved, ...] = ()
    moved_b: tuple[Moved, ...] = ()
    net: str = ""
    """What carried it; both ends' where they differ: "NET/IB mlx5_3 / NET/Socket"."""
    stood_a: tuple[Stood, ...] = ()
    stood_b: tuple[Stood, ...] = ()


class Observed(Struct, frozen=True, kw_only=True):
    """A whole fabric after a sweep."""

    nodes: tuple[str, ...]
    """Those that took part, in fleet order."""
    backend: str
    tried: tuple[Tried, ...]
    digests: tuple[Digest, ...]
    leaves: dict[str, str] = {}
    """Node name → its leaf switch; empty where no source of topology is known."""
    silent: dict[str, str] = {}
    """Node name → what happened to its agent, where it fell silent during the sweep."""
    retested: int = 0
    """Rounds from this number on are retests: suspects alone, with partners that were cleared; 0
    where there were none."""


@uncollected()
def observe(sweep: Sweep) -> Observed:
    """Condense a sweep; pairs that had no turn stay out.

    Where an end's account was lost, the other's times alone prove nothing: none are kept.
    """
    taken = [pair for pair in sweep.pairs if joint_state(pair) != "not_run"]
    lost = [lost_accounts(pair, sweep.troubles) for pair in taken]
    known = {name: None for around in sweep.rounds for pair in around for name in pair}
    known |= {one.node: None for one in sweep.inside}
    return Observed(
        nodes=tuple(name for name in known if name not in sweep.left_out),
        backend=taken[0].backend if taken else "",
        tried=tuple(_tried(pair, whose) for pair, whose in zip(taken, lost, strict=True)),
        digests=tuple(
            digest
            for pair, whose in zip(taken, lost, strict=True)
            if not whose
            for digest in digests(pair)
        ),
        leaves=dict(sweep.leaves),
        silent=dict(sweep.troubles),
        retested=sweep.retested,
    )


def _tried(pair: PairSamples, lost: tuple[str, ...]) -> Tried:
    ends = [end for end in (pair.first, pair.second) if end is not None]
    return Tried(
        a=pair.a,
        b=pair.b,
        rail=pair.rail,
        round=pair.round,
        state="not_run" if lost else joint_state(pair),
        stood_still=failed_by_itself(pair),
        error=lost_words(lost)
        if lost
        else "; ".join(dict.fromkeys(f"{end.node}: {end.error}" for end in ends if end.error)),
        moved_a=_moved(pair.first),
        moved_b=_moved(pair.second),
        net=BETWEEN_WAYS.join(dict.fromkeys(end.net for end in ends if end.net)),
        stood_a=_stood(pair.first),
        stood_b=_stood(pair.second),
    )


def failed_by_itself(pair: PairSamples) -> str:
    """The one end whose own measuring process hung or died, by its own supervisor's word."""
    ends = [end for end in (pair.first, pair.second) if end is not None]
    for words in (OWN_CAUSES, _DIED, (_STOPPED,), (STOOD_STILL,)):
        own = [end for end in ends if any(each in end.error for each in words)]
        if own:
            return own[0].node if len(own) == 1 and not _waited(own[0], pair) else ""
    return ""


def _waited(end: End, pair: PairSamples) -> bool:
    """Whether an end may have stood still for its partner's sake.

    NCCL waits for ever for a partner that broke off; gloo gives up by itself.
    """
    other = pair.second if end is pair.first else pair.first
    fine = other is not None and other.state == "measured"
    known = fine or _STOPPED in end.error
    return pair.backend == "nccl" and STOOD_STILL in end.error and not known


def _moved(end: End | None) -> tuple[Moved, ...]:
    return end.moved if end is not None else ()


def _stood(end: End | None) -> tuple[Stood, ...]:
    found: dict[StallKind, list[float]] = {}
    for one in end.stalls if end is not None else ():
        found.setdefault(one.what, []).append(one.ms)
    return tuple(Stood(what, len(each), max(each)) for what, each in found.items())
