"""What a node's tools print for a capture: bounded in size and time, and whatever they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tool_outputs import without_processes

from preflight.captured import nvidia_smi
from preflight.captured.dmesg import parse
from preflight.checks.gpu.driver_log import gpu_faults
from preflight.commands.capture import decode_outputs
from tests.unit.payload.node import NONCE, Remote

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.captured import Captured
    from preflight.commands.capture import Output

pytestmark = pytest.mark.slow


def read(text: str) -> Captured | None:
    """The first thing in a text that its tools printed."""
    return next(nvidia_smi.read(text), None)


KERNEL = """\
[    0.000000] gpu041 kernel: Linux version 5.15.0-105-generic
[   12.100000] gpu041 kernel: mlx5_core 0000:18:00.0: firmware version: 28.39.1002
[   13.000000] gpu041 kernel: nfs: server filer7 not responding, still trying
[   99.000000] gpu041 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=812, GPU has fallen off the bus.
"""


def _tools(folder: Path, **scripts: str) -> dict[str, str]:
    """Programs of these names; all others that are asked for say that they are not themselves."""
    folder.mkdir()
    for name, script in scripts.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def _asked(env: dict[str, str], deadline_s: float = 20.0) -> dict[str, Output]:
    remote = Remote("outputs", env=env)
    remote.ask(nonce=NONCE, deadline_s=deadline_s)
    outputs = {one.name: one for one in decode_outputs(remote.answer())}
    assert remote.leave() == 0
    return outputs


def test_a_tool_that_hangs_costs_no_other_one_its_output(tmp_path: Path) -> None:
    """Not even one that prints more than a pipe holds, and whose turn comes later."""
    env = _tools(tmp_path / "bin", ibstat="exec sleep 60", nvidia_smi="seq 40000")
    seen = _asked(env, deadline_s=6.0)
    assert seen["ibstat.txt"].error == "no answer in time"
    assert seen["nvidia-smi-q.txt"].text.endswith("\n40000\n")
    assert seen["nvidia-smi-q.txt"].seconds < seen["ibstat.txt"].seconds


def test_each_tool_is_kept_with_its_command_and_status(tmp_path: Path) -> None:
    """Of the kernel log, lines on GPUs and NICs; of the environment, what NCCL and CUDA read."""
    env = _tools(
        tmp_path / "bin",
        nvidia_smi='[ "$*" = -q ] && echo "==NVSMI LOG==" && exit; echo broken >&2; exit 9',
        ibstat="printf \"CA 'mlx5_0'\\n\"",
        journalctl=f"cat <<'END'\n{KERNEL}END",
    )
    plain = {"NCCL_IB_HCA": "^=mlx5_1:1,mlx5_2", "NCCL_ALGO": "allreduce:ring;broadcast:tree"}
    wanted = {
        **plain, "AWS_SECRET_ACCESS_KEY": "x", "NCCL_X_TOKEN": "hf_abcdefghij",
        "NCCL_API_TOKEN": "hunter2", "FI_PASSWORD": "hunter2", "UCX_NOTE": "ok and pass hunter2",
        "UCX_URL": "http://ann:hunter2@proxy", "UCX_KEYS": "key:hunter2",
        "CUDA_X": "pw:hunter2", "NCCL_Y": "db_pw+hunter2", "NCCL_PW": "hunter2",
    }  # fmt: skip
    seen = _asked({**env, **wanted})
    assert seen["nvidia-smi-q.txt"].text == "==NVSMI LOG==\n"
    assert seen["nvidia-smi-q.txt"].command == "nvidia-smi -q"
    assert (seen["nvidia-smi-topo-m.txt"].status, seen["nvidia-smi-topo-m.txt"].text) == (
        9,
        "broken\n",
    )
    assert seen["ibstat.txt"].status == 0
    log = seen["journalctl.txt"].text
    assert "firmware version: 28.39.1002" in log
    assert "Xid" in log
    assert "filer7" not in log
    assert "dmesg.txt" not in seen
    for name, value in plain.items():
        assert f"{name}={value}\n" in seen["env.txt"].text
    assert "hunter2" not in seen["env.txt"].text
    assert "hf_abcdefghij" not in seen["env.txt"].text
    assert "AWS_SECRET" not in seen["env.txt"].text


def test_a_file_whose_name_has_two_lines_stays_one_text(tmp_path: Path) -> None:
    """As dmesg prints it: its second line alone would read as the driver's own."""
    rest = f"{' ' * 15}NVRM: Xid (PCI:0000:1b:00): 79, x' started with executable stack"
    script = f'echo "[    1.000000] process \'/home/a\n{rest}"'
    text = _asked(_tools(tmp_path / "bin", journalctl="exit 1", dmesg=script))["dmesg.txt"].text
    assert rest in text
    assert gpu_faults(parse(text).lines) == []


def test_no_name_of_a_process_hides_a_line_of_the_kernels(tmp_path: Path) -> None:
    """An escape that it holds takes nothing with it; `journalctl -a` prints it as it is."""
    lines = [
        f"[    {n}.000000] node7 kernel: NVRM: Xid (PCI:0000:1b:00): {n}, {words}"
        for n, words in (
            (3, "pid=7, name=\\033], caused by previous Xid 79"),
            (4, "name=\\033"),
            (5, "x"),
        )
    ]
    script = "printf '" + "\\n".join(lines) + "\\n'"
    seen = _asked(_tools(tmp_path / "bin", journalctl=script))["journalctl.txt"]
    assert seen.text.splitlines() == [line.replace("\\033", "?") for line in lines]
    assert {"-a", "SYSLOG_FACILITY=0"} < set(seen.command.split())


def test_what_hangs_is_left_and_named_and_what_is_endless_is_cut(tmp_path: Path) -> None:
    """A driver that never answers costs its own output only; a flood is kept to its bound."""
    env = _tools(
        tmp_path / "bin",
        nvidia_smi="trap '' TERM; sleep 600",
        ibstat="yes CA",
        journalctl="exit 1",
        dmesg="echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1",
    )
    seen = _asked(env, deadline_s=4.0)
    assert seen["nvidia-smi-q.txt"].error == "no answer in time"
    assert seen["nvidia-smi-q.txt"].status is None
    assert seen["ibstat.txt"].cut
    assert len(seen["ibstat.txt"].text) == 512 << 10
    assert seen["dmesg.txt"].error == "this login may not read the kernel log"
    assert "is not installed" in seen["ibdev2netdev.txt"].error


SMI = """\
Driver Version                            : 570.124.06
Attached GPUs                             : {attached}

GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Processes
        Process ID                        : 4711
            Name                          : /opt/bin/python -c
{name}
            Used GPU Memory               : 100 MiB

GPU 00000000:5D:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Processes                             : None
"""
LEFT_OUT = "    Processes                             : left out, see facts.json\n"


@pytest.mark.parametrize(
    "name",
    [
        "train.py --password hunter2\n--token hunter2",
        'import os\n\ndef main():\n    password = "hunter2"\nGPU hunter2',
        "    Product Name                          : hunter2",
        "hunter2\n        ECC Errors\n            Volatile : hunter2",
    ],
)
def test_nothing_of_the_processes_that_nvidia_smi_lists_is_kept(name: str) -> None:
    """It prints what a process calls itself, line ends and all; the rest of each GPU stays."""
    text = without_processes(SMI.format(attached=2, name=name).encode()).decode()
    assert text.count("NVIDIA H100 80GB HBM3\n" + LEFT_OUT) == 2
    assert "hunter2" not in text
    found = read(text)
    assert found is not None
    assert not found.damaged
    assert [gpu.processes for gpu in found.facts.gpus or ()] == [None, None]


@pytest.mark.parametrize("attached", ["2", "1", "many"])
def test_a_process_that_writes_a_gpu_into_the_list_takes_the_others_out(attached: str) -> None:
    """The first one stands before any process; a GPU too many may be the text of a process."""
    forged = "GPU 00000000:5D:00.0\n    Product Name                          : hunter2"
    text = without_processes(SMI.format(attached=attached, name=forged).encode()).decode()
    assert "hunter2" not in text
    assert text.endswith("GPU 00000000:1B:00.0\n    Product Name                          : "
                         "NVIDIA H100 80GB HBM3\n" + LEFT_OUT)  # fmt: skip


def test_a_capture_holds_no_processes_of_nvidia_smi(tmp_path: Path) -> None:
    """Where they stand in the output of the real command."""
    smi = f"cat <<'END'\n{SMI.format(attached=2, name='hunter2')}END"
    text = _asked(_tools(tmp_path / "bin", nvidia_smi=smi))["nvidia-smi-q.txt"].text
    assert "hunter2" not in text
    assert text.count(LEFT_OUT) == 2
