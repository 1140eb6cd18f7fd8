"""Resolve ClusterShell groups in a child process: a group may start a command that never ends.

Reads `{"pattern": ..., "own": [source, {group: nodes}], "may_be_empty": ...}` and writes
`{"names": [...]}` or `{"trouble": ..., "group": ..., "source": ..., "known": [...]}`.
groups.py starts it, with a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from preflight.core.files import refuse_all_below
from preflight.errors import UsageError
from preflight.fleet.nodeset import MOST_NODES, as_slurm_reads, clustershell, refuse_bombs

config_paths = clustershell("Defaults").config_paths
node_set, groups = clustershell("NodeSet"), clustershell("NodeUtils")
NodeSet, NodeSetException = node_set.NodeSet, node_set.NodeSetException
GroupSource, GroupSourceError = groups.GroupSource, groups.GroupSourceError
GroupResolverError = groups.GroupResolverError

MOST_MEMORY = 4 << 30
"""Bytes of address space of this process and of each command: one may write without end."""

MOST_KNOWN = 2000


class Trouble(Exception):  # noqa: N818  sent to the parent process, not shown
    """A failure, from which the parent process makes the error message."""

    def __init__(self, kind: str, group: str = "", source: str = "", known: Any = ()) -> None:
        super().__init__(kind)
        self.report = {
            "trouble": kind,
            "group": group,
            "source": source,
            "known": [str(name) for name in known][:MOST_KNOWN],
        }


class Resolver(groups.GroupResolverConfig):  # type: ignore[misc,name-defined]  # it has no types
    """ClusterShell's resolver, which also distinguishes an unknown group from an empty one."""

    def __init__(self, own: tuple[str, dict[str, str]] | None, *, may_be_empty: bool) -> None:
        super().__init__(configs(), illegal_chars=node_set.ILLEGAL_GROUP_CHARS)
        self._own = own
        self._may_be_empty = may_be_empty

    def _late_init(self) -> None:
        super()._late_init()
        if self._own is not None:
            name, groups = self._own
            self._sources[name] = GroupSource(name, groups, ",".join(filter(None, groups.values())))

    def _source(self, namespace: str | None) -> Any:
        try:
            return super()._source(namespace)
        except groups.GroupResolverSourceError as error:
            sources = list(self._sources)
            raise Trouble("source", "", namespace or "", sources) from error

    def group_nodes(self, group: str, namespace: str | None = None) -> list[str]:
        """Refuse an empty group, unless it is known and may be empty."""
        name = self._source(namespace).name
        try:
            nodes: list[str] = super().group_nodes(group, namespace)
        except GroupSourceError as error:
            raise Trouble("upcall", group, name) from error
        nodes = _as_read(nodes, group, name)
        if nodes and NodeSet(",".join(nodes), resolver=self):
            return nodes
        names: list[str] | None = None
        with contextlib.suppress(GroupSourceError):
            names = self.grouplist(namespace)
        if names is not None and group not in names:
            raise Trouble("unknown", group, name, names)
        if names is None or not self._may_be_empty:
            raise Trouble("empty", group, name, names or ())
        return nodes

    def all_nodes(self, namespace: str | None = None) -> list[str]:
        """Refuse more nodes than any fleet has."""
        nodes: list[str] = super().all_nodes(namespace)
        return _as_read(nodes, "*", namespace or "")


def _as_read(nodes: list[str], group: str, source: str) -> list[str]:
    """Read a group's nodes like every other node list; refuse too many."""
    try:
        refuse_bombs(",".join(nodes))
        return list(map(as_slurm_reads, nodes))
    except UsageError as error:
        raise Trouble("large", group, source) from error


def configs() -> list[str]:
    """Return the operator's groups.conf files, without the examples that pip installs."""
    pips = (Path(sys.prefix), Path("~/.local").expanduser())
    examples = {str(prefix / "etc/clustershell/groups.conf") for prefix in pips}
    folder = os.environ.get("CLUSTERSHELL_CFGDIR")
    if folder is not None:
        examples.discard(str(Path(folder) / "groups.conf"))
    return [path for path in config_paths("groups.conf") if path not in examples]


def resolve(asked: dict[str, Any]) -> dict[str, Any]:
    """Expand the pattern; a failure comes back as a keyword and the group's name."""
    resolver = Resolver(asked["own"], may_be_empty=asked["may_be_empty"])
    try:
        nodes = NodeSet(asked["pattern"], resolver=resolver)
        if len(nodes) > MOST_NODES:
            return Trouble("large").report
        return {"names": [str(name) for name in nodes]}
    except Trouble as trouble:
        return trouble.report
    except MemoryError:
        return Trouble("large").report
    except (
        NodeSetException,
        GroupResolverError,
        GroupSourceError,
        ValueError,
        OSError,
        AssertionError,
    ) as error:
        return Trouble("error", str(error)).report
    except RecursionError:
        return Trouble("error", "its groups name each other in a circle").report


def main() -> None:
    """Answer one question."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    question = json.load(sys.stdin)
    try:
        for path in filter(os.path.exists, configs()):
            refuse_all_below(Path(path).parent)
        answer = resolve(question)
    except UsageError as error:
        answer = Trouble("refused", str(error)).report
    json.dump({**answer, "files": configs()}, sys.stdout)
