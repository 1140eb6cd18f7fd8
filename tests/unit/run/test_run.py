"""A run's stages and gates, over made-up measurements: nobody is asked, everything is judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.check import subject
from preflight.core.registry import Entry, Registry, load_folder, shipped_folder
from preflight.fabric.schedule import Planned
from preflight.facts.model import Driver
from preflight.facts.node import Clock, Reach
from preflight.fleet.model import Expected, Fleet, Host
from preflight.report.ready import exit_code, readiness
from preflight.run.expected_verdicts import Settings
from preflight.run.judgement import stages_needed
from preflight.run.measured import Measured
from preflight.run.run import Run
from preflight.verdict import Outcome, Verdict
from tests.unit.core.site_checks import write_check
from tests.unit.fabric.synthetic import sweep
from tests.unit.facts.builders import attempt, facts, free_port, gpus, ports

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from preflight.run.expected_verdicts import FailFast
    from preflight.run.judgement import Key

NAMES = ("h1", "h2", "h3")
HEALTHY = Measured(
    nonce="ab" * 16,
    reach=dict.fromkeys(NAMES, Reach("paramiko", clock=Clock(0.0, 0.1))),
    facts={name: facts(name) for name in NAMES},
    ports={
        name: ports(
            *(attempt(other) for other in NAMES if other != name),
            master=free_port() if name == "h1" else None,
        )
        for name in NAMES
    },
)
DOWN = Reach("paramiko", "route", "nobody answers at h2:22", "look at its power and its cable")


def _fleet(*, group: str = "train") -> Fleet:
    expected = Expected(gpus=8)
    return Fleet(
        hosts=tuple(Host(name=n, address=n, group=group, expected=expected) for n in NAMES),
        origin="a test",
    )


def _run(*site: Path, fail_fast: FailFast = "never", budget_s: float | None = None) -> Run:
    checks = [check for folder in (shipped_folder(), *site) for check in load_folder(folder)]
    settings = Settings(fail_fast=fail_fast, budget_s=budget_s)
    return Run(_fleet(), Registry(checks), settings)


def _without(name: str) -> Measured:
    """Measurements of a fleet in which one node is down."""
    return replace(
        HEALTHY,
        reach={**HEALTHY.reach, name: DOWN},
        facts={n: f for n, f in HEALTHY.facts.items() if n != name},
        ports={n: p for n, p in HEALTHY.ports.items() if n != name},
    )


def _judge(
    run: Run, measured: Measured, check_ids: Container[str] | None = None
) -> dict[Key, Verdict]:
    """Replay the measurements; return the findings that were announced."""
    found: dict[Key, Verdict] = {}
    run.replay(measured, run.expected(check_ids), found.__setitem__)
    return found


def _outcome(run: Run, check_id: str, *names: str) -> tuple[Outcome, str]:
    verdict = run.judgement.verdict(check_id, names)
    return verdict.outcome, verdict.sentence


def test_a_healthy_fleet_has_no_findings() -> None:
    """What was measured of healthy nodes leads to no finding before the sweep."""
    assert _judge(_run(), HEALTHY) == {}


def test_a_node_that_is_down_blocks_what_needs_it() -> None:
    """One finding at the root; everything behind it is not run, and says why at any depth."""
    run = _run()
    assert set(_judge(run, _without("h2"))) == {("reach.route", ("h2",))}
    for check_id in ("gpu.count", "gpu.topology", "net.ports", "host.driver_hung"):
        outcome, why = _outcome(run, check_id, "h2")
        assert outcome is Outcome.NOT_RUN
        assert "nobody answers at h2:22" in why
    assert _outcome(run, "fabric.allreduce", "h1", "h2")[0] is Outcome.NOT_RUN
    assert _outcome(run, "gpu.count", "h1")[0] is Outcome.OK


@pytest.mark.parametrize("selected", ["gpu.count", "net.ports", "fabric.allreduce"])
def test_a_shut_gate_is_found_though_it_was_not_selected(selected: str) -> None:
    """Whoever selects one check still hears of the node that it could not be asked on."""
    run = _run()
    assert set(_judge(run, _without("h2"), [selected])) == {("reach.route", ("h2",))}
    assert run.judgement.verdicts()["reach.route", ("h2",)].makes_not_ready


def test_a_hung_driver_blocks_what_reads_the_driver() -> None:
    """The gate is named in the words of its own finding."""
    run = _run()
    hung = replace(facts("h3"), driver=Driver("hung"), gpus=None)
    measured = replace(HEALTHY, facts={**HEALTHY.facts, "h3": hung})
    assert ("host.driver_hung", ("h3",)) in _judge(run, measured, ["gpu.count"])
    outcome, why = _outcome(run, "gpu.count", "h3")
    assert outcome is Outcome.NOT_RUN
    assert why.startswith("host.driver_hung of h3: ")


def test_a_finding_that_does_not_block(tmp_path: Path) -> None:
    """`blocks=False` condemns a node, or another one, without holding up what comes after."""
    write_check(tmp_path, "site.gate", "conclude(fail('odd', advice='-', blocks=False))")
    write_check(tmp_path, "site.behind", requires=("site.gate",))
    run = _run(tmp_path)
    _judge(run, HEALTHY, ["site.behind"])
    assert _outcome(run, "site.behind", "h1") == (Outcome.OK, "fine")


@pytest.mark.parametrize(
    ("gate", "behind"),
    [
        ("conclude(fail('bad', advice='-'))", Outcome.NOT_RUN),
        ("conclude(unknown('unread', advice='-'))", Outcome.NOT_RUN),
        ("raise ValueError", Outcome.NOT_RUN),
        ("conclude(unknown('unread', advice='-', grant='sudo'))", Outcome.OK),
        ("conclude(warn('odd', advice='-'))", Outcome.OK),
        ("conclude(not_run('nothing here'))", Outcome.OK),
    ],
)
def test_what_shuts_a_gate(tmp_path: Path, gate: str, behind: Outcome) -> None:
    """Condemned and broken gates block; warnings and what does not apply do not."""
    write_check(tmp_path, "site.gate", gate)
    write_check(tmp_path, "site.behind", requires=("site.gate",))
    run = _run(tmp_path)
    _judge(run, HEALTHY, ["site.behind"])
    assert _outcome(run, "site.behind", "h1")[0] is behind


def test_a_check_without_gates_still_needs_the_way_in(tmp_path: Path) -> None:
    """A site's check that requires nothing has its node asked all the same."""
    write_check(tmp_path, "site.a")
    run = _run(tmp_path)
    assert stages_needed(run.registry, ["site.a"]) == {"reach", "facts"}
    assert set(_judge(run, _without("h2"), ["site.a"])) == {("reach.route", ("h2",))}
    assert "nobody answers" in _outcome(run, "site.a", "h2")[1]


def test_a_stage_needs_the_gates_of_all_its_checks(tmp_path: Path) -> None:
    """A site's pair check alone is swept among nodes whose ports were tried, as the sweep asks."""
    write_check(tmp_path, "site.pair", stage="fabric", subject="pair")
    assert stages_needed(_run(tmp_path).registry, ["site.pair"]) == {
        "reach", "facts", "net", "fabric",
    }  # fmt: skip


def test_who_is_left_out_of_a_stage() -> None:
    """A stage asks the gates of its checks, and hears the reason in words."""
    run = _run()
    run.judgement.advance(_without("h2"))
    assert run.judgement.why_excluded("h1", "net") == ""
    assert "nobody answers at h2:22" in run.judgement.why_excluded("h2", "net")


class _Told(Run):
    """A run whose stages bring made-up measurements instead of asking anybody."""

    brings: Measured

    def _probe(self, left_s: float) -> None:
        assert left_s > 0
        assert self._selection.keys
        self._update(reach=self.brings.reach, facts=self.brings.facts)

    def _try_ports(self, deadline_s: float) -> None:
        assert deadline_s > 0
        self._update(ports=self.brings.ports)


def _told(fail_fast: FailFast, *, budget_s: float | None = None) -> tuple[Run, dict[Key, Verdict]]:
    """Run the stages over a fleet where h1 and h2 lack a GPU; return the run and what it found."""
    checks = [c for c in load_folder(shipped_folder()) if c.check.stage != "fabric"]
    run = _Told(_fleet(), Registry(checks), Settings(fail_fast=fail_fast, budget_s=budget_s))
    few = {name: replace(facts(name), gpus=gpus(7)) for name in ("h1", "h2")}
    run.brings = replace(HEALTHY, facts={**HEALTHY.facts, **few})
    found: dict[Key, Verdict] = {}
    run.measure(run.expected(), found.__setitem__)
    return run, found


def test_fail_fast_stage_shows_all_findings_of_the_stage() -> None:
    """The stage that found something is judged to its end; the next ones are not measured."""
    run, found = _told("stage")
    assert {key for key in found if key[0] == "gpu.count"} == {
        ("gpu.count", ("h1",)),
        ("gpu.count", ("h2",)),
    }
    assert not run.judgement.measured.ports
    verdict = run.judgement.verdict("net.ports", ("h3",))
    assert verdict.outcome is Outcome.NOT_RUN
    assert verdict.evidence["stopped"] is True
    assert "--preflight-fail-fast=never" in verdict.sentence


def test_fail_fast_first_stops_at_one_finding() -> None:
    """The rest is not run, with the reason, and never lost."""
    run, found = _told("first")
    assert len(found) == 1
    known = run.judgement.verdicts()
    assert set(run.expected()) <= set(known)
    assert run.stopped
    assert all(known[key].evidence["stopped"] for key in run.stopped)


def test_fail_fast_never_goes_on() -> None:
    """A nightly run measures every stage for the nodes that can take part."""
    run, found = _told("never")
    assert ("gpu.count", ("h2",)) in found
    assert run.judgement.measured.ports
    assert _outcome(run, "net.ports", "h3")[0] is Outcome.OK


def test_a_spent_budget_condemns_nobody_and_says_once_what_to_give() -> None:
    """What there was no time for is no pass, and no fault of any node: one sentence for all."""
    run, found = _told("stage", budget_s=0.5)
    verdicts = run.judgement.verdicts()
    entries = [
        Entry(check, subject(names), names, each) for (check, names), each in verdicts.items()
    ]
    (said,) = {entry.verdict.sentence for entry in entries}
    assert said == (
        "of the budget of 0.5 s less than 1 s was left for the reach stage; "
        "give more: --preflight-budget=SECONDS"
    )
    ready = readiness(NAMES, entries, strict=False)
    assert (ready.not_ready, ready.unjudged, found) == ((), NAMES, {})
    assert exit_code(entries, ready) == 3


def test_measurements_travel_unchanged() -> None:
    """Another process, or another day, reads exactly what was measured, and judges the same."""
    again = Measured.decode(HEALTHY.encode())
    assert again == HEALTHY
    first, second = _run(), _run()
    _judge(first, _without("h2"))
    _judge(second, Measured.decode(_without("h2").encode()))
    assert first.judgement.verdicts() == second.judgement.verdicts()


def _swept(bad: str) -> Measured:
    """One round of h1-h2 was scheduled; h1-h3 mended it, h2-h3 is a retest."""
    hosts = [Host(name=n, address=n) for n in NAMES]
    whole = sweep(hosts, lambda a, b: "hung" if f"{a}-{b}" == bad else 1.0)
    number = {("h1", "h2"): 0, ("h1", "h3"): 0, ("h2", "h3"): 1}
    pairs = sorted(
        (replace(pair, round=number[pair.a, pair.b]) for pair in whole.pairs),
        key=lambda pair: (pair.round, pair.a, pair.b),
    )
    done = replace(
        whole,
        rounds=((("h1", "h2"), ("h1", "h3")), (("h2", "h3"),)),
        pairs=tuple(pairs),
        retested=1,
    )
    return replace(HEALTHY, sweep=done)


def _one_round(fail_fast: FailFast = "never") -> Run:
    settings = Settings(fail_fast=fail_fast)
    planned = Planned(rounds=((("h1", "h2"),),), total=3)
    return Run(_fleet(), Registry(load_folder(shipped_folder())), settings, planned)


@pytest.mark.parametrize("bad", ["h1-h3", "h2-h3"])
def test_what_was_measured_beside_the_schedule_has_a_verdict(bad: str) -> None:
    """A repair or a retest that hangs is found in a replay, too, though no item asks for it."""
    run = _one_round()
    found = _judge(run, _swept(bad), ["fabric.allreduce"])
    assert run.repairs == [("fabric.allreduce", ends) for ends in (("h1", "h3"), ("h2", "h3"))]
    assert list(found) == [("fabric.allreduce", tuple(bad.split("-")))]
    others = _one_round()
    _judge(others, _swept(bad), ["gpu.count"])
    assert others.repairs == []


def test_stopping_at_the_first_finding_loses_no_repair() -> None:
    """Pairs that were measured beside the schedule and not judged any more are `not_run`."""
    run = _one_round("first")
    _judge(run, _swept("h1-h2"), ["fabric.allreduce"])
    assert {_outcome(run, *key[:1], *key[1])[0] for key in run.repairs} == {Outcome.NOT_RUN}
    assert set(run.repairs) <= set(run.judgement.verdicts())
