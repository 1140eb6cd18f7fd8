"""last.json: what the hook saw and did on this node, for whoever reads the one line in the log."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from preflight import __version__
from preflight.errors import UsageError
from preflight.fleet.files import refuse_others
from preflight.hook.model import Call, Decision, Judged
from preflight.report.files import remove, write_atomically
from preflight.report.plain import plain

if TYPE_CHECKING:
    from pathlib import Path

LAST: Final = "last.json"
_JOBS: Final = "jobs"
_MOST_JOBS: Final = 100
"""Files of jobs that are kept on a node, the newest."""

_NUMBER: Final = re.compile(r"[0-9]{1,12}")
_FILE: Final = re.compile(r"[0-9]{1,12}\.json")


class Document(Struct, frozen=True, kw_only=True):
    """What `--json` prints and last.json holds; docs/prolog.md."""

    schema: int = 1
    preflight: str = __version__
    time: str
    """When it was judged, UTC."""
    call: Call
    judged: Judged
    decision: Decision | None = None
    """None where nothing was decided: judged with --plain, or what was found comes first."""

    def text(self) -> str:
        """Lay it out for a person and a program alike."""
        return plain(self, indent=2)


def document(call: Call, judged: Judged, decision: Decision | None = None) -> Document:
    """Put the time of now on it."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Document(time=now, call=call, judged=judged, decision=decision)


def write(folder: Path, one: Document) -> None:
    """Write last.json, and the same for its job; OSError or UsageError where that is not safe."""
    refuse_others(folder)
    content = one.text().encode()
    write_atomically(folder / LAST, content)
    if _NUMBER.fullmatch(one.call.job):
        _refuse_strange(folder / _JOBS)
        write_atomically(folder / _JOBS / f"{one.call.job}.json", content)
        _prune(folder / _JOBS)


def _refuse_strange(jobs: Path) -> None:
    """Files are removed in there: it must be the hook's own folder, and no link to another."""
    if jobs.is_symlink():
        raise UsageError(f"{jobs} is a symbolic link, which is not followed; make it a folder")
    refuse_others(jobs)


def _prune(folder: Path) -> None:
    """Keep the newest: the files of ended jobs must not fill the disk that they are to explain.

    What somebody else has put there, or named otherwise, is his.
    """
    # Two prologs of one node may do this at once: what the other has removed is no trouble.
    with suppress(FileNotFoundError):
        ours = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if _FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False)
                    if found.st_uid == os.geteuid():
                        ours.append((found.st_mtime, entry.name))
        for _, name in sorted(ours)[:-_MOST_JOBS]:
            remove(folder / name)
