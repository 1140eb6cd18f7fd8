"""A captured kernel log, however it was printed, becomes the lines that a live node would send.

dmesg writes `[   12.345678]`, `[Sun Feb 23 16:24:18 2025]`, ISO times and `kern  :err   :`; the
journal and syslog put date, host and `kernel:` before it; a console adds `<4>`; /dev/kmsg has
`6,1234,5678901,-;`, pdsh puts `host: ` first; people paste lines with quote marks and colours, or
without any time.
"""

from __future__ import annotations

import re
import textwrap

from preflight.facts.kernel_model import KernelLog, LogLine

LONGEST = 64 << 20
"""Characters of one log that are read."""

MOST_LINES = 50_000
"""Lines that are kept of those that tell of hardware, each once, and as many of the others."""
_CHARS = 512

_TELLS = re.compile(
    r"NVRM|nvidia|mlx5_core|[Ll]ink (?:is )?(?:[Dd]own|[Uu]p)|WATCHDOG|PCIe Bus|AER: "
    r"|DPC: |Hardware Err|AER-aware|evice recovery"
    r"|MCE: |mce: |Memory f|BERT: |EDAC |-fs|XFS|BTRFS|F2FS|rror, dev|I/O error|^nvme |ockup|LOCKUP"
    r"|stall|^BUG|^Oops|^general|ut of memory|^INFO: task|^nfs: |^Linux version|^Command line"
)
"""What the readers of hardware's words look for; no other line is worth its room."""
_TURN = re.compile(
    r"nvidia-nvlink: |NVRM: loading |\): 154, |firmware version|[Rr]ecover|^Linux version"
)
"""After such a line the same words tell of something new."""
_PROGRAM = re.compile(r"pid='?\d+'?, name=[^,]*,")
_CRASH = "): 13,"

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_STAMP = re.compile(
    "(?:"
    + "|".join(
        (
            r"<\d{1,3}>",
            r"(?:kern|user|daemon|syslog) *:(?:emerg|alert|crit|err|warn|notice|info|debug) *: ?",
            r"\d{1,3},\d+,(?P<micro>\d+),[^;]{1,20};",
            r"\[ *(?P<boot>\d{1,10}\.\d{1,9})(?: <[ \d.]+>)?\] ?",
            r"\[ *[TC]\d+\] ?",
            r"\[ *\+\d+\.\d+\] ?",
            rf"\[(?:{_DAY} )?{_MONTH} *\d{{1,2}} ?[\d:.]* ?(?:\d{{4}})?\] ?",
            rf"(?:{_DAY} )?{_MONTH} +\d{{1,2}}(?: \d{{4}})? \d\d:\d\d:\d\d(?:\.\d+)?(?: \d{{4}})? ",
            r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?\]? ",
            # A month of any language: journalctl prints it as the locale has it.
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
"""What pdsh and clush put before the lines of each node."""
_TICKET = re.compile(
    r"^(?!traps:|umip:|input:)[\w.:;-]{1,60}[;:] ?"
    r"(?=NVRM: |nvidia-\w+: SXid|nvidia-peermem |mlx5_core |pcieport |EDAC )"
)
"""A word that some ticket or script put before a line of hardware; behind a stamp it is no such."""

_SIGNED = r"NVRM: |SXid \(|mlx5_core |EDAC |\[Hardware Error\]"
_FOREIGN = re.compile(
    r"#|(?:[\w.-]{1,253} )?(?:[\w./@-]{1,80}\[\d{1,10}\]|\(?(?:sudo|su|logger|root|CRON)\)?): "
    rf"|[\w.-]{{1,253}} (?!NVRM:)[a-zA-Z][\w./@-]{{0,80}}: (?!(?:\[[^\]]*\] ?)*(?:{_SIGNED}))"
    r".{0,400}?(?:NVRM: Xid|SXid) \("
)
"""What a program or a person wrote: it may quote the kernel, and says nothing of this node."""

OF_A_USER = (
    r"(?s:.{0,15}?)(?:\[\d+\](?::| )|\(\d+\):? | invoked oom-killer: |/\d+: potentially unexpected"
    r"|: (?:page allocation|vmalloc|vmap|attempt to access))"
    r"|XFS \([^)]{1,99}\): (?s:.{0,15}) should use fallocate; "
    r"|(?s:.{0,127}?)IN=\S{0,15} OUT=\S{0,15} (?:(?:PHYS|MAC)\w{0,5}=\S{0,99} ){0,5}"
    r"(?:MACPROTO=|SRC=\S{1,39} DST=|ARP HTYPE=|ARP TRUNC|TRUNCATED)"
)
"""Lines that begin with a user's word, as the node's own reader knows them (a test compares)."""

_OF_A_USER = re.compile(OF_A_USER)
_INDENT = 2


def parse(text: str) -> KernelLog:
    """Read a log of any style; lines that are none of the kernel's stay where they tell nothing.

    A storm becomes one line with its number: only what repeats, what is harmless, and what somebody
    else says of hardware is left out.
    """
    kept = _Kept()
    begins_s: float | None = None
    whole = uncommented(_ESCAPE.sub("", text[:LONGEST]))
    for raw in _joined(textwrap.dedent(whole)):
        said, at_s, _stamped = stripped(raw)
        begins_s = at_s if begins_s is None else begins_s
        kept.take(_printable(said), at_s)
    cut = len(text) > LONGEST
    lines = tuple(kept.lines)
    return KernelLog("text", kept.seen + cut, begins_s, 0.0, lines, kept.dropped + cut)


class _Kept:
    """The lines of a log that are worth their room, in the order in which each came first."""

    def __init__(self) -> None:
        self.lines: list[LogLine] = []
        self.seen = self.dropped = 0
        self._places: dict[tuple[int, float | None, str], int] = {}
        self._turns = self._harmless = 0

    def take(self, said: str, at_s: float | None) -> None:
        self.seen += 1
        if _TELLS.search(said) is None:
            self._harmless += 1
            if self._harmless <= MOST_LINES:
                self.lines.append(LogLine(said, at_s, at_s))
            return
        if _FOREIGN.match(said) or _OF_A_USER.match(said):
            return
        self._turns += _TURN.search(said) is not None
        # How often programs crashed is told by when: of those each line counts.
        crash = at_s if _CRASH in said else None
        key = (self._turns, crash, said if _CRASH in said else _PROGRAM.sub("", said))
        at = self._places.get(key)
        if at is not None:
            before = self.lines[at]
            last_s = before.last_s if at_s is None else at_s
            self.lines[at] = LogLine(before.text, before.at_s, last_s, before.times + 1)
        elif len(self._places) < MOST_LINES:
            self._places[key] = len(self.lines)
            self.lines.append(LogLine(said, at_s, at_s))
        else:
            self.dropped += 1


def stripped(raw: str) -> tuple[str, float | None, bool]:
    """Return the text of a line, its seconds since boot, and whether it bore a stamp at all."""
    said, at_s, stamped = _HOST.sub("", raw.strip(), count=1), None, False
    end = 0
    while (found := _STAMP.match(said, end)) is not None:
        end = found.end()
        boot, micro, quoted = found.group("boot", "micro", "quoted")
        stamped = stamped or quoted is None
        if boot is not None:
            at_s = float(boot)
        elif micro is not None:
            at_s = min(int(micro[:20]) / 1e6, 1e12)
    return said[end:] if stamped else _TICKET.sub("", said[end:], count=1), at_s, stamped


def host_of(raw: str) -> str:
    """Return the node that pdsh or clush put before a line; "" where none is."""
    found = _HOST.match(raw.strip())
    return found["host"] if found else ""


def uncommented(text: str) -> str:
    """Take off the "# " of a text of which all lines have it: a log pasted into a script or ticket.

    Beside other lines it marks what somebody quotes or says.
    """
    if not text.lstrip().startswith("#"):
        return text
    lines = [line for line in text.splitlines() if line.strip()]
    if not all(line.lstrip().startswith("#") for line in lines):
        return text
    return textwrap.dedent("\n".join(line.lstrip().lstrip("#") for line in lines) + "\n")


def _joined(text: str) -> list[str]:
    """Whole lines: an indented one without a stamp goes on where the one before left off.

    dmesg and journalctl indent what goes on below the beginning of the text: a stamp there is no
    kernel's but stands in the text, say in the name of a file.
    """
    joined: list[str] = []
    begins = 0
    for raw in text.splitlines():
        if not raw.strip():
            continue
        indent = len(raw) - len(raw.lstrip())
        said, _at_s, stamped = stripped(raw)
        if joined and indent >= _INDENT and (not stamped or 0 < begins <= indent):
            if len(joined[-1]) < _CHARS:
                joined[-1] += " " + raw.strip()
            continue
        joined.append(raw)
        begins = len(raw.rstrip()) - len(said) - indent if stamped else 0
    return joined


def _printable(said: str) -> str:
    if not said.isprintable():
        said = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in said)
    return said[:_CHARS]
