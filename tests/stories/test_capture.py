"""`preflight capture` leaves one archive that `preflight read` takes, and that may name nobody."""

from __future__ import annotations

import getpass
import os
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec.structs import replace

from preflight.captured.archive import pack
from preflight.commands.capture import ArchiveParts, hide_names
from preflight.report.document import Report
from tests import warm
from tests.golden.hold import hold
from tests.lab.inside import until
from tests.lab.rehearsal.scenario import Machine, rehearsed
from tests.stories.conftest import LONGEST_S, clean_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.lab.cluster import Lab

UUID, SERIAL = "GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427", "1650523012345"
SMI = f"""
==============NVSMI LOG==============

Timestamp                                 : Sun Nov 22 21:00:00 2026
Driver Version                            : 570.124.06
CUDA Version                              : 12.8

Attached GPUs                             : 1
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Serial Number                         : {SERIAL}
    GPU UUID                              : {UUID}
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    ECC Errors
        Volatile
            SRAM Uncorrectable            : 0
            DRAM Uncorrectable            : 4
"""
IBSTAT = """\
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tHardware version: 0
\tNode GUID: 0x506b4b0300a1b2c3
\tSystem image GUID: 0x506b4b0300a1b2c3
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 7
\t\tLMC: 0
\t\tSM lid: 1
\t\tCapability mask: 0xa751e848
\t\tPort GUID: 0x506b4b0300a1b2c3
\t\tLink layer: InfiniBand
"""
KERNEL = """\
[   12.1] {host} kernel: mlx5_core 0000:18:00.0: Port module event: b8:59:9f:0c:11:22 10.77.0.41
[   12.2] {host} kernel: mlx5_core 0000:18:00.0: node_guid 506b:4b03:00a1:b2c3
[   13.2] {host} kernel: NVRM: Xid (PCI:0000:1b:00): 63, pid=7, Row Remapper: new row marked
"""


def _preflight(
    *words: object, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, str, str]:
    done = warm.run(
        "preflight",
        list(map(str, words)),
        cwd=cwd or Path.cwd(),
        env={**clean_environment(), **(env or {})},
        timeout=LONGEST_S,
    )
    return done.returncode, done.stdout, done.stderr


def _archive(folder: Path) -> Path:
    (path,) = folder.glob("preflight-capture-*.tar.gz")
    return path


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """An environment in which this machine has the tools of a GPU node, which print secrets."""
    folder = tmp_path / "bin"
    folder.mkdir()
    texts = {
        "nvidia-smi": SMI, "ibstat": IBSTAT, "journalctl": KERNEL.format(host=os.uname().nodename),
        "ibdev2netdev": "mlx5_0 port 1 ==> ib0 (Up)\n",
    }  # fmt: skip
    for name, text in texts.items():
        script = folder / name
        script.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
        script.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return {"PATH": path, "NCCL_TOPO_FILE": "/home/alice/topo.xml", "NCCL_IB_HCA": "mlx5_0"}


def test_this_machine_is_captured_and_read(tmp_path: Path, tools: dict[str, str]) -> None:
    """One file of our own; its texts are judged as pasted ones, and what is missing is named."""
    code, _, err = _preflight("capture", tmp_path, "--tier=quick", env=tools)
    assert code == 0, err
    path = _archive(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o640
    assert f"written: {path}, {path.stat().st_size / 1e3:.0f} KB, " in err
    assert "could not collect" in err
    assert "the sweep left no NCCL log: see run/report.json" in err
    archive, _ = hold(path)
    names = {name.rpartition("/")[2] for name in archive.files}
    assert {"facts.json", "nvidia-smi-q.txt", "ibstat.txt", "journalctl.txt", "env.txt"} <= names
    assert {"measured.json", "report.json"} <= names
    code, out, _ = _preflight("read", path)
    assert code in (0, 1, 3)
    assert SERIAL not in out
    assert "ibstat.txt" in out
    assert "ok     ib.port:" in out
    assert "gpu.ecc" in out


def test_a_run_that_measured_nothing_is_less_than_a_capture(tmp_path: Path) -> None:
    """Exit 1, as for a node that gave less; the archive has the facts, and the run said why."""
    code, _, err = _preflight("capture", tmp_path, "--budget=1")
    assert code == 1, err
    assert "--budget=1" in err
    path = _archive(tmp_path)
    archive, _ = hold(path)
    assert archive.manifest.run_exit == 4
    code, out, _ = _preflight("read", path)
    assert code in (1, 3), out
    assert "no pair was measured: the run left no such file" in " ".join(out.split())


@pytest.mark.parametrize("budget", ["-5", "0", "nan", "1e9"])
def test_an_odd_budget_is_refused_before_anybody_is_asked(tmp_path: Path, budget: str) -> None:
    """In one line, in the words that were typed."""
    code, _, err = _preflight("capture", tmp_path, f"--budget={budget}")
    assert (code, err.count("\n")) == (4, 1)
    assert "--budget" in err
    assert "--preflight-budget" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_capture_that_is_ended_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Its run ends with it; no folder of its own and no archive is left."""
    scratch, into = tmp_path / "scratch", tmp_path / "into"
    scratch.mkdir()
    into.mkdir()
    words = [sys.executable, "-m", "preflight", "capture", str(into), "--tier=standard"]
    with subprocess.Popen(words, env={**clean_environment(), "TMPDIR": str(scratch)}) as started:
        until(lambda: any(scratch.glob("preflight-capture-*/run/events.jsonl")), "its run")
        started.send_signal(number)
        assert started.wait(LONGEST_S) == 2
    assert list(into.iterdir()) == []
    assert list(scratch.glob("preflight-capture-*")) == []
    running = subprocess.check_output(["ps", "axww", "-o", "args"], text=True)
    assert str(scratch) not in running


def test_a_public_archive_names_nobody_and_is_judged_alike(
    tmp_path: Path, tools: dict[str, str]
) -> None:
    """No host, user, serial, UUID, GUID, address in any of its files, names of members included."""
    said: list[list[str]] = []
    for options in ([], ["--public"]):
        folder = tmp_path / f"into{len(options)}"
        folder.mkdir()
        code, _, err = _preflight("capture", folder, "--tier=quick", *options, env=tools)
        assert code == 0, err
        out = _preflight("read", _archive(folder))[1]
        bad = [line for line in out.splitlines() if line.startswith(("FAIL", "WARN"))]
        said.append([line for line in bad if ".txt" in line])  # of the facts, load may differ
    assert len(said[0]) == len(said[1]) > 0
    path = _archive(tmp_path / "into1")
    archive, _ = hold(path)
    assert archive.manifest.public
    with tarfile.open(path) as tar:
        whole = {path.name: path.name}
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            whole[member.name] = member.name + file.read().decode()
    secrets = [
        UUID, SERIAL, "alice", os.uname().nodename, "506b4b0300a1b2c3", "506b:4b03:00a1:b2c3",
        "b8:59:9f:0c:11:22", "10.77.0.41",
    ]  # fmt: skip
    if getpass.getuser() != "root":
        secrets.append(getpass.getuser())
    (node,) = {name.rpartition("/")[0] for name in whole if name.endswith("/ibstat.txt")}
    guids = re.findall(r"GUID: 0x([0-9a-f]{16})\n", whole[f"{node}/ibstat.txt"])
    assert len(guids) == 3
    assert len(set(guids)) == 1
    colons = ":".join(guids[0][at : at + 4] for at in range(0, 16, 4))
    assert f"node_guid {colons}" in whole[f"{node}/journalctl.txt"]
    for name, text in whole.items():
        alone = set(re.split(r"[^\w.:-]+", text))  # a host of two letters stands in many a word
        assert not [one for one in secrets if one in (text if len(one) > 3 else alone)], name


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("nosuch", "cannot write into {folder}: No such file or directory"),
        ("/proc", "cannot write into /proc: "),
        ("/dev/null", "cannot write into /dev/null: Not a directory"),
        ("~nobody-is-called-so", "cannot write into {folder}: No such file or directory"),
        ("", "DIR is empty"),
    ],
)
def test_a_folder_that_takes_no_file_is_refused_before_anything_is_asked(
    tmp_path: Path, folder: str, said: str
) -> None:
    """One line, exit 4: what is wrong, and what to type."""
    code, out, err = _preflight("capture", folder, cwd=tmp_path)
    assert (code, out) == (4, "")
    assert said.format(folder=tmp_path / folder) in err
    assert err.endswith("give a folder that takes a new file, as in: preflight capture .\n")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_another_users_link_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    """Not even an empty file is made in the folder to which it points."""
    private, link = tmp_path / "private", tmp_path / "link"
    private.mkdir()
    link.symlink_to(private)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    before = private.stat().st_mtime_ns
    code, out, err = _preflight("capture", str(link), cwd=tmp_path)
    assert (code, out) == (4, "")
    assert f"{link} is a symbolic link of nobody, which is not followed" in err
    assert private.stat().st_mtime_ns == before


def test_nobody_who_answers_is_nothing_written(tmp_path: Path) -> None:
    """Exit 3, with the reason of each node, and no file."""
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        '[defaults]\ntransport = "local"\npython = "/nonexistent/python3"\n'
        '[group.a]\nnodes = "n1"\n[node.n1]\naddress = "127.0.0.1"\n'
    )
    into = tmp_path / "into"
    into.mkdir()
    code, _, err = _preflight("capture", into, f"--inventory={fleet}")
    assert code == 3, err
    assert "n1: /nonexistent/python3: not found" in err
    assert list(into.iterdir()) == []


@pytest.mark.lab
def test_hosts_of_the_lab_are_captured_as_golden_data(lab: Lab, tmp_path: Path) -> None:
    """Over SSH, with emulated GPUs and NICs: facts, samples of a sweep; read without a fault."""
    words = (f"--inventory={lab.inventory()}", "--nodes=h[1-2]", "--tier=quick")
    code, out, err = _preflight("capture", tmp_path, *words)
    assert code == 0, out + err
    path = _archive(tmp_path)
    archive, verdicts = hold(path)
    assert archive.manifest.run_exit == 0, out
    for name in ("h1", "h2"):
        assert f"nodes/{name}/facts.json" in archive.files
        assert f"nodes/{name}/nvidia-smi-topo-m.txt" in archive.files
        assert "8 GPUs" in verdicts[f"nodes/{name}/facts.json", "gpu.count"].sentence
    assert path.name.startswith("preflight-capture-2-nodes-")
    failed = {check for (_, check), one in verdicts.items() if one.makes_not_ready}
    assert failed == {"software.arch"}  # the lab's torch is built without CUDA
    assert "GB/s" in verdicts["run/measured.json", "fabric.allreduce"].sentence
    taken = ArchiveParts()
    for part in archive.manifest.parts:
        taken.add(part, archive.files.get(part.name, b""))
    hidden, shown = hide_names(taken, ["h1", "h2"])
    public = tmp_path / "public.tar.gz"
    public.write_bytes(pack(replace(archive.manifest, parts=tuple(hidden.parts)), hidden.files))
    assert shown == ["node-1", "node-2"]
    alike = {
        (name.replace("node-", "h"), check): one.outcome
        for (name, check), one in hold(public)[1].items()
    }
    assert alike == {key: one.outcome for key, one in verdicts.items()}
    whole = b"".join(hidden.files.values()).decode()
    for host in (lab.hosts["h1"], lab.hosts["h2"]):
        assert host.address not in whole


@pytest.mark.lab
def test_healthy_nodes_without_peers_are_ready_and_what_nccl_logged_is_there(
    lab: Lab, tmp_path: Path
) -> None:
    """Of two nodes nobody knows what host memory reaches, which condemns nobody."""
    with rehearsed(lab, Machine(gpus=4)) as rehearsal:
        fleet = rehearsal.inventory()
        code, out, err = _preflight("capture", tmp_path, f"--inventory={fleet}", "--nodes=h[1-2]")
    assert code == 0, out + err
    archive, _ = hold(_archive(tmp_path))
    assert archive.manifest.run_exit == 0, out
    report = msgspec.json.decode(archive.files["run/report.json"], type=Report)
    assert report.fleet.ready == ("h1", "h2"), out
    unknown = {one.check for one in report.verdicts if one.outcome == "unknown"}
    assert unknown == {"burn.host"}, out
    for name in ("h1", "h2"):
        assert (
            b"NCCL INFO NET/IB : Using [0]mlx5_0:1/IB"
            in (archive.files[f"nodes/{name}/nccl-rail-0.log"])
        )
