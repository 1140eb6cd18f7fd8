"""Node lists in the scheduler's notation, expanded safely and folded for copying.

ClusterShell does the grammar. Two things it does not do are done before and after it: a range
such as `node[1-100000000]` fills all memory, and a name with a leading space or dash passes.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

from preflight.core.statistics import grouped
from preflight.core.text import natural
from preflight.errors import UsageError

MOST_NODES = 65536
"""Slurm's own cap on the size of a host list (MAX_RANGE, 64 Ki)."""

_BRACKETS = re.compile(r"\[([^\][]*)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?(?:/([0-9]+))?")
_DIGITS_BEFORE = re.compile(r"(?<![0-9])([0-9]++)\[([^\][]*)\]")
_MOST_DIGITS = 18
_TOO_LONG = re.compile(rf"[0-9]{{{_MOST_DIGITS + 1},}}")
_LONGEST = 253
"""Characters of a name (RFC 1123)."""
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_ZONE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,14}")
"""Of fe80::1%eth0: an interface's name or number (RFC 4007), as Linux bounds names."""
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_NUMBERS = re.compile(r"[0-9]+")
_VARYING_PARTS = re.compile(r"\[[^\][]*\]|[0-9]+")
_OPERATION = re.compile(r"([,!&^]?)((?:\[[^\][]*\]|[^,!&^])+)")
_METHODS = {"": "update", ",": "update", "!": "difference_update", "&": "intersection_update"}
_METHODS |= {"^": "symmetric_difference_update"}
"""ClusterShell's operators, applied from left to right."""
_FEW_FOLDED, _AXES = 256, 4
"""ClusterShell's time grows with the square of the names with several numbers: 4,000 a minute."""
_MOST_NUMBERS = 8
"""Numbers in a name of the longest list: ClusterShell stores each number of each name."""
_EXAMPLE = "type for example 'gpu[001-064]' or 'gpu1,gpu2'"


@cache
def clustershell(module: str) -> Any:
    """Load a module of ClusterShell without the defaults.conf that it reads on import.

    That file may be damaged or another user's, and preflight needs nothing in it.
    """
    from configparser import ConfigParser

    original_read = ConfigParser.read
    try:
        setattr(ConfigParser, "read", lambda *_, **__: [])  # noqa: B010  mypy
        return import_module(f"ClusterShell.{module}")
    finally:
        setattr(ConfigParser, "read", original_read)  # noqa: B010


def expand(text: str) -> tuple[str, ...]:
    """Expand a node list, in the order of its patterns, numeric within a pattern.

    Raises UsageError for an empty list, a syntax error, more than 64 Ki nodes, or a name that is
    neither a host name (RFC 1123, underscores tolerated) nor an IP address.
    """
    if not text.strip(" ,\t\n"):
        raise UsageError(f"the node list is empty: {_EXAMPLE}")
    if any(char.isdecimal() and not char.isascii() for char in text):
        raise UsageError(f"the node list {_shorten(text)!a} has digits other than 0-9: {_EXAMPLE}")
    refuse_bombs(text)
    words = split(digits_into_brackets(text))
    # ClusterShell reads the brackets of [2001:db8::1] as a range: addresses go around it.
    addresses = {word: address for word in words if (address := _parse_address(word)) is not None}
    pattern = ",".join(word for word in words if word not in addresses)
    names = [*(_expand_names(pattern) if pattern else ()), *addresses.values()]
    if not names:
        raise UsageError(f"the node list {_shorten(text)!a} comes out empty: {_EXAMPLE}")
    for name in names:
        check_host_name(name)
    return tuple(dict.fromkeys(names))


def fold(names: Iterable[str]) -> str:
    """Fold names into one pattern, ready to be pasted after `--exclude=`."""
    node_set = clustershell("NodeSet")
    by_pattern: dict[str, list[str]] = {}
    addresses = []
    for name in names:
        if ":" in name or not _is_name(name):  # brackets would be read as a range
            addresses.append(name)
        else:
            by_pattern.setdefault(_NUMBERS.sub("%s", name), []).append(name)
    multiple = (names for pattern, names in by_pattern.items() if pattern.count("%s") > 1)
    many = sum(map(len, multiple)) > _FEW_FOLDED
    folded = [
        ",".join(_fold_numbers(pattern, members))
        if many and pattern.count("%s") > 1
        else str(node_set.NodeSet.fromlist(members, resolver=node_set.RESOLVER_NOGROUP))
        for pattern, members in sorted(by_pattern.items())
    ]
    return ",".join((*folded, *addresses))


def _fold_numbers(pattern: str, names: Iterable[str]) -> Iterator[str]:
    """Fold names with several numbers in linear time: by the last number, then the one before."""
    range_set = clustershell("RangeSet").RangeSet
    vectors = [tuple(_NUMBERS.findall(name)) for name in sorted(set(names), key=natural)]
    for axis in list(reversed(range(len(vectors[0]))))[:_AXES]:
        groups = grouped(((vector[:axis], vector[axis + 1 :]), vector[axis]) for vector in vectors)
        vectors = [
            (*before, str(range_set(",".join(numbers))), *after)
            for (before, after), numbers in groups.items()
        ]
    for vector in vectors:
        yield pattern % tuple(f"[{part}]" if {",", "-"} & {*part} else part for part in vector)


def split(text: str) -> list[str]:
    """Split at commas and blanks outside brackets."""
    return re.findall(r"(?:\[[^\[]*\]|[^,\s])+", text)


def _parse_address(word: str) -> str | None:
    """Return the IP address, with or without brackets; ipaddress does not check the zone."""
    inner = word[1:-1] if word[:1] + word[-1:] == "[]" else word
    address, percent, zone = inner.partition("%")
    if ":" not in address or (percent and not _ZONE.fullmatch(zone)):
        return None
    try:
        return f"{ipaddress.ip_address(address)}{percent}{zone}"
    except ValueError:
        return None


def _expand_names(pattern: str) -> list[str]:
    module = clustershell("NodeSet")
    if "@" in pattern:
        raise UsageError(f"groups such as {_shorten(pattern)!a} are not read here: {_EXAMPLE}")
    operations = [*_OPERATION.finditer(pattern)]
    if "".join(operation[0] for operation in operations) != pattern or operations[0][1]:
        raise UsageError(
            f"{_shorten(pattern)!a} has an operator (!, & or ^) without nodes beside it: {_EXAMPLE}"
        )
    names: set[str] = set()
    try:
        for sign, part in (operation.groups() for operation in operations):
            getattr(names, _METHODS[sign])(module.NodeSet(part, resolver=module.RESOLVER_NOGROUP))
    except (module.NodeSetException, ValueError, AssertionError) as error:
        raise UsageError(
            f"cannot read the node list {_shorten(pattern)!a} ({_printable(error)}): {_EXAMPLE}"
        ) from error
    return sorted(names, key=lambda name: (_NUMBERS.sub("%s", name), natural(name)))


def digits_into_brackets(text: str) -> str:
    """Move digits before a bracket into it: `a5[1-20]` is a51 to a59 and a510 to a520.

    ClusterShell puts them before both ends and reads a51 to a520. UsageError for a bad range.
    """
    return _DIGITS_BEFORE.sub(lambda match: f"[{','.join(_join_ranges(*match.groups()))}]", text)


def _join_ranges(digits: str, ranges: str) -> Iterator[str]:
    """Yield a range for each number of digits; Slurm pads to the width of the first number."""
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, end, step_text = match.groups() if match else ("", None, None)
        low, last, step = int(first or 1), int(end or first or 0), int(step_text or 1)
        width = len(first)
        if low > last or not step or len(digits) + max(width, len(str(last))) > _MOST_DIGITS:
            raise UsageError(f"cannot read the range {_shorten(f'{digits}[{part}]')!a}: {_EXAMPLE}")
        while low <= last:
            highest = min(last, 10**width - 1)
            if low <= highest:
                stepping = f"/{step_text}" if step_text else ""
                yield f"{digits}{low:0{width}}-{digits}{highest:0{width}}{stepping}"
                low += (highest - low) // step * step + step
            width += 1


def refuse_bombs(text: str) -> None:
    """Refuse ranges that would fill all memory when expanded; UsageError."""
    if len(text) > 1 << 20:
        raise UsageError(f"the node list is {len(text)} characters long: fold it, {_EXAMPLE}")
    if longest := _TOO_LONG.search(text):
        raise UsageError(
            f"the number {_shorten(longest[0])} of the node list is too long: {_EXAMPLE}"
        )
    names = numbers = 0
    for part in (part for word in split(text) for _, part in _OPERATION.findall(word)):
        if len(_BRACKETS.sub("", part)) > _LONGEST:
            raise UsageError(f"{_shorten(part)!a} is too long for a host name: {_EXAMPLE}")
        names += _most_names(part)
        numbers += _most_names(part) * len(_VARYING_PARTS.findall(part))
        if names > MOST_NODES or numbers > MOST_NODES * _MOST_NUMBERS:
            what = "nodes" if names > MOST_NODES else f"nodes of {_MOST_NUMBERS} numbers"
            raise UsageError(
                f"{_shorten(part)!a} names more than {MOST_NODES} {what}: "
                f"give a smaller range, {_EXAMPLE}"
            )


def _most_names(word: str) -> int:
    """Return an upper bound of the names that it expands to."""
    return math.prod(map(_range_size, _BRACKETS.findall(word)))


def _range_size(ranges: str) -> int:
    """Count the numbers in one pair of brackets, at least one."""
    size = 0
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            continue  # ClusterShell says what is wrong with it
        first, last, step = (int(group or 0) for group in match.groups())
        size += max(0, last - first) // (step or 1) + 1
    return max(size, 1)


def check_host_name(name: str, *, resolved: bool = True) -> None:
    """Refuse what is neither a host name nor an address, such as an option.

    `resolved`: its address is looked up, so that a number may be read as an address.
    """
    if _parse_address(name) is not None:
        return
    if not _is_name(name):
        raise UsageError(
            f"{_shorten(name)!a} is not a host name: letters a-z, digits, '-' and '.' only, "
            f"{_EXAMPLE}"
        )
    last = name.removesuffix(".").split(".")[-1]
    if resolved and _NUMBER.fullmatch(last) and not is_address(name):
        raise UsageError(
            f"{_shorten(name)!a} is not a host name: ssh and others read such a number as an IPv4 "
            f"address (1 is 0.0.0.1, 010 is 8); {_EXAMPLE}"
        )


def valid_host_name(name: str, default: str) -> str:
    """Return a machine's own name if it is a valid host name, else `default`."""
    try:
        check_host_name(name)
    except UsageError:
        return default
    return name


def check_names(names: Iterable[str]) -> None:
    """Check the names in a document of unknown origin; ValueError."""
    for name in names:
        try:
            check_host_name(name)
        except UsageError as error:
            raise ValueError(f"{_shorten(name)!a} is not a node name") from error


def _is_name(name: str) -> bool:
    labels = name.removesuffix(".").split(".")
    return len(name) <= _LONGEST and all(map(_LABEL.fullmatch, labels))


def split_pair(text: str, names: Collection[str]) -> tuple[str, str] | None:
    """Split "a-b", whose names may hold dashes; None if it is not a pair of these names."""
    dashes = (at for at, char in enumerate(text[: _LONGEST + 1]) if char == "-")
    halves = ((text[:at], text[at + 1 :]) for at in dashes if len(text) <= 2 * _LONGEST + 1)
    return next(((a, b) for a, b in halves if a in names and b in names), None)


def is_address(text: str) -> bool:
    """Whether a text is an IPv4 or IPv6 address, written out."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004  one line of a terminal


def _printable(error: Exception) -> str:
    """Escape a library's message, which quotes the input with its escape sequences."""
    return _shorten(" ".join(str(error).encode("unicode_escape").decode().split()))
