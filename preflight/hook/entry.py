"""Whatever happens in the hook, a job is not kept from a node by a fault of preflight's own.

The work is done in a child under a deadline; what does not come back from there as it should is
trouble: a loud line in the log, and exit 0. A scheduler reads any other exit as a broken node.
Standard library only, and little of it: this must hold where nothing else can be imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from preflight.hook.child import HEALTHY, SHARE_S, UNHEALTHY, UNJUDGED, Ended

if TYPE_CHECKING:
    from collections.abc import Sequence


BUDGET_S: Final = {"prolog": 8.0, "healthcheck": 30.0}
"""Until the configuration has been read, which may say otherwise."""


_LARGEST: Final = 8 << 20
_RESULT: Final = "end"
_LEVELS: Final = ("info", "warning", "error")


class Told(NamedTuple):
    """What the child has found out of the configuration."""

    budget_s: float
    observing: bool = False
    log: str = "syslog"


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Judge this node; `argv` begins with "prolog" or "healthcheck". Never returns or raises."""
    words = list(sys.argv[1:] if argv is None else argv)
    code = UNJUDGED if "--plain" in words else int("--fail-closed" in words)
    try:
        _fill_standard()
        code = _guarded(words)
    except SystemExit as left:
        # argparse: 0 is --help. A wrong option in a prolog's script must not empty the fleet.
        code = HEALTHY if left.code in (0, None) else code
        if left.code not in (0, None):
            _complain("wrong usage, so this node was not judged; see: preflight prolog --help")
    except BaseException as error:  # noqa: BLE001  a traceback would exit 1, which drains the node
        _complain(f"preflight broke: {type(error).__name__}; this node was not judged")
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    os._exit(code)


def _guarded(words: Sequence[str]) -> int:
    began = time.monotonic()
    from preflight.hook.options import parsed

    options = parsed(words)
    told, ended, why = _worked(list(words), began, Told(BUDGET_S[options.occasion]))
    if ended is None:
        from preflight.hook.child import say

        held = options.fail_closed and not told.observing
        act = "the job is kept away, as --fail-closed says" if held else "no reason to drain"
        say(f"{options.occasion}: {why}; this node was not judged: {act}", "error", told.log)
        if held and options.json:
            decision = {"action": "none", "exit_code": UNHEALTHY, "reason": "", "log": why}
            sys.stdout.write(json.dumps({"trouble": why, "decision": decision}, indent=2) + "\n")
        return UNHEALTHY if held else UNJUDGED if options.plain else HEALTHY
    # A document that nobody takes changes nothing of what was done, and is to be logged.
    with contextlib.suppress(OSError):
        sys.stdout.write(ended.out)
    if ended.log:
        from preflight.hook.child import say

        say(ended.log, ended.level, told.log)
    return ended.code


def _worked(words: list[str], began: float, told: Told) -> tuple[Told, Ended | None, str]:
    """Have a child do it, and hear what it has found out; None and why, if it did not end well."""
    mine, its = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        _work(words, began, its, mine, parent)
    os.close(its)
    said = bytearray()
    try:
        while len(said) <= _LARGEST:
            left_s = max(0.0, began + told.budget_s - SHARE_S - time.monotonic())
            # What it has said is read also when the time is up: a pause may have come in between.
            if not select.select([mine], [], [], left_s)[0]:
                return told, None, f"it was not done within {told.budget_s:g} s"
            part = os.read(mine, 1 << 16)
            if not part:
                return told, *_ended(bytes(said))
            said += part
            told = _heard(bytes(said), told)
        return told, None, "its own child wrote without end"
    finally:
        os.close(mine)
        _end(pid)


def _heard(said: bytes, told: Told) -> Told:
    """The first line, once it is whole, says what the configuration wants."""
    line, found, _ = said.partition(b"\n")
    if not found:
        return told
    try:
        fields = json.loads(line)
        return Told(float(fields["budget_s"]), fields["observing"] is True, str(fields["log"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return told


def _ended(said: bytes) -> tuple[Ended | None, str]:
    """Read the last line; nothing but a whole and well-formed one may keep a job away."""
    *lines, rest = said.split(b"\n")
    try:
        if rest or not lines:
            return None, "its own child ended without an answer"
        fields = json.loads(lines[-1])
        if "broke" in fields:
            return None, f"preflight broke: {fields['broke']}"
        fields = fields[_RESULT]
        code, out, log, level = (fields[name] for name in ("code", "out", "log", "level"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, "its own child ended without an answer"
    sane = type(code) is int and code in (HEALTHY, UNHEALTHY, UNJUDGED)
    if not (sane and isinstance(out, str) and isinstance(log, str) and level in _LEVELS):
        return None, "its own child answered garbage"
    return Ended(code, out, log, level), ""


def _work(words: list[str], began: float, its: int, mine: int, parent: int) -> NoReturn:
    """The child: it holds no descriptor of the scheduler's, and answers through its pipe alone.

    It ends with its parent, which a script's time-out may end: who else would log what it does?
    """
    try:
        signal.signal(signal.SIGTERM, _leave)
        from preflight.hook.child import begin_probe, bind

        bind(parent)
        os.close(mine)
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        with contextlib.suppress(OSError):  # whoever asks it tries again, and says what is wrong
            begin_probe()

        def tell(**fields: object) -> None:
            os.write(its, json.dumps(fields).encode("ascii") + b"\n")

        from preflight.hook.work import work

        ended = work(words, began, tell)
        left = memoryview(json.dumps({_RESULT: ended._asdict()}).encode("ascii") + b"\n")
        while left:
            left = left[os.write(its, left) :]
    except BaseException as error:  # noqa: BLE001  it must not run on into what its parent does
        _last_words(its, error)
    finally:
        _leave()


def _last_words(its: int, error: BaseException) -> None:
    """Answer that preflight broke, and where: by the same way, so that it is logged."""
    with contextlib.suppress(BaseException):
        trace = error.__traceback__
        while trace and trace.tb_next:
            trace = trace.tb_next
        where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
        os.write(its, json.dumps({"broke": f"{type(error).__name__} at {where}"}).encode() + b"\n")


def _leave(*_: object) -> NoReturn:
    """End, and with us what was started for the node's facts, and to ask the scheduler."""
    with contextlib.suppress(BaseException):
        bounded = sys.modules.get("preflight.hook.slurm")
        if bounded is not None:
            bounded.end_what_runs()
    with contextlib.suppress(BaseException):
        sys.modules["preflight.hook.child"].end_probe()
    with contextlib.suppress(BaseException):
        pipes = sys.modules.get("preflight.core.remote_command")
        if pipes is not None:
            pipes._end_what_is_left()  # noqa: SLF001  what atexit would do
    os._exit(0)


def _fill_standard() -> None:
    """Open what standard descriptors are missing: a pipe must not get one of their numbers."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004  standard error
        pass
    os.close(opened)


def _end(pid: int) -> None:
    """End the child; one that waits in the kernel is left to it, and never waited for."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError):
            os.kill(pid, number)
        until = time.monotonic() + SHARE_S / 2
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    return
            time.sleep(0.005)


def _complain(text: str) -> None:
    with contextlib.suppress(BaseException):
        from preflight.hook.child import say

        say(text, "error")


if __name__ == "__main__":
    main()
