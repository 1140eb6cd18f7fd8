"""A fleet of four real hosts: healthy is 0, and each fault alone is 1 with exactly its finding."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.lab import impostors, processes, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.lab.cluster import Lab
    from tests.stories.conftest import Told

pytestmark = pytest.mark.lab

ALL = "--preflight-fail-fast=never"


@pytest.fixture
def judge(preflight: Callable[..., Told], lab: Lab) -> Callable[..., Told]:
    """Judge the lab's four hosts, with changes laid over their inventory."""

    def run(*arguments: str, changes: dict[str, object] | None = None) -> Told:
        inventory = lab.inventory(**(changes or {}))  # type: ignore[arg-type]
        return preflight("--preflight-inventory", str(inventory), *arguments)

    return run


@pytest.fixture(autouse=True)
def _nothing_is_left(lab: Lab) -> Iterator[None]:
    """Whatever happened, no process of ours stays on any host."""
    before = {name: _commands(lab, name) for name in lab.hosts}
    yield
    lab.heal()
    for name in lab.hosts:
        left = _commands(lab, name) - before[name]
        assert not {command for command in left if "preflight" in command and "-c" in command}


def _commands(lab: Lab, name: str) -> set[str]:
    listing = lab.hosts[name].run(["ps", "-eo", "args"]).stdout
    return {line for line in listing.splitlines() if "ps -eo" not in line}


def test_a_healthy_fleet_is_ready(judge: Callable[..., Told]) -> None:
    """Every expected verdict arrives, none is bad, and all six pairs were really measured."""
    told = judge()
    assert told.exit == 0, told.out
    assert "ready      h[1-4]  4 of 4" in told.out
    assert told.found() == set()
    assert told.report["lost"] == 0
    pairs = told.report["pairs"]
    assert {(pair["a"], pair["b"]) for pair in pairs} == {
        ("h1", "h2"), ("h1", "h3"), ("h1", "h4"), ("h2", "h3"), ("h2", "h4"), ("h3", "h4"),
    }  # fmt: skip
    assert all(pair["state"] == "measured" for pair in pairs)
    assert all(size["busbw_gbs"] > 0 for pair in pairs for size in pair["sizes"])
    assert (told.folder / "ready.hosts").read_text() == "h1\nh2\nh3\nh4\n"


def test_fewer_places_than_nodes(judge: Callable[..., Told]) -> None:
    """Two may connect at once; all four sweep together, as nobody holds a place while he waits."""
    told = judge("-m", "preflight_fabric", "--preflight-at-once=2")
    assert told.exit == 0, told.out
    assert "2 at a time" in told.out
    assert [pair["state"] for pair in told.report["pairs"]] == ["measured"] * 6


def test_a_missing_gpu(judge: Callable[..., Told], lab: Lab) -> None:
    """A GPU that fell off the bus is that node's finding, and nobody else's."""
    lab.hosts["h2"].set_scenario(lab.hosts["h2"].scenario.without_gpu(3))
    told = judge(ALL, "-m", "not preflight_fabric")
    assert told.exit == 1
    assert told.found() == {("gpu.count", "h2")}
    assert "7 of 8 GPUs answer" in told.out
    assert "not ready  h2  --exclude=h2" in told.out


def test_a_stale_rank_on_the_master_port(judge: Callable[..., Told], lab: Lab) -> None:
    """One culprit, one finding: the rank is named with its pid, port, memory and how to end it."""
    with processes.stale_rank(lab.hosts["h1"], port=29500) as rank:
        told = judge(ALL, "-m", "not preflight_fabric")
    assert told.exit == 1
    assert told.found() == {("host.stale_processes", "h1"), ("net.ports", "h1")}
    assert "host.stale_processes  (also net.ports)" in told.out
    assert f"do: kill {rank.pid}" in told.out
    assert told.report["fleet"]["not_ready"] == ["h1"]


def test_a_host_that_is_down(judge: Callable[..., Told], lab: Lab) -> None:
    """A dead host is one line; the others and their pairs are judged."""
    with lab.hosts["h3"].down():
        told = judge(ALL)
    assert told.exit == 1
    assert told.found() == {("reach.route", "h3")}
    measured = {
        f"{pair['a']}-{pair['b']}" for pair in told.report["pairs"] if pair["state"] == "measured"
    }
    assert measured == {"h1-h2", "h1-h4", "h2-h4"}


def test_partners_of_hosts_that_are_down_are_measured_and_judged(
    judge: Callable[..., Told], lab: Lab
) -> None:
    """Its one round is h1-h4 and h2-h3; without h3 and h4 the pair h1-h2 is made, and judged."""
    arguments = ("-m", "preflight_fabric", "--preflight-sweep=1", "--preflight-seed=5",
                 "--preflight-fail-fast=never")  # fmt: skip
    with lab.hosts["h3"].down(), lab.hosts["h4"].down():
        told = judge(*arguments)
    assert told.exit == 1
    assert told.found() == {("reach.route", "h3"), ("reach.route", "h4")}
    again = judge(*arguments, f"--preflight-replay={told.folder / 'measured.json'}")
    for one in (told, again):
        made = {
            (row["subject"], row["outcome"])
            for row in one.report["verdicts"]
            if row["check"] == "fabric.allreduce"
        }
        assert made == {("h1-h4", "not_run"), ("h2-h3", "not_run"), ("h1-h2", "ok")}
        assert one.report["coverage"]["repairs"] == 1
        assert 0 < one.report["coverage"]["measured_share"] < 1
        turns = {f"{row['a']}-{row['b']}": row["turn"] for row in one.report["pairs"]}
        assert turns["h1-h2"] == "repair"
        assert "1 for partners of nodes that are out" in " ".join(one.out.split())


def test_a_changed_host_key(judge: Callable[..., Told], lab: Lab) -> None:
    """A key that is not the known one is a finding with both fingerprints, never a login."""
    with lab.hosts["h2"].changed_key():
        told = judge("-m", "not preflight_fabric")
    assert told.exit == 1
    assert told.found() == {("reach.hostkey", "h2")}
    assert told.out.count("SHA256:") >= 2
    assert "ssh-keygen -R" in told.out


def test_a_wrong_login(judge: Callable[..., Told], lab: Lab) -> None:
    """A node that refuses our key says so, with the user and the key."""
    told = judge(
        "-m", "not preflight_fabric",
        changes={"node": {"h4": {"identity_file": str(lab.stranger())}}},
    )  # fmt: skip
    assert told.exit == 1
    assert told.found() == {("reach.login", "h4")}
    assert "root" in told.out


def test_no_python_on_a_node(judge: Callable[..., Told]) -> None:
    """A missing interpreter is named by its path."""
    told = judge(
        "-m", "not preflight_fabric", changes={"node": {"h2": {"python": impostors.NO_PYTHON}}}
    )
    assert told.exit == 1
    assert told.found() == {("reach.python", "h2")}
    assert impostors.NO_PYTHON in told.out


@pytest.mark.parametrize(
    "kind", ["garbage", "flood", "one_long_line", "control_characters", "empty", "fails"]
)
def test_a_node_that_answers_nonsense(judge: Callable[..., Told], lab: Lab, kind: str) -> None:
    """Garbage, 100 MB, escape sequences, nothing: a finding for that node alone, a clean screen."""
    python = str(impostors.python_that(lab, kind))
    told = judge(ALL, "-m", "not preflight_fabric", changes={"node": {"h3": {"python": python}}})
    assert told.exit == 1
    assert {subject for _, subject in told.found()} == {"h3"}
    assert {check for check, _ in told.found()} <= {"reach.answer", "reach.python"}
    assert told.report["fleet"]["ready"] == ["h1", "h2", "h4"]
    for text in (told.out, (told.folder / "report.json").read_text()):
        assert "\x1b" not in text
        assert "\x07" not in text


@pytest.mark.parametrize("unkillable", [False, True])
def test_a_hung_driver(judge: Callable[..., Told], lab: Lab, *, unkillable: bool) -> None:
    """A driver call that never returns, or that SIGKILL cannot end, costs its node a deadline."""
    host = lab.hosts["h2"]
    with ExitStack() as stack:
        scenario = host.scenario
        if unkillable:
            scenario = scenario.blocking(str(stack.enter_context(processes.frozen_disk(host))))
        else:
            scenario = scenario.hanging()
        host.set_scenario(scenario)
        told = judge(ALL, "-m", "not preflight_fabric")
    assert told.exit == 1
    assert told.found() == {("host.driver_hung", "h2")}
    evidence = next(v for v in told.report["verdicts"] if v["outcome"] == "fail")
    assert ("survivor" in str(evidence["evidence"])) or not unkillable


def test_a_firewall_in_front_of_the_master(judge: Callable[..., Told], lab: Lab) -> None:
    """When nobody reaches the master's port the master is blamed, not its clients."""
    with wire.firewall(lab.hosts["h1"], ports="29500"):
        told = judge(ALL, "-m", "not preflight_fabric")
    assert told.exit == 1
    assert told.report["fleet"]["not_ready"] == ["h1"]
    assert {check for check, _ in told.found()} == {"net.ports"}
    assert told.out.count("  net.ports\n") == 1


def test_a_firewall_between_the_master_and_one_node(judge: Callable[..., Told], lab: Lab) -> None:
    """Their path is named, with what a job would do there; all other pairs are measured."""
    one, other = lab.hosts["h1"], lab.hosts["h3"]
    with wire.firewall(one, source=other), wire.firewall(other, source=one):
        told = judge(ALL)
    assert told.exit == 1
    assert told.report["fleet"]["not_ready"] == []
    assert told.report["fleet"]["apart"] == [["h1", "h3"]]
    assert told.out.count("FAIL   pair h1-h3  net.ports  (also fabric.allreduce)\n") == 1
    assert "h3 cannot reach the master port h1:29500" in " ".join(told.out.split())
    measured = {f"{p['a']}-{p['b']}" for p in told.report["pairs"] if p["state"] == "measured"}
    assert measured == {"h1-h2", "h1-h4", "h2-h3", "h2-h4", "h3-h4"}


def test_a_short_lived_zombie_is_harmless(judge: Callable[..., Told], lab: Lab) -> None:
    """A child that its living parent has not reaped yet must not fail a node."""
    with processes.zombie(lab.hosts["h2"], lasting=False):
        told = judge("-m", "not preflight_fabric")
    assert told.exit == 0, told.out


def test_somebody_at_work_is_not_disturbed(judge: Callable[..., Told], lab: Lab) -> None:
    """A GPU that a living process uses keeps its node out of the sweep, unless told otherwise."""
    host = lab.hosts["h2"]
    worker = host.spawn(["sh", "-c", "echo at work; exec sleep 100000"])
    worker.wait_for_word()
    host.set_scenario(host.scenario.process(0, worker.pid, 20_000))
    told = judge("--preflight-fail-fast=never")
    pairs = {v["subject"]: v for v in told.report["verdicts"] if v["check"] == "fabric.allreduce"}
    assert {s for s, v in pairs.items() if v["outcome"] == "not_run"} == {"h1-h2", "h2-h3", "h2-h4"}
    assert "busy: " in pairs["h1-h2"]["sentence"]
    again = judge("--preflight-fail-fast=never", "--preflight-even-if-busy")
    assert ("fabric.allreduce", "h1-h2", "ok") in again.outcomes()
    worker.kill()


def test_three_culprits_at_once(judge: Callable[..., Told], lab: Lab) -> None:
    """The demo's fleet: each culprit is named once, on its own node."""
    lab.hosts["h2"].set_scenario(lab.hosts["h2"].scenario.without_gpu(3))
    with processes.stale_rank(lab.hosts["h1"], port=29500), wire.slow_link(lab.hosts["h4"]):
        told = judge(ALL)
    assert told.exit == 1
    assert told.report["fleet"]["not_ready"] == ["h1", "h2", "h4"]
    assert all("h4" in pair for check, pair in told.found() if check == "fabric.allreduce")
    for line in (
        "FAIL   h1  host.stale_processes",
        "FAIL   h2  gpu.count",
        "FAIL   h4  fabric.allreduce",
    ):
        assert told.out.count(f"{line}\n") + told.out.count(f"{line}  (also") == 1


SECRET = "sk-live-4f9d8c7b6a5e4d3c2b1a"  # noqa: S105  it opens nothing


def test_tokens_appear_in_no_artefact(judge: Callable[..., Told], lab: Lab, tmp_path: Path) -> None:
    """Secrets in a rank's environment and arguments, and in the job's variables, stay there."""
    env_file = tmp_path / "job.env"
    env_file.write_text(f"HF_TOKEN={SECRET}\nCUDA_VISIBLE_DEVICES=0,1\nNCCL_API_KEY={SECRET}\n")
    with processes.stale_rank(
        lab.hosts["h1"],
        port=29500,
        arguments=("--config", "x", "--api-key", SECRET, f"--url=https://me:{SECRET}@host/"),
        environ={"HF_TOKEN": SECRET, "WANDB_API_KEY": SECRET},
    ):
        told = judge(ALL, "-m", "not preflight_fabric", f"--preflight-env-file={env_file}",
                     f"--preflight-launch=OPENAI_API_KEY={SECRET} torchrun t.py --token {SECRET}",
                     f"--junitxml={tmp_path / 'junit.xml'}")  # fmt: skip
    assert ("host.stale_processes", "h1") in told.found()
    artefacts = [told.out, told.err, (tmp_path / "junit.xml").read_text()]
    artefacts += [path.read_text() for path in told.folder.iterdir()]
    assert len(artefacts) >= 6
    assert not any(SECRET in artefact for artefact in artefacts)


def test_a_wrong_cuda_visible_devices(judge: Callable[..., Told], tmp_path: Path) -> None:
    """A device that is not there, on the one node whose environment differs, is that node's."""
    for name in ("h1", "h2", "h3", "h4"):
        devices = "0,1,2,9" if name == "h3" else "0,1,2,3"
        (tmp_path / f"{name}.env").write_text(f"CUDA_VISIBLE_DEVICES={devices}\n")
    told = judge(ALL, "-m", "preflight_facts", f"--preflight-env-file={tmp_path}/{{node}}.env")
    assert told.exit == 1
    assert told.found() == {("env.cuda_visible_devices", "h3")}
    assert "0,1,2,9" in told.out


def test_a_broken_nvlink(judge: Callable[..., Told], lab: Lab) -> None:
    """One NVLink down on one GPU is named with node, GPU and link."""
    host = lab.hosts["h4"]
    host.set_scenario(host.scenario.link_down(5, 7))
    told = judge(ALL, "-m", "preflight_facts")
    assert told.exit == 1
    assert told.found() == {("gpu.topology", "h4")}
    assert "GPU5" in told.out.replace("GPU 5", "GPU5")


def test_a_node_that_cannot_reach_the_others(judge: Callable[..., Told], lab: Lab) -> None:
    """A host whose own firewall drops data ports is blamed once, and the rest is still measured."""
    with wire.firewall(lab.hosts["h2"], ports="1024-65535"):
        told = judge(ALL)
    assert told.exit == 1
    assert told.report["fleet"]["not_ready"] == ["h2"]
    measured = {f"{p['a']}-{p['b']}" for p in told.report["pairs"] if p["state"] == "measured"}
    assert measured >= {"h1-h3", "h1-h4", "h3-h4"}


def test_enough_ready_nodes_are_enough(judge: Callable[..., Told], lab: Lab) -> None:
    """With --preflight-need 3 one bad node of four is no obstacle; ready.hosts names the rest."""
    lab.hosts["h2"].set_scenario(lab.hosts["h2"].scenario.without_gpu(0))
    told = judge(ALL, "-m", "preflight_facts", "--preflight-need=3")
    assert told.exit == 0
    assert (told.folder / "ready.hosts").read_text() == "h1\nh3\nh4\n"
    assert judge(ALL, "-m", "preflight_facts", "--preflight-need=4").exit == 1
    alone = judge(ALL, "-m", "preflight_facts", "--preflight-exclude=h2")
    assert alone.exit == 0


def test_a_held_port_on_a_node_that_is_not_the_master(judge: Callable[..., Told], lab: Lab) -> None:
    """The master port is proven on the master only; another node's use of it harms nobody."""
    with processes.stale_rank(lab.hosts["h3"], port=29500, gpu_mib=0):
        told = judge(ALL, "-m", "not preflight_fabric")
    assert {check for check, _ in told.found()} == {"host.stale_processes"}
    assert told.report["fleet"]["not_ready"] == ["h3"]
