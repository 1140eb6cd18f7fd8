"""Suspects are measured again in the same launch, alone with partners that were cleared.

The nodes' agents and ranks wait after the last scheduled round, so a retest costs no start-up. No
measurement is replaced: retests are further rounds, numbered on from the scheduled ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from preflight.fabric.roster import budget, rung_order, turns_of
from preflight.fabric.samples import Ladder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.plan import Budget, SweepPlan
    from preflight.fabric.roster import Roster
    from preflight.fabric.schedule import Pairing, Rounds

MOST_ROUNDS = 16
"""Of one sweep."""

TIMES = 4
"""So many times the iterations, and the time, that a scheduled round has for each size."""


def fitting(rounds: Rounds, able: Sequence[str], most: int) -> Rounds:
    """Of the wanted rounds what can be done: both ends there, no node twice at once.

    `able` is in fleet order, and of each pair the earlier node comes first, as in every round.
    """
    place = {name: at for at, name in enumerate(able)}
    done: list[tuple[Pairing, ...]] = []
    for around in rounds[:most]:
        taken: set[str] = set()
        kept: list[Pairing] = []
        for one, other in around:
            if one != other and {one, other} <= place.keys() and not taken & {one, other}:
                a, b = sorted((one, other), key=place.__getitem__)
                taken |= {a, b}
                kept.append((a, b))
        if kept:
            done.append(tuple(kept))
    return tuple(done)


def with_more(who: Roster, plan: SweepPlan, rounds: Rounds) -> Roster:
    """The same launch with more rounds, in which everything is measured more often."""
    first = msgspec.structs.replace(
        who,
        ladder=plan.nccl if who.backend == "nccl" else plan.gloo,
        soak=plan.nccl_soak if who.backend == "nccl" else plan.gloo_soak,
    )
    return msgspec.structs.replace(
        who,
        rounds=who.rounds + rounds,
        ladder=tuple(_longer(rung) for rung in first.ladder),
        soak=None if first.soak is None else _longer(first.soak),
    )


def longer(plan: SweepPlan, who: Roster) -> Budget:
    """The deadlines that go with that."""
    limits = budget(plan, who)
    return msgspec.structs.replace(
        limits,
        box_s=limits.box_s * TIMES,
        soak_s=limits.soak_s * TIMES,
        pair_s=limits.pair_s + limits.box_s * (TIMES - 1) * len(who.ladder),
    )


def more_order(who: Roster, limits: Budget, name: str, first: int) -> dict[str, object]:
    """The order to one agent for the rounds from `first` on; Nones where it has no pair."""
    return {
        "turns": turns_of(who, name)[first:],
        "ladder": [rung_order(rung) for rung in who.ladder],
        "soak": None if who.soak is None else rung_order(who.soak),
        "box_s": limits.box_s,
        "soak_s": limits.soak_s,
        "pair_s": limits.pair_s,
        "barrier_s": limits.barrier_s,
    }


def _longer(rung: Ladder) -> Ladder:
    return Ladder(rung.size_bytes, rung.warmup, rung.iterations * TIMES)
