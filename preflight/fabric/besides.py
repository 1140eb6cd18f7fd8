"""What a sweep measured beside its schedule: nothing that was measured may be silent.

Partners of nodes that are down get pairs of their own (repairs); suspects are measured again with
partners that are cleared (retests), with whom the schedule may never have paired them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from preflight.fabric.measure import joint_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.fabric.samples import PairSamples, Sweep
    from preflight.fabric.schedule import Pairing, Rounds

Turn = Literal["scheduled", "repair", "retest"]
"""Why a pair was measured in that round."""


def pairs_of(rounds: Rounds) -> frozenset[Pairing]:
    """Every pair that these rounds hold."""
    return frozenset(pair for around in rounds for pair in around)


def turn_of(pair: PairSamples, sweep: Sweep, scheduled: frozenset[Pairing]) -> Turn:
    """Tell retests by their round, repairs by not being scheduled."""
    if sweep.retested and pair.round >= sweep.retested:
        return "retest"
    return "scheduled" if (pair.a, pair.b) in scheduled else "repair"


def besides(sweep: Sweep, scheduled: Iterable[Pairing]) -> tuple[Pairing, ...]:
    """The pairs that had a turn though no scheduled round holds them, in the order of their turns.

    A repair that had no turn is owed a verdict as well; a retest that had none is not.
    """
    known = frozenset(scheduled)
    found = (
        (pair.a, pair.b)
        for pair in sweep.pairs
        if (pair.a, pair.b) not in known
        and (turn_of(pair, sweep, known) == "repair" or joint_state(pair) != "not_run")
    )
    return tuple(dict.fromkeys(found))


def counted(sweep: Sweep, scheduled: Iterable[Pairing]) -> dict[Turn, int]:
    """How many pairs were measured for which reason; one that was for two counts for both."""
    known = frozenset(scheduled)
    met: dict[Turn, set[Pairing]] = {"scheduled": set(), "repair": set(), "retest": set()}
    for pair in sweep.pairs:
        if joint_state(pair) != "not_run":
            met[turn_of(pair, sweep, known)].add((pair.a, pair.b))
    return {turn: len(pairs) for turn, pairs in met.items()}
