"""The logs in a folder that one job left, and their explanation on a terminal.

Any other folder may hold the logs of many jobs, which told together would give a wrong answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.core.text import printable, wrapped
from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from preflight.hang.explain.model import Explanation


LEFT = ("torchrun/**/error.json", "torchrun/**/*.log", "nccl/*.log")
"""What torchrun and NCCL leave in the folder of a launch under watch."""
_OUTPUT = ("output.log", "errors.log", "stdout.log", "stderr.log")
"""Of that launch, or of one rank beneath torchrun; it says first what ended it."""
_RANK = ("error.json", "stdout.log", "stderr.log")
"""What torchrun keeps of each rank in RUN/attempt_0/LOCAL_RANK."""
_WAYS_OUT = "give log files, or a folder that preflight watch or a run of torchrun --log-dir left"


def logs_of(given: Iterable[Path]) -> Iterator[Path]:
    """Files as they are given, and folders as the logs in them that are not empty, if any is not.

    UsageError for a folder without any, or with those of several runs.
    """
    for path in given:
        if str(path) == "-" or not _is_folder(path):
            yield path
            continue
        runs = [path] if any(path.glob("attempt_*")) else _runs(path)
        patterns = [*_OUTPUT, "error.json", *LEFT]
        found = _files(path, patterns)
        found += [one for run in runs for one in _files(run, [f"attempt_*/*/{n}" for n in _RANK])]
        if not found:
            raise UsageError(f"no log of a job in {path}: {_WAYS_OUT}")
        yield from [one for one in found if one.stat().st_size] or found


def _runs(path: Path) -> list[Path]:
    """Torchrun's only run in this folder."""
    runs = sorted({attempt.parent for attempt in path.glob("*/attempt_*")})
    if len(runs) > 1:
        raise UsageError(f"{len(runs)} runs of torchrun in {path}: give one of them")
    return runs


def _files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return [one for pattern in patterns for one in sorted(folder.glob(pattern)) if one.is_file()]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False  # what is wrong is told when it is opened


_INDENT = " " * 10


def lines(told: Explanation, width: int) -> list[str]:
    """Everything of it, wrapped."""

    def row(label: str, text: str) -> list[str]:
        return wrapped(text, first=f"{label:<10}", indent=_INDENT, width=width) if text else []

    shown = [f"{told.category}  ({_sure(told.confidence)})", *row("what", told.sentence)]
    shown += row("who", ", ".join(told.culprits) or "not told by these lines")
    shown += row("why", told.cause)
    shown += row("do", told.advice)
    shown += row("next", told.next)
    for place, proof in enumerate(told.evidence):
        label = "proof" if place == 0 else ""
        shown += row(label, f"{proof.source}:{proof.line}: {proof.text}")
    for place, other in enumerate(told.alternatives):
        label = "or" if place == 0 else ""
        sure = f" ({other.confidence:.0%})" if other.confidence else ""
        shown += row(label, f"{other.category}{sure}: {other.sentence}")
    return [printable(line) for line in shown]


def _sure(confidence: float) -> str:
    return f"{confidence:.0%} sure" if confidence else "not a guess"
