"""A listing of processes as somebody captured it: what an earlier job left shows there too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from preflight.facts.model import Processes
from preflight.facts.stale import find_stale
from preflight.offline.captured import Captured, bare_facts
from preflight.offline.process_rows import fuser, lsof, pmon, ps, tells_parents

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.facts.model import Process

KINDS: Final = ("ps", "fuser -v", "lsof", "nvidia-smi pmon")
_CHECKS: Final = ("host.stale_processes",)
_TOOLS: Final[tuple[tuple[str, Callable[[str], tuple[Process, ...] | None]], ...]] = (
    ("fuser -v", fuser),
    ("lsof", lsof),
    ("nvidia-smi pmon", pmon),
    ("ps", ps),
)
_WHOLE_PS: Final = "ps -eo pid,ppid,user,stat,wchan:24,etime,args"


def read(text: str) -> Captured | None:
    """Take the processes of whichever tool listed them; None where none did."""
    for kind, rows in _TOOLS:
        found = rows(text)
        if found is not None:
            return _captured(kind, found, text)
    return None


def _captured(kind: str, found: tuple[Process, ...], text: str) -> Captured:
    commands = {one.pid: one for one in found}
    notable = tuple(
        replace(
            one,
            parent_command=parent.command if (parent := commands.get(one.ppid)) else "",
            parent_age_s=parent.age_s if parent else None,
        )
        for one in found
    )
    processes = Processes(seen=len(found), unreadable=0, notable=notable)
    damaged = "" if found else f"it lists no process that can be read; capture {_WHOLE_PS}"
    if kind == "ps" and found and not tells_parents(text) and not _stands(processes):
        damaged = f"it has no states or no parents, and orphans do not show; capture {_WHOLE_PS}"
    facts = replace(bare_facts(), processes=processes)
    return Captured(kind=kind, facts=facts, checks=_CHECKS, damaged=damaged)


def _stands(processes: Processes) -> bool:
    """Whether something is found that no parent could explain: who is in D state waits."""
    culprits = (one for stale in find_stale(processes, ()) for one in stale.culprits)
    return any(one.state == "D" for one in culprits)
