"""Reads the kernel log; only lines about hardware leave the node, each kind once.

A hundred thousand similar lines become one with a count. The patterns are built in, so no request
can read other lines. A user can choose names in a line (a process, a file), so each pattern matches
from the start of the line, and lines that start with such a name are left out.

/dev/kmsg comes first; in a container without it, or without permission, the journal and dmesg(1)
are read, in parallel and each in a child of its own.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from typing import Any, Iterable, Iterator, Optional, Tuple

from start import Message

from . import guard, node_files, procfs
from .node_files import clean, words

Record = Tuple[Optional[float], bytes]

MOST_OF_A_KIND = 96
"""Different lines of one kind; with more, the least recent one only counts as dropped."""

MOST_ERAS = 1024

MOST_CRASH_LINES = 64
"""Lines of programs' exceptions; further ones are one line per GPU, with a count."""

APART_S = 15.0
"""Exceptions on one GPU with shorter intervals belong to one crash."""

_CHARS = 300

# Lines that start with the name of a process, up to 15 characters that a user chooses. Linux 4.18
# to 6.16: arch/*/mm/fault.c, arch/arm64/kvm/mmu.c, block/, fs/drop_caches.c, fs/ioctl.c,
# fs/locks.c, fs/proc/base.c, include/linux/ratelimit.h, kernel/exit.c, kernel/locking/lockdep.c,
# kernel/signal.c (also with the program's file name), kernel/sysctl.c, kernel/time/itimer.c,
# mm/oom_kill.c, mm/page_alloc.c, net/socket.c; XFS puts its own name first: fs/xfs/xfs_ioctl.c.
# Lines of netfilter start with a rule's prefix: net/netfilter/nf_log_syslog.c,
# net/bridge/netfilter/ebt_log.c. In the first three patterns a user chooses the whole rest.
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
_BDF = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_DRIVER = r"[\w-]{1,40} " + _BDF
"""A driver and its device: after any other first word of a line, a user may choose the text."""
_MLX = r"mlx5_core " + _BDF
_NETDEV = _MLX + r"(?: \S{1,15})?: "
"""Perhaps with a network device's name, which a container chooses: no blank and no colon."""

_FS = r"(?:(?:EXT[234]-fs|F2FS-fs|BTRFS:?)(?: \w+)?|XFS) \("
_SHUT = (
    r"(?:Filesystem has been shut down|User initiated shutdown|xfs_do_force_shutdown"
    r"|.*Shutting down filesystem)"
)

_OOPS = r"Oops: .{0,200}?\b[0-9a-f]{4,16} \[#\d"
"""With error code and number: a network device may be called Oops, but names have no blanks."""

_KINDS: tuple[tuple[str, str], ...] = (
    # Lines after which earlier ones are obsolete: a driver was loaded, or a GPU recovered.
    ("era", r"nvidia-nvlink: (?:Nvlink Core is being|Unregistered)"),
    ("era", r"NVRM: loading NVIDIA "),
    (
        "era",
        r"NVRM: Xid \([^)]*\): 154, .{0,200}recovery action changed .{0,99} to \S{1,40} \(None\)",
    ),
    ("era", _MLX + r": firmware version"),
    ("sm", r"NVRM: Xid \([^)]*\): 13,"),
    # Lines that users can cause have kinds of their own, so that they do not displace others.
    ("app", r"NVRM: Xid \([^)]*\): (?:8|31|32|43|45|68|69|137),"),
    ("xid", r"NVRM: Xid \("),
    ("sxid", r"nvidia-nvswitch\d*: SXid \("),
    # Not "NVRM: API mismatch", which contains a program's version, nor a netdev of that name.
    ("nvrm", r"NVRM: GPU.*(?:fallen off the bus|[Ii]nit_?[Aa]dapter failed|setting [TR]X sublink)"),
    ("nvrm", r"NVRM: Rate limiting GSP RPC .*GPU likely needs to be reset"),
    ("nvrm", r"NVRM: (?:\(PCI ID: |The NVIDIA GPU|R[mM]InitAdapter failed)"),
    ("nvrm", r"nvidia(?: " + _BDF + r")?: probe (?:of|with driver) "),
    ("nic", r"nvidia-peermem .*ERROR"),
    ("cmd", _MLX + r": mlx5_cmd_(?:out_err|check):"),
    ("nic", _MLX + r": .*(?:[Hh]ealth|internal error|fatal|failed|limited by|[Tt]emperature)"),
    ("nic", _MLX + r": .*(?:timeout|timed out|[Cc]able error|insufficient power|bad signal)"),
    ("nic", r"infiniband mlx5_\d{1,3}: .*(?:[Ff]ail|[Ee]rror|[Tt]imed out|[Tt]imeout)"),
    ("nic", _NETDEV + r"(?:TX timeout detected|.*Link (?:[Dd]own|DOWN|[Uu]p\b))"),
    ("nic", r"mlx5_core: probe of " + _BDF + r" failed"),
    ("nic", r"(?:" + _DRIVER + r" )?\S{1,20}: (?:NIC )?Link is Down"),
    ("nic", _DRIVER + r" \S{1,20}: (?:NIC )?Link is Up\b"),
    ("nic", r"NETDEV WATCHDOG: "),
    ("aer", _DRIVER + r": PCIe Bus Error: severity="),
    ("aer", _DRIVER + r": AER: (?:Multiple )?(?:Un)?[Cc]orrect"),
    ("aer", _DRIVER + r": (?:AER: )?(?:can't recover|device has no AER-aware driver)"),
    ("aer", _DRIVER + r": (?:AER: )?[Dd]evice recovery (?:failed|successful)"),
    ("aer", _DRIVER + r": DPC: containment event, status:"),
    ("mce", r"(?:mce: |MCE: )?\[Hardware Error\]: CPU ?\d+: Machine Check"),
    ("mce", r"(?:mce: )?\[Hardware Error\]: (?:Corrected error|Uncorrected|Deferred|System Fatal)"),
    ("mce", r"\{\d+\}\[Hardware Error\]: event severity:"),
    ("mce", r"BERT: .*(?:records found|\[Hardware Error\])"),
    ("kill", r"MCE: Killing .{1,15}:\d+ due to hardware memory corruption "),
    ("mce", r"Memory failure: 0x|mce: Uncorrected hardware memory error in user-access at "),
    ("edac", r"EDAC [^:]+: \d+ [CU]E (?:.{1,200} )?on \S.{0,200}? \(.*page:0x"),
    ("disk", r"(?:blk_update_request: )?(?:I/O|critical \w+) error, dev |Buffer I/O error on dev"),
    ("disk", r"nvme nvme\d+: (?:controller is down|Removing after|Device not ready)"),
    ("fs", r"(?:EXT[234]|F2FS)-fs error \(device "),
    ("fs", _FS + r".*(?:error|[Rr]emounting|readonly|[Cc]orrupt)"),
    ("fs", r"XFS \([^)]+\): " + _SHUT),
    ("fs", r"nfs: server .* not responding"),
    ("oom", r"(?:Out of memory|Memory cgroup out of memory): Kill"),
    ("hang", r"INFO: task .* blocked for more than|(?:watchdog: )?BUG: soft lockup"),
    ("hang", r"rcu: INFO: \w+ (?:self-)?detected|(?:NMI )?[Ww]atchdog.*hard LOCKUP"),
    ("hang", r"BUG: unable to handle|" + _OOPS + "|general protection fault"),
)

_ANY = re.compile(
    "|".join("(?P<k%d>%s)" % (n, p) for n, (_, p) in enumerate(_KINDS)), re.DOTALL | re.ASCII
)

_OF_A_USER = re.compile(OF_A_USER, re.ASCII)

_NAMED = re.compile(
    r" pid=[^,]*, name=.{0,15},| to .{1,15}:\d+ due to |(?<=\.[0-7]) \S{1,15}(?=: )", re.DOTALL
)
"""Text that a user chooses: lines that differ only in it are one."""

# The parts by which lines of one kind differ; without an entry, all of the line but its numbers.
_XID = re.compile(
    r"Xid \([^)]{0,99}\): \d+|previous Xid \d+|recovery action.*|[Nn]on-?fatal|[Ff]atal"
)
_DISTINCTIVE = {
    "xid": _XID,
    "app": _XID,
    "sxid": re.compile(r"SXid \([^)]{0,99}\): \d+|[Nn]on-fatal|[Ff]atal|Link \d+|Data|Severity"),
    "oom": re.compile(r"^Memory cgroup|^Out of memory|\([^)]{1,16}\)|kB, UID:\d{1,10} p"),
    "disk": re.compile(r"error|dev \S+|nvme\d+"),
    "fs": re.compile(
        r"^nfs: server \S+|^[^(]{1,30}\([^)]{1,99}\)(?:: (?:[Rr]emounting|forced readonly|"
        + _SHUT
        + r"|.*?[Cc]orrupt))?"
    ),
    "edac": re.compile(r"[CU]E|on \S+"),
    "hang": re.compile(r"task [^:]+|lockup|LOCKUP|detected|Oops|BUG|fault"),
}
_SM = re.compile(
    r"NVRM: Xid \(([^)]*)\): 13,(?: pid='?([^,']*))?.*?(?:\((GPC \d+, TPC \d+)|$)", re.DOTALL
)
_NUMBER = re.compile(r"\(pid \d+\)|0x[0-9a-f]+|(?<![\w:.])\d{4,}(?![\w:])|[0-9a-f]{16}|\{\d+\}")


def summarize(source: str, records: Iterable[Record], after_s: float) -> dict[str, Any]:
    """Return the `KernelLog` document of all records, with the lines after `after_s`."""
    count, era, begins_s = 0, 0, None
    lines: dict[tuple[object, ...], dict[str, Any]] = {}
    crashes = _Crashes()
    ages: dict[str, dict[tuple[object, ...], None]] = {}
    dropped: dict[str, int] = {}
    for at_s, raw in records:
        count += 1
        if begins_s is None:
            begins_s = at_s
        if source == "dmesg" and any(map(_ANY.match, map(_printable, raw.split(b"\n")[1:]))):
            # A user's text, or another kernel line of the same microsecond: they look alike.
            dropped["any"] = dropped.get("any", 0) + 1
        record = _printable(raw)
        hit = _ANY.match(record)
        if hit is None or _OF_A_USER.match(record):
            continue
        kind = _KINDS[int((hit.lastgroup or "k0")[1:])][0]
        era += kind == "era"
        if at_s is not None and at_s < after_s and kind != "era":
            continue
        distinctive = crashes.key(record, at_s) if kind == "sm" else _distinctive(kind, record)
        key = (era, kind, distinctive)
        line = lines.get(key)
        if line is None:
            lines[key] = {"text": clean(record, _CHARS), "at_s": at_s, "last_s": at_s, "times": 1}
        else:
            line["last_s"] = at_s
            line["times"] += 1
        own = ages.setdefault(kind, {})
        own.pop(key, None)
        own[key] = None
        if len(own) > (MOST_ERAS if kind == "era" else MOST_OF_A_KIND):
            oldest = next(iter(own))
            del own[oldest]
            dropped[kind] = dropped.get(kind, 0) + lines.pop(oldest)["times"]
    return {
        "source": source,
        "seen": count,
        "begins_s": begins_s,
        "after_s": after_s,
        "lines": list(lines.values()),
        "dropped": sum(dropped.values()),
        "dropped_of": dropped,
    }


class _Crashes:
    """Distinguishes exceptions of GPU programs (Xid 13) by crash, and by whether its TPC changes.

    One crash writes up to three lines for each of up to a hundred processors: it matters only that
    there were several. If a crash has one place, the line that names it is kept.
    """

    def __init__(self) -> None:
        self._last_crash: dict[str, tuple[float | None, int, str]] = {}
        self._keys: set[tuple[object, ...]] = set()

    def key(self, text: str, at_s: float | None) -> tuple[object, ...]:
        """Return a key that is equal for lines of which one is enough."""
        match = _SM.match(text)
        slot, pid, place = match.groups("") if match else ("", "", "")
        last_s, number, first = self._last_crash.get(slot, (None, 0, ""))
        if at_s is not None and last_s is not None and at_s - last_s > APART_S:
            number, first = number + 1, ""
        first = first or place
        self._last_crash[slot] = (at_s, number, first)
        where = "" if not place else "first" if place == first else "other"
        key = slot, pid, number, where
        if key not in self._keys and len(self._keys) >= MOST_CRASH_LINES:
            return (slot,)
        self._keys.add(key)
        return key


def _distinctive(kind: str, text: str) -> str:
    pattern, text = _DISTINCTIVE.get(kind), _NAMED.sub("", text, count=1)
    return " ".join(pattern.findall(text)) if pattern else _NUMBER.sub("#", text)


def _printable(raw: bytes) -> str:
    """Replace each character by one: a user's escape must not hide the driver's text after it."""
    text = raw.decode("utf-8", "replace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


LOG = "/dev/kmsg"
PATIENCE_S = 3.0
"""The device answers in milliseconds; a journal of months may take longer, and is given up."""

READ_S, READ_CPU_S = 2.0, 1.2
"""Limits on reading the device: time, and CPU time of its reader. The rest counts as dropped."""

_RECORD = 8192
_LOOK = 64
_PROGRAMS = {
    "journal": (
        "journalctl", "-k", "-b", "-q", "--no-pager", "-o", "json",
        "--output-fields=MESSAGE,SYSLOG_FACILITY,_SOURCE_MONOTONIC_TIMESTAMP", "SYSLOG_FACILITY=0",
    ),
    "dmesg": ("dmesg", "-k"),
}  # fmt: skip
"""Only the kernel's own records: programs write there, too. busybox's dmesg has no -k."""
_STAMP = re.compile(rb"^\[\s*(\d{1,10}\.\d{1,9})\]\s?(?:\[\s*[TC]\d{1,10}\]\s?)?")
_KERNELS = tuple(b"%d" % level for level in range(8))
"""Priorities of syslog's facility 0."""
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


class Readers:
    """The running readers of the log."""

    def __init__(self, request: Message) -> None:
        """Start to read `kmsg`, its last `kernel_log_since_s` seconds; None: all since boot."""
        path, since_s = str(request.get("kmsg", LOG)), request.get("kernel_log_since_s")
        self._after_s = 0.0 if since_s is None else max(0.0, procfs.up_s() - since_s)
        self._refused = ""
        self._children: list[tuple[str, guard.Child]] = []
        try:
            os.close(node_files.open_regular(path)[0])
        except OSError as error:
            # Programs read this kernel's log, or a container's: not the file that was asked for.
            self._refused = words(error) if path == LOG else "%s: %s" % (path, words(error))
            for source, argv in _PROGRAMS.items() if path == LOG else ():
                child = guard.spawn_tool(argv, ("/usr/bin", "/bin"))
                if child is not None:
                    self._children.append((source, child))
        else:
            self._children.append(("kmsg", guard.spawn(_read_device, path, self._after_s)))

    def finish(self, until: float, problems: list[str]) -> dict[str, Any] | None:
        """Return the `KernelLog` of the first reader that got any lines; None if none did."""
        log: dict[str, Any] | None = None
        for source, child in self._children:
            answered = child.listen(until)
            child.dismiss(kill=not answered or len(child.output) > child.most)
            if log is not None:
                continue
            if not answered:
                self._refused = "no answer in time"
            elif source == "kmsg":
                try:
                    log = child.value()
                except guard.BrokenError as error:
                    self._refused = str(error)
            elif child.status == 0 and child.output:
                parse = _entries if source == "journal" else _stamped
                log = summarize(source, parse(bytes(child.output)), self._after_s)
            if log is not None and not log["seen"]:
                log, self._refused = None, "it is empty"
        if log is None:
            problems.append("kernel log: " + clean(self._refused or "no program could read it"))
        return log


def _read_device(path: str, after_s: float) -> dict[str, Any]:
    """In the child: read every record that exists at its start, one read(2) each."""
    device = _Device(path)
    value = summarize("kmsg", _records(_lines(device.pieces())), after_s)
    if device.unread:
        value["dropped"] += device.unread
        value["dropped_of"].update(any=device.unread, later=device.unread)
    return value


class _Device:
    """Reads the records that exist at its start: a log may grow as fast as it is read.

    A second descriptor is at the end of the log: reading stops at the first record that it gets.
    Time stamps would not do: the log's clock and a program's drift apart, by minutes in months.
    """

    def __init__(self, path: str) -> None:
        self.unread = 0
        self._file, self._end = (node_files.open_regular(path)[0] for _ in range(2))
        # A plain file has a size; the device's is 0.
        self._size = os.lseek(self._end, 0, os.SEEK_END)

    def pieces(self) -> Iterator[bytes]:
        """Yield one record of the device at a time; of a plain file, whatever one read returns."""
        turns, reads, size, first_new = 0, 0, 0, None
        deadline, until_cpu = guard.clock.now() + READ_S, time.process_time() + READ_CPU_S
        while turns % _LOOK or (guard.clock.now() < deadline and time.process_time() < until_cpu):
            turns += 1
            try:
                piece = os.read(self._file, _RECORD)
            except BrokenPipeError:
                # A record was overwritten before it was read; before the first, only the oldest.
                self.unread += reads > 0
                continue
            except BlockingIOError:
                return
            reads, size = reads + 1, size + len(piece)
            if not reads % _LOOK and first_new is None and not self._size:
                first_new = self._first_new()
            if not piece or (first_new is not None and _number(piece) >= first_new):
                return
            yield piece
            if 0 < self._size <= size:
                return
        self.unread += 1

    def _first_new(self) -> int | None:
        with suppress(BlockingIOError, BrokenPipeError):
            return _number(os.read(self._end, _RECORD))
        return None


def _number(record: bytes) -> int:
    number = record.split(b",", 2)[1:2]
    return int(number[0]) if number and number[0].isdigit() else 0


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *complete, rest = (rest + piece).split(b"\n")
        yield from complete
    if rest:
        yield rest


def _records(lines: Iterator[bytes]) -> Iterator[Record]:
    """Read `priority,number,microseconds,flags;text`; skip properties, which start with a blank."""
    for line in lines:
        head, semicolon, text = line.partition(b";")
        fields = head.split(b",")
        if not semicolon or len(fields) < 3 or not fields[2].isdigit():  # noqa: PLR2004
            continue
        if fields[3:4] == [b"c"] or fields[0] not in _KERNELS:
            # The rest of a split text, or written by a program: it may contain anything.
            continue
        unescaped = _ESCAPED.sub(lambda match: bytes.fromhex(match[1].decode()), text)
        yield int(fields[2]) / 1e6, unescaped


def _entries(output: bytes) -> Iterator[Record]:
    """Read the JSON output of journalctl, in which a text may contain line ends."""
    for line in output.splitlines():
        try:
            entry = json.loads(line)
            if entry.get("SYSLOG_FACILITY") != "0":
                continue  # not, or not surely, written by the kernel
            text = entry["MESSAGE"]  # a list of bytes if not UTF-8, null if it is too long
            at_us = entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry["__MONOTONIC_TIMESTAMP"]
            record = int(at_us) / 1e6, text.encode() if isinstance(text, str) else bytes([*text])
        except (AttributeError, ValueError, TypeError, KeyError):
            continue
        yield record


def _stamped(output: bytes) -> Iterator[Record]:
    """Read dmesg's `[   12.345678] text`; a text with line ends takes several lines.

    The further lines are indented, or, without /dev/kmsg, repeat the time stamp, as the next text
    may, too. They do not count as the kernel's: a user may put a line end into a file's name.
    """
    at_s, text, stamp = None, b"", None
    for line in output.split(b"\n"):
        match = _STAMP.match(line)
        if match is None or match.group(1) == stamp:
            rest = line[match.end() if match else 0 :].strip()
            text += b"\n" + rest if rest else b""
            continue
        if text:
            yield at_s, _ESCAPED.sub(b"?", text)
        stamp, text = match.group(1), line[match.end() :]
        at_s = float(stamp)
    if at_s is not None:
        yield at_s, _ESCAPED.sub(b"?", text)
