"""Expand node groups such as `@gpu`, which sites define in ClusterShell's groups.conf.

A group may run a command (an upcall of groups.conf), which may never end. So preflight expands
groups only in text that the operator wrote, never in a Slurm variable, a launch line, or output of
Ansible or a node; and ClusterShell works in a child process with a deadline, `answer`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from preflight.core.files import refuse_untrusted_folder
from preflight.core.remote_command import TIMED_OUT, LocalConnection
from preflight.core.text import did_you_mean, excerpt, last_line
from preflight.errors import UsageError
from preflight.fleet import nodeset

INVENTORY_SOURCE = "inventory"
"""The group source that means the groups of --preflight-inventory."""

UPCALL_S = 20.0
"""Deadline of all upcalls of one node list; ClusterShell itself waits for ever."""

MOST_MEMBERS = 16 * nodeset.MOST_NODES
"""Nodes of all groups of one list together: a node may be in many groups."""

_PATTERN_SIGNS = "*?["

Groups = Mapping[str, Sequence[str]]
"""The nodes of each group, by its name."""

_CHILD = "from preflight.fleet.groups import answer; answer()"
_LIMIT = 32 << 20
"""Bytes of the child's answer: 64 Ki names of 255 characters take half of it."""


class Grouped(Protocol):
    """An inventory's groups."""

    @property
    def groups(self) -> Groups:
        """The nodes of each group."""


class _Question(Struct, frozen=True):
    """A node list to expand; `own`: the nodes of the inventory's groups, if the list names any."""

    pattern: str
    own: dict[str, str] | None
    may_be_empty: bool


class _Resolution(Struct, frozen=True):
    """The nodes, or the kind of trouble, and the group and group source that it is about."""

    names: list[str] | None = None
    trouble: str = ""
    group: str = ""
    source: str = ""
    known: list[str] = []
    files: list[str] = []


def groups_in(text: str) -> str:
    """Return the words of a node list that name groups, for the header; '' if none does."""
    words = [word for word in nodeset.split(text) if "@" in word]
    return excerpt(",".join(words), 60)


def expand_with_groups(
    text: str, inventory: Grouped | None = None, *, may_be_empty: bool = False
) -> tuple[str, ...]:
    """Expand a node list that the operator wrote, groups included.

    `inventory`: for its groups `@inventory:NAME`. `may_be_empty`: a known group may have no nodes
    today. Raises UsageError that names the group and the file to look at.
    """
    if "@" not in text:
        return nodeset.expand(text)
    if not text.isprintable():
        raise UsageError(f"{excerpt(text, 60)!a} holds a control character: remove it")
    nodeset.refuse_bombs(text)
    groups = inventory.groups if inventory and f"@{INVENTORY_SOURCE}:" in text else None
    resolution = _ask_child(text, groups, may_be_empty=may_be_empty)
    if resolution.names is None:
        raise UsageError(_error_sentence(resolution, text))
    for name in resolution.names:
        nodeset.check_host_name(name)
    if not resolution.names and not may_be_empty:
        raise UsageError(f"{excerpt(text, 60)} comes out empty: name other nodes or groups")
    return tuple(resolution.names)


def _ask_child(text: str, groups: Groups | None, *, may_be_empty: bool) -> _Resolution:
    """Ask a child process, which can be killed together with the commands it started."""
    argv = [sys.executable, "-I" if sys.flags.isolated else "-P", "-c", _CHILD]
    folded = None if groups is None else _fold_groups(groups, text)
    question = _Question(nodeset.digits_into_brackets(text), folded, may_be_empty)
    remote = LocalConnection().start(argv, timeout_s=UPCALL_S, limit=_LIMIT)
    try:
        remote.send(msgspec.json.encode(question))
        remote.finish_input()
        answer = remote.wait(UPCALL_S)
    finally:
        remote.kill()
    pattern = excerpt(text, 60)
    if answer.status in (None, TIMED_OUT) or answer.seconds >= UPCALL_S:
        raise UsageError(
            f"ClusterShell has not resolved {pattern} in {UPCALL_S:g} s: "
            f"find what hangs with: nodeset -e '{pattern}'"
        )
    try:
        return msgspec.json.decode(answer.stdout, type=_Resolution)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = last_line(answer.stderr) or f"exit {answer.status}"
        raise UsageError(
            f"ClusterShell cannot resolve {pattern} ({reason}): correct groups.conf until this "
            f"works: nodeset -e '{pattern}'"
        ) from error


def _fold_groups(groups: Groups, text: str) -> dict[str, str]:
    """Fold the groups that a text can mean; the others are only names, for the messages."""
    has_patterns = any(sign in text for sign in _PATTERN_SIGNS)
    remaining, folded = MOST_MEMBERS, dict.fromkeys(groups, "")
    for name in groups:
        if has_patterns or name in text:
            nodes = groups[name]
            remaining -= len(nodes)
            if remaining < 0:
                raise UsageError(
                    f"the groups of {excerpt(text, 60)} name nodes more than {MOST_MEMBERS} times: "
                    "name fewer groups"
                )
            folded[name] = nodeset.fold(nodes)
    return folded


def _error_sentence(resolution: _Resolution, text: str) -> str:
    """Say what is wrong with the group, and where to correct it."""
    if resolution.trouble == "refused":
        return excerpt(resolution.group, 400)
    group, source = excerpt(resolution.group, 80), excerpt(resolution.source, 60)
    full_name = f"@{source}:{group}"
    where = _files_to_correct(resolution, source)
    look = f"look at {where}"
    if resolution.trouble == "source" and not source:
        return f"no groups are configured, so {excerpt(text, 60)} cannot be read: write {where}"
    names = resolution.known
    sentences = {
        "source": f"no group source is called '{source}'{did_you_mean(source, names)}: {look}",
        "unknown": f"no group is called {full_name}{did_you_mean(group, names)}: {look}",
        "empty": f"group {full_name} has no nodes: {look}",
        "upcall": f"the command of groups.conf that looks up {full_name} failed: {look}",
        "large": f"{excerpt(text, 60)} names more than {nodeset.MOST_NODES} nodes: {look}",
    }
    other = (
        f"ClusterShell cannot read {excerpt(text, 60)} ({excerpt(resolution.group, 160)}): {look}"
    )
    return sentences.get(resolution.trouble, other)


def _files_to_correct(resolution: _Resolution, source: str) -> str:
    if source == INVENTORY_SOURCE:
        return "the inventory"
    existing = [path for path in resolution.files if Path(path).is_file()]
    return " and ".join(excerpt(path, 120) for path in existing or resolution.files[:1])


MOST_MEMORY = 4 << 30
"""Bytes of address space of the child and of each command: one may write without end."""

MOST_KNOWN = 2000


class _Trouble(Exception):  # noqa: N818  sent to the parent process, not shown
    """A failure, from which the parent process makes the error message."""

    def __init__(
        self, kind: str, group: str = "", source: str = "", known: Collection[object] = ()
    ) -> None:
        super().__init__(kind)
        names = [str(name) for name in known][:MOST_KNOWN]
        self.resolution = _Resolution(trouble=kind, group=group, source=source, known=names)


def answer() -> None:
    """Read a question from standard input and print its resolution: the child process."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=_Question)
    try:
        for path in filter(os.path.exists, _configs()):
            refuse_untrusted_folder(Path(path).parent)
        resolution = _Resolution(names=_resolve(question))
    except _Trouble as trouble:
        resolution = trouble.resolution
    except UsageError as error:
        resolution = _Trouble("refused", str(error)).resolution
    sys.stdout.buffer.write(msgspec.json.encode(replace(resolution, files=_configs())))


def _configs() -> list[str]:
    """Return the operator's groups.conf files, without the examples that pip installs."""
    pip_prefixes = (Path(sys.prefix), Path("~/.local").expanduser())
    examples = {str(prefix / "etc/clustershell/groups.conf") for prefix in pip_prefixes}
    folder = os.environ.get("CLUSTERSHELL_CFGDIR")
    if folder is not None:
        examples.discard(str(Path(folder) / "groups.conf"))
    paths = nodeset.clustershell("Defaults").config_paths("groups.conf")
    return [path for path in paths if path not in examples]


def _resolve(question: _Question) -> list[str]:
    node_set, utils = nodeset.clustershell("NodeSet"), nodeset.clustershell("NodeUtils")
    errors = (node_set.NodeSetException, utils.GroupResolverError, utils.GroupSourceError)
    try:
        nodes = node_set.NodeSet(question.pattern, resolver=_resolver(question))
        if len(nodes) > nodeset.MOST_NODES:
            raise _Trouble("large")
        return [str(name) for name in nodes]
    except MemoryError as error:
        raise _Trouble("large") from error
    except RecursionError as error:
        raise _Trouble("error", "its groups name each other in a circle") from error
    except (*errors, ValueError, OSError, AssertionError) as error:
        raise _Trouble("error", str(error)) from error


def _resolver(question: _Question) -> Any:
    """Return ClusterShell's resolver, which here distinguishes an unknown group from an empty one.

    It refuses an empty group, unless that is known and may be empty.
    """
    node_set, utils = nodeset.clustershell("NodeSet"), nodeset.clustershell("NodeUtils")

    class Resolver(utils.GroupResolverConfig):  # type: ignore[misc,name-defined]  # it has no types
        def _late_init(self) -> None:
            super()._late_init()
            if (own := question.own) is not None:
                self._sources[INVENTORY_SOURCE] = utils.GroupSource(
                    INVENTORY_SOURCE, own, ",".join(filter(None, own.values()))
                )

        def _source(self, namespace: str | None) -> Any:
            try:
                return super()._source(namespace)
            except utils.GroupResolverSourceError as error:
                raise _Trouble("source", "", namespace or "", self._sources) from error

        def group_nodes(self, group: str, namespace: str | None = None) -> list[str]:
            name = self._source(namespace).name
            try:
                nodes: list[str] = super().group_nodes(group, namespace)
            except utils.GroupSourceError as error:
                raise _Trouble("upcall", group, name) from error
            nodes = _read_like_node_list(nodes, group, name)
            if nodes and node_set.NodeSet(",".join(nodes), resolver=self):
                return nodes
            names: list[str] | None = None
            with contextlib.suppress(utils.GroupSourceError):
                names = self.grouplist(namespace)
            is_listed = names is not None and group in names
            if is_listed and question.may_be_empty:
                return nodes
            kind = "empty" if is_listed or names is None else "unknown"
            raise _Trouble(kind, group, name, names or ())

        def all_nodes(self, namespace: str | None = None) -> list[str]:
            return _read_like_node_list(super().all_nodes(namespace), "*", namespace or "")

    return Resolver(_configs(), illegal_chars=node_set.ILLEGAL_GROUP_CHARS)


def _read_like_node_list(nodes: list[str], group: str, source: str) -> list[str]:
    """Read a group's nodes like every other node list; refuse more than any fleet has."""
    try:
        nodeset.refuse_bombs(",".join(nodes))
        return list(map(nodeset.digits_into_brackets, nodes))
    except UsageError as error:
        raise _Trouble("large", group, source) from error
