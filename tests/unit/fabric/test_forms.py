"""Both forms of stored samples are judged alike, as far as they hold the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.commands.blame import judge_stored
from preflight.fabric.observed import observe
from preflight.fabric.samples import End, Moved
from preflight.fabric.stored import StoredSamples
from preflight.fleet.model import Expected
from tests.unit.fabric.synthetic import hosts, sweep

if TYPE_CHECKING:
    from preflight.commands.blame import StoredVerdicts
    from preflight.fabric.samples import Sweep

FLEET = hosts(8)
DIED = "its measuring process was killed by SIGKILL"


def _died() -> Sweep:
    """The worker of h5 died in its pair with h8; counters moved at the healthy end."""
    measured = sweep(FLEET, lambda *ab: "error" if {*ab} == {"h5", "h8"} else 0.8)

    def ended(end: End | None) -> End | None:
        if end is None or end.state == "measured":
            return end
        error = DIED if end.node == "h5" else "connection reset by peer"
        return replace(end, error=error, moved=(Moved("mlx5_0/1 symbol_error", 2),))

    pairs = (
        replace(one, first=ended(one.first), second=ended(one.second)) for one in measured.pairs
    )
    return replace(measured, pairs=tuple(pairs))


def _lost() -> Sweep:
    """One account of a pair was lost, and both of another."""
    measured = _gloo()
    one, other, *rest = measured.pairs
    lost = (replace(one, second=None), replace(other, first=None, second=None))
    return replace(measured, pairs=(*lost, *rest))


def _gloo(*slow: str, speed: float = 0.05, count: int = 8) -> Sweep:
    return sweep(hosts(count), lambda *ab: speed if {*ab} & {*slow} else 0.8)


def _nccl(count: int = 8, speed: float = 46.0, *slow: str) -> Sweep:
    return sweep(hosts(count), lambda *ab: speed if {*ab} == {*slow} else 46.0, backend="nccl")


CASES = {
    "healthy": _gloo(),
    "slow node": _gloo("h2"),
    "half slow": _gloo("h1", "h2", speed=0.1, count=4),
    "below every floor": _gloo("h1", "h2", speed=0.001, count=2),
    "two nccl nodes": _nccl(2),
    "path once": _nccl(8, 30.0, "h1", "h2"),
    "path below its limit once": _nccl(8, 20.0, "h1", "h2"),
    "hung path": sweep(FLEET, lambda *ab: "hung" if {*ab} == {"h1", "h3"} else 0.8),
    "no connection with h4": sweep(FLEET, lambda *ab: "no_connect" if "h4" in ab else 0.8),
    "wrong sums": sweep(FLEET, lambda *ab: "corrupt" if "h4" in ab else 0.8),
    "dead worker": _died(),
    "lost accounts": _lost(),
    "silent": replace(_gloo(), troubles={"h3": "killed"}),
}


def _judgement(judged: StoredVerdicts) -> list[tuple[object, ...]]:
    rows = ((one.subject, one.verdict.outcome, one.verdict.sentence) for one in judged.entries)
    culprits = ((one.verdict.blame, one.verdict.culprits) for one in judged.entries)
    return [(*row, *culprit) for row, culprit in zip(rows, culprits, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_both_forms_say_the_same(case: str) -> None:
    """Verdict by verdict, in the same words, with the same blames; against an expectation, too."""
    measured = CASES[case]
    names = {name for around in measured.rounds for pair in around for name in pair}
    for expected in (None, Expected(allreduce_min_gbs=40.0, origin="fleet.toml")):
        fleet = hosts(len(names), expected)
        short_form = StoredSamples(path=Path("f"), form="short", observed=observe(measured))
        short = judge_stored(short_form, fleet)
        long = judge_stored(replace(short_form, sweep=measured), fleet)
        assert _judgement(short) == _judgement(long)
        assert short.blames == long.blames
        assert short.systemic == long.systemic
