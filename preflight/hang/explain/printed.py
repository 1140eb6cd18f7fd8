"""The logs in a folder that one job left: a launch's under watch, or a run's of torchrun.

Any other folder may hold the logs of many jobs, which told together would give a wrong answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

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
