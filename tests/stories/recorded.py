"""Runs that a story made, kept so that several workers can judge the same measurements again."""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import warm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.stories.conftest import Told

_NOT_AGAIN = ("-n", "-x", "--maxfail", "--lf", "--co", "-p", "-qq", "--preflight-replay",
              "--junitxml", "--preflight-history")  # fmt: skip
"""Options that a replay does not repeat, that are about workers, or that hide them (-qq)."""

_LARGEST = 1 << 20
_LONGEST_S = 300


@dataclass(frozen=True)
class Recorded:
    """One finished run: how it was asked for, what it measured, what it said."""

    name: str
    arguments: tuple[str, ...]
    working: Path
    measured: Path
    exit: int
    said: dict[str, Any]

    @property
    def kind(self) -> tuple[object, ...]:
        """The same for runs of which one is as good as another: what came out, by what family."""
        rows = frozenset(
            (row["check"].partition(".")[0], row["outcome"]) for row in self.said["verdicts"]
        )
        return self.exit, rows, any("items=group" in each for each in self.arguments)


def essence(text: str, arguments: Sequence[str]) -> dict[str, Any]:
    """All of a report but when it was, how long it took, and the order in which verdicts came."""
    for inventory in (word.partition("=")[2] for word in arguments if "inventory=" in word):
        text = text.replace(json.dumps(inventory)[1:-1], "INVENTORY")
    report = json.loads(text)
    for row in report["verdicts"]:
        row["evidence"].pop("traceback", None)  # the site's folder was copied elsewhere
    left_out = ("run", "started", "seconds", "verdicts")
    rows = sorted(report["verdicts"], key=lambda row: (row["check"], row["subject"]))
    return {"verdicts": rows} | {k: v for k, v in report.items() if k not in left_out}


def record(name: str, told: Told, arguments: Sequence[str], working: Path) -> Recorded | None:
    """Keep copies of what a run was given and of what it left; None if it cannot be told again."""
    measured, report = told.folder / "measured.json", told.folder / "report.json"
    again = not any(each.startswith(_NOT_AGAIN) for each in arguments)
    if not again or told.exit not in (0, 1) or not (measured.exists() and report.exists()):
        return None
    if "fail-fast=first" in " ".join(arguments):
        return None
    written = paired(arguments)
    kept = _new_folder(working.parent)
    shutil.copy(measured, kept / "measured.json")
    shutil.copytree(working, kept / "working", symlinks=True, ignore=_large_and_special)
    words = tuple(_kept(word, kept) for word in written)
    renamed = tuple(word.replace(str(working), str(kept / "working")) for word in words)
    said = essence(report.read_text(), written)
    return Recorded(name, renamed, kept / "working", kept / "measured.json", told.exit, said)


def _new_folder(beside: Path) -> Path:
    numbers = (beside / f"recorded-{number}" for number in range(100))
    kept = next(path for path in numbers if not path.exists())
    kept.mkdir()
    return kept


def paired(arguments: Sequence[str]) -> list[str]:
    """Join `--preflight-inventory FILE` to one word, as docs write it.

    After a blank pytest takes the file for a path of tests, and as root preflight refuses the
    folders above it in which anybody could put a conftest.py.
    """
    words = list(arguments)
    if "--preflight-inventory" in words:
        at = words.index("--preflight-inventory")
        words[at : at + 2] = ["=".join(words[at : at + 2])]
    return words


def _kept(word: str, kept: Path) -> str:
    """A story may write its inventory anew: the one that was read is copied."""
    option, _, value = word.partition("=")
    if option != "--preflight-inventory":
        return word
    shutil.copy(value, kept)
    return f"{option}={kept / Path(value).name}"


def _large_and_special(folder: str, names: Iterable[str]) -> set[str]:
    found = {name: (Path(folder) / name).lstat() for name in names}
    return {
        name
        for name, about in found.items()
        if name in ("preflight-runs", "__pycache__")
        or not stat.S_IFMT(about.st_mode) & (stat.S_IFREG | stat.S_IFDIR)
        or (stat.S_ISREG(about.st_mode) and about.st_size > _LARGEST)
        or stat.S_ISFIFO(about.st_mode)
    }


def disagreement(one: Recorded, folder: Path, environ: Mapping[str, str]) -> str:
    """Have four workers judge the same measurements; say where they conclude something else."""
    words = [
        "-p", "no:cacheprovider", "--preflight", f"--preflight-report={folder}", *one.arguments,
        f"--preflight-replay={one.measured}", "-n", "4",
    ]  # fmt: skip
    told = warm.run("pytest", words, cwd=one.working, env=environ, timeout=_LONGEST_S)
    # The second where a story asked for -q.
    many = any(words in told.stdout for words in ("4 workers [", "bringing up nodes"))
    if told.returncode != one.exit or not many:
        return f"{one.name}: exit {told.returncode} with four workers, {one.exit}\n{told.stdout}"
    again = essence((folder / "report.json").read_text(), one.arguments)
    differing = [key for key in one.said if one.said[key] != again[key]]
    return "".join(f"{one.name}: {key}: {one.said[key]}\n{again[key]}\n" for key in differing)
