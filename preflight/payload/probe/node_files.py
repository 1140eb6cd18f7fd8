"""Reads small files of a node, and its mounts, as printable text of bounded length."""

from __future__ import annotations

import errno
import json
import os
import re
import select
import stat
from contextlib import suppress

MIB = 1 << 20

LINE_LIMIT = 512
"""Bytes, as JSON, of a name, state or version (`Line` in the document)."""

MOST = 2**53
"""The largest count that a document may hold."""

TEXT_LIMIT = 2048
"""The same of a command or message; half of what the document allows."""

_ESCAPE = r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|.?)"
"""An escape without its end matches alone: it must not hide the text after it."""


def clean(raw: bytes | str, limit: int = LINE_LIMIT) -> str:
    """Return one printable line: whitespace becomes blanks, control characters are dropped."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    if text[-1:] == "\n" and text[:-1].isprintable():  # nearly every file of sysfs
        text = text[:-1] + " "
    if not text.isprintable():
        text = re.sub(_ESCAPE, "", text)
        text = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)
    return text if _size(text[: limit + 1]) <= limit else _cut(text, limit - 3) + "..."


_CODE = frozenset(" ;|&$`<>()'\"\\*?{}[]!#~")
"""What a shell reads as code, as in preflight.facts.basics."""


def safe_name(name: str, limit: int = 64) -> str:
    """Return the name of a device or host, with %xx for bytes that are code or not printable.

    Linux refuses only blanks, "/" and ":" in the name of an interface.
    """
    if name.isprintable() and _CODE.isdisjoint(name):
        return name[:limit]
    code = {c: c.encode("utf-8", "surrogateescape").hex("%") for c in name}
    safe = (c if c.isprintable() and c not in _CODE else "%" + code[c] for c in name)
    return "".join(safe)[:limit]


def _size(text: str) -> int:
    """Return its bytes in JSON, of which "😀" takes 12: those of an answer are limited."""
    return len(json.dumps(text)) - 2


def _cut(text: str, limit: int) -> str:
    """Return as much of its beginning as fits."""
    fits, most = 0, limit
    while fits < most:
        tried = (fits + most + 1) // 2
        fits, most = (tried, most) if _size(text[:tried]) <= limit else (fits, tried - 1)
    return text[:fits]


def clean_block(raw: bytes, limit: int) -> str:
    """Return the same for text of several lines: tabs and newlines are kept."""
    text = re.sub(_ESCAPE, "", raw.decode("utf-8", "replace"))
    return "".join(c for c in text if c in "\t\n" or c.isprintable())[:limit]


def words(error: BaseException) -> str:
    """Return the cause of an exception: "Permission denied" rather than its class."""
    if isinstance(error, OSError) and error.strerror:
        return clean(error.strerror)
    return clean(f"{type(error).__name__}: {error}")


def raw(path: str, limit: int = 65536) -> bytes:
    """Return one read of a small file of /proc or /sys; OSError if it does not exist."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, limit)
    finally:
        os.close(file)


def attempt_raw(path: str, limit: int = 65536) -> bytes:
    """Return the same, or b"" where it cannot be read (a process that has ended)."""
    try:
        return raw(path, limit)
    except OSError:
        return b""


def attempt(path: str) -> str:
    """Return one small file of /proc or /sys, cleaned and stripped; "" where it cannot be read."""
    return clean(attempt_raw(path)).strip()


def number(path: str) -> int | None:
    """Return the count in such a file; None for -1, "unknown", or where it cannot be read."""
    count = whole_number(attempt(path))
    return None if count is None else min(count, MOST)


def whole_number(text: str | bytes) -> int | None:
    """Return the whole number that a text is; None for anything else, or over 20 digits.

    A user's text may be "²", which is a digit for isdigit() and an error for int().
    """
    return int(text) if text.isdigit() and text.isascii() and len(text) <= _DIGITS else None


_DIGITS = 20


def counters(paths: dict[str, str]) -> dict[str, int]:
    """Return the counters in these files by name, bounded; without those that cannot be read."""
    counts = {name: number(path) for name, path in paths.items()}
    return {name: count for name, count in counts.items() if count is not None}


def names(folder: str) -> list[str]:
    """Return the entries of a folder, sorted; [] where it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


_HARMLESS = (os.makedev(1, 3), os.makedev(1, 11))
"""/dev/null and /dev/kmsg. Opening and closing /dev/watchdog0 would restart the node."""


def open_regular(path: str, *, follow: bool = True) -> tuple[int, os.stat_result]:
    """Open a regular file for reading; OSError with EINVAL for anything else."""
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) and status.st_rdev not in _HARMLESS:
            is_folder = stat.S_ISDIR(status.st_mode)
            code = errno.EISDIR if is_folder else errno.EINVAL
            raise OSError(code, os.strerror(code) if is_folder else "it is no regular file")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open("/proc/self/fd/%d" % handle, flags)
    finally:
        os.close(handle)
    if stat.S_ISREG(status.st_mode) and not status.st_size and _is_endless(file):
        os.close(file)
        raise OSError(errno.EINVAL, "it is no regular file")
    return file, status


def _is_endless(file: int) -> bool:
    """Whether reads of it can block: /proc/kmsg, tracefs's trace_pipe.

    Reading these would take the text from other readers. epoll accepts no file on a file system,
    except on FUSE, whose file systems have blocks.
    """
    with suppress(PermissionError), select.epoll() as waiting:
        waiting.register(file)
        return not os.fstatvfs(file).f_blocks
    return False


_MOST_LANES = 32
_ROOT = r"^pci[0-9a-fA-F]{4,}:[0-9a-fA-F]{2}$"


def bus_id(raw: str) -> str:
    """Format a PCI address like sysfs: "00000000:1B:00.0" is 0000:1b:00.0; "" if it is not one."""
    match = re.match(r"^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])$", raw)
    if not match:
        return ""
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def pci_path(link: str) -> list[str] | None:
    """Return the path from the PCI root complex to a device, given its link; None if it has none.

    [] where it cannot be read (for example, out of memory).
    """
    try:
        device = os.open(link, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return []
    try:
        # The kernel follows all links or none; realpath() ignores a link that cannot be read.
        parts = os.readlink(f"/proc/self/fd/{device}").split("/")
    except OSError:
        return []
    finally:
        os.close(device)
    roots = [index for index, part in enumerate(parts) if re.match(_ROOT, part)]
    return [clean(part) for part in parts[roots[0] :]] if roots else None


def pcie_link(device: str) -> dict[str, float | int | None] | None:
    """Return a `PcieLink` document of a device; None where the kernel has no files for it."""
    if not os.path.exists(device + "/current_link_width"):
        return None
    return {
        "gts": _gts(attempt(device + "/current_link_speed")),
        "width": _lanes(device + "/current_link_width"),
        "gts_max": _gts(attempt(device + "/max_link_speed")),
        "width_max": _lanes(device + "/max_link_width"),
    }


def numa(device: str) -> int | None:
    """Return the NUMA node of a device; None where the firmware does not report it (sysfs: -1)."""
    return number(device + "/numa_node")


def _gts(text: str) -> float | None:
    """Return the number of "32.0 GT/s PCIe"; None for the "Unknown" of virtual functions."""
    match = re.match(r"([0-9]{1,3}(?:\.[0-9])?) GT/s", text)
    return float(match.group(1)) if match else None


def _lanes(path: str) -> int | None:
    """Return a number of lanes; None for 0 and for the 255 of a device that does not answer."""
    return lanes if (lanes := number(path)) and lanes <= _MOST_LANES else None


LIMIT = 256 << 10


def lines(path: str, limit: int = LIMIT) -> list[str]:
    """Return the lines of a file; OSError if it cannot be read.

    Only a newline ends one: a text of a user may contain other line separators.
    """
    # Buffered: one plain read of a file of /proc returns at most a page, without an error.
    with open(path, "rb") as file:
        rows = file.read(limit).decode("utf-8", "replace").split("\n")
    return rows if rows[-1] else rows[:-1]


def attempt_lines(path: str, limit: int = LIMIT) -> list[str]:
    """Return the same, or [] where it cannot be read."""
    try:
        return lines(path, limit)
    except OSError:
        return []


def whole(path: str) -> int:
    """Return the one whole number in a file; OSError or ValueError if there is none."""
    return int(" ".join(lines(path)))


def numbered(folder: str, pattern: str) -> list[str]:
    """Return the entries of a folder that match, in the order of their numbers."""
    try:
        names = [name for name in os.listdir(folder) if re.match(pattern + r"$", name)]
    except FileNotFoundError:
        return []
    return sorted(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def cpus_in(cpulist: str) -> list[int]:
    """Return the CPUs of a list of sysfs, "0-31,64-95"; ValueError for an invalid list."""
    cpus: list[int] = []
    for part in filter(None, cpulist.strip().split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), min(int(last or first), int(first) + 65535) + 1)
    return cpus


def parse_key_values(rows: list[str]) -> dict[str, str]:
    """Return "Name: value" lines of /proc as a dict; the first of a name counts."""
    table: dict[str, str] = {}
    for line in rows:
        name, colon, value = line.partition(":")
        if colon:
            table.setdefault(name.strip(), value.strip())
    return table


_OCTAL = r"\\([0-7]{3})"
_LEAST = 10
"""Words of a line, the dash among them."""


class Mount:
    """One line of /proc/self/mountinfo (proc(5))."""

    __slots__ = ("device", "kind", "options", "point", "root", "source", "super_options")

    def __init__(self, line: str) -> None:
        """Parse a line; ValueError for anything else."""
        words = line.split(" ")
        if len(words) < _LEAST or "-" not in words[6:-3]:
            raise ValueError("not a line of mountinfo")
        dash = words.index("-", 6)
        self.device = words[2]
        self.root = _unescape(words[3])
        self.point = _unescape(words[4])
        self.options = words[5].split(",")
        self.kind = words[dash + 1]
        self.source = _unescape(words[dash + 2])
        self.super_options = words[dash + 3].split(",")

    @property
    def fuse_user(self) -> int:
        """The id of the user whose program serves it (FUSE); 0 for root or without one."""
        ids = [option[8:] for option in self.super_options if option.startswith("user_id=")]
        return int(ids[0]) if ids and ids[0].isdecimal() and self.kind.startswith("fuse") else 0


def _unescape(word: str) -> str:
    if "\\" not in word:
        return word
    return re.sub(_OCTAL, lambda match: chr(int(match.group(1), 8)), word)


def read() -> list[Mount]:
    """Return every mount of this process, in mount order; OSError without /proc."""
    return parse(lines("/proc/self/mountinfo", 64 << 20))


def parse(rows: list[str]) -> list[Mount]:
    """Read the lines of mountinfo; skip invalid ones."""
    mounts = []
    for line in rows:
        with suppress(ValueError):
            mounts.append(Mount(line))
    return mounts


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """Return the mount that contains a path; of several at one place, the last."""
    innermost = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (innermost is None or len(mount.point) >= len(innermost.point)):
            innermost = mount
    return innermost
