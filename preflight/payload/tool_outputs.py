"""Collects the output of a node's own tools and NCCL's variables, for `preflight capture`.

The commands are fixed here, so that a node runs no command from a request.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

from probe import guard
from probe.node_files import clean_block
from probe.redact import setting
from start import Emit, Message, Read

MOST_BYTES = 512 << 10
"""Most bytes of one output; `nvidia-smi -q` prints some 10 KiB for each GPU."""

READ_BYTES = 32 << 20
"""Most bytes of a kernel log before filtering: twice the largest usual ring buffer."""

MARGIN_S = 2.0
"""Time that is reserved for ending tools that did not answer, and for sending the answer."""

_JOURNAL, _DMESG, _ENV = "journalctl.txt", "dmesg.txt", "env.txt"
_COMMANDS = {
    "ibstat.txt": ["ibstat"],
    "ibdev2netdev.txt": ["ibdev2netdev"],
    _JOURNAL: [
        "journalctl", "-k", "-b", "-q", "--no-pager", "-a", "-o", "short-monotonic",
        "SYSLOG_FACILITY=0",
    ],
    _DMESG: ["dmesg", "-k"],
    "nvidia-smi-q.txt": ["nvidia-smi", "-q"],
    "nvidia-smi-topo-m.txt": ["nvidia-smi", "topo", "-m"],
    "nvidia-smi-nvlink-s.txt": ["nvidia-smi", "nvlink", "-s"],
}  # fmt: skip
"""All start in parallel; dmesg counts only where journalctl prints nothing."""

_KERNEL = re.compile(
    rb"NVRM|nvidia|mlx5|mlx4|ib_core|infiniband|pcieport|PCIe|AER:|bnxt_|\befa\b|gdrdrv",
    re.IGNORECASE,
)
_CONTROL = re.compile(rb"[\0-\x08\x0b-\x1f\x7f]")
"""Replaced one by one: an escape sequence could hide the kernel's text after a user's word."""
_LINE_END = re.compile(rb"\n(?=[^ \t]|$)")
"""An indented line continues the one before it: alone it would look like a line of the kernel."""

_VARIABLE = re.compile(
    r"NCCL_|TORCH_NCCL_|GLOO_|CUDA_|UCX_|FI_|OMP_NUM_THREADS$|LD_LIBRARY_PATH$|NVIDIA_VISIBLE_DEVICES$"
)
_ATTACHED = re.compile(rb"^Attached GPUs +: (\d{1,3})$", re.MULTILINE)
_GPU = re.compile(rb"^(?=GPU [0-9A-Fa-f:]{7,11}:[0-9A-Fa-f]{2}\.[0-7][ \t]*$)", re.MULTILINE)
_PROCESSES = re.compile(rb"^[ \t]+Processes\b.*", re.MULTILINE | re.DOTALL)
_PROCESSES_CUT = b"    Processes                             : left out, see facts.json\n"
_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")


def run(request: Message, lines: Read, emit: Emit) -> None:
    """Emit one `Outputs` document: docs/internals/wire.md."""
    del lines
    began = time.monotonic()
    until = began + float(request["deadline_s"]) - MARGIN_S
    children = {name: _start(name) for name in _COMMANDS}
    outputs = {name: _finish(name, child, began, until) for name, child in children.items()}
    del outputs[_DMESG if outputs[_JOURNAL]["text"] else _JOURNAL]  # two readers of one log
    emit({"outputs": [*outputs.values(), _environment()]})


def _start(name: str) -> guard.Child | None:
    folders = (*os.environ.get("PATH", "").split(":"), *_FOLDERS)
    limit = READ_BYTES if name in (_JOURNAL, _DMESG) else MOST_BYTES
    return guard.spawn_tool(_COMMANDS[name], folders, errors=True, most=limit)


def _finish(name: str, child: guard.Child | None, began: float, until: float) -> dict[str, Any]:
    words = _COMMANDS[name]
    row: dict[str, Any] = {"name": name, "command": " ".join(words), "status": None}
    row.update(seconds=0.0, cut=False, error="", text="")
    if child is None:
        return dict(row, error=f"{words[0]} is not installed")
    is_kernel_log, limit = name in (_JOURNAL, _DMESG), child.most
    answered = child.listen(until)
    row["seconds"] = round(min(child.ended, time.monotonic()) - began, 3)
    is_long = row["cut"] = len(child.output) > limit
    has_ended = child.dismiss(kill=not answered or is_long)
    output = bytes(child.output[:limit])
    if is_kernel_log:
        lines = _LINE_END.split(_CONTROL.sub(b"?", output))
        output = b"".join(line + b"\n" for line in lines if _KERNEL.search(line))
        if len(output) > MOST_BYTES:
            row["cut"], output = True, _LINE_END.split(output[-MOST_BYTES:], 1)[-1]
    text = without_processes(output) if words[1:] == ["-q"] else output
    row["text"] = clean_block(text, MOST_BYTES)
    if answered and child.status is not None and not is_long:
        status = child.status
        row["status"] = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    if not answered:
        row["error"] = "no answer in time" + ("" if has_ended else ", and it cannot be killed")
    elif is_kernel_log and row["status"] != 0 and not output:
        row["error"] = "this login may not read the kernel log"
    return row


def without_processes(output: bytes) -> bytes:
    """Remove the processes from `nvidia-smi -q`: their names may look like anything, even a GPU."""
    head, *gpus = _GPU.split(output)
    attached = _ATTACHED.search(head)
    if not attached or len(gpus) > int(attached[1]):
        gpus = gpus[:1]  # it comes before the first process's name
    return b"".join(_PROCESSES.sub(_PROCESSES_CUT, text) for text in (head, *gpus))


def _environment() -> dict[str, Any]:
    """The variables of this login that NCCL and CUDA read, without passwords."""
    variables = {name: value for name, value in os.environ.items() if _VARIABLE.match(name)}
    text = "".join(f"{name}={setting(name, variables[name])}\n" for name in sorted(variables))
    text = clean_block(text.encode("utf-8", "replace"), MOST_BYTES)
    row = {"name": _ENV, "command": "env", "status": 0, "seconds": 0.0, "cut": False, "error": ""}
    return dict(row, text=text)
