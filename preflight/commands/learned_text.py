"""What was learned, as an inventory to keep: TOML that says when it was found, and on whom."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from preflight import __version__
from preflight.commands.learned_groups import HAS
from preflight.fleet.baselines import UNITS
from preflight.fleet.model import Host
from preflight.fleet.nodeset import fold
from preflight.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date

    from preflight.commands.learned_groups import LearnedGroup

_WAYS_IN = ("user", "port", "identity_file", "known_hosts", "ssh_config")
_CHOSEN_ANEW = ("ssh", "srun", "torchrun")
"""Transports that a run finds by itself."""


def inventory_text(
    groups: Sequence[LearnedGroup], left_out: Mapping[str, str], origin: str, day: date
) -> str:
    """Lay it out; `left_out` are the nodes of which nothing could be learned, and why."""
    learned = sum(len(group.hosts) for group in groups)
    lines = [
        f"# Learned by preflight {__version__} on {day} from {_nodes(learned)} ({origin}).",
        "# This is what was found, nobody's promise: what was missing that day is missing here.",
        "# Read it, correct it, and keep it under version control.",
    ]
    lines += [f"# not learned: {name}: {_comment(why)}" for name, why in left_out.items()]
    for group in groups:
        lines += ["", *_group(group, day)]
    for group in groups:
        for host in group.hosts:
            lines += _node(host)
    return "\n".join(lines) + "\n"


def _group(group: LearnedGroup, day: date) -> Iterator[str]:
    first = group.hosts[0]
    yield f"[group.{group.name}]" + (f"  # {_comment(group.remark)}" if group.remark else "")
    yield f"nodes = {_text(fold(host.name for host in group.hosts))}"
    yield f"learned = {day}"
    if first.transport not in _CHOSEN_ANEW:
        yield f"transport = {_text(first.transport)}"
    for key in _WAYS_IN:
        value = getattr(first, key)
        if value is not None:
            yield f"{key} = {_value(value)}"
    if first.python != Host(name="", address="").python:
        yield f"python = {_text(shlex.join(first.python))}"
    for key in HAS:
        value = getattr(group.has, key)
        if value is not None:
            yield f"{key} = {_value(value)}"
    yield from (f"# {_comment(why)}" for why in group.left_open)
    if group.baselines:
        yield ""
        yield f"[group.{group.name}.baselines]"
    for measure, one in group.baselines.items():
        of = f"{one.of}, {UNITS[measure]}"
        yield f"{measure} = {{ value = {one.value}, learned = {day}, of = {_text(of)} }}"


def _node(host: Host) -> list[str]:
    """A table of its own for a node that has an address or a leaf of its own."""
    own = [f"address = {_text(host.address)}"] if host.address != host.name else []
    own += [f"leaf = {_text(host.leaf)}"] if host.leaf else []
    return ["", f"[node.{_text(host.name)}]", *own] if own else []


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def _value(value: float | str) -> str:
    if isinstance(value, str):
        return _text(value)
    return str(value).lower() if isinstance(value, bool) else f"{value:.12g}"


def _comment(words: str) -> str:
    return printable(" ".join(words.split()))


def _text(value: str) -> str:
    """A basic string of TOML; JSON's escapes are among its own."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
