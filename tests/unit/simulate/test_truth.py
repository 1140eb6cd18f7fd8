"""What may be asked of a decoder is declared from the generator's figures, before it decodes."""

from __future__ import annotations

from math import isclose

import pytest

from tests.simulate.faults import Fault, endpoint, leaf_rail, node, path
from tests.simulate.power import Events, apart, at_least, needed, of_events, of_shift, together
from tests.simulate.rdma import Rdma
from tests.simulate.truth import truth
from tests.unit.simulate.builders import fabric, recorded


def _slow(part: object) -> Fault:
    return Fault(component=part, kind="slow", speed=0.85)  # type: ignore[arg-type]


def _spikes(part: object, share: float = 1e-3) -> Fault:
    return Fault(component=part, kind="spikes", per_operation=share)  # type: ignore[arg-type]


def test_two_nodes_leave_open_which_side_it_is() -> None:
    """One partner: both ends and the path between them may be said."""
    (one,) = truth(fabric(2), Rdma(), [_slow(endpoint("n1", 1))])
    assert not one.detectable
    assert {part.name for part in one.among} == {"n1 rail 1", "n2 rail 1", "n1-n2 rail 1"}


def test_two_cleared_partners_and_power_make_a_fault_detectable() -> None:
    """Three nodes are enough for what every operation shows."""
    (one,) = truth(fabric(3), Rdma(), [_slow(endpoint("n2", 0))])
    assert (one.detectable, one.partners) == (True, 2)
    assert one.among == (endpoint("n2", 0),)


def test_partners_that_are_faulty_themselves_clear_nobody() -> None:
    """Two faulty of four have two clean partners each; three of four have one; rails are apart."""
    where = fabric(4)
    two = truth(where, Rdma(), [_slow(endpoint(name, 0)) for name in ("n1", "n2")])
    assert [one.detectable for one in two] == [True, True]
    three = truth(where, Rdma(), [_slow(endpoint(name, 0)) for name in ("n1", "n2", "n3")])
    assert [one.detectable for one in three] == [False, False, False]
    other_rail = truth(
        fabric(4, rails=4),
        Rdma(),
        [_slow(endpoint("n1", 0)), *(_slow(endpoint(n, 1)) for n in ("n2", "n3"))],
    )
    assert [one.detectable for one in other_rail] == [True, True, True]


def test_rare_spikes_need_samples_to_be_detectable() -> None:
    """One in a thousand shows with 15 partners, not with 2, and never if it is one in a million."""
    part = endpoint("n01", 0)
    assert truth(fabric(16), Rdma(), [_spikes(part)])[0].detectable
    assert not truth(fabric(3), Rdma(), [_spikes(endpoint("n1", 0))])[0].detectable
    assert not truth(fabric(16), Rdma(), [_spikes(part, 1e-6)])[0].detectable


def test_a_busy_machine_hides_what_a_quiet_one_shows() -> None:
    """15 % less is plain at 1 % of spread; on shared CPUs it is in the noise, a tenth is not."""
    part = endpoint("n1", 0)
    quiet = truth(fabric(8, rails=1), Rdma(), [_slow(part)])[0]
    busy = truth(fabric(8, rails=1), recorded(), [_slow(part)])[0]
    tenth = truth(fabric(8, rails=1), recorded(), [Fault(component=part, kind="slow", speed=0.1)])[
        0
    ]
    assert (quiet.detectable, busy.detectable, tenth.detectable) == (True, False, True)


def test_peers_are_needed_for_what_is_judged_against_them() -> None:
    """Three nodes with one rail have one healthy pair: a dead end shows, a slow one does not."""
    part = endpoint("n1", 0)
    dead = Fault(component=part, kind="dead")
    assert not truth(fabric(3, rails=1), Rdma(), [_slow(part)])[0].detectable
    assert truth(fabric(3, rails=1), Rdma(), [dead])[0].detectable
    most = [_slow(endpoint(f"n{number}", 0)) for number in range(1, 6)]
    assert not any(one.detectable for one in truth(fabric(8, rails=1), Rdma(), most))
    assert all(one.detectable for one in truth(fabric(8, rails=3), Rdma(), most))


def test_a_path_needs_both_its_ends_cleared() -> None:
    """Among three nodes each end has one other partner: not enough to clear it."""
    assert not truth(fabric(3), Rdma(), [_slow(path("n1", "n2", 0))])[0].detectable
    assert not truth(fabric(4), Rdma(), [_slow(path("n1", "n2", 0))])[0].detectable  # seen once
    assert truth(fabric(4), Rdma(), [_slow(path("n1", "n2"))])[0].detectable
    ends = truth(fabric(4), Rdma(), [_slow(path("n1", "n2")), _slow(node("n1"))])
    assert not ends[0].detectable


def test_a_leaf_rail_needs_a_leaf_that_is_fine() -> None:
    """Two leaves, one bad: told; both bad: nothing is left to compare with."""
    where = fabric(8, per_leaf=4)
    bad = [_slow(leaf_rail(where, leaf, 1)) for leaf in ("leaf1", "leaf2")]
    assert truth(where, Rdma(), bad[:1])[0].detectable
    assert not any(one.detectable for one in truth(where, Rdma(), bad))


def test_a_late_host_is_one_event_on_all_its_rails() -> None:
    """Eight rails of a host that stalls add no evidence: they stall together."""
    late = Fault(component=node("n1"), kind="late", per_operation=1e-3)
    powers = [truth(fabric(4, rails=r), Rdma(), [late])[0].power for r in (1, 8)]
    assert powers[0] >= powers[1] > 0.3


def test_poisson_tails_and_normal_powers_are_the_tabulated_ones() -> None:
    """Checked against tables: P(Poisson(4) >= 4), and z = 3 against a one-sided 0.1 %."""
    assert isclose(at_least(4, 4.0), 0.56653, abs_tol=1e-5)
    assert at_least(0, 1.0) == 1.0
    assert isclose(of_shift(3.0902, 0.0, 1.0, 1, 1), 0.5, abs_tol=1e-3)
    assert needed(0.0, 1000) == 4
    assert needed(10.0, 1) > 20
    assert needed(10.0, 1, dispersion=4.0) > needed(10.0, 1)
    assert of_events([Events((1.0,) * 8), Events((0.0,))], 0.0, 10, least=2) == 0.0
    assert of_events([Events((0.5,) * 4)], 0.0, 10, least=1) == 0.5**4
    assert of_events([Events((0.5,), 100.0)] * 2, 0.0, 10, least=2) == pytest.approx(0.25)


def test_events_close_to_each_other_are_not_counted_twice() -> None:
    """Ten events within a second are fewer that can be told apart by 50 ms; within 0.1 s one."""
    assert sum(apart(0.01, 1.0).chances) == pytest.approx(0.01, rel=0.01)
    assert 5 < apart(10.0, 1.0).more < 9
    assert apart(10.0, 0.1).more < 0.1
    twice = together([apart(1.0, 1.0), apart(2.0, 1.0)], 2)
    assert len(twice.chances) == 4
    assert twice.more == pytest.approx(2 * (apart(1.0, 1.0).more + apart(2.0, 1.0).more))
