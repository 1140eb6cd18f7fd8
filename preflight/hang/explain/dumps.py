"""Explains a dead job from its flight recorder dumps: which ranks the others waited for, and where.

The files may have any name: TORCH_FR_DUMP_TEMP_FILE and TORCH_NCCL_DEBUG_INFO_TEMP_FILE set it. A
file is a dump by its content, and belongs to a rank by its name and by the groups in it.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct, convert
from msgspec.structs import replace

from preflight.core.files import open_stream, shipped_table
from preflight.errors import UsageError
from preflight.hang.answer_text import Alternative
from preflight.hang.call_waits import Kind, Root, Waits, follow
from preflight.hang.diagnose.job_state import fold_ranks, line_words, lint_command, ranks, verb
from preflight.hang.diagnose.places import is_plumbing
from preflight.hang.explain.explanation import Explanation
from preflight.hang.explain.log_lines import blocks
from preflight.hang.explain.symptom import Category
from preflight.hang.flight_recorder import Recording, Unreadable, read
from preflight.hang.plain_pickle import MOST_BYTES
from preflight.hang.watch.evidence import files_of

_HEAD = 4096
_PICKLE, _GZIP = re.compile(rb"\x80[\x02-\x05]"), b"\x1f\x8b"
_KEYS = re.compile(rb'"(collective_seq_id|pg_config|pg_status|comm_lib_version|nccl_comm_state)"')
_RANK = re.compile(r"rank[_-]?(\d{1,7})(?!\d)|(\d{1,7})\D*$", re.IGNORECASE)
_SUFFIXES = re.compile(r"(\.(gz|json|pkl|pickle|bin|txt|dump)){1,3}$", re.IGNORECASE)
_MANY = 64
"""Dumps that are read by several processes."""
_CALLS = 100_000
"""Ended calls of each group, of all ranks: what they show of habits is not worth more memory."""
_APART_NS = 3600 * 10**9
"""A rank whose last call is this much older is of an earlier run."""
_OLDER_NS = 120 * 10**9
"""It may be of an earlier run, or its node's clock is wrong: a hang stops all ranks in seconds."""
_NAMED = ("differs", "crossed", "absent", "not_started", "stalled", "extra", "idle")
_UNDECIDED, _UNCLEAR = 0.45, 0.3
_LESS_SURE = 0.7
"""Factor for ranks that are not the minority of their call, and for dumps perhaps of two runs."""
_MOST = 4


class _KindAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer says of the ends of the waits of one kind."""

    category: Category
    sentence: str
    cause: str = ""
    advice: str = ""
    confidence: float = 0.0


_ANSWERS = convert(shipped_table(__file__, "dump_answers.toml"), dict[Kind, _KindAnswer])


def separate(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """The dumps among the files and in the folders given, and everything else.

    A folder that holds dumps is also among the others if it holds more than dumps.
    """
    dumps, others = [], []
    for path in paths:
        files = list(_in_folder(path))
        dump_paths = [file for file in files or (path,) if _is_dump(file)]
        dumps += dump_paths
        if len(dump_paths) < max(1, len(files)):
            others.append(path)
    return dumps, others


def _in_folder(path: Path) -> Iterator[Path]:
    with suppress(OSError):
        if path.is_dir():
            yield from files_of(path, ["*", "*/*"])


def _is_dump(path: Path) -> bool:
    """Whether its first bytes are those of a pickle, or of a recorder's JSON."""
    head = b""
    with suppress(OSError, zlib.error):
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with open_stream(path) as file:
            head = file.read(_HEAD) or b""
        if head.startswith(_GZIP):
            head = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, _HEAD)
    is_json = head.lstrip().startswith(b"{") and bool(_KEYS.search(head))
    return is_json or bool(_PICKLE.match(head))


class Dumps:
    """The recordings of one job, by rank."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Read them; UsageError if they are of several jobs."""
        self.troubles: list[str] = []
        self.ranks: dict[int, Recording] = {}
        self.torn: set[int | None] = set()
        """Ranks that wrote a dump which cannot be read; None for one whose name has no rank."""
        self._paths: dict[int, Path] = {}
        worlds: dict[tuple[int, ...], Path] = {}
        for path, recording in zip(paths, _read_all(paths), strict=True):
            name_rank = _rank_in_name(path)
            if isinstance(recording, Unreadable):
                self.troubles.append(f"{path} is not used: {recording.why}")
                self.torn.add(name_rank)
                continue
            rank = _rank(name_rank, recording)
            if rank is None:
                fault = f"rank {name_rank}, which its name shows, is not in all of its groups"
                if name_rank is None:
                    fault = "its name and its groups do not show its rank; name it rank_N"
                self.troubles.append(f"{path} is not used: {fault}")
                continue
            if world := recording.members.get("0"):
                worlds.setdefault(world, path)
            self._add(rank, path, recording)
        if len(worlds) > 1:
            jobs = " and ".join(
                f"{len(members)} ranks ({worlds[members]})" for members in [*worlds][:3]
            )
            raise UsageError(f"the dumps are of several jobs, with {jobs}: give those of one job")
        self.older = self._leave_out_old()
        """Ranks whose dump may be of an earlier run."""
        all_ranks = next(iter(worlds), ()) or range(max(self.ranks, default=-1) + 1)
        self.no_dump = tuple(rank for rank in all_ranks if rank not in self.ranks)

    def _add(self, rank: int, path: Path, recording: Recording) -> None:
        other = self.ranks.setdefault(rank, recording)
        if other is not recording and other != recording:
            raise UsageError(
                f"rank {rank} has two dumps, {self._paths[rank]} and {path}: give the dumps of one "
                "job; if they are of two ranks, name them rank_N"
            )
        self._paths[rank] = path

    def _leave_out_old(self) -> list[int]:
        """Drop the dumps of earlier runs; return the ranks whose dump may be of one."""
        newest = max((dump.newest_ns for dump in self.ranks.values()), default=0)
        for rank, dump in [*self.ranks.items()]:
            if dump.newest_ns and newest - dump.newest_ns > _APART_NS:
                hours = (newest - dump.newest_ns) / _APART_NS
                self.troubles.append(
                    f"{self._paths[rank]} is not used: its last call is {hours:.1f} h older than "
                    "the others'; it is of an earlier run"
                )
                del self.ranks[rank]
        return [
            rank for rank, dump in self.ranks.items() if 0 < dump.newest_ns < newest - _OLDER_NS
        ]


def _rank(name_rank: int | None, recording: Recording) -> int | None:
    """The rank by the file's name, if it is in all groups; else the only one that is."""
    groups = recording.members.values()
    if name_rank is not None and all(name_rank in group for group in groups):
        return name_rank
    common = set.intersection(*map(set, groups)) if groups else set()
    return common.pop() if len(common) == 1 else None


def _rank_in_name(path: Path) -> int | None:
    match = _RANK.search(_SUFFIXES.sub("", path.name))
    return int(match[1] or match[2]) if match else None


def _read_all(paths: Sequence[Path]) -> Iterable[Recording | Unreadable]:
    latest = max(8, _CALLS // len(paths))
    if len(paths) < _MANY:
        return (_read(path, latest) for path in paths)
    # Importing them takes a tenth of a short log's time.
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    work = partial(_read, latest=latest)
    workers = min(os.cpu_count() or 1, 16)
    try:
        with ProcessPoolExecutor(workers, initializer=_start_worker) as pool:
            return [*_with_shared_members(pool.map(work, paths, chunksize=16))]
    except BrokenProcessPool as error:
        raise UsageError(
            "a process that read the dumps was killed, perhaps for its memory: give fewer dumps"
        ) from error


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # plain values have no circles


def _with_shared_members(
    recordings: Iterable[Recording | Unreadable],
) -> Iterator[Recording | Unreadable]:
    """Let recordings share the members of groups: those of a large job are the same in most."""
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}
    for recording in recordings:
        if isinstance(recording, Recording):
            members = {name: shared.setdefault(at, at) for name, at in recording.members.items()}
            yield replace(recording, members=members)
        else:
            yield recording


def _read(path: Path, latest: int) -> Recording | Unreadable:
    troubles: list[str] = []
    data = bytearray()
    try:
        for block in blocks(path, troubles):
            data += block
            if len(data) > MOST_BYTES:
                return Unreadable(f"it is larger than {MOST_BYTES >> 20} MiB")
    except UsageError as error:
        return Unreadable(str(error))
    if troubles:
        return Unreadable(troubles[0].removeprefix(f"{path}: "))
    return read(bytes(data), latest=latest)


def explain_dumps(dumps: Dumps) -> Explanation:
    """Name the ranks at the end of the waits; `unknown` if they are not in the dumps."""
    recordings = dumps.ranks
    waits = follow(recordings, len(dumps.no_dump), dumps.no_dump)
    roots = [root for root in waits.roots if root.kind in _NAMED and (root.ranks or not root.few)]
    if not recordings:
        return Explanation(sentence="no dump could be read", advice="give the dumps of all ranks")
    roots.sort(key=lambda root: not root.few)
    answer = _of_named(roots, recordings) if roots else _explain_rest(waits, dumps)
    if dumps.older:
        answer = replace(answer, confidence=round(answer.confidence * _LESS_SURE, 2))
    others = [
        root
        for root in waits.roots
        if root not in roots and answer.sentence != _sentence(root) and _died(root, dumps)
    ][:2]
    share = round(min((1 - answer.confidence) / (len(others) + 1), answer.confidence / 2), 2)
    return replace(
        answer,
        alternatives=tuple(
            Alternative(_ANSWERS[root.kind].category, _sentence(root), share) for root in others
        ),
        waits=waits.rows,
        unseen=tuple(_unseen(dumps)),
    )


def _of_named(roots: Sequence[Root], recordings: Mapping[int, Recording]) -> Explanation:
    culprits = sorted({rank for root in roots for rank in root.ranks if root.few})
    main = min(roots, key=lambda root: _NAMED.index(root.kind))
    stalled = {rank for root in roots if root.kind == "stalled" for rank in root.ranks}
    if stalled >= set(culprits) and stalled:
        main = next(root for root in roots if root.kind == "stalled")
    answer = _answer_of(main.kind, [main, *(root for root in roots if root is not main)], culprits)
    sure = answer.confidence if culprits else _UNDECIDED
    last = roots[-1]
    wrapped = any(recordings[rank].wrapped for rank in culprits if rank in recordings)
    if last.kind == "idle" and not last.few:
        sure *= _LESS_SURE
    elif last.kind == "idle" or wrapped:
        sure *= 0.9
    if main.kind == "differs" and 2 * len(main.ranks) >= sum(len(side) for side, _ in main.calls):
        sure *= _LESS_SURE
    line = next(filter(None, (_line(recordings[rank], main) for rank in culprits)), "")
    return replace(
        answer,
        next="gpu.xid, gpu.ecc" if main.kind == "stalled" else lint_command(line.partition(":")[0]),
        line=line,
        confidence=round(sure, 2),
    )


def _answer_of(kind: Kind, roots: Sequence[Root], culprits: Iterable[int] = ()) -> Explanation:
    """What ends of the waits mean whose main kind is this one."""
    words = _ANSWERS[kind]
    return Explanation(
        category=words.category,
        culprits=tuple(f"rank {rank}" for rank in culprits),
        sentence="; ".join(_sentence(root) for root in roots[:_MOST]),
        cause=words.cause,
        advice=words.advice,
        confidence=words.confidence,
    )


def _died(root: Root, dumps: Dumps) -> bool:
    """Whether it may have died without a dump; a torn dump shows a rank that was alive."""
    return root.kind != "no_dump" or not dumps.torn.intersection(root.ranks)


def _explain_rest(waits: Waits, dumps: Dumps) -> Explanation:
    """No rank with a dump is shown to be at fault."""
    missing = [root for root in waits.roots if root.kind == "no_dump"]
    away = sorted({rank for root in missing for rank in root.ranks})
    root = next((root for root in waits.roots if root.kind != "no_dump"), None)
    if root:
        return replace(
            _answer_of(root.kind, [root]),
            next="fabric.allreduce" if root.kind == "all_in" else "preflight lint SCRIPT",
            confidence=_UNCLEAR if root.kind == "all_in" or missing else _UNDECIDED,
        )
    died = all(root.proven and _died(root, dumps) for root in missing)
    if missing and died and len(dumps.ranks) > 1:
        return _answer_of("no_dump", missing, away)
    if missing:
        return Explanation(
            sentence=f"{ranks(dumps.ranks)} {verb(len(dumps.ranks), 'waits', 'wait')} for ranks "
            f"that have no readable dump here: {fold_ranks(away)}; whether these had died or "
            "waited themselves is not shown",
            advice="give the dumps of all ranks; each node may have its own in /tmp",
            confidence=_UNCLEAR,
        )
    return Explanation(
        sentence=f"no call of {ranks(dumps.ranks)} was unfinished when the dumps were written",
        advice="give the dumps that were written when the job hung, and its logs",
    )


def _sentence(root: Root) -> str:
    who, many = ranks(root.ranks), len(root.ranks)
    waiting = [rank for callers, _ in root.calls for rank in callers]
    texts = {
        "who": who,
        "waits": verb(many, "waits", "wait"),
        "has": verb(many, "has", "have"),
        "gpu": f"the GPU{'s' * (many > 1)} of {who}",
        "it": verb(many, "it", "them"),
        "call": f"call {root.number} of {root.group}",
        "made": "; ".join(f"{ranks(callers)} in {what}" for callers, what in root.calls[:3]),
        "what": root.calls[0][1] if root.calls else "",
        "waiting": f"{ranks(waiting)} {verb(len(waiting), 'waits', 'wait')}",
        "odd": f"; {who} {verb(many, 'differs', 'differ')} from the others" if many else "",
    }
    return _ANSWERS[root.kind].sentence.format(**texts)


def _line(recording: Recording, root: Root) -> str:
    """The user's line of a rank's call at fault, or of its last call."""
    differs = root.kind == "differs"
    calls = [call for call in recording.calls if differs and call.number == root.number]
    frames = next((call.frames for call in reversed(calls or recording.calls) if call.frames), ())
    return line_words(next((frame for frame in frames if not is_plumbing(frame.file)), None))


def _unseen(dumps: Dumps) -> Iterator[str]:
    if dumps.no_dump:
        yield f"no dump of {ranks(dumps.no_dump)}"
    if wrapped := [rank for rank, dump in dumps.ranks.items() if dump.wrapped]:
        yield (
            f"{ranks(wrapped)}: older unfinished calls have left the buffer; set a larger "
            "TORCH_FR_BUFFER_SIZE"
        )
    if dumps.older:
        yield (
            f"the last calls of {ranks(dumps.older)} are minutes older than the others'; if the "
            "clocks of the nodes agree, these dumps are of an earlier run: give those of one run"
        )


def joined(logs: Explanation, dumps: Explanation) -> Explanation:
    """The answer of both: a cause in the logs says more than the waits."""
    weak = ("unknown", "timeout_rank_missing", "collective_mismatch")
    surer = logs.category in weak and dumps.confidence >= logs.confidence
    by_dumps = surer or logs.category == "no_failure"
    first, second = (dumps, logs) if by_dumps else (logs, dumps)
    differs = second.category not in (first.category, "no_failure", "unknown")
    other = Alternative(second.category, second.sentence, 0.0)
    return replace(
        first,
        alternatives=(*first.alternatives, *[other] * differs)[:3],
        evidence=first.evidence or second.evidence,
        lines=logs.lines,
        line=first.line or second.line,
        waits=dumps.waits,
        unseen=dumps.unseen,
    )
