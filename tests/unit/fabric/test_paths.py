"""A path is met in one round only: what that shows is measured again before it is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.fabric.decoding.find import find
from preflight.fabric.judge import judge_sweep
from preflight.fabric.retest import suspects
from preflight.fabric.samples import End, Timing
from tests.unit.fabric.fabrics import Made
from tests.unit.fabric.synthetic import blame, hosts, sweep

if TYPE_CHECKING:
    from preflight.fabric.observed import Observed
    from preflight.fabric.samples import PairSamples

PATH = ("n2", "n5")


def lossy(**kind: object) -> Made:
    """Six hosts, and loss between two of them only."""
    made = {"nodes": 6, "spikes": 25, "operations": 150, "spiky": lambda a, b, _: (a, b) == PATH}
    return Made(**{**made, **kind})  # type: ignore[arg-type]


def over_tcp(made: Made) -> Observed:
    """As gloo measures it, where events come in bursts."""
    seen = made.observed()
    spikes = {
        one: replace(
            one, standouts=tuple(replace(each, first_us=50_000.0) for each in one.standouts)
        )
        for one in seen.digests
    }
    return replace(seen, backend="gloo", digests=tuple(spikes.values()))


@pytest.mark.parametrize("rails", [1, 2])
def test_a_lossy_path_is_doubted_after_its_one_round(rails: int) -> None:
    """25 events in 450 operations are no proof in one round, and no reason to keep silent."""
    findings = find(over_tcp(lossy(rails=rails)))
    assert findings.culprits == ()
    assert {part.nodes for part in findings.doubted} == {PATH}
    assert len(findings.doubted) == 1


def test_few_events_of_a_healthy_pair_are_not_doubted() -> None:
    """What peers scatter by costs no second look."""
    assert find(over_tcp(lossy(spikes=3))).doubted == ()


def test_a_path_that_is_lossy_again_is_named() -> None:
    """Its events came again twice; both ends are fine with everybody else."""
    findings = find(over_tcp(lossy(again=(PATH, PATH))))
    (one,) = findings.culprits
    assert one.component is not None
    assert (one.symptom, one.component.kind, one.component.nodes) == ("spikes", "path", PATH)
    assert (one.events, one.operations) == (75, 1350)


def test_a_path_that_is_quiet_when_measured_again_is_not_named() -> None:
    """It was a bad moment."""
    seen = over_tcp(lossy(again=(PATH, PATH)))
    quiet = tuple(
        replace(one, standouts=()) if one.round >= seen.retested else one for one in seen.digests
    )
    assert find(replace(seen, digests=quiet)).culprits == ()


def test_a_path_of_a_lossy_host_is_not_named_beside_it() -> None:
    """The host loses with all others, too."""
    made = lossy(again=(PATH, PATH), spiky=lambda a, b, _: "n2" in (a, b))
    parts = [one.component for one in find(over_tcp(made)).culprits]
    assert [part.nodes for part in parts if part is not None] == [("n2",)]


def test_a_pair_that_stopped_where_nearly_all_others_went_on_is_slow() -> None:
    """It came to 64 KiB, at which its speed can be judged and is fine, in the time for 4 MiB."""
    fleet = hosts(6)
    measured = sweep(fleet, lambda *_: 0.8)
    stopped = tuple(
        _stopped(pair) if (pair.a, pair.b) == ("h2", "h5") else pair for pair in measured.pairs
    )
    decoded = judge_sweep(replace(measured, pairs=stopped), fleet)
    pair = decoded.pairs["h2", "h5"]
    assert (decoded.blames, pair.slow) == ((), "reach")
    assert "only 64 KiB of 4 MiB were reached" in pair.doubt
    assert suspects(replace(measured, pairs=stopped)) == ((("h2", "h5"),),) * 2


@pytest.mark.parametrize(("count", "few"), [(4, 1), (6, 10)])
def test_a_pair_that_stopped_among_few_or_as_others_did_is_fine(count: int, few: int) -> None:
    """Where half of the peers ran out of time, or hardly any are there, it says nothing."""
    fleet = hosts(count)
    measured = sweep(fleet, lambda *_: 0.8)
    stopped = tuple(map(_stopped, measured.pairs[:few])) + measured.pairs[few:]
    assert blame(replace(measured, pairs=stopped), fleet) == ()


def _stopped(pair: PairSamples) -> PairSamples:
    rungs = tuple(
        Timing(size, (us,) * 10, (1.0,) * 10) for size, us in ((8, 200.0), (65536, 400.0))
    )
    first, second = (End(name, "measured", rungs) for name in (pair.a, pair.b))
    return replace(pair, first=first, second=second)
