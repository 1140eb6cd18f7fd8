"""Reading a stuck process can get stuck itself (as `ps` does); the others are told all the same."""

from __future__ import annotations

import mmap
import os
import struct

from . import guard, procfs
from .describe import bare
from .stat import look
from .survey import Survey
from .text import clean
from .users import Users, me

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .stat import Stat

STALLED_S = 1.0
"""A pass that rests this long on one process is stuck on it."""

TRIES = 5


def read(
    gpu_mib: dict[int, int | None], until: float, problems: list[str]
) -> dict[str, Any] | None:
    """Return the document's `Processes`; None if /proc did not answer even without the stuck ones.

    Reading the command or environment of a process takes a lock of its memory. Where a thread of
    it hangs in the driver under that lock, the reader hangs too: so a child reads and notes
    where it is, and after a stall the next one leaves that process (and all in D state) alone.
    """
    answer = patiently(_survey, (os.getpid(), gpu_mib), until, problems)
    dropped = 0 if answer is None else answer.pop("dropped")
    if dropped:
        problems.append(f"processes: {dropped} more notable ones were left out")
    return answer


def patiently(
    survey: Callable[..., dict[str, Any]], given: tuple[object, ...], until: float,
    problems: list[str],
) -> dict[str, Any] | None:  # fmt: skip
    """Run `survey(*given, untouchable, mark)` in a child; None where even that did not answer.

    It calls `mark(pid)` before it reads what can hang, and leaves alone who is `untouchable`.
    """
    stuck: set[int] = set()
    shared = mmap.mmap(-1, 8)
    for _ in range(TRIES):
        asked = guard.spawn(_carefully, survey, given, stuck, shared)
        answered = _listen(asked, shared, until)
        if not asked.dismiss(kill=not answered):
            problems.append(f"processes: our reader {asked.pid} cannot be killed")
        if answered:
            return _told(asked, stuck, problems)
        at = _at(shared)
        if not at or guard.clock.now() > until:
            break
        stuck.add(at)
    problems.append("processes: /proc did not answer in time")
    return None


def _survey(
    run_pid: int,
    gpu_mib: dict[int, int | None],
    untouchable: Callable[[Stat], bool],
    mark: Callable[[int], None],
) -> dict[str, Any]:
    return Survey(run_pid, gpu_mib, untouchable, mark).run()


def _carefully(
    survey: Callable[..., dict[str, Any]],
    given: tuple[object, ...],
    stuck: set[int],
    shared: mmap.mmap,
) -> dict[str, Any]:
    def untouchable(one: Stat) -> bool:
        return one.pid in stuck or bool(stuck and one.state == "D")

    def mark(pid: int) -> None:
        struct.pack_into("q", shared, 0, pid)

    return survey(*given, untouchable, mark)


def _listen(asked: guard.Child, shared: mmap.mmap, until: float) -> bool:
    """Wait for the answer as long as the pass gets on."""
    before = -1
    while guard.clock.now() < until:
        if asked.listen(min(until, guard.clock.now() + STALLED_S)):
            return True
        now = _at(shared)
        if now == before:
            return False
        before = now
    return False


def _at(shared: mmap.mmap) -> int:
    return int(struct.unpack_from("q", shared, 0)[0])


def _told(asked: guard.Child, stuck: set[int], problems: list[str]) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = asked.value()
    except guard.BrokenError as error:
        problems.append(f"processes: {error}")
        return None
    problems += [
        f"process {pid}: reading its command or environment hangs" for pid in sorted(stuck)
    ]
    return answer


def survivor(pid: int, what: str) -> dict[str, Any] | None:
    """Describe a child that SIGKILL did not end, from what cannot hang; None if it is gone."""
    stat = look(pid)
    if stat is None:
        return None
    return {
        "pid": pid,
        "ppid": stat.ppid,
        "state": stat.state,
        "user": clean(me(Users(patient=False))),
        "command": f"{what} {bare(stat)}",
        "age_s": round(stat.age_s(), 3),
        "wchan": procfs.wchan(pid),
        "threads": stat.threads,
        "ours": True,
    }
