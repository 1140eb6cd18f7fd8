"""The supervisor of one rail: runs its measuring process, and replaces it when it is late or dies.

Whatever happens to the measuring process is reported in an account, and the rail goes on.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, replace
from typing import Any, Callable

import children
import start

from . import clocks, member, plan
from .clocks import Stalls
from .cuda import NoCuda
from .plan import account_of, because, short
from .transports import NcclLog

_GRACE_S = 0.5
_REAP_S = 2.0
"""Time for a killed process to end, where no driver must free its resources."""

_LOST_IN = {"connect": "no_connect", "pair": "hung"}  # a pair's state if it is late in that phase
_ATTEMPTS = 2  # measuring processes that may die outside a pair before the rank gives up


@dataclass
class _ProcessEnd:
    """How far a measuring process came, and why it must be replaced; no error: it finished."""

    step: int
    """Its current or next step: see `plan.Go.steps`."""
    phase: str = "start"
    error: str = ""
    died: bool = False
    """It ended by itself without a report."""
    late: bool = False
    """We killed it because it was late."""
    gpu_taken: bool = False
    """Another process uses its GPU exclusively."""

    @property
    def state(self) -> str:
        """The state of the pair that follows from its end."""
        return "error" if self.died and self.phase == "pair" else _LOST_IN[self.phase]


class _Exit:
    """Waits in a thread until the last measuring process exits: until then it holds the GPU."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._pid = 0

    def wait_for(self, pid: int) -> None:
        """Start to wait for its exit; kill it if that takes too long."""
        self._pid = pid
        self._thread = threading.Thread(target=_reap, args=(pid, children.EXIT_S), daemon=True)
        self._thread.start()

    def overdue(self) -> str:
        """Wait for the exit up to a limit; return an error if it still runs, else "".

        A new process would wait for the GPU, and be reported as the one that hangs.
        """
        if self._thread is None:
            return ""
        within_s = children.EXIT_S + _REAP_S
        self._thread.join(within_s)
        if not self._thread.is_alive():
            return ""
        state = ", in D state" if clocks.in_d_state(self._pid) else ""
        return f"its killed measuring process is still there after {within_s:.0f} s{state}"


def _reap(pid: int, within_s: float) -> None:
    """Wait for a child to exit; kill it if that takes longer, and wait for that."""
    if children.wait_for_exit(pid, within_s) is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def supervise(rail: plan.Rail, output: int, orders: int) -> None:
    """Measure the rail's rounds, and those that are ordered later.

    `output`: the rail's pipe to its agent; `orders`: the pipe from it.
    """
    reader, first, last_exit = start.Reader(orders), 0, _Exit()
    while _measure_steps(rail, first, output, last_exit) and rail.go.more:
        start.write(output, {"event": "rail_rest"})
        more = reader.next(None)
        if more is None:
            break
        first = len(rail.go.turns)
        rail = replace(rail, go=plan.extend(rail.go, more))
    start.write(output, {"event": "rail_done"})


def _measure_steps(rail: plan.Rail, step: int, output: int, last_exit: _Exit) -> bool:
    """Measure all steps from `step` on; False if the rail gives up.

    One process measures step after step. If it fails, its current step gets an account, and a new
    process goes on with the next one.
    """
    failures = 0  # consecutive processes that failed here outside of a step
    while step < rail.go.steps:
        if rail.go.backend == "nccl" and (error := last_exit.overdue()):
            start.write(output, {"event": "trouble", "error": error})
            return False
        end = _run(rail, step, output, last_exit)
        if end.step != step:
            step, failures = end.step, 0
        if not end.error:
            continue  # done, or a new process goes on with the next step
        if end.gpu_taken:
            _report_not_run(rail, step, output, end.error)
            _step_out(rail)
            return True
        step_account = end.phase in _LOST_IN and account_of(rail, end.step, end.state, end.error)
        if step_account:
            start.write(output, step_account)
            step, failures = step + 1, 0
            continue
        failures += 1
        if failures == _ATTEMPTS or (end.phase == "init" and end.late):
            start.write(output, {"event": "trouble", "error": end.error})
            if end.phase == "init":
                _step_out(rail)
            return False
    return True


def _report_not_run(rail: plan.Rail, first_step: int, output: int, error: str) -> None:
    """Report all remaining steps as not run, for a reason that is no fault of the node."""
    for step in range(first_step, rail.go.steps):
        account = account_of(rail, step, "not_run", error)
        if account is not None:
            start.write(output, account)


def _step_out(rail: plan.Rail) -> None:
    """Remove this rank from the meeting, in a child: the store may hang."""
    pid, reader = _fork(lambda _: member.step_out(rail))
    _reap(pid, member.STORE_S)
    os.close(reader.descriptor)


def _run(rail: plan.Rail, first_step: int, output: int, last_exit: _Exit) -> _ProcessEnd:
    """Relay one measuring process until it finishes, fails or misses a deadline of its own."""
    log, logged = NcclLog() if rail.go.backend == "nccl" else None, 0
    pid, reader = _fork(lambda say: say(through=member.take_part(rail, first_step, say, log)))
    stalls = Stalls(pid)
    end, within_s = _ProcessEnd(first_step), member.STORE_S
    log_start, finished = 0, False
    waited: dict[str, float] = {}
    try:
        while not finished:
            line = reader.next(within_s + _GRACE_S, stalls.wait if end.phase == "pair" else None)
            if line is None:
                break
            waited = clocks.waited_s(pid)
            if "account" in line:
                start.write(output, dict(line["account"], stalls=stalls.take()))
                end.step, end.phase = line["round"] + 1, "between"
                if log is not None:
                    log_start = log.length
                    logged = _send_log(rail, pid, log, output, 2 * logged) or logged
            elif "failed" in line:
                end.error, end.gpu_taken = line["failed"], line["gpu_taken"]
                break
            elif "through" in line:
                finished = True
                end.step = rail.go.steps if line["through"] else end.step
            else:
                end.step, end.phase, within_s = line["round"], line["phase"], line["within_s"]
    except TimeoutError:
        end.late = True
        words = _late_words(end.phase, within_s) + clocks.excuse(waited, pid, within_s)
        end.error = because(words, log.reason(log_start) if log else "")
    os.close(reader.descriptor)
    if log is not None:
        _send_log(rail, pid, log, output, logged)
        log.close()
    if finished:  # its last account is final, however long it takes to exit
        last_exit.wait_for(pid)
    else:
        end.died = not end.error
        end.error = _end(pid, end.error, last_exit)
    return end


def _send_log(rail: plan.Rail, pid: int, log: NcclLog, output: int, least_bytes: int) -> int:
    """Send the log if it is wanted and has more than `least_bytes` bytes; return its length, or 0.

    It is sent after each step, too: the sweep's time may be up before this process ends.
    """
    length = log.length
    if not rail.go.keep_log or length <= least_bytes:
        return 0
    start.write(output, {"event": "nccl_log", "rail": rail.rail, "pid": pid, "text": log.text()})
    return length


def _late_words(phase: str, within_s: float) -> str:
    if phase == "init":
        return f"CUDA did not initialise within {within_s:.0f} s"
    words = "did not get a connection" if phase == "connect" else "stood still"
    return f"its measuring process {words} for {within_s:.0f} s and was killed"


def _fork(work: Callable[[Callable[..., None]], None]) -> tuple[int, start.Reader]:
    """Run `work` in a child; return its pid, and a reader of the lines that it sends."""
    reading, writing = os.pipe()

    def say(**line: Any) -> None:
        start.write(writing, line)

    def run() -> None:
        try:
            children.close_all_but({writing})
            work(say)
        except NoCuda as error:
            say(failed=str(error), gpu_taken=error.held)
        except Exception as error:  # noqa: BLE001 - whatever torch or a driver raises is reported
            say(failed=f"{type(error).__name__}: {short(error)}", gpu_taken=False)

    pid = children.fork("preflight-pair", run)
    os.close(writing)
    return pid, start.Reader(reading)


def _end(pid: int, error: str, last_exit: _Exit) -> str:
    """Kill and reap the measuring process; in the background if that takes time."""
    if error:
        os.kill(pid, signal.SIGKILL)
    status = children.wait_for_exit(pid, _REAP_S)
    if status is not None:
        # This text tells the controller that this end failed by itself.
        return error or f"its measuring process {children.describe_exit(status)}"
    last_exit.wait_for(pid)
    return error or "its measuring process ended by itself, but has not exited yet"
