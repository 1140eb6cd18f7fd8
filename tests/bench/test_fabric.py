"""The benchmark of the decoder: what it counts and asks, and that it goes on where it stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.fabric.decoding.culprit import Culprit
from tests.bench import fabric, full
from tests.bench.accuracy import by_kind, by_size, rows
from tests.bench.decoding import decode
from tests.bench.fabrics import NODES, Case, case, make, most_faults
from tests.simulate.faults import SYMPTOMS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from preflight.fabric.observed import Observed
    from tests.bench.fabrics import Name

_CASES = [case("rdma:16:faulty:1"), case("recorded:8:faulty:4"), case("rdma:4:healthy:0")]


class _Oracle:
    """Decodes with the truth in hand."""

    def __init__(self, one: Case) -> None:
        self._planted = make(one).planted

    def __call__(self, observed: Observed) -> Sequence[Culprit]:
        del observed
        return [
            Culprit(among=one.among, symptom=min(SYMPTOMS[one.fault.kind]), confidence=1.0)
            for one in self._planted
        ]


def _wrong(observed: Observed) -> Sequence[Culprit]:
    """Blames the first node for whatever there is."""
    from tests.simulate.faults import node

    return [Culprit(among=(node(observed.nodes[0]),), symptom="late", confidence=1.0)]


def test_a_case_is_its_id() -> None:
    """What a line of the results names can be made again; nonsense says how to write it."""
    for one in _CASES:
        assert case(one.id) == one
        assert make(one) == make(one)
    with pytest.raises(ValueError, match="rdma:16:faulty:3"):
        case("infiniband:4:faulty:1")


def test_the_plan_has_every_size_and_mixes_faults() -> None:
    """All sizes that are promised, healthy and faulty, spread evenly; up to six faults at once."""
    cases = fabric.plan(fabric.FAULTY, fabric.HEALTHY)
    assert {one.nodes for one in cases if one.faulty} == set(NODES)
    assert {one.nodes for one in cases if not one.faulty} == set(NODES)
    assert len({one.id for one in cases}) == len(cases)
    assert [most_faults(nodes) for nodes in (2, 4, 8, 17, 4096)] == [1, 1, 2, 4, 6]
    assert sum(count for quota in full.HEALTHY.values() for count in quota.values()) == 3000


def test_right_and_wrong_decoders_are_told_apart() -> None:
    """An oracle keeps every promise; one that blames somebody always breaks each."""
    right = [decode(one, _Oracle(one)) for one in _CASES]
    assert [row.met for row in rows(right)][:3:2] == [True, True]
    assert all(fault.fate in ("named", "inside") for one in right for fault in one.faults)
    wrong = [decode(one, _wrong) for one in _CASES]
    met = {row.id: row.met for row in rows(wrong)}
    assert met["fabric.named"] is False
    assert met["fabric.wrong.healthy"] is False
    assert "1 of 1" in by_size(wrong)
    assert "missed" in by_kind(wrong)


def test_a_path_that_is_slow_is_measured_again() -> None:
    """Beside pairs drawn at will, so that who is retested does not give it away."""
    for seed in range(20):
        made = make(Case("rdma", 16, faulty=True, seed=seed))
        paths = [one for one in made.planted if one.component.kind == "path"]
        assert bool(made.fabric.retested) == bool(paths)
        again = {pair for around in made.fabric.rounds[15:] for pair in around}
        assert {one.component.nodes for one in paths} <= again
        assert len(again) >= len(paths)


def test_the_long_form_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the same code has decoded is not decoded again; a torn line is."""
    quota: dict[Name, fabric.Quota] = {"rdma": {2: 2}}
    monkeypatch.setattr(full, "FAULTY", quota)
    monkeypatch.setattr(full, "HEALTHY", quota)
    results = tmp_path / "fabric.jsonl"
    asked = ["full", "--results", str(results)]
    monkeypatch.setattr("sys.argv", asked)
    assert full.main() == 0
    lines = results.read_bytes().splitlines()
    assert len(lines) == 4
    results.write_bytes(b"\n".join(lines[:3]) + b"\n" + lines[3][:20] + b"\n")
    assert full.main() == 0
    again = results.read_bytes().splitlines()
    assert len(again) == 5
    assert again[:3] == lines[:3]
    assert "4 of 4 fabrics" in capsys.readouterr().out
    assert (tmp_path / "fabric-full.json").exists()
    other = results.read_bytes().replace(full.fingerprint().encode(), b"0" * 12)
    results.write_bytes(other)
    monkeypatch.setattr("sys.argv", [*asked, "--show"])
    assert full.main() == 0
    assert "0 of 4 fabrics" in capsys.readouterr().out
