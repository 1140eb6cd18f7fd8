"""A history returns what nights wrote: findings as episodes, machines and GPUs that move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.history import reading
from tests.unit.history.nights import (
    FIRST_S,
    NIGHT_S,
    changed,
    found,
    gemm,
    kept,
    machine,
    made,
    night,
    runs_of,
    slots,
)

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.history.run_record import Machine, State


def test_a_finding_is_new_then_still_there_then_recovered(tmp_path: Path) -> None:
    """It is one episode as long as it lasts, and ends when a check ran again and it was gone."""
    place = made(tmp_path)
    ecc = found("gpu.ecc", "h1")
    kept(place, night(1, machine("h1"), machine("h2")))
    kept(place, night(2, machine("h1", "not_ready"), machine("h2"), findings=(ecc,)))
    changes = changed(place)
    assert [(one.check, one.about, one.nodes) for one in changes.new] == [
        ("gpu.ecc", "h1", ("h1",))
    ]
    assert changes.before is not None
    assert changes.before.started_s == FIRST_S + NIGHT_S
    kept(place, night(3, machine("h1", "not_ready"), machine("h2"), findings=(ecc,)))
    (still,) = changed(place).still
    assert (still.nights, still.first_s) == (2, FIRST_S + 2 * NIGHT_S)
    kept(place, night(4, machine("h1"), machine("h2"), fine={"gpu.count": frozenset({"h1"})}))
    assert [one.about for one in changed(place).unseen] == ["h1"]
    kept(place, night(5, machine("h1"), machine("h2"), fine={"gpu.ecc": frozenset({"h1"})}))
    (gone,) = changed(place).recovered
    assert gone.ended_s == FIRST_S + 5 * NIGHT_S
    kept(place, night(6, machine("h1", "not_ready"), machine("h2"), findings=(ecc,)))
    assert [one.nights for one in changed(place).new] == [1]
    with reading(place) as history:
        past = history.node("h1")
    assert past is not None
    assert (past.standing.bad, past.standing.judged) == (3, 6)
    assert past.standing.checks == (("gpu.ecc", 3),)
    assert [one.ended_s is None for one in past.episodes] == [True, False]


def test_a_gpu_that_moves_keeps_its_record(tmp_path: Path) -> None:
    """From the first node's slot 1 to the other's slot 0: its numbers and findings go along."""
    place = made(tmp_path)
    bent = found("gpu.ecc", "h1", sentence="GPU 1 has 4 uncorrectable errors, 0 expected")
    for number in (1, 2):
        kept(place, night(number, machine("h1", "not_ready", gpus=slots("A", "B")),
                          machine("h2", gpus=slots("C", "D")), findings=(bent,),
                          numbers=(gemm("h1", 700, 690), gemm("h2", 710, 711))))  # fmt: skip
    kept(place, night(3, machine("h1", gpus=slots("A", "C")), machine("h2", gpus=slots("B", "D")),
                      numbers=(gemm("h1", 701, 709), gemm("h2", 500, 712))))  # fmt: skip
    with reading(place) as history:
        gpu, node = history.gpu("B"), history.node("h1")
    assert gpu is not None
    assert node is not None
    assert [(one.node, one.slot, one.until_s is None) for one in gpu.seats] == [
        ("h1", 1, False),
        ("h2", 0, True),
    ]
    (trend,) = gpu.trends
    assert [one.value for one in trend.points] == [690, 690, 500]
    assert [one.check for one in gpu.episodes] == ["gpu.ecc"]
    assert [(one.uuid, one.until_s is None) for one in node.seats] == [
        ("A", True),
        ("C", True),
        ("B", False),
    ]


def test_a_board_keeps_its_record_under_another_name(tmp_path: Path) -> None:
    """And the machine that bears its old name now is another one."""
    place = made(tmp_path)
    kept(place, night(1, machine("h1", "not_ready", serial="S1"), machine("h2", serial="S2")))
    kept(place, night(2, machine("h9", serial="S1"), machine("h1", serial="S3")))
    with reading(place) as history:
        old, new = history.node("h9"), history.node("h1")
    assert old is not None
    assert new is not None
    assert (old.standing.judged, old.standing.bad, old.standing.serial) == (2, 1, "S1")
    assert (new.standing.judged, new.standing.bad, new.standing.serial) == (1, 0, "S3")


def test_without_a_serial_number_the_name_stands_for_the_node(tmp_path: Path) -> None:
    """Until it reports one; names distinguish two boards with one number."""
    place = made(tmp_path)
    kept(place, night(1, machine("h1", "not_ready"), machine("h2")))
    kept(place, night(2, machine("h1", serial="S1"), machine("h2", serial="S2")))
    kept(place, night(3, machine("h1"), machine("h2", serial="S2")))
    kept(place, night(4, machine("h1", serial="0"), machine("h2", serial="0")))
    with reading(place) as history:
        one, two = history.node("h1"), history.node("h2")
        assert history.node("h3") is None
    assert one is not None
    assert two is not None
    assert (one.standing.judged, one.standing.bad, one.standing.serial) == (4, 1, "S1")
    assert (two.standing.judged, two.standing.bad, two.standing.serial) == (4, 0, "S2")


_LIES = {
    "while the other is down": machine("good", "unjudged"),
    "while the other is not asked": None,
    "while the other tells it too": machine("good", serial="S1", gpus=slots("A", "B")),
}


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", list(_LIES.values()), ids=list(_LIES))
@pytest.mark.parametrize("first", [True, False])
def test_a_node_that_claims_anothers_board_has_none_of_its_record(
    tmp_path: Path, meanwhile: Machine | None, *, first: bool
) -> None:
    """Nor of its GPUs': each night is kept, and what it measures is no past of the other's."""
    place = made(tmp_path)
    good = machine("good", serial="S1", gpus=slots("A", "B"))
    bad = machine("bad", serial="S2", gpus=slots("C", "D"))
    lies = machine("bad", "not_ready", serial="S1", gpus=slots("A", "B"))
    kept(place, night(1, good, bad, numbers=(gemm("good", 700, 701), gemm("bad", 500, 500))))
    for number in (2, 3, 4):
        machines = [one for one in (meanwhile, lies) if one is not None]
        kept(place, night(number, *(reversed(machines) if first else machines),
                          numbers=(gemm("bad", 7000, 7000),)))  # fmt: skip
    kept(place, night(5, good, bad, numbers=(gemm("good", 702, 703),)))
    with reading(place) as history:
        node, gpu, own = history.node("good"), history.gpu("A"), history.node("bad")
        past = history.units(["good"], "deep")
    assert node is not None
    assert (node.standing.bad, node.standing.serial) == (0, "S1")
    assert sorted(past.values()) == [(700, 702), (701, 703)]
    assert gpu is not None
    assert [(one.node, one.until_s) for one in gpu.seats] == [("good", None)]
    assert own is not None
    assert own.standing.serial == "S2"


def test_a_board_that_changes_its_name_begins_anew_until_the_old_name_has_another(
    tmp_path: Path,
) -> None:
    """Its own word is not enough; the node that had it says in its turn that it has it no more."""
    place = made(tmp_path)
    kept(place, night(1, machine("h1", "not_ready", serial="S1", gpus=slots("A")), machine("h2")))
    moved = machine("h9", serial="S1", gpus=slots("A"))
    kept(place, night(2, moved, machine("h2")))
    kept(place, night(3, machine("h1", serial="S3", gpus=slots("B")), machine("h2")))
    kept(place, night(4, moved, machine("h2")))
    with reading(place) as history:
        old, new, gpu = history.node("h9"), history.node("h1"), history.gpu("A")
    assert old is not None
    assert new is not None
    assert (old.standing.judged, old.standing.bad, old.standing.serial) == (2, 1, "S1")
    assert old.namesakes == ("",)
    assert (new.standing.judged, new.standing.serial) == (1, "S3")
    assert gpu is not None
    assert [one.node for one in gpu.seats] == ["h9", "h9"]


@pytest.mark.parametrize("order", [1, -1])
def test_two_hosts_that_swap_their_boards_swap_their_records(tmp_path: Path, order: int) -> None:
    """Each says that it has the other's, and none of both that it has its own."""
    place = made(tmp_path)
    kept(place, night(1, machine("h1", "not_ready", serial="S1"), machine("h2", serial="S2")))
    swapped = (machine("h1", serial="S2"), machine("h2", serial="S1"))
    kept(place, night(2, *swapped[::order]))
    with reading(place) as history:
        one = history.node("h2")
    assert one is not None
    assert (one.standing.judged, one.standing.bad, one.standing.serial) == (2, 1, "S1")


@pytest.mark.slow
def test_the_worst_are_those_that_were_bad_most_often(tmp_path: Path) -> None:
    """In the window; a night in which every node was bad counts against none."""
    place = made(tmp_path)
    names = [f"h{number}" for number in range(8)]

    def bad(*those: str) -> list[object]:
        return [machine(name, "flaky" if name in those else "ready") for name in names]

    kept(place, night(0, *bad("h7")))  # type: ignore[arg-type]
    for number in range(40, 60):
        kept(place, night(number, *bad(*(["h3"] if number % 2 else []), "h5")))  # type: ignore[arg-type]
    kept(place, night(60, *bad(*names)))  # type: ignore[arg-type]
    with reading(place) as history:
        worst = history.worst(nights=30)
        last = history.last_run()
    assert [(one.node, one.bad, one.flaky, one.judged) for one in worst] == [
        ("h5", 20, 20, 20),
        ("h3", 10, 10, 20),
    ]
    assert last is not None
    assert last.systemic


def test_the_waves_of_a_sweep_are_one_night(tmp_path: Path) -> None:
    """Three runs of one sweep; their changes are one answer."""
    place = made(tmp_path)
    ecc = found("gpu.ecc", "h1")
    names = (("h1", "h2"), ("h3", "h4"), ("h5", "h6"))
    for number in (1, 2):
        for wave, own in enumerate(names):
            bent = (ecc,) if wave == 0 and number == 1 else ()
            fine = {"gpu.ecc": frozenset(own)} if number == 2 else {}
            one = night(number, *map(machine, own), findings=bent, fine=fine, sweep=f"s{number}")
            kept(place, replace(one, run=f"{number}{wave}", started_s=one.started_s + wave * 3600))
    with reading(place) as history:
        last = history.last_run()
        assert last is not None
        changes = history.changes(last)
    assert [one.run for one in changes.runs] == ["20", "21", "22"]
    assert changes.before is not None
    assert changes.before.run == "12"
    assert [one.about for one in changes.recovered] == ["h1"]


def test_one_cause_in_all_waves_of_a_sweep_counts_against_nobody(tmp_path: Path) -> None:
    """Two of two nodes in each wave: no wave knows, the sweep does, until it was only few of many.

    Of a repeated wave, the last result counts.
    """
    place = made(tmp_path)

    def wave(number: int, state: State, *names: str, sweep: str = "s") -> None:
        one = night(number, *(machine(name, state) for name in names), sweep=sweep)
        kept(place, one)
        with reading(place) as history:
            blamed.append(sorted(row.node for row in history.worst()))

    blamed: list[list[str]] = []
    wave(1, "not_ready", "h1", "h2")
    wave(1, "not_ready", "h3", "h4")
    assert blamed == [["h1", "h2"], []]
    with reading(place) as history:
        assert all(one.systemic for one in runs_of(history))
    wave(1, "ready", "h3", "h4")
    wave(1, "ready", *(f"h{number}" for number in range(5, 20)))
    assert blamed[2:] == [["h1", "h2", "h3", "h4"]] * 2
    wave(2, "not_ready", "h1", sweep="")
    wave(2, "not_ready", "h3", sweep="")
    assert blamed[-1] == ["h1", "h2", "h3", "h4"]  # runs by themselves are no night together
