"""Reads a pasted kernel log (dmesg, journalctl -k, syslog, /dev/kmsg) as a live node's.

dmesg writes `[   12.345678]`, `[Sun Feb 23 16:24:18 2025]`, ISO times and `kern  :err   :`; the
journal and syslog put date, host and `kernel:` before it; a console adds `<4>`; /dev/kmsg has
`6,1234,5678901,-;`, pdsh puts `host: ` first; people paste lines with quote marks and colours, or
without times.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from preflight.captured import Captured, captured
from preflight.checks.gpu import driver_log, test_kernel_log
from preflight.checks.host import test_host_log
from preflight.checks.net import test_nic_log
from preflight.core.files import shipped_table
from preflight.core.text import sanitize
from preflight.facts.machine import KernelLog, LogLine

LONGEST = 64 << 20
"""Characters read of one log."""

MOST_LINES = 50_000
"""Limit of stored distinct lines about hardware, and the same limit for all others."""
_LONGEST_LINE = 512

_FORMS = shipped_table(__file__, "kernel_log.toml")
_HARDWARE = re.compile("|".join(_FORMS["hardware"]))
_NEW_PHASE = re.compile("|".join(_FORMS["new_phase"]))
_PROGRAM = re.compile(r"pid='?\d+'?, name=[^,]*,")
_CRASH = "): 13,"

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_LEVEL = r"(?:emerg|alert|crit|err|warn|notice|info|debug) *: ?"
_STAMP = re.compile(
    "(?:"
    + "|".join(
        (
            # Only the kernel's facility, 0, and complete: messages of programs keep their prefix.
            r"<[0-7]>",
            rf"kern *:{_LEVEL}",
            r"[0-7],\d+,(?P<micro>\d+),(?!c[,;])[^;]{1,20};",
            r"\[ *(?P<boot>\d{1,10}\.\d{1,9})(?: <[ \d.]+>)?\] ?",
            r"\[ *[TC]\d+\] ?",
            r"\[ *\+\d+\.\d+\] ?",
            rf"\[(?:{_DAY} )?{_MONTH} *\d{{1,2}} ?[\d:.]* ?(?:\d{{4}})?\] ?",
            # dmesg -T in another language.
            r"\[\S{1,12} \S{1,12} +\d{1,2} \d\d:\d\d:\d\d \d{4}\] ?",
            rf"(?:{_DAY} )?{_MONTH} +\d{{1,2}}(?: \d{{4}})? \d\d:\d\d:\d\d(?:\.\d+)?(?: \d{{4}})? ",
            r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?\]? ",
            # A month in any language: journalctl prints it in the locale's form.
            r"\S{1,12} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)? (?=[\w.-]{1,253} kernel(?:\[\d+\])?: )",
            r"(?:[\w.-]{1,253} )?kernel(?:\[\d+\])?: ?",
            r"(?P<quoted>> ?)",
        )
    )
    + r")\s*"
)
_HOST = re.compile(
    r"^(?!(?:sudo|su|logger|root|CRON|kernel|kern|user|daemon|syslog|traps|umip|input):)"
    r"(?P<host>[\w.-]{1,253}): +"
    rf"(?=<\d|\[ *\d+\.\d+\]|\[?\d{{4}}-\d\d-\d\d[T ]\d\d:|\[?(?:{_DAY} )?{_MONTH} |kern *:)"
)
"""The prefix that pdsh and clush put before each node's lines."""
_TICKET = re.compile(
    rf"^(?!traps:|umip:|input:|(?!kern)\w+ *:{_LEVEL})[\w.:;-]{{1,60}}[;:] ?"
    r"(?=NVRM: |nvidia-\w+: SXid|nvidia-peermem |mlx5_core |pcieport |EDAC )"
)
"""A prefix that a ticket or script put before a hardware line; never after a time stamp."""

_SIGNED = r"NVRM: |SXid \(|mlx5_core |EDAC |\[Hardware Error\]"
_FOREIGN = re.compile(
    r"#|(?:[\w.-]{1,253} )?(?:[\w./@-]{1,80}\[\d{1,10}\]|\(?(?:sudo|su|logger|root|CRON)\)?): "
    rf"|[\w.-]{{1,253}} (?!NVRM:)[a-zA-Z][\w./@-]{{0,80}}: (?!(?:\[[^\]]*\] ?)*(?:{_SIGNED}))"
    r".{0,400}?(?:NVRM: Xid|SXid) \("
)
"""Lines of a program or a person: they may quote the kernel, but prove nothing here."""

OF_A_USER = (
    # Not a whole sentence of the kernel, which ends with the kernel's own words.
    r"(?!MCE: Killing (?s:.{1,15}):\d+ due to hardware memory corruption fault at [\da-f]+$"
    r"|(?:watchdog: )?BUG: soft lockup - CPU#\d+ stuck for \d+s! \[(?s:.{0,15}):\d+\]$"
    r"|INFO: task (?s:.{0,15}):\d+ blocked for more than \d+ seconds\.$"
    r"|BTRFS \w{1,9} \(device \S{1,40}\): \S{1,20} error at logical (?s:.*)\)$"
    r"|EXT4-fs error \(device \S{1,40}\): (?s:.*), size=\d+ fake=\d$)"
    r"(?:input: |oom-kill:|process '"
    r"|\[?(?s:.{0,15}?)(?:\[\d+\](?::| )| ?\(\d+\):? | invoked oom-killer: |/\d+(?:: |\] FS: )"
    r"|/\d+ (?:is |just |\[HC)|: (?:page allocation|vmalloc|vmap|attempt to access)"
    r"|: (?:calling unsupported |\d+ (?:output lines|callbacks) suppressed)"
    r"| (?:uses obsolete|using unsupported|call(?:s|ing) setitimer\(\)|wrote to) )"
    r"|(?s:.{0,272}?): potentially unexpected fatal signal "
    r"|XFS \([^)]{1,99}\): (?s:.{0,15}) should use fallocate; "
    r"|(?s:.{0,127}?)IN=\S{0,15} OUT=\S{0,15}(?: |$) ?"
    r"(?:(?:PHYS|MAC|V|TUN)\w{0,5}=\S{0,400}(?: |$)){0,9}"
    r"(?:SRC=\S{1,39} DST=|ARP HTYPE=|ARP TRUNC|TRUNCATED|MAC source = |$))"
)
"""Lines that begin with a user's text, as in the node's reader (a test compares them)."""

_OF_A_USER = re.compile(OF_A_USER)
_ESCAPED = re.compile(r"\\x[0-9a-f]{2}|#[0-7]{3}")
"""One escaped character of a user's text, as dmesg and rsyslog print it."""
_INDENT = 2


def parse(text: str) -> KernelLog:
    """Read a log of any style. Lines of other programs stay if they are not about hardware.

    A repeated line becomes one line with a count: only repetitions, harmless lines, and hardware
    lines of other programs are left out.
    """
    store = _Store()
    begins_s: float | None = None
    body = uncommented(_ESCAPE.sub("", text[:LONGEST]))
    for raw in _joined_lines(textwrap.dedent(body)):
        line, at_s, _stamped = split_stamp(raw)
        begins_s = at_s if begins_s is None else begins_s
        store.add(sanitize(line)[:_LONGEST_LINE], at_s)
    cut = len(text) > LONGEST
    lines = tuple(store.lines)
    return KernelLog("text", store.seen + cut, begins_s, 0.0, lines, store.dropped + cut)


class _Store:
    """The stored lines of a log, in the order of their first occurrence."""

    def __init__(self) -> None:
        self.lines: list[LogLine] = []
        self.seen = self.dropped = 0
        self._line_indices: dict[tuple[int, float | None, str], int] = {}
        self._phases = self._harmless = 0

    def add(self, text: str, at_s: float | None) -> None:
        self.seen += 1
        if _HARDWARE.search(text) is None:
            self._harmless += 1
            if self._harmless <= MOST_LINES:
                self.lines.append(LogLine(text, at_s, at_s))
            return
        if _FOREIGN.match(text) or _OF_A_USER.match(_ESCAPED.sub("?", text)):
            return
        self._phases += _NEW_PHASE.search(text) is not None
        # Crashes of programs are counted by time: each line counts.
        crash = at_s if _CRASH in text else None
        key = (self._phases, crash, text if _CRASH in text else _PROGRAM.sub("", text))
        at = self._line_indices.get(key)
        if at is not None:
            line = self.lines[at]
            last_s = line.last_s if at_s is None else at_s
            self.lines[at] = LogLine(line.text, line.at_s, last_s, line.times + 1)
        elif len(self._line_indices) < MOST_LINES:
            self._line_indices[key] = len(self.lines)
            self.lines.append(LogLine(text, at_s, at_s))
        else:
            self.dropped += 1


def split_stamp(raw: str) -> tuple[str, float | None, bool]:
    """Return the text of a line, its seconds since boot, and whether it had any stamp."""
    text, at_s, stamped = _HOST.sub("", raw.strip(), count=1), None, False
    end = 0
    while (match := _STAMP.match(text, end)) is not None:
        end = match.end()
        boot, micro, quoted = match.group("boot", "micro", "quoted")
        stamped = stamped or quoted is None
        if boot is not None:
            at_s = float(boot)
        elif micro is not None:
            at_s = min(int(micro[:20]) / 1e6, 1e12)
    return text[end:] if stamped else _TICKET.sub("", text[end:], count=1), at_s, stamped


def host_prefix(raw: str) -> str:
    """Return the node that pdsh or clush put before a line; "" without one."""
    match = _HOST.match(raw.strip())
    return match["host"] if match else ""


def uncommented(text: str) -> str:
    """Remove "# " if all lines have it: a log pasted into a script or ticket.

    If only some lines have it, they are quotes or comments.
    """
    if not text.lstrip().startswith("#"):
        return text
    lines = [line for line in text.splitlines() if line.strip()]
    if not all(line.lstrip().startswith("#") for line in lines):
        return text
    return textwrap.dedent("\n".join(line.lstrip().lstrip("#") for line in lines) + "\n")


def _joined_lines(text: str) -> list[str]:
    """Whole lines: an indented one without a stamp continues the one before.

    dmesg and journalctl indent continuations to the beginning of the text: a stamp there is part of
    the text, for example in a file name.
    """
    joined: list[str] = []
    text_column = 0
    for raw in text.splitlines():
        if not raw.strip():
            continue
        indent = len(raw) - len(raw.lstrip())
        content, _at_s, stamped = split_stamp(raw)
        if joined and indent >= _INDENT and (not stamped or 0 < text_column <= indent):
            if len(joined[-1]) < _LONGEST_LINE:
                joined[-1] += " " + raw.strip()
            continue
        joined.append(raw)
        text_column = len(raw.rstrip()) - len(content) - indent if stamped else 0
    return joined


KIND = "kernel log"
SHOWS_NOTHING = "it is an excerpt of a log without any event"
CHECKS = ("gpu.xid", "gpu.sxid", "net.kernel_log", "host.hardware_errors", "host.kernel_log")

_HEAD_LINES = 400
"""Lines that decide the kind of a text."""

_KERNEL = re.compile("|".join(_FORMS["beginnings"]))
_BARE_XID = re.compile(
    r"^((?:.{1,80} kernel: )?(?:\[ {0,9}[\d.]{1,20}\] )?)(?=Xid \((?:PCI:)?[0-9a-fA-F]{4,8}:)",
    re.MULTILINE,
)
"""An Xid as monitors quote it, without the driver's name."""
_EVENT = re.compile(r"(?:NVRM: Xid|nvidia-nvswitch\d*: SXid) \([^)\n]{0,99}\): \d")
_XID = re.compile(r"NVRM: Xid \([^)\n]{0,99}\): \d+,(.*)")
_REFUSED = re.compile(f"(?:{'|'.join(_FORMS['no_log'])})")
_STAMPED_SHARE = 0.5

_BOOT = re.compile(r"Linux version \d+\.\d+|Booting Linux on|Command line: ")
_NIC = re.compile(r"mlx5_core [0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7][: ]")
_FEWEST_SINCE_BOOT, _FEWEST_OTHERWISE = 20, 200
"""Least lines of a whole log that begins at boot, and of any other; fewer are an excerpt."""


def read(text: str, *, alone: bool = True) -> Captured | None:
    """Read a kernel log; None for another text.

    `alone`: the text contains nothing else, so that a long log without events was quiet. A text
    that only says why there is no log is unknown; so is what a damaged log does not show.
    """
    text = _BARE_XID.sub(r"\1NVRM: ", uncommented(text))
    refused = _REFUSED.search(text[:4096])
    lines = [line for line in text[: 1 << 20].splitlines() if line.strip()][:_HEAD_LINES]
    if refused is not None and len(lines) <= 4:  # noqa: PLR2004
        problems = (f"kernel log: {refused[0][:200]}",)
        return captured(KIND, CHECKS, "it contains no log", problems=problems)
    if not _is_from_kernel(lines) and not any(map(is_kernel_line, text.splitlines())):
        return None
    log = parse(text)
    checks = CHECKS if alone and _is_whole(log) else tuple(_checks_shown(log))
    if any(event.kind == "narrow" for event in test_nic_log.events(log.lines)):
        checks = (*checks, "ib.pcie")
    damaged, advice = _damage_in(text), ""
    if not damaged:
        reasons = (_several_hosts(lines), _dropped_lines(log), "" if checks else SHOWS_NOTHING)
        damaged, advice = next(
            (pair for pair in zip(reasons, _REMEDIES, strict=True) if pair[0]), ("", "")
        )
    return captured(KIND, checks or CHECKS, damaged, advice=advice, kernel_log=log)


_REMEDIES = (
    "give each node's lines in a file of its own",
    "give the part around the fault",
    "give the whole log: dmesg, or journalctl -k -b",
)


def _is_whole(log: KernelLog) -> bool:
    """Whether it looks like a whole log, in which the absence of events counts."""
    from_boot = any(_BOOT.match(line.text) for line in log.lines[:_HEAD_LINES])
    return (from_boot and log.seen >= _FEWEST_SINCE_BOOT) or log.seen >= _FEWEST_OTHERWISE


def _checks_shown(log: KernelLog) -> Iterator[str]:
    """The checks for which an excerpt has lines: a grep for one thing hides others."""
    older, newer = test_kernel_log.switch_faults(log.lines)
    if driver_log.gpu_faults(log.lines):
        yield "gpu.xid"
    if older or newer:
        yield "gpu.sxid"
    if test_nic_log.events(log.lines) or any(_NIC.match(line.text) for line in log.lines):
        yield "net.kernel_log"
    if test_host_log.faults(log.lines):
        yield "host.hardware_errors"
    if test_host_log.events(log.lines):
        yield "host.kernel_log"


def _is_from_kernel(lines: list[str]) -> bool:
    """Whether the kernel wrote this: its wording, or its stamps on most of the lines."""
    worded = any(map(is_kernel_line, lines))
    stamped = sum(_has_boot_time(line) for line in lines)
    return bool(lines) and (worded or stamped / len(lines) > _STAMPED_SHARE)


def is_kernel_line(line: str) -> bool:
    """Whether it begins as lines of the kernel do, or quotes a fault of the driver."""
    return bool(_KERNEL.match(split_stamp(line)[0]) or _EVENT.search(line))


def _has_boot_time(line: str) -> bool:
    text, at_s, _ = split_stamp(line)
    return at_s is not None and bool(text) and not line.lstrip().startswith(("[0]", "[1]"))


def _several_hosts(lines: list[str]) -> str:
    """Lines of several nodes do not show which node's GPU or NIC is meant."""
    hosts = sorted({host_prefix(line) for line in lines} - {""})
    return f"it has lines of several nodes ({', '.join(hosts[:4])})" if len(hosts) > 1 else ""


def _dropped_lines(log: KernelLog) -> str:
    """A line that was not read may contain a fault."""
    if not log.dropped:
        return ""
    return f"only {log.seen - log.dropped} of its {log.seen} or more lines could be read"


def _damage_in(text: str) -> str:
    """What is cut off or garbled: a damaged log proves nothing healthy."""
    if "\0" in text or text.count("�") > 1 + len(text) // 1000:
        return "it contains bytes that are not text"
    last = text.rstrip().rpartition("\n")[2]
    if re.search(r"NVRM: Xid \([^)]{0,99}(?:\)(?::(?: \d+)?)?)?$|[,=(]$", last):
        return "its last line is cut off"
    details = (match[1] for match in _XID.finditer(text))
    if any(rest.startswith(" pid=...") or rest.rstrip(" \t").endswith("...") for rest in details):
        return "its lines are cut"
    return ""
