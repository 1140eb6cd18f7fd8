"""Sites keep their node groups in ClusterShell: `@gpu` is theirs to write, and theirs alone.

A group may be the answer of a command (an upcall of groups.conf), so it is read only where the
operator wrote it: never in a variable of Slurm, a launch line, or what Ansible or a node says.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from preflight.core.remote_command import TIMED_OUT, LocalConnection
from preflight.core.text import did_you_mean, last_line, legible
from preflight.errors import UsageError
from preflight.fleet.nodeset import (
    MOST_NODES,
    as_slurm_reads,
    check_host_name,
    expand,
    fold,
    refuse_bombs,
    split,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OURS = "inventory"
"""The source of groups that stands for those of --preflight-inventory."""

UPCALL_S = 20.0
"""Deadline of all upcalls of one node list; ClusterShell itself would wait for ever."""

_CHILD = "from preflight.fleet.group_child import main; main()"
_LIMIT = 32 << 20
"""Bytes of the answer: 64 Ki names of 255 characters are half of it."""


class Grouped(Protocol):
    """An inventory, as far as its groups go."""

    @property
    def groups(self) -> Mapping[str, Sequence[str]]:
        """The nodes of each group."""


class _Told(Struct, frozen=True):
    names: list[str] | None = None
    trouble: str = ""
    group: str = ""
    source: str = ""
    known: list[str] = []
    files: list[str] = []


def groups_in(text: str) -> str:
    """The words of a node list that name groups, as the header shows them; '' if none does."""
    words = [word for word in split(text) if "@" in word]
    return legible(",".join(words), 60)


def expand_written(
    text: str, own: Grouped | None = None, *, may_be_empty: bool = False
) -> tuple[str, ...]:
    """Expand a node list that the operator wrote himself, groups included.

    `own`: the inventory, for its groups `@inventory:NAME`. `may_be_empty`: a known group may have
    no nodes today. Raises UsageError that names the group and the file to look at.
    """
    if "@" not in text:
        return expand(text)
    if not text.isprintable():
        raise UsageError(f"{legible(text, 60)!a} holds a control character: remove it")
    refuse_bombs(text)
    groups = own.groups if own and f"@{OURS}:" in text else None
    told = _ask(text, groups, may_be_empty=may_be_empty)
    if told.names is None:
        raise UsageError(_sentence(told, text))
    for name in told.names:
        check_host_name(name)
    if not told.names and not may_be_empty:
        raise UsageError(f"{legible(text, 60)} comes out empty: name other nodes or groups")
    return tuple(told.names)


def _ask(text: str, own: Mapping[str, Sequence[str]] | None, *, may_be_empty: bool) -> _Told:
    """Ask in a process that can be ended, together with the commands it started."""
    isolated = "-I" if sys.flags.isolated else "-P"
    argv = [sys.executable, isolated, "-c", _CHILD]
    folded = None if own is None else (OURS, {name: fold(nodes) for name, nodes in own.items()})
    asked = {"pattern": as_slurm_reads(text), "own": folded, "may_be_empty": may_be_empty}
    remote = LocalConnection().start(argv, timeout_s=UPCALL_S, limit=_LIMIT)
    try:
        remote.send(msgspec.json.encode(asked))
        remote.finish_input()
        answer = remote.wait(UPCALL_S)
    finally:
        remote.kill()
    shown = legible(text, 60)
    if answer.status in (None, TIMED_OUT) or answer.seconds >= UPCALL_S:
        raise UsageError(
            f"ClusterShell has not resolved {shown} in {UPCALL_S:g} s: "
            f"find what hangs with: nodeset -e '{shown}'"
        )
    try:
        return msgspec.json.decode(answer.stdout, type=_Told)
    except msgspec.DecodeError as error:
        reason = last_line(answer.stderr) or f"exit {answer.status}"
        raise UsageError(
            f"ClusterShell cannot resolve {shown} ({reason}): correct groups.conf until this "
            f"works: nodeset -e '{shown}'"
        ) from error


def _sentence(told: _Told, text: str) -> str:
    """What is wrong with the group, and where to correct it."""
    if told.trouble == "refused":
        return legible(told.group, 400)
    group, source = legible(told.group, 80), legible(told.source, 60)
    full = f"@{source}:{group}"
    where = _where(told, source)
    look = f"look at {where}"
    if told.trouble == "source" and not source:
        return f"no groups are configured, so {legible(text, 60)} cannot be read: write {where}"
    sentences = {
        "source": f"no group source is called '{source}'{did_you_mean(source, told.known)}: {look}",
        "unknown": f"no group is called {full}{did_you_mean(group, told.known)}: {look}",
        "empty": f"group {full} has no nodes: {look}",
        "upcall": f"the command of groups.conf that looks up {full} failed: {look}",
        "large": f"{legible(text, 60)} names more than {MOST_NODES} nodes: {look}",
    }
    said = f"ClusterShell cannot read {legible(text, 60)} ({legible(told.group, 160)}): {look}"
    return sentences.get(told.trouble, said)


def _where(told: _Told, source: str) -> str:
    if source == OURS:
        return "the inventory"
    there = [path for path in told.files if Path(path).is_file()]
    return " and ".join(legible(path, 120) for path in there or told.files[:1])
