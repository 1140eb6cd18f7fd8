"""The first thing that runs on a node: takes the request, and leaves in time whatever happens."""

from __future__ import annotations

import os
import signal
import sys

import children
import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

GRACE_S = 2.0
"""An entry ends by its own deadlines; the alarm comes this much later."""

DONE, WRONG, BROKE, LATE, LAPSED = 0, 2, 3, 4, 5
"""Exit statuses: answered (or nobody left to answer), wrong request, our bug, out of time, or not
heard from the controller for the length of the lease."""


def main(entry: str) -> None:
    """Run one entry (`probe`, `ports`, `sweep`) over standard input and output. Never returns."""
    try:
        status = _serve(entry)
    except wire.Gone:
        status = DONE
    except Exception as error:  # noqa: BLE001 (the controller gets one line, not a traceback)
        _complain(error)
        status = BROKE
    leave(status)


def leave(status: int) -> None:
    """End at once: our children by pid, then us, waiting for nobody."""
    children.end_all()
    os._exit(status)


def _serve(entry: str) -> int:
    channel = wire.Channel()
    request = channel.lines()
    if request is None:
        return DONE
    if not entry.isidentifier() or not isinstance(request.get("nonce"), str):
        print(f"preflight: no entry {entry!a}, or a request without nonce", file=sys.stderr)
        return WRONG
    channel.nonce = request["nonce"]
    _arm(float(request["deadline_s"]) + GRACE_S)
    run = __import__(entry + ".main", fromlist=["run"]).run
    run(request, channel.lines, channel.emit)
    return DONE


def _arm(seconds: float) -> None:
    """Leave when time is up, and also when `timeout` or the login session tells us to."""
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _told)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _told(number: int, frame: FrameType | None) -> None:
    del number, frame
    leave(LATE)


def _complain(error: Exception) -> None:
    """Say what broke and where, in one line without its text: that may hold somebody's secret."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}" if trace else "?"
    text = f"preflight: the payload broke: {type(error).__name__} in {where}\n"
    os.write(2, text.encode("ascii", "replace"))
