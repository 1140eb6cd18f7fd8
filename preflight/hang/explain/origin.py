"""Who wrote a line, and when: the prefixes of torch, NCCL and launchers.

A launcher's prefix is learned: what stands before `Traceback` or `[rank3]:` names a process.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from preflight.core.text import whole
from preflight.hang.explain.symptom import Speaker

if TYPE_CHECKING:
    from pathlib import Path


_RANK = re.compile(r"\[rank ?(\d{1,6})\]:")
_PREFIXED = re.compile(
    r"^(?:\[\d+,(\d{1,6})\]<std|\(\w{1,40} rank=(\d{1,6}) pid=|\[RANK (\d{1,6})\] )"
)
"""mpirun --tag-output, vLLM's workers, and what scripts print."""
_OWN_RANK = re.compile(r"\[(?:[^\]\[]{0,80}\b)?Rank (\d{1,6})\]")
_NCCL = re.compile(r"(?:^|[\s>])([A-Za-z0-9][\w.-]{0,252}):(\d{1,8}):\d{1,8} \[\d+\] ")
_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_WHEN = re.compile(
    r"^(?:\[?(?:19|20)\d\d[-/]\d\d[-/]\d\d[T _][\d:.,]{8,18}(?:Z|[+-]\d\d:?\d\d)?\]? "
    r"|\d{1,6}\.\d{1,3}s +\d{1,7} )"
)
"""kubectl --timestamps, ts, notebooks."""
_LABEL = re.compile(
    r"^(?: {0,5}(?P<task>\d{1,5}): ?"  # srun --label
    r"|\(?[\w. =]{0,60}pid=(?P<pid>\d{1,8})[^)]{0,80}\) ?"  # Ray, vLLM
    r"|\[\d{1,8},\d{1,6}\]<std\w{1,5}>: ?"  # mpirun --tag-output
    r"|\[(?:pod/|std(?:err|out)|default\d)[^\]]{0,200}\]:? ?)"  # kubectl logs --prefix, torchrun
)
_LEVEL = re.compile(
    r"^(?:(?:ERROR|CRITICAL) [\d-]{5,10} [\d:.,]{8,15} \[?[\w/.]{1,60}\.py:\d+\] ?|[>|] ?)"
)
"""vLLM's logging; the tree of an exception group."""
_KNOWN = re.compile(
    r"Traceback \(most |\[rank ?\d{1,6}\]:|[A-Za-z0-9][\w.-]{0,252}:\d+:\d+ \[\d+\] "
)
_UNKNOWN_LABEL = re.compile(r"^(?:[\w./-]{1,80}:? ){1,3}$")
_MOST = 5000
"""Labels that are learned."""


class Line:
    """One line: its speaker, and what the process itself wrote."""

    __slots__ = ("bare", "speaker")

    def __init__(self, speaker: Speaker, bare: str) -> None:
        self.speaker = speaker
        self.bare = bare


class Origins:
    """Reads prefixes, and learns which of them stands for which rank."""

    def __init__(self) -> None:
        self._labels: dict[str, set[int]] = {}
        """Ranks whose numbers appear behind a launcher's prefix."""
        self._lengths: set[int] = set()
        self._processes: dict[tuple[str, int], int] = {}
        self._pids: dict[int, set[int]] = {}
        self._lowest: dict[str, set[int]] = {}
        """By node, the rank of its first GPU."""

    def read(self, text: str) -> Line:
        """Take the prefixes off a line."""
        rest, label, pid = text, "", None
        while True:
            found = _WHEN.match(rest) or _LEVEL.match(rest)
            if found is None:
                found = _LABEL.match(rest)
                if found is None:
                    break
                task = found["task"]
                label += task or found[0].rstrip()
                pid = int(found["pid"]) if found["pid"] else pid
            rest = rest[found.end() :]
        more = self._unknown(rest)
        speaker = _speaker(text)
        label += more
        if label and len(self._labels) < _MOST:
            ranks = self._labels.setdefault(label, set())
            if speaker.rank is not None:
                ranks.add(speaker.rank)
        rest = rest[len(more) :]
        if own := _RANK.match(rest):
            rest = rest[own.end() :].removeprefix(" ")
        if speaker.pid is None and pid is not None:
            speaker = Speaker(rank=speaker.rank, node=speaker.node, pid=pid, label=label)
        elif label:
            speaker = Speaker(rank=speaker.rank, node=speaker.node, pid=speaker.pid, label=label)
        return Line(speaker, rest)

    def _unknown(self, rest: str) -> str:
        """A prefix of a launcher that is not known: a pod, a host."""
        for length in self._lengths:
            if rest[:length] in self._labels:
                return rest[:length]
        known = _KNOWN.search(rest, 0, 300)
        if known is None or not known.start() or not _UNKNOWN_LABEL.match(rest[: known.start()]):
            return ""
        label = rest[: known.start()]
        if len(self._labels) < _MOST:
            self._lengths.add(len(label))
            self._labels.setdefault(label, set())
        return label

    def learn(self, node: str, pid: int, rank: int) -> None:
        """A communicator's line names the rank of a process."""
        self._processes[node, pid] = rank
        self._pids.setdefault(pid, set()).add(rank)

    def learn_gpu(self, node: str, lowest: int) -> None:
        """A communicator's line shows the rank of a node's first GPU."""
        self._lowest.setdefault(node, set()).add(lowest)

    def rank_of_gpu(self, node: str, number: str) -> int | None:
        """The rank of a local rank; without a node only if the lines are of a single one."""
        nodes = [self._lowest.get(node, set())] if node else [*self._lowest.values()]
        local = whole(number)
        if local is None or len(nodes) != 1 or len(nodes[0]) != 1:
            return None
        return next(iter(nodes[0])) + local

    def forget(self) -> None:
        """Forget the ranks of a smaller communicator."""
        self._processes.clear()
        self._pids.clear()
        self._lowest.clear()

    def rank_of(self, speaker: Speaker) -> int | None:
        """The rank of a process; ask when all lines are read."""
        if speaker.rank is not None:
            return speaker.rank
        rank = self._processes.get((speaker.node, speaker.pid or -1))
        if rank is not None:
            return rank
        if speaker.pid is not None and not speaker.node:
            ranks = self._pids.get(speaker.pid, set()) or self._labels.get(speaker.label, set())
            return next(iter(ranks)) if len(ranks) == 1 else None
        task = speaker.label
        return whole(task) if self._tasks_are_ranks else None

    @cached_property
    def _tasks_are_ranks(self) -> bool:
        """Whether srun's labels are ranks: there are several, and no line contradicts it."""
        tasks = {whole(one): ranks for one, ranks in self._labels.items()}
        tasks.pop(None, None)
        return len(tasks) > 1 and all(ranks <= {task} for task, ranks in tasks.items())


def _speaker(text: str) -> Speaker:
    """`[rank9]:` is global; `[Rank 1]` may count only within a group.

    Torch writes the second beside the first; alone it counts as global.
    """
    rank = _RANK.search(text)
    if rank is None and "what():" not in text:  # a rank that dies by it has a prefix before it
        rank = _OWN_RANK.search(text) or _PREFIXED.match(text)
    nccl = _NCCL.search(text)
    return Speaker(
        rank=int(rank[rank.lastindex or 1]) if rank else None,
        node=nccl[1] if nccl else "",
        pid=int(nccl[2]) if nccl else None,
    )


def speaker_of_file(path: Path) -> Speaker:
    """The rank in a file's name is the speaker: `rank3.log`, `logs/rank_12/stderr`."""
    for part in (path.name, path.parent.name):
        named = _IN_NAME.search(part)
        if named:
            return Speaker(rank=int(named[1]))
    return Speaker()


_GLOG = re.compile(r"\b[IWEFC](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d+)?)")
_SHORT = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d(?:[.,]\d+)?) \[?[\w/.]+\.py:\d")
_ISO = re.compile(r"\b(?:19|20)\d\d[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d(?:[.,]\d+)?)")


def time_of(text: str) -> tuple[float, ...] | None:
    """(month, day, seconds of the day), the form that all formats share; None without a time.

    No year: torch's own prefix has none.
    """
    found = _GLOG.search(text) or _ISO.search(text) or _SHORT.search(text)
    if found is None:
        return None
    month, day, hour, minute, second = (float(each.replace(",", ".")) for each in found.groups())
    return (month, day, hour * 3600 + minute * 60 + second)
