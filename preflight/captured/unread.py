# ruff: noqa: E501  a table of forms
"""Parts of a text that no reader knows: a fault may be in them, so they are named.

A reader takes the lines that it knows, wherever they are, and does not report the rest. So this
module has, for each kind of text, the forms of the lines that its tool prints.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from preflight.captured.dmesg import KIND, is_kernel_line, split_stamp

_FEWEST_LINES: Final = 5
"""Shorter parts are ignored: every ticket has a heading, a date or a sentence between outputs."""
_MOST_PARTS: Final = 8
"""At most this many parts are named; the last one covers all that follow it."""
_LONGEST_LINE: Final = 1000
"""Characters of a line that are compared with the forms."""

_NO_FACTS: Final = re.compile(
    r"^(?:[\W_]*$"  # blank lines, rules, frames
    r"|\s*(?:\x1b\[[0-9;]*m)?(?:[\w.()~-]{0,64}@[\w.-]{1,64}[^$#>%]{0,80}[$#>%]|[$#>%]|\++)(?:\s|$)"
    r"|\s*(?:sudo )?[\w./-]{0,40}(?:nvidia-smi|dcgmi|dmesg|journalctl|ib\w{1,20}|rdma|ethtool|perfquery"
    r"|lsof|fuser|ps|env|ip)\s+-{0,2}[\w-]{1,30}(?:\s[^:|]*)?$"
    r"|\s*(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b.{0,20}\d\d:\d\d:\d\d"
    r"|\s*(?:Last login|Welcome to|Connection to|Linux \S+ \d|\[?\.\.\.|```|~~~))"
)
"""Lines without facts about a machine: prompts, echoed commands, dates, banners."""

_KEY_VALUE: Final = r"\s*[A-Za-z][\w ().,/'-]{0,60}\s*:(?:\s|$)"
_ENVIRON: Final = r"\s*(?:export |declare -x |-e )?[A-Za-z_]\w*="
_PROCESS: Final = r"\s*(?:\S{1,64}\s+)?\d{1,10}\s|\s*(?:\S+\s+){0,5}(?:PID|PPID)\s"
_TOOLS: Final = {
    "nvidia-smi": r"\s*[|+]|\s*(?:Unable to|NVIDIA-SMI|WARNING|No running|Failed)",
    "nvidia-smi -q": r"\s{4,}[A-Z0-9][\w ().,/-]*(?: : .*)?$|=|\w[\w ]{0,40}\s+:|GPU [0-9A-Fa-f]{4}",
    "nvidia-smi -q -x": r"\s*<|\s+\S",
    "nvidia-smi --query-gpu --format=csv": r"[^,]+,|\S+$",
    "nvidia-smi nvlink -s / -e": r"\s*(?:GPU|Link) ?\d|\s*NV\w*|.*[Ii]nactive",
    "nvidia-smi topo -m": r"(?:\x1b\[[0-9;]*+m|\s)*+(?:GPU|NIC|mlx|CPU Aff|Legend|X |SYS|NODE|PHB|PXB|PIX|NV)",
    "nvidia-smi topo -p2p": r"(?:\x1b\[[0-9;]*+m|\s)*+(?:GPU|Legend|X |OK|CNS|GNS|TNS|NS|DR|U )",
    "nvidia-smi -L": r"\s*GPU \d|\s*MIG |Unable to determine",
    "dcgmi diag": r"\s*[|+]|Successfully ran|Error",
    "ibstat": rf"\W*CA\b|{_KEY_VALUE}",
    "ibstatus": rf"[Ii]nfiniband device|{_KEY_VALUE}",
    "rdma link": r"\W*(?:link\s|\d+/\d+:)|\s*\S+\s*$",
    "perfquery": r"#|[A-Za-z]\w{2,40}:\.",
    "ibnetdiscover": r"#|\[|(?:CA|SW|RT|Ca|Switch|Rt)\s|\w{3,20}=",
    "ibswinfo": r"[^|]{1,70}\|",
    "ethtool": rf"Settings for|{_KEY_VALUE}|\s+\d+base|\s+drv ",
    "ethtool -S": r"NIC statistics|\s+\S[^:]{0,78}:",
    "ps": _PROCESS,
    "fuser -v": r"(?:/\S{1,80}:|\d+/\w+:)?\s*\S{1,64}\s+\d{1,10}\s+[.FfceomrR]{4,6}\s|\s+USER\s|/\S+:",
    "lsof": r"\S+\s+\d{1,10}\s+(?:\d+\s+)?[A-Za-z]|lsof:|COMMAND",
    "nvidia-smi pmon": r"#|\s*\d{1,3}\s+(?:\d{1,10}|-)\s+(?:[CGM+]+|-)\s",
    "environment": rf"{_ENVIRON}|BASH_FUNC_|\s|}}",
}  # fmt: skip
_SCRIPT: Final = (
    r"\s*(?:#|export\b|declare\b|set\b|unset\b|if\b|then\b|else\b|elif\b|fi\b|for\b|while\b|do\b|done\b|case\b"
    r"|esac\b|echo\b|cd\b|source\b|module\b|local\b|return\b|function\b|exit\b|[{}();&]|--|\S*(?:python|torchrun"
    rf"|srun|mpirun|docker|conda)|- |env\b|ENV\b|RUN\b|FROM\b)|.*\\$|{_ENVIRON}|{_KEY_VALUE}"
)
_FORMS: Final = {
    kind: re.compile(f"^(?:{form})") for kind, form in (*_TOOLS.items(), ("launch script", _SCRIPT))
}
_ANY_LINE: Final = {"launch script", "a tree of /sys as JSON", "interfaces as JSON"}
"""A script may contain any line, and a document fills its text."""


def unread(text: str, kinds: Collection[str]) -> list[tuple[int, int]]:
    """Return first and last line of each part that fits none of `kinds`, the kinds in the text."""
    if set(kinds) <= _ANY_LINE:
        return []
    parts = list(_unknown_parts(text, [_FORMS[kind] for kind in kinds if kind in _FORMS], kinds))
    listed, rest = parts[: _MOST_PARTS - 1], parts[_MOST_PARTS - 1 :]
    return [*listed, (rest[0][0], rest[-1][1])] if rest else listed


def _unknown_parts(
    text: str, forms: Collection[re.Pattern[str]], kinds: Collection[str]
) -> Iterator[tuple[int, int]]:
    first = last = count = 0
    for number, line in enumerate(text.splitlines(), 1):
        start = line[:_LONGEST_LINE]
        if _NO_FACTS.match(start):
            continue
        if any(form.match(start) for form in forms) or (KIND in kinds and _has_kernel_form(start)):
            if count >= _FEWEST_LINES:
                yield first, last
            count = 0
            continue
        first = first if count else number
        last, count = number, count + 1
    if count >= _FEWEST_LINES:
        yield first, last


def _has_kernel_form(line: str) -> bool:
    return split_stamp(line)[2] or is_kernel_line(line)


def wrapped_line(text: str) -> str:
    """Say which line of a kernel log is the rest of the one above it; "" without one.

    A terminal wrapped it, and a fault may be torn in two. The kernel's own second lines are
    indented.
    """
    continuation, stamped = "", False
    for line in text.splitlines():
        if split_stamp(line)[2]:
            if continuation:
                return f"its lines are wrapped: {continuation[:40].strip()!a} has no time"
            stamped = True
        elif stamped and not line[:1].isspace() and not _NO_FACTS.match(line[:_LONGEST_LINE]):
            continuation = continuation or ("" if line.startswith("-- ") else line)
    return ""
