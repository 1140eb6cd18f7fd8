"""What a node's own tools print, and the variables that steer NCCL: for `preflight capture`.

The commands stand here and not in the request, so that a node runs nothing that it is sent.
"""

from __future__ import annotations

import os
import re
import time

from probe import guard
from probe.redact import setting
from probe.text import clean_block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_BYTES = 512 << 10
"""Of one output; `nvidia-smi -q` prints some 10 KiB for each GPU."""

READ_BYTES = 32 << 20
"""Of a kernel log before it is filtered: twice the largest usual ring buffer."""

MARGIN_S = 2.0
"""What is kept of the node's time for ending what did not answer, and for the answer itself."""

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
"""All are started at once; of two readers of one log the second counts where the first has none."""

_KERNEL = re.compile(
    rb"NVRM|nvidia|mlx5|mlx4|ib_core|infiniband|pcieport|PCIe|AER:|bnxt_|\befa\b|gdrdrv",
    re.IGNORECASE,
)
_CONTROL = re.compile(rb"[\0-\x08\x0b-\x1f\x7f]")
"""One for one: as an escape it would take with it what the kernel wrote behind a user's word."""
_LINE_END = re.compile(rb"\n(?=[^ \t]|$)")
"""What goes on indented belongs to the line before it: alone it reads as a line of the kernel's."""

_VARIABLE = re.compile(
    r"NCCL_|TORCH_NCCL_|GLOO_|CUDA_|UCX_|FI_|OMP_NUM_THREADS$|LD_LIBRARY_PATH$|NVIDIA_VISIBLE_DEVICES$"
)
_ATTACHED = re.compile(rb"^Attached GPUs +: (\d{1,3})$", re.MULTILINE)
_GPU = re.compile(rb"^(?=GPU [0-9A-Fa-f:]{7,11}:[0-9A-Fa-f]{2}\.[0-7][ \t]*$)", re.MULTILINE)
_PROCESSES = re.compile(rb"^[ \t]+Processes\b.*", re.MULTILINE | re.DOTALL)
_LEFT_OUT = b"    Processes                             : left out, see facts.json\n"
_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")


def run(
    request: dict[str, Any],
    lines: Callable[[], dict[str, Any] | None],
    emit: Callable[[dict[str, Any]], None],
) -> None:
    """Emit one `Outputs` document: docs/wire.md."""
    del lines
    began = time.monotonic()
    until = began + float(request["deadline_s"]) - MARGIN_S
    environ = {**os.environ, "LC_ALL": "C"}
    started = {name: _start(name, environ) for name in _COMMANDS}
    outputs = {name: _finish(name, child, began, until) for name, child in started.items()}
    del outputs[_DMESG if outputs[_JOURNAL]["text"] else _JOURNAL]  # two readers of one log
    emit({"outputs": [*outputs.values(), _environment()]})


def _start(name: str, environ: dict[str, str]) -> guard.Child | None:
    words = _COMMANDS[name]
    program = guard.program(words[0], (*environ.get("PATH", "").split(":"), *_FOLDERS))
    if program is None:
        return None
    most = READ_BYTES if name in (_JOURNAL, _DMESG) else MOST_BYTES
    return guard.spawn_program([program, *words[1:]], environ, errors=True, most=most)


def _finish(name: str, child: guard.Child | None, began: float, until: float) -> dict[str, Any]:
    words = _COMMANDS[name]
    one: dict[str, Any] = {"name": name, "command": " ".join(words), "status": None}
    one.update(seconds=0.0, cut=False, error="", text="")
    if child is None:
        return dict(one, error=f"{words[0]} is not installed")
    kernel, most = name in (_JOURNAL, _DMESG), child.most
    ended = child.listen(until)
    one["seconds"] = round(min(child.ended, time.monotonic()) - began, 3)
    gone = child.dismiss(kill=not ended or len(child.said) > most)
    said = bytes(child.said[:most])
    one["cut"] = len(child.said) > most
    if kernel:
        lines = _LINE_END.split(_CONTROL.sub(b"?", said))
        kept = b"".join(line + b"\n" for line in lines if _KERNEL.search(line))
        one["cut"] = one["cut"] or len(kept) > MOST_BYTES
        said = _LINE_END.split(kept[-MOST_BYTES:], 1)[-1] if len(kept) > MOST_BYTES else kept
    one["text"] = clean_block(without_processes(said) if words[1:] == ["-q"] else said, MOST_BYTES)
    if ended and child.status is not None and len(child.said) <= most:
        one["status"] = _exit_status(child.status)
    if not ended:
        one["error"] = "no answer in time" + ("" if gone else ", and it cannot be killed")
    elif kernel and one["status"] != 0 and not said:
        one["error"] = "this login may not read the kernel log"
    return one


def without_processes(said: bytes) -> bytes:
    """All of `nvidia-smi -q` but processes, which may call themselves anything, a GPU too."""
    head, *gpus = _GPU.split(said)
    attached = _ATTACHED.search(head)
    if not attached or len(gpus) > int(attached[1]):
        gpus = gpus[:1]  # it stands before the first process's name
    return b"".join(_PROCESSES.sub(_LEFT_OUT, part) for part in (head, *gpus))


def _exit_status(status: int) -> int:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def _environment() -> dict[str, Any]:
    """The variables that NCCL and CUDA read, as this login has them; passwords cut out."""
    kept = {name: value for name, value in os.environ.items() if _VARIABLE.match(name)}
    text = "".join(f"{name}={setting(name, kept[name])}\n" for name in sorted(kept))
    text = clean_block(text.encode("utf-8", "replace"), MOST_BYTES)
    one = {"name": _ENV, "command": "env", "status": 0, "seconds": 0.0, "cut": False, "error": ""}
    return dict(one, text=text)
