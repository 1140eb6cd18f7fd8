"""A captured kernel log (dmesg, journalctl -k, syslog, /dev/kmsg) judged as a live node's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.facts import gpu_log, hardware_log, host_log, nic_log, switch_log
from preflight.facts.kernel_text import host_of, parse, stripped, uncommented
from preflight.offline.captured import Captured, bare_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.facts.kernel_model import KernelLog

KIND = "kernel log"
TELLS_NOTHING = "it is a part of a log that tells of nothing"
CHECKS = ("gpu.xid", "gpu.sxid", "net.kernel_log", "host.hardware_errors", "host.kernel_log")

_LOOKED_AT = 400
"""Lines from which the kind of a text is told."""

_KERNEL = re.compile(
    r"NVRM: |nvidia-(?:nvswitch\d*|nvlink|peermem|uvm|modeset)\b|mlx5_core[ :]|pcieport \w{4}:"
    r"|EDAC |\[Hardware Error\]|(?:Memory cgroup o|O)ut of memory: Kill|Linux version \d"
    r"|Command line: |\w+-fs (?:error|\()|BUG: soft lockup|INFO: task .* blocked for|Call Trace:"
    r"|usb \d-\d|audit: type=|pci \w{4}:\w\w:"
)
_EVENT = re.compile(r"(?:NVRM: Xid|nvidia-nvswitch\d*: SXid) \([^)\n]{0,99}\): \d")
_XID = re.compile(r"NVRM: Xid \([^)\n]{0,99}\): \d+,(.*)")
_REFUSED = re.compile(
    r"(?:dmesg: (?:read kernel buffer failed|klogctl|open failed).*|-- No entries --"
    r"|No journal files were (?:found|opened).*|Hint: You are currently not seeing messages.*)"
)
_SHARE = 0.5

_BOOT = re.compile(r"Linux version \d+\.\d+|Booting Linux on|Command line: ")
_NIC = re.compile(r"mlx5_core [0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7][: ]")
_FEW, _MANY = 20, 200
"""Lines of a log from boot on, and of any: fewer are an excerpt."""


def read(text: str) -> Captured | None:
    """Read a kernel log; None for a text that is none.

    One that only says why there is none is unknown; so is what a damaged one does not tell.
    """
    text = uncommented(text)
    refused = _REFUSED.search(text[:4096])
    lines = [line for line in text[: 1 << 20].splitlines() if line.strip()][:_LOOKED_AT]
    if refused is not None and len(lines) <= 4:  # noqa: PLR2004
        facts = replace(bare_facts(), problems=(f"kernel log: {refused[0][:200]}",))
        return Captured(kind=KIND, facts=facts, checks=CHECKS, damaged="it holds no log")
    if not _kernels(lines):
        return None
    log = parse(text)
    facts = replace(bare_facts(), kernel_log=log)
    told = CHECKS if _whole(log) else tuple(_told_of(log))
    if any(one.kind == "narrow" for one in nic_log.events(log.lines)):
        told = (*told, "ib.pcie")
    damaged = _damage(text) or _mixed(lines) or _unread(log) or ("" if told else TELLS_NOTHING)
    return Captured(kind=KIND, facts=facts, checks=told or CHECKS, damaged=damaged)


def _whole(log: KernelLog) -> bool:
    """Whether it looks like a log as it was, in which silence means something."""
    began = any(_BOOT.match(line.text) for line in log.lines[:_LOOKED_AT])
    return (began and log.seen >= _FEW) or log.seen >= _MANY


def _told_of(log: KernelLog) -> Iterator[str]:
    """Of an excerpt: the checks whose part it tells of. Who greps for one thing hides others."""
    old, new = switch_log.faults(log.lines)
    if gpu_log.troubles(log.lines):
        yield "gpu.xid"
    if old or new:
        yield "gpu.sxid"
    if nic_log.events(log.lines) or any(_NIC.match(line.text) for line in log.lines):
        yield "net.kernel_log"
    if hardware_log.faults(log.lines):
        yield "host.hardware_errors"
    if host_log.events(log.lines):
        yield "host.kernel_log"


def _kernels(lines: list[str]) -> bool:
    """Whether the kernel wrote this: its own words, or its stamps on most of the lines."""
    marked = sum(bool(_KERNEL.match(stripped(line)[0]) or _EVENT.search(line)) for line in lines)
    stamped = sum(_boot_stamped(line) for line in lines)
    return bool(lines) and (marked > 0 or stamped / len(lines) > _SHARE)


def _boot_stamped(line: str) -> bool:
    said, at_s, _ = stripped(line)
    return at_s is not None and bool(said) and not line.lstrip().startswith(("[0]", "[1]"))


def _mixed(lines: list[str]) -> str:
    """Of several nodes' lines nobody can say whose GPU or NIC they tell of."""
    hosts = sorted({host_of(line) for line in lines} - {""})
    return f"it holds lines of several nodes ({', '.join(hosts[:4])})" if len(hosts) > 1 else ""


def _unread(log: KernelLog) -> str:
    """What is in a line that was not read may be the fault."""
    if not log.dropped:
        return ""
    return f"only {log.seen - log.dropped} of its {log.seen} or more lines could be read"


def _damage(text: str) -> str:
    """What is cut off or garbled: such a log proves nothing healthy."""
    if "\0" in text or text.count("�") > 1 + len(text) // 1000:
        return "it holds bytes that are no text"
    last = text.rstrip().rpartition("\n")[2]
    if re.search(r"NVRM: Xid \([^)]{0,99}(?:\)(?::(?: \d+)?)?)?$|[,=(]$", last):
        return "its last line is cut off"
    said = (found[1] for found in _XID.finditer(text))
    if any(one.startswith(" pid=...") or one.rstrip(" \t").endswith("...") for one in said):
        return "its lines are cut"
    return ""
