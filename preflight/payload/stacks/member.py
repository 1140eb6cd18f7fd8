"""A rank as it was started: its place in the job, and where its Python and its dumps would be."""

from __future__ import annotations

import contextlib
import os

from probe import procfs, redact
from probe.text import clean
from probe.users import Users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .people import People
    from .seats import Seat

MOST_WORKERS = 8
_DUMP_PREFIXES = (b"TORCH_FR_DUMP_TEMP_FILE", b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DUMPS = "/tmp/nccl_trace_rank_"  # noqa: S108 (torch's own place; who owns the file is looked at)
_LATER_DUMPS = ".cache/torch/comm_lib_trace_rank_"
"""Below the home: torch 2.9 and later."""

_users = Users(patient=False)
"""A directory that hangs must not look like a process that does: it is asked elsewhere."""


def describe(people: People, pid: int, seat: Seat | None) -> dict[str, Any]:
    """Return what stays the same between two looks, and what the readers need to know."""
    stat = people.kin.stats[pid]
    environ = people.environs.get(pid, {})
    uid = procfs.uid(pid)
    visible = environ.get(b"CUDA_VISIBLE_DEVICES")
    words = [clean(word) for word in people.command(pid)[:64]]
    return {
        **{name: value for name, value in (seat or {}).items() if name != "kind"},
        "pid": pid,
        "start": stat.start,
        "parent": stat.ppid,
        "age_s": round(stat.age_s(), 3),
        "user": "?" if uid is None else clean(_users.name(uid)),
        "uid": uid,
        "program": clean(" ".join(redact.redacted(redact.program(words)))),
        "python": people.is_python(pid),
        "stuck": people.stuck(pid),
        "visible": None if visible is None else clean(visible),
        "bins": bins(people, pid),
        "dumps": [] if seat is None else _dumps(pid, int(seat["rank"]), environ),
        "workers": _workers(people, pid),
    }


def bins(people: People, pid: int) -> list[str]:
    """Return the folders in which the Python of a process keeps its programs."""
    environ = people.environs.get(pid, {})
    first = os.fsdecode((people.command(pid) or [b""])[0])
    names = (b"VIRTUAL_ENV", b"CONDA_PREFIX")
    found = [os.path.dirname(first)]
    found += [os.path.join(os.fsdecode(environ[name]), "bin") for name in names if name in environ]
    with contextlib.suppress(OSError):
        found.append(os.path.dirname(os.readlink(f"/proc/{pid}/exe")))
    return [one for one in dict.fromkeys(found) if one.startswith("/") and _travels(one)]


def _travels(path: str) -> bool:
    """Whether a name that a process gave itself can go through JSON as it is."""
    return path.isprintable()


def _workers(people: People, pid: int) -> list[int]:
    """Return the Pythons that a rank has started for itself: its data loader's, as a rule."""
    mine = [
        one
        for one in people.kin.of(pid)
        if not people.ended(one) and not people.stuck(one) and people.is_python(one)
    ]
    return mine[:MOST_WORKERS]


def _dumps(pid: int, rank: int, environ: dict[bytes, bytes]) -> list[str]:
    """Return where torch would leave its flight recorder's dump: what is set, else its defaults."""
    prefixes: Sequence[str] = [os.fsdecode(environ[n]) for n in _DUMP_PREFIXES if environ.get(n)]
    if not prefixes:
        home = os.fsdecode(environ.get(b"HOME", b"/nonexistent"))
        prefixes = (_DUMPS, os.path.join(home, _LATER_DUMPS))
    try:
        folder = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        folder = "/"
    paths = [os.path.join(folder, f"{prefix}{rank}") for prefix in dict.fromkeys(prefixes)]
    return [path for path in paths if _travels(path)]
