"""The burn-in's place in a run: who is left out of it, its gates, and what an interrupt keeps."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.burn.burn_in import burn_plan
from preflight.core.registry import Registry, load_folder, shipped_folder
from preflight.core.remote_command import ReachError
from preflight.fabric.samples import Sweep
from preflight.facts.burn import Burned, Proof
from preflight.facts.node import Reach
from preflight.facts.node_network import ConfFile, ConfSetting
from preflight.fleet.model import Expected, Fleet, Host, Job
from preflight.run import stages as stage
from preflight.run.expected_verdicts import Settings
from preflight.run.judgement import Judgement, stages_needed
from preflight.run.measured import Measured
from preflight.run.run import Run
from preflight.transport.ways import transport_for
from preflight.verdict import Outcome
from tests.unit.burn.builders import burned, lost
from tests.unit.facts.builders import facts, holder, seen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.core.remote_command import Remote
    from preflight.fabric.sweep_plan import SweepPlan
    from preflight.run.judgement import Key

CONF = ConfFile("/etc/nccl.conf", "system", (ConfSetting("NCCL_SOCKET_IFNAME", "eth0"),))
NAMES = ("h1", "h2", "h3")
REACHED = Measured(
    nonce="n",
    reach=dict.fromkeys(NAMES, Reach("paramiko")),
    facts={name: facts(name) for name in NAMES},
)


def _run(**settings: object) -> Run:
    hosts = tuple(
        Host(name=name, address=name, group="train", expected=Expected(gpus=8)) for name in NAMES
    )
    checks = Registry(load_folder(shipped_folder()))
    chosen = Settings(tier="standard", fail_fast="never", **settings)  # type: ignore[arg-type]
    return Run(Fleet(hosts=hosts, origin="a test"), checks, chosen)


def _burn_keys(run: Run) -> list[Key]:
    return [key for key in run.expected() if key[0].startswith("burn.")]


def _judge(run: Run, **of_nodes: Burned) -> dict[Key, Outcome]:
    measured = replace(REACHED, burned={**dict.fromkeys(NAMES, burned()), **of_nodes})
    run.replay(measured, _burn_keys(run), lambda _key, _verdict: None)
    return {key: verdict.outcome for key, verdict in run.judgement.verdicts().items()}


def test_only_standard_and_deep_load_the_devices() -> None:
    """A quick run neither measures nor owes a burn-in."""
    quick = _run()
    quick.settings = replace(quick.settings, tier="quick")
    assert _burn_keys(quick) == []
    assert "local" not in stages_needed(quick.registry, {key[0] for key in quick.expected()})
    assert stages_needed(quick.registry, ["burn.gemm"]) == {"reach", "facts", "local"}


def test_three_healthy_nodes_pass() -> None:
    """Nine verdicts of ten are ok on each; all of them are reached."""
    outcomes = _judge(_run())
    burn = {key: outcome for key, outcome in outcomes.items() if key[0].startswith("burn.")}
    assert len(burn) == 30
    assert set(burn.values()) == {Outcome.OK}


def test_the_stage_asks_the_gates_of_earlier_stages_only() -> None:
    """Who hangs in the burn-in is known afterwards: before, its own gate is not asked."""
    run = _run()
    run.judgement.advance(REACHED)
    assert run.judgement.why_excluded("h1", "local") == ""
    assert ("burn.device", ("h1",)) not in run.judgement.verdicts()


def test_a_node_that_somebody_works_on_is_not_loaded() -> None:
    """Nobody's job is disturbed, unless the operator says so."""
    training = facts("h2", processes=seen(holder(7, 60_000, parent_command="torchrun train.py")))
    measured = replace(REACHED, facts={**REACHED.facts, "h2": training})
    run, bold = _run(), _run(even_if_busy=True)
    for one in (run, bold):
        one.judgement.advance(measured)
    others = [host for host in run.fleet.hosts if host.name != "h2"]
    assert run._eligibility().left_out("local", others)["h2"].startswith("busy: pid 7 ")
    assert not bold._eligibility().why_not_loaded("h2")


def test_a_lost_node_is_one_finding() -> None:
    """What is behind its gate says which, and is not run."""
    run = _run()
    outcomes = _judge(run, h2=Burned(trouble="the connection to it was lost"))
    assert outcomes["burn.device", ("h2",)] is Outcome.UNKNOWN
    behind = {o for (check, names), o in outcomes.items() if names == ("h2",) and "burn" in check}
    assert behind == {Outcome.UNKNOWN, Outcome.NOT_RUN}
    assert "lost" in run.judgement.verdict("burn.gemm", ("h2",)).sentence
    assert outcomes["burn.gemm", ("h1",)] is Outcome.OK


def test_a_gpu_that_hung_does_not_hide_another_that_is_slow() -> None:
    """`burn.device` condemns without shutting the gate."""
    node = burned({("gemm_tflops", 1): 0.5})
    without = tuple(one for one in node.readings if 6 not in (one.device, one.to))
    hung = replace(
        node,
        readings=without,
        lost=(lost(6),),
        proofs=tuple(one for one in node.proofs if one.device != 6),
    )
    outcomes = _judge(_run(), h3=hung)
    assert outcomes["burn.device", ("h3",)] is Outcome.FAIL
    assert outcomes["burn.gemm", ("h3",)] is Outcome.FAIL
    assert outcomes["burn.memory", ("h3",)] is Outcome.OK


class _Interrupted(stage.BurnStage):
    """A stage that is interrupted when h1 is through and h2 has shown a wrong bit."""

    def run(self, progress: object) -> dict[str, Burned]:
        del progress
        raise KeyboardInterrupt

    def partial_results(self) -> dict[str, Burned]:
        wrong = Proof(device=0, what="memory", rounds=4, wrong=1, first="word 5", size="1 MiB")
        cut = {"stopped": True, "trouble": "the run was interrupted"}
        return {"h1": burned(), "h2": Burned(proofs=(wrong,), ready=burned().ready, **cut)}  # type: ignore[arg-type]


def test_an_interrupt_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong bit and a device that hung are told; speeds stay open, as peers are missing."""
    monkeypatch.setattr("preflight.run.run.BurnStage", _Interrupted)
    run = _run()
    run.judgement.advance(REACHED)
    here = transport_for("local")
    run._connections = {host.name: here.connect(host, 5.0) for host in run.fleet.hosts}
    run._selection = run._select(_burn_keys(run))
    with pytest.raises(KeyboardInterrupt):
        run._burn_in(300.0)
    known = {key: one.outcome for key, one in run.judgement.verdicts().items() if "burn" in key[0]}
    assert known == {
        ("burn.device", ("h1",)): Outcome.OK,
        ("burn.integrity", ("h1",)): Outcome.OK,
        ("burn.device", ("h2",)): Outcome.NOT_RUN,
        ("burn.integrity", ("h2",)): Outcome.FAIL,
    }


class Refusing:
    """A way to a node which notes what it was to start, and starts nothing."""

    def __init__(self) -> None:
        self.argv: list[str] = []

    def start(self, argv: Sequence[str], *, timeout_s: float, limit: int = 0) -> Remote:
        """ReachError, always."""
        del timeout_s, limit
        self.argv = list(argv)
        raise ReachError("python", "not here", "look there")

    def close(self) -> None:
        """Nothing to leave."""


def test_each_node_is_loaded_in_the_jobs_environment_there() -> None:
    """A node's own environment is that of its ranks; one for all is under no name."""
    job = Job(environ={"": {"NCCL_IB_TC": "1"}, "h2": {"NCCL_IB_TC": "2", "NCCL_ALGO": "Tree"}})
    ways = {name: Refusing() for name in ("h1", "h2")}
    hosts = [Host(name=name, address=name, python=("/opt/bin/python3",)) for name in ways]
    nodes = stage.Nodes(hosts, ways, "n", 5.0)
    told = stage.BurnStage(nodes, {}, burn_plan("standard"), job).run(lambda *_: None)
    assert {one.trouble for one in told.values()} == {"not here"}
    assert [way.argv[:3] for way in ways.values()] == [
        ["env", "NCCL_IB_TC=1", "/opt/bin/python3"],
        ["env", "NCCL_IB_TC=2", "/opt/bin/python3"],
    ]


@pytest.mark.parametrize(
    ("changes", "environ", "pinned"),
    [
        ({}, None, ["h1", "h2", "h3"]),
        ({}, {}, []),
        ({}, {"h2": {}}, ["h1", "h3"]),
        ({"nccl_conf": (CONF,)}, None, []),
    ],
)
def test_on_which_nodes_nccl_is_held_to_the_way_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, object],
    environ: dict[str, dict[str, str]] | None,
    pinned: list[str],
) -> None:
    """Where nothing of the job says which interface it will take."""
    run = _run()
    environ = {"": {}} if environ == {} else environ
    run.fleet = replace(run.fleet, job=Job(environ=environ))
    found = {name: facts(name, **changes) for name in NAMES}
    run.judgement = Judgement(run.fleet, run.registry, replace(REACHED, facts=found))
    asked: list[frozenset[str]] = []

    def sweep_fleet(_nodes: object, plan: SweepPlan, *_: object) -> Sweep:
        asked.append(plan.unpinned)
        return Sweep(ladder=(), rounds=(), pairs=())

    monkeypatch.setattr("preflight.run.run.sweep_fleet", sweep_fleet)
    run._sweep(60.0)
    assert sorted(set(NAMES) - asked[0]) == pinned


class Cut:
    """A payload that says nothing until its talk is closed, and then that it is gone."""

    def __init__(self) -> None:
        self.closed, self.left = threading.Event(), threading.Event()

    def receive(self, within_s: float) -> None:
        """ReachError once it is closed."""
        if self.closed.wait(within_s):
            raise ReachError("answer", "it ended before it answered", "look there")

    def send(self, message: object) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """End it; twice where the thread that listened to it leaves."""
        (self.left if self.closed.is_set() else self.closed).set()


def test_no_node_is_blamed_for_a_talk_that_we_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C a node was interrupted, whatever its payload's end looks like here."""
    talk = Cut()
    monkeypatch.setattr(stage, "start_payload", lambda *_, **__: talk)
    ways = {"h1": Refusing()}
    hosts = [Host(name="h1", address="h1")]
    nodes = stage.Nodes(hosts, ways, "n", 60.0)
    one = stage.BurnStage(nodes, {}, burn_plan("standard"), Job())

    def interrupt(done: int, total: int, waiting: list[str]) -> None:
        if done != total:
            while waiting and not one._sessions:
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one.run(interrupt)
    assert talk.left.wait(10.0)
    time.sleep(0.05)
    told = one.partial_results()["h1"]
    assert (told.trouble, told.stopped) == ("the run was interrupted", True)
