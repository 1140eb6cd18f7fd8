"""Logs of our own making, written to files and explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.hang.explain.scan import Scanner
from preflight.hang.explain.symptom import shipped
from preflight.hang.explain.weigh import explain

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.hang.explain.explanation import Explanation


def explained(folder: Path, *logs: str | bytes, names: tuple[str, ...] = ()) -> Explanation:
    """Write each log into a file of its own, and explain them together."""
    paths = []
    for place, log in enumerate(logs):
        path = folder / (names[place] if names else f"{place}.log")
        path.write_bytes(log if isinstance(log, bytes) else log.encode())
        paths.append(path)
    return explained_files(*paths)


def explained_files(*paths: Path) -> Explanation:
    """Explain files together."""
    return explain(Scanner(shipped()).read(paths))


def answer_in(path: Path) -> tuple[str, str, bool]:
    """The category, the ranks that are named, and whether it is at least 50 % sure."""
    answer = explained_files(path)
    ranks = ", ".join(one for one in answer.culprits if one.startswith("rank"))
    return answer.category, ranks, answer.confidence >= 0.5


def timed_out(
    rank: int, seq: int, op: str = "ALLREDUCE", numel: int = 64, at: str = "10:00:00.1"
) -> str:
    """What torch's watchdog says of one rank's time-out."""
    return (
        f"[rank{rank}]:[E1005 {at} ProcessGroupNCCL.cpp:7] [Rank {rank}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, "
        f"NumelOut={numel}, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
    )


def status(rank: int, enqueued: int, local: int = 0, group: str = "0") -> str:
    """How far a rank says that it was; `local`: the group's number within that process."""
    return (
        f"[rank{rank}]:[E1005 10:00:00.2 ProcessGroupNCCL.cpp:9] "
        f"[PG ID {local} PG GUID {group}(pg) Rank {rank}] failure detected by watchdog at work "
        f"sequence id: {enqueued} PG status: "
        f"last enqueued work: {enqueued}, last completed work: {enqueued - 1}\n"
    )


def communicator(rank: int, world: int, host: str = "n1", pid: int = 100) -> str:
    """NCCL's line on who is who."""
    return (
        f"{host}:{pid + rank}:9 [{rank}] NCCL INFO comm 0x5555 rank {rank} nranks {world} "
        f"cudaDev {rank} busId {rank}b000 - Init COMPLETE\n"
    )
