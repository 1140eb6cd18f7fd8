"""A fleet of four real hosts: healthy is 0, and each fault alone is 1 with exactly its finding."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.lab import impostors, processes, sysfs, wire

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


@pytest.mark.proves("gpu.count", passes="four healthy lab hosts")
@pytest.mark.proves("gpu.topology", passes="four healthy lab hosts")
@pytest.mark.proves("host.driver_hung", passes="four healthy lab hosts")
@pytest.mark.proves("host.stale_processes", passes="four healthy lab hosts")
@pytest.mark.proves("net.ports", passes="four healthy lab hosts")
@pytest.mark.proves("fabric.allreduce", passes="four healthy lab hosts")
def test_a_healthy_fleet_is_ready(judge: Callable[..., Told]) -> None:
    """Every expected verdict arrives, none is bad, and all six pairs were really measured.

    Two may connect at once; all four sweep together, as no host holds a place while it waits.
    """
    told = judge("--preflight-at-once=2")
    assert told.exit == 0, told.out
    assert "2 at a time" in told.out
    assert "ready      h[1-4]  4 of 4" in told.out
    assert told.found() == set()
    assert told.report["missing"] == 0
    pairs = told.report["pairs"]
    assert {(pair["a"], pair["b"]) for pair in pairs} == {
        ("h1", "h2"), ("h1", "h3"), ("h1", "h4"), ("h2", "h3"), ("h2", "h4"), ("h3", "h4"),
    }  # fmt: skip
    assert all(pair["state"] == "measured" for pair in pairs)
    assert all(size["busbw_gbs"] > 0 for pair in pairs for size in pair["sizes"])
    assert (told.folder / "ready.hosts").read_text() == "h1\nh2\nh3\nh4\n"


@pytest.mark.proves("gpu.count", finds="a GPU that fell off the bus")
def test_a_missing_gpu(judge: Callable[..., Told], lab: Lab) -> None:
    """A GPU that fell off the bus is that node's finding, and nobody else's."""
    lab.hosts["h2"].set_scenario(lab.hosts["h2"].scenario.without_gpu(3))
    told = judge(ALL, "-m", "not preflight_fabric")
    assert told.exit == 1
    assert told.found() == {("gpu.count", "h2")}
    assert "7 of 8 GPUs answer" in told.out
    assert "not ready  h2  --exclude=h2" in told.out


def test_gpus_that_fail(judge: Callable[..., Told], lab: Lab) -> None:
    """Each sick reading is one finding of its node; what one broken memory shows is one cause."""
    h1, h2, h3, h4 = lab.hosts.values()
    bad_memory = h1.scenario.counted(2, "ecc_uncorrected", 1).counted(2, "remap_pending", 1)
    h1.set_scenario(bad_memory.counted(2, "recovery_action", 1))
    hot = h2.scenario.counted(5, "reasons", 0x48).counted(5, "margin_c", -2)
    h2.set_scenario(hot.counted(1, "pcie_width", 8))
    h3.set_scenario(h3.scenario.refused(0, "inforom_valid", 14).counted(0, "fabric_state", 1))
    h4.set_scenario(h4.scenario.refused(7, "ecc_uncorrected", 999))
    told = judge(ALL, "-m", "preflight_facts")
    assert told.exit == 1
    assert told.found() == {
        ("gpu.ecc", "h1"), ("gpu.remap", "h1"), ("gpu.recovery", "h1"),
        ("gpu.throttle", "h2"), ("gpu.temperature", "h2"), ("gpu.pcie", "h2"),
        ("gpu.inforom", "h3"), ("gpu.fabric", "h3"),
        ("gpu.readings", "h4"), ("gpu.ecc", "h4"),
    }  # fmt: skip
    for heading in (
        "h1  gpu.ecc  (also gpu.recovery, gpu.remap)",
        "h2  gpu.temperature  (also gpu.throttle)",
        "h4  gpu.readings  (also gpu.ecc)",
    ):
        assert told.out.count(f"FAIL   {heading}\n") == 1, told.out


@pytest.mark.proves(
    "gpu.xid", finds="Xid 79 and the Xids that follow from it, in a host's kernel log"
)
@pytest.mark.proves("gpu.sxid", finds="a fatal SXid in a host's kernel log")
@pytest.mark.proves("net.kernel_log", finds="mlx5 firmware that stopped, in a host's kernel log")
@pytest.mark.proves("host.hardware_errors", finds="a failed DIMM in a host's kernel log")
def test_what_the_kernels_said(judge: Callable[..., Told], lab: Lab) -> None:
    """Each host's kernel tells of another part; what was before the window is nobody's finding."""
    h1, h2, h3, h4 = lab.hosts.values()
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)  # of a machine that may be fresh
    restart = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    h1.set_scenario(h1.scenario.without_gpu(1))
    h1.kernel_says(
        "NVRM: Xid (PCI:0000:43:00): 79, pid=77, name=python3, GPU has fallen off the bus.",
        f"NVRM: Xid (PCI:0000:1b:00): 154, {restart}",
        f"NVRM: Xid (PCI:0000:43:00): 154, {restart}",
    )
    h2.kernel_says("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 22003, Fatal, Link 03 Minion Halt")
    h3.kernel_says("mlx5_core 0000:1a:00.0: device's health compromised - reached miss count")
    h4.kernel_says("EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#0_DIMM#1 (page:0x1)")
    fault = "NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=python3, MMU Fault"
    h4.kernel_says(fault, ago_s=0.9 * up_s)
    since = f"--preflight-kernel-log-since={up_s / 2:.0f}s"
    told = judge(ALL, "-m", "not preflight_fabric", since)
    assert told.exit == 1
    assert told.found() == {
        ("gpu.count", "h1"), ("gpu.xid", "h1"), ("gpu.sxid", "h2"), ("net.kernel_log", "h3"),
        ("host.hardware_errors", "h4"),
    }  # fmt: skip
    words = " ".join(told.out.split())
    assert "(also gpu.count)" in words or "(also gpu.xid)" in words
    assert "7 of 8 GPUs answer; missing: 0000:43:00" in words
    assert "GPU 0000:43:00: Xid 79 (the GPU has fallen off the bus)" in words
    assert "CPU_SrcID#1_MC#0_Chan#0_DIMM#1" in words


@pytest.mark.proves("host.stale_processes", finds="a rank that outlived its torchrun")
@pytest.mark.proves("net.ports", finds="a process that holds the master port")
@pytest.mark.proves("ib.port", finds="a port that is down on one of four real hosts")
@pytest.mark.proves("ib.rate", finds="a port at half rate on one of four real hosts")
@pytest.mark.proves("host.pci_acs", finds="ACS redirection on one of four real hosts")
def test_three_sick_rails(judge: Callable[..., Told], lab: Lab) -> None:
    """A dead port, a slow one and a redirected one: each is its own node's finding alone."""
    scenario = {name: host.scenario for name, host in lab.hosts.items()}
    down = {"state": "1: DOWN", "phys_state": "2: Polling"}
    lab.hosts["h2"].set_scenario(scenario["h2"].nic(3, **down))
    lab.hosts["h3"].set_scenario(scenario["h3"].nic(5, rate="200 Gb/sec (2X NDR)"))
    sysfs.redirect(lab.hosts["h4"].folder / "sys", scenario["h4"].gpus[2].path[-2])
    try:
        told = judge(ALL, "-m", "not preflight_fabric")
    finally:
        lab.hosts["h4"].set_scenario(scenario["h4"])
    assert told.exit == 1
    assert told.found() == {("ib.port", "h2"), ("ib.rate", "h3"), ("host.pci_acs", "h4")}
    assert "mlx5_3/1 is DOWN (Polling), ACTIVE on 3 of 4 nodes" in " ".join(told.out.split())


def test_a_stale_rank_on_the_master_port(judge: Callable[..., Told], lab: Lab) -> None:
    """One culprit, one finding: the rank is named with its pid, port, memory and how to end it."""
    with processes.stale_rank(lab.hosts["h1"], port=29500) as rank:
        told = judge(ALL, "-m", "not preflight_fabric")
    assert told.exit == 1
    assert told.found() == {("host.stale_processes", "h1"), ("net.ports", "h1")}
    assert "host.stale_processes  (also net.ports)" in told.out
    assert f"do: kill {rank.pid}" in told.out
    assert told.report["fleet"]["not_ready"] == ["h1"]


@pytest.mark.proves("reach.route", finds="a host that is down")
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
        assert "1 more for partners of nodes that are out" in " ".join(one.out.split())


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


@pytest.mark.proves("reach.python", finds="a node without the job's Python")
def test_no_python_on_a_node(judge: Callable[..., Told]) -> None:
    """A missing interpreter is named by its path."""
    told = judge(
        "-m", "not preflight_fabric", changes={"node": {"h2": {"python": impostors.NO_PYTHON}}}
    )
    assert told.exit == 1
    assert told.found() == {("reach.python", "h2")}
    assert impostors.NO_PYTHON in told.out


@pytest.mark.proves("reach.answer", finds="an answer that is not one of preflight's")
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


@pytest.mark.proves("host.driver_hung", finds="a driver that never answers")
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


@pytest.mark.proves("net.ports", finds="a firewall in front of the master")
def test_a_firewall_in_front_of_the_master(judge: Callable[..., Told], lab: Lab) -> None:
    """When nobody reaches the master's port the master is blamed, not its clients."""
    with wire.firewall(lab.hosts["h1"], ports="29500"):
        told = judge(ALL, "-m", "not preflight_fabric")
    assert told.exit == 1
    assert told.report["fleet"]["not_ready"] == ["h1"]
    assert {check for check, _ in told.found()} == {"net.ports"}
    assert told.out.count("  net.ports\n") == 1


@pytest.mark.proves("net.ports", finds="a firewall between the master and one node")
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
    again = judge("-m", "preflight_fabric", "--preflight-even-if-busy", "--preflight-nodes=h[1-2]")
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


@pytest.mark.proves("env.cuda_visible_devices", finds="a device that is not there")
def test_a_wrong_cuda_visible_devices(judge: Callable[..., Told], tmp_path: Path) -> None:
    """A device that is not there, on the one node whose environment differs, is that node's."""
    for name in ("h1", "h2", "h3", "h4"):
        devices = "0,1,2,9" if name == "h3" else "0,1,2,3"
        (tmp_path / f"{name}.env").write_text(f"CUDA_VISIBLE_DEVICES={devices}\n")
    told = judge(ALL, "-m", "preflight_facts", f"--preflight-env-file={tmp_path}/{{node}}.env")
    assert told.exit == 1
    quiet = {("env.debugging", name) for name in ("h1", "h2", "h3", "h4")}  # no recorder asked for
    assert told.found() == {("env.cuda_visible_devices", "h3"), *quiet}
    assert "0,1,2,9" in told.out


@pytest.mark.proves("gpu.topology", finds="an NVLink that is down")
def test_a_broken_nvlink(judge: Callable[..., Told], lab: Lab) -> None:
    """One NVLink down on one GPU is named with node, GPU and link."""
    host = lab.hosts["h4"]
    host.set_scenario(host.scenario.link_down(5, 7))
    told = judge(ALL, "-m", "preflight_facts")
    assert told.exit == 1
    assert told.found() == {("gpu.topology", "h4")}
    assert "GPU5" in told.out.replace("GPU 5", "GPU5")


@pytest.mark.proves("net.ports", finds="a node that can connect to no other")
def test_a_node_that_cannot_reach_the_others(judge: Callable[..., Told], lab: Lab) -> None:
    """A host whose own firewall drops data ports is blamed once, and the rest is still measured."""
    with wire.firewall(lab.hosts["h2"], ports="1024-65535"):
        told = judge(ALL)
    assert told.exit == 1
    assert told.report["fleet"]["not_ready"] == ["h2"]
    measured = {f"{p['a']}-{p['b']}" for p in told.report["pairs"] if p["state"] == "measured"}
    assert measured >= {"h1-h3", "h1-h4", "h3-h4"}


def test_an_interface_that_some_nodes_lack(judge: Callable[..., Told], lab: Lab) -> None:
    """One finding names both and the option; the others are measured over what was named."""
    with wire.renamed(lab.hosts["h3"], "net9"), wire.renamed(lab.hosts["h4"], "net9"):
        told = judge(ALL, "--preflight-checks=fabric.allreduce", "--preflight-interface=eth0")
    assert told.exit == 1, told.out
    assert told.report["fleet"]["not_ready"] == ["h3", "h4"]
    findings = [line for line in told.out.splitlines() if line.startswith(("UNKN", "FAIL"))]
    assert findings[-1] == "UNKN   h[3-4]  fabric.allreduce"
    said = " ".join(told.out.split())
    assert (
        "h[3-4] were left out: no interface eth0 there (--preflight-interface = eth0); there is "
        "net9 do: give one that all nodes have"
    ) in said
    assert [p["state"] for p in told.report["pairs"]] == ["measured"]


_SHOW = """\
#!/bin/sh
case "$*" in *" sweep"|*" burn") env > "{folder}/$(uname -n).seen" ;; esac
exec "{python}" "$@"
"""


@pytest.mark.proves(
    "net.interface",
    finds="an interface that NCCL chooses and that reaches no other node, on four real hosts",
)
def test_the_job_is_measured_in_its_environment(
    judge: Callable[..., Told], lab: Lab, tmp_path: Path
) -> None:
    """Its interface carries the data; without it, the warning names the one NCCL would choose.

    Each host has a second network, job0, and an ib0 that leads to no other host.
    """
    wrapper, environ = tmp_path / "python3", tmp_path / "job.env"
    wrapper.write_text(_SHOW.format(folder=tmp_path, python=sys.executable))
    wrapper.chmod(0o755)
    environ.write_text(
        "GLOO_SOCKET_IFNAME=job0\nNCCL_SOCKET_IFNAME=job0\nNCCL_IB_TC=106\nNCCL_ALGO=Tree\n"
        "LD_LIBRARY_PATH=/opt/nccl/lib\nCUDA_VISIBLE_DEVICES=0\nSITE_API_TOKEN=x\n"
    )
    changes: dict[str, object] = {"defaults": {"python": str(wrapper)}}
    chosen = ("--preflight-checks=net.interface,fabric.allreduce", ALL)
    with ExitStack() as stack:
        for host in lab.hosts.values():
            stack.enter_context(wire.more_networks(host))
        told = judge(*chosen, f"--preflight-env-file={environ}", changes=changes)
        assert told.exit == 0, told.out
        assert told.found() == set()
        said = " ".join(told.out.split())
        assert (
            "environ burn-in and sweep run with the job's GLOO_SOCKET_IFNAME, LD_LIBRARY_PATH, "
            "NCCL_IB_TC, NCCL_SOCKET_IFNAME; without NCCL_ALGO (the sweep has its own)"
        ) in said
        assert "NCCL_IB_TC" in told.report["measured_in"]
        assert (told.folder / "measured.json").read_text().count('"tcp job0"') == 12
        for name in lab.hosts:
            seen = (tmp_path / f"{name}.seen").read_text().splitlines()
            assert {"NCCL_IB_TC=106", "LD_LIBRARY_PATH=/opt/nccl/lib"} <= set(seen)
            assert not any(line.startswith(("CUDA_VIS", "NCCL_ALGO", "SITE_")) for line in seen)
        told = judge(*chosen)
    assert told.exit == 0, told.out
    assert told.found() == {("net.interface", name) for name in lab.hosts}
    assert "NCCL's own choice selects ib0 (10.98." in told.out
    assert "leads to the other nodes" in " ".join(told.out.split())
    assert (told.folder / "measured.json").read_text().count('"tcp eth0"') == 12


def test_enough_ready_nodes_are_enough(judge: Callable[..., Told], lab: Lab) -> None:
    """With --preflight-need=3 one bad node of four is no obstacle; ready.hosts names the rest."""
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
