"""Whose limit a number is decides what it proves: our login's may not be what the job will have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from preflight.facts.machine_model import UNLIMITED, Limits

if TYPE_CHECKING:
    from preflight.facts.model import Facts

Kind = Literal["memlock", "nofile"]

IN_THE_JOB: Final = ("srun", "torchrun")
"""Ways in that are processes of the job itself: what holds for us holds for it."""


@dataclass(frozen=True, slots=True)
class Held:
    """A limit and whose it is; `sure` where the job will have the same."""

    value: float
    """`inf` for unlimited."""
    most: float
    """Up to which a process may raise it by itself."""
    whose: str
    sure: bool


def held(kind: Kind, facts: Facts, transport: str) -> Held | None:
    """The limit nearest to the job's: its own, its scheduler's, our login's; None if unread."""
    if facts.machine is None:
        return None
    daemons = facts.machine.launchers or ()
    if transport not in IN_THE_JOB and daemons:
        first = daemons[0]
        whose = f"of {first.name} (pid {first.pid}), from which jobs inherit it"
        return _held(first.limits, kind, whose, sure=True)
    if facts.machine.limits is None:
        return None
    sure = transport in IN_THE_JOB
    if kind == "memlock" and facts.machine.locks_any:
        whose = "of this root login (CAP_IPC_LOCK); another user's job has a limit of its own"
        whose = "of the job's own process (CAP_IPC_LOCK)" if sure else whose
        return Held(float("inf"), float("inf"), whose, sure)
    whose = "of the job's own process" if sure else "of our login; the job's may differ"
    return _held(facts.machine.limits, kind, whose, sure=sure)


def memlock_of(facts: Facts) -> float | None:
    """For the vote of a group: the limit of whoever starts jobs there, else of our login."""
    one = held("memlock", facts, "")
    return None if one is None else one.value


def nofile_of(facts: Facts) -> float | None:
    """For the vote of a group, as above."""
    one = held("nofile", facts, "")
    return None if one is None else one.value


def _held(limits: Limits, kind: Kind, whose: str, *, sure: bool) -> Held:
    soft, hard = getattr(limits, kind), getattr(limits, f"{kind}_hard")
    return Held(_number(soft), _number(hard), whose, sure)


def _number(ceiling: int) -> float:
    return float("inf") if ceiling == UNLIMITED else float(ceiling)
