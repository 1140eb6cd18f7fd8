"""One rail of a node: keeps one measuring process alive, kills it when it is late, never fails.

Whatever happens to the measuring process becomes an account, and the rail goes on.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace

from . import lifeline, lines, member, plan, starvation
from .account import account, inside_account, short
from .stalls import Stalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_GRACE_S = 0.5
_REAP_S = 2.0
_LOST_IN = {"connect": "no_connect", "pair": "hung"}  # what being late in that phase says of a pair
_DIED = "error"
_ATTEMPTS = 2  # measuring processes that may die outside a pair before the rank gives up


@dataclass(frozen=True)
class _Ended:
    """How far a measuring process came, and why it must be replaced; no error: it finished."""

    round: int
    phase: str
    error: str
    died: bool = False
    """It was not killed by us, and said nothing."""

    @property
    def state(self) -> str:
        """What its end says of the pair."""
        return _DIED if self.died and self.phase == "pair" else _LOST_IN[self.phase]


def supervise(rail: plan.Rail, output: int, orders: int) -> None:
    """Run the rail's rounds to their end, and those that are ordered after it.

    `output`: the rail's pipe to its agent; `orders`: the one from it.
    """
    reader, first = lines.Reader(orders), 0
    while _rounds(rail, first, output) and rail.go.more:
        lines.write(output, {"event": "rail_rest"})
        more = reader.next(None)
        if more is None:
            break
        first = len(rail.go.turns)
        rail = replace(rail, go=plan.extended(rail.go, more))
    lines.write(output, {"event": "rail_done"})


def _rounds(rail: plan.Rail, at: int, output: int) -> bool:
    """Go through the rounds from `at` on; False if the rail had to give up."""
    failures = 0
    while at < rail.go.steps:
        ended = _run(rail, at, output)
        if not ended.error:
            return True
        at = ended.round
        lost = _lost(rail, ended)
        if lost is not None:
            lines.write(output, lost)
            at += 1
            continue
        failures += 1
        if failures == _ATTEMPTS:
            lines.write(output, {"event": "trouble", "error": ended.error})
            return False
    return True


def _lost(rail: plan.Rail, ended: _Ended) -> dict[str, Any] | None:
    """The account of what a measuring process was at when it was lost; None for nothing."""
    if ended.phase not in _LOST_IN:
        return None
    if ended.round == len(rail.go.turns):
        return inside_account(rail, ended.state, ended.error)
    turn = rail.turn(ended.round)
    return None if turn is None else account(rail, turn, ended.state, ended.error)


def _run(rail: plan.Rail, first_round: int, output: int) -> _Ended:
    """Relay one measuring process until it finishes, fails or misses a deadline of its own."""
    pid, reader = _fork(rail, first_round)
    stalls = Stalls(pid)
    at, phase, within_s, error = first_round, "start", member.STORE_S, ""
    waited: dict[str, float] = {}
    try:
        while True:
            line = reader.next(within_s + _GRACE_S, stalls if phase == "pair" else None)
            if line is None:
                break
            waited = starvation.waited_s(pid)
            if "account" in line:
                lines.write(output, dict(line["account"], stalls=stalls.taken()))
                at = min(line["round"] + 1, rail.go.steps - 1)
                phase = "between"
            elif "failed" in line:
                error = line["failed"]
            else:
                at, phase, within_s = line["round"], line["phase"], line["within_s"]
    except TimeoutError:
        what = "did not get a connection" if phase == "connect" else "stood still"
        excuse = starvation.excuse(waited, pid, within_s)
        error = f"its measuring process {what} for {within_s:.0f} s and was killed{excuse}"
    os.close(reader.descriptor)
    stalls.close()
    ended = _end(pid, error)
    return _Ended(at, phase, ended, died=bool(ended) and not error)


def _fork(rail: plan.Rail, first_round: int) -> tuple[int, lines.Reader]:
    reading, writing = os.pipe()
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, lines.Reader(reading)

    def say(**line: Any) -> None:
        lines.write(writing, line)

    status = 1
    try:
        lifeline.die_with_parent(supervisor, "preflight-pair")
        lifeline.close_all_but({writing})
        member.take_part(rail, first_round, say)
        status = 0
    except Exception as error:  # noqa: BLE001 - whatever torch or a driver raises is reported
        say(failed=f"{type(error).__name__}: {short(error)}")
    finally:
        os._exit(status)  # no destructor of torch, gloo or CUDA may keep us


def _end(pid: int, error: str) -> str:
    """Kill and reap the measuring process, never waiting long: in D state SIGKILL waits too."""
    if error:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _REAP_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            if error or status == 0:
                return error
            return f"its measuring process {_how_it_ended(status)}"
        time.sleep(0.005)
    if not error:
        os.kill(pid, signal.SIGKILL)
    return (error or "its measuring process did not end") + "; it is still there (D state?)"


def _how_it_ended(status: int) -> str:
    """The words tell the controller that this end failed by itself."""
    if not os.WIFSIGNALED(status):
        return f"ended by itself with status {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    try:
        return f"was killed by {signal.Signals(number).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {number}"
