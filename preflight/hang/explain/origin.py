"""Who wrote a line, and when: the prefixes of torch, NCCL, launchers and collectors of logs.

All of them are taken off here, before anything else reads the line. An unknown one is learned: what
stands before `Traceback` or `[rank3]:` names a process.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from preflight.core.text import whole
from preflight.hang.explain.explanation import Speaker

if TYPE_CHECKING:
    from pathlib import Path


_RANK = re.compile(r"\[rank ?(\d{1,6})\]:")
_PRINTED_RANK = re.compile(
    r"\[(?:(?i:rank) |rank=)(\d{1,6})(?:, world_size=\d{1,6})?\] |rank (\d{1,6}): (?!.*rank \d)"
    r"|[^|]{0,40}\| *[A-Z]{4,8} *\| *rank[=: ](\d{1,6}) *\|"
)
_TORN = re.compile(r"\[(?<=\S \[)rank\d{1,6}\]: Traceback \(most ")
"""A traceback behind a line that had not ended: a prompt, a progress bar."""
_OWN_RANK = re.compile(r"\[(?:[^\]\[]{0,80}\b)?Rank (\d{1,6})\]")
_NCCL = re.compile(r"(?:^|[\s>])([A-Za-z0-9][\w.-]{0,252}):(\d{1,8}):\d{1,8} \[\d+\] ")
_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_NO_LEVEL = r"(?!(?:TRACE|DEBUG|INFO|SUCCESS|WARN|WARNING|ERROR|CRITICAL|FATAL) )"
_PREFIX = re.compile(
    r"(?P<time>(?P<short>[A-Z][a-z]{2} [ \d]\d [\d:.]{8,15})"  # journalctl, syslog
    rf"|(?:19|20)\d\d-\d\d-\d\dT[\d:.+Z-]{{8,25}}) {_NO_LEVEL}(?P<node>[A-Za-z0-9][\w.-]{{0,252}}) "
    r"(?P<unit>[\w./@-]{1,80}\[(?P<unit_pid>\d{1,8})\]|(?(short)[\w./@-]{1,80}|kernel)):(?: |$)"
    # Kubernetes' files, kubectl --timestamps, ts; notebooks
    r"|(?P<when>\[?(?:19|20)\d\d[-/]\d\d[-/]\d\d[T _][\d:.,]{8,18}(?:Z|[+-]\d\d:?\d\d)?\]?)"
    r"(?: (?P<stream>std(?:out|err)) [FP])?(?: |$)|\d{1,6}\.\d{1,3}s +\d{1,7} "
    r"|(?P<label> {0,5}(?P<task>\d{1,5})(?=:(?: |$))"  # srun --label
    r"|\(\w{1,40} rank=(?P<vllm>\d{1,6}) pid=\d{1,8}\)"
    r"|\(?[\w. =]{0,60}pid=(?P<pid>\d{1,8})[^()]{0,80}\)"  # Ray, vLLM
    # mpirun --tag-output, --timestamp-output, --output tag,timestamp
    r"|(?:[A-Z][a-z]{2} (?P<stamp>[A-Z][a-z]{2} [ \d]\d [\d:]{8}) \d{4})?"
    r"(?:\[(?:[\w.-]{1,80}@|\d{1,8},)(?:\d{1,8},)?(?P<mpi>\d{1,6})\])?<std\w{1,5}>"
    r"|\[(?:pod/|std(?:err|out))[^\]]{0,200}\]"  # kubectl logs --prefix
    r"|(?=: \[rank)"  # whose label was cut off
    r"|\[(?!rank)[a-z_]{1,30}\d{1,4}\](?=:)"  # torchrun --tee
    rf"|{_NO_LEVEL}[A-Za-z][\w.@-]{{0,80}} {{1,20}}\|):? ?"  # docker compose
)
_LEVEL = re.compile(
    r"^(?:(?:ERROR|CRITICAL) [\d-]{5,10} [\d:.,]{8,15} \[?[\w/.]{1,60}\.py:\d+\] ?|[>|] ?)"
)
"""vLLM's logging; the tree of an exception group."""
_KNOWN = re.compile(
    r"(?:Original )?Traceback \(most |\[rank ?\d{1,6}\]:|[A-Za-z0-9][\w.-]{0,252}:\d+:\d+ \[\d+\] "
    r"|[EWI]\d{4} \d\d:\d\d:\d\d\.\d|\[[EWI]\d{0,4} "
)
_UNKNOWN_LABEL = re.compile(r"^(?:[\w./-]{1,80}:? ){1,3}$")
_HOST_LABEL = re.compile(r"^([A-Za-z][A-Za-z.-]{0,200}\d[\w.-]{0,50}): $")
_OF_TASK = re.compile(rb" {0,5}\d{1,5}: ")
"""Begins a line behind srun's label."""
_OF_MPI = re.compile(rb"[,@](\d{1,6})\]<std")
_OF_RAY = re.compile(rb"\(\w{1,60} pid=\d{1,8}[^()]{0,80}\) ")
_PLACED = re.compile(r"pid=(\d{1,8})\) world_rank=(\d{1,6})\b")
"""In Ray's list of the processes that it started."""
_BY_TORCHRUN = re.compile(
    r"torch/distributed/(?:run|elastic/(?!multiprocessing/errors))|\btorchrun\b"
    r"|\(local_rank: \d|\blocal_rank: \d{1,4} \(pid"
)
"""It starts several ranks in one task of srun."""
_OF_ONE_PROCESS = re.compile(r"pid=|\[[a-z_]+\d+\]$")
_MOST = 5000
"""Labels that are learned."""


class Line(NamedTuple):
    """One line: its speaker and time, and what the process itself wrote."""

    speaker: Speaker
    text: str
    """Without the prefixes of launchers and collectors."""
    bare: str
    """Without `[rank3]:` and a logger's level, too."""
    when: str
    """The time in the prefixes."""


class Origins:
    """Reads prefixes, and learns which of them stands for which rank."""

    def __init__(self) -> None:
        self._labels: dict[str, set[int]] = {}
        """Ranks whose numbers appear behind a launcher's prefix."""
        self._learned: set[str] = set()
        """Prefixes of unknown launchers."""
        self._lengths: set[int] = set()
        self._hosts: set[str] = set()
        """In whose journals lines of programs are."""
        self._processes: dict[tuple[str, int], int] = {}
        self._pids: dict[int, set[int]] = {}
        self._lowest: dict[str, set[int]] = {}
        """By node, the rank of its first GPU."""
        self._of_largest: dict[str, set[int]] = {}
        """By label, ranks in the largest communicator."""
        self._by_torchrun = False
        self._labelled = False
        self.tasks: set[int] = set()
        """The numbers in the labels of lines of the last attempt, which may be ranks."""
        self._left = _MOST
        """Lines that may still be read only because they may contradict srun's labels."""

    def read(self, text: str) -> Line:
        """Take the prefixes off a line."""
        rest, labels, when, of_prefix = text, list[str | None](), "", Speaker()
        while True:
            if match := _PREFIX.match(rest):
                parts = match.groupdict()
                self._labelled |= bool(parts["task"] or parts["mpi"])
                if parts["mpi"]:
                    parts["task"] = f"mpirun {parts['mpi']}"
                labels += [parts["task"] or parts["label"] or parts["unit"] or parts["stream"]]
                if parts["unit_pid"]:
                    self._hosts.add(parts["node"])
                when = when or parts["time"] or parts["when"] or parts["stamp"] or ""
                rank, pid = parts["vllm"], parts["pid"] or parts["unit_pid"]
                rest = rest[match.end() :]
            elif more := self._unknown(rest):
                labels += [more]
                parts = {"node": host[1] if (host := _HOST_LABEL.match(more)) else ""}
                rank = pid = None
                rest = rest[len(more) :]
            else:
                break
            of_prefix = Speaker(
                rank=int(rank) if rank else None,
                node=parts["node"] or "",
                pid=int(pid) if pid else None,
            ).joined(of_prefix)
        rest = rest[torn.start() :] if (torn := _TORN.search(rest)) else rest
        speaker = _speaker(rest).joined(of_prefix)
        if label := " ".join(filter(None, labels)):
            speaker = replace(speaker, label=label)
            self._by_torchrun |= _BY_TORCHRUN.search(rest) is not None
            if len(self._labels) < _MOST:
                self._labels.setdefault(label, set())
                self.reports(speaker, speaker.rank)
        bare = rest
        for pattern in (_LEVEL, _RANK):
            if match := pattern.match(bare):
                bare = bare[match.end() :].removeprefix(" ")
        return Line(speaker, rest, bare, when)

    def _unknown(self, rest: str) -> str:
        """A prefix of a launcher that is not known: a pod, a host."""
        for length in self._lengths:
            if rest[:length] in self._learned:
                return rest[:length]
        match = _KNOWN.search(rest, 0, 300)
        if match is None or not match.start() or not _UNKNOWN_LABEL.match(rest[: match.start()]):
            return ""
        label = rest[: match.start()]
        if len(self._learned) < _MOST:
            self._learned.add(label)
            self._lengths.add(len(label))
        return label

    def may_show_rank(self, line: bytes) -> bool:
        """Read a line in which nothing else is, if it may show whose a label of srun or Ray is."""
        of_task = _OF_TASK.match(line) is not None or b"]<std" in line[:200]
        self._labelled |= of_task
        if not self._left or not (of_task or _OF_RAY.match(line)):
            return False
        text = line.decode("utf-8", "replace")
        if placed := _PLACED.search(text):
            self._pids.setdefault(int(placed[1]), set()).add(int(placed[2]))
        match = placed or (_BY_TORCHRUN.search(text) if of_task else None)
        if match or _RANK.search(text) or self.read(text).speaker.rank is not None:
            self._left -= 1
            self.read(text)
            return True
        return False

    def note_tasks(self, text: bytes) -> None:
        """Note the numbers in the labels of srun and mpirun, also of lines that are not read."""
        if not self._labelled:
            return
        heads = {*_OF_MPI.findall(text)} if b"]<std" in text else set()
        begins = {line[:12] for line in text.split(b"\n")}
        heads |= {begin.partition(b": ")[0] for begin in begins}
        numbers = {whole(head.decode("latin-1").strip()) for head in heads}
        self.tasks |= {number for number in numbers if number is not None}

    def reports(self, speaker: Speaker, rank: int | None) -> None:
        """A line behind a label has the number of a rank."""
        if rank is not None and speaker.label in self._labels:
            self._labels[speaker.label].add(rank)

    def learn(self, speaker: Speaker, pid: int, rank: int) -> None:
        """A communicator's line names the rank of a process."""
        self._processes[speaker.node, pid] = rank
        self._of_largest.setdefault(speaker.label, set()).add(rank)
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
        self._of_largest.clear()

    def node_of(self, speaker: Speaker) -> str:
        """Its node; "" if its lines are in the journal of a host that runs only the launcher."""
        ranked = not self._lowest or speaker.node in self._lowest
        if ranked or speaker.node not in self._hosts or speaker.label.endswith("kernel"):
            return speaker.node
        return ""

    def settled(self, speaker: Speaker) -> Speaker:
        """With what all lines show of its rank and node."""
        return replace(speaker, rank=self._rank_of(speaker), node=self.node_of(speaker))

    def _rank_of(self, speaker: Speaker) -> int | None:
        if speaker.rank is not None:
            return speaker.rank
        rank = self._processes.get((speaker.node, speaker.pid or -1))
        if rank is not None:
            return rank
        ranks = set() if self.node_of(speaker) else self._pids.get(speaker.pid or -1, set())
        if not ranks and _OF_ONE_PROCESS.search(speaker.label):
            ranks = self._labels.get(speaker.label, set())
        if ranks:
            return next(iter(ranks)) if len(ranks) == 1 else None
        return _task(speaker.label) if self.tasks_are_ranks else None

    @cached_property
    def tasks_are_ranks(self) -> bool:
        """Whether srun's or mpirun's labels are ranks: there are some, and no line contradicts."""
        of_labels = self._labels.items()
        tasks = [
            (_task(label), ranks | self._of_largest.get(label, set())) for label, ranks in of_labels
        ]
        tasks = [(task, ranks) for task, ranks in tasks if task is not None]
        # A single label counts if its number is that of the rank behind it: a task is 0 by chance.
        sure = (
            len(tasks) > 1
            or any("mpirun" in label for label in self._labels)
            or any(task and ranks for task, ranks in tasks)
        )
        return sure and not self._by_torchrun and all(ranks <= {task} for task, ranks in tasks)


def _task(label: str) -> int | None:
    return whole(label.rpartition(" ")[2])


def _speaker(text: str) -> Speaker:
    """`[rank9]:` is global; `[Rank 1]` may count only within a group.

    Torch writes the second beside the first; alone it counts as global. A line with two ranks
    passes on the words of another rank, and shows neither.
    """
    rank = _RANK.search(text)
    if rank is not None and any(other != rank[1] for other in _RANK.findall(text, rank.end())):
        return Speaker()
    rank = rank or _PRINTED_RANK.match(text) or _OWN_RANK.search(text)
    nccl = _NCCL.search(text)
    return Speaker(
        rank=int(rank[rank.lastindex or 1]) if rank else None,
        node=nccl[1] if nccl else "",
        pid=int(nccl[2]) if nccl else None,
    )


def speaker_of_file(path: Path) -> Speaker:
    """The rank in a file's name is the speaker: `rank3.log`, `logs/rank_12/stderr`."""
    match = _IN_NAME.search(path.name) or _IN_NAME.search(path.parent.name)
    return Speaker(rank=int(match[1]) if match else None)


_CLOCK = re.compile(r":\d\d:\d\d")
_GLOG = re.compile(r"\b[IWEFC](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d+)?)")
_SHORT = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d(?:[.,]\d+)?) \[?[\w/.]+\.py:\d")
_ISO = re.compile(r"\b(?:19|20)\d\d[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d(?:[.,]\d+)?)")
_SYSLOG = re.compile(r"^([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d(?:\.\d+)?)$")
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"


def time_of(text: str, when: str = "") -> float | None:
    """Seconds since 1 March, the day after leap days; None without. Torch's prefix has no year.

    `when`: of a collector, whose clock is one for all lines.
    """
    text = when or text
    if not _CLOCK.search(text):
        return None
    match = _SYSLOG.search(text) or _GLOG.search(text) or _ISO.search(text) or _SHORT.search(text)
    if match is None:
        return None
    month, *rest = match.groups()
    number = _MONTHS.find(month) // 3 + 1 if month.isalpha() else float(month)
    day, hour, minute, second = (float(part.replace(",", ".")) for part in rest)
    days = (153 * ((number - 3) % 12) + 2) // 5 + day
    return days * 86400 + hour * 3600 + minute * 60 + second
