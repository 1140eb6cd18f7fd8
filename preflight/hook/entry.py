"""Reads the hook's options, and runs it so that no error of preflight keeps a job from a node.

A child does the work under a deadline. If it does not return a valid result, the hook logs an
error and exits 0: a scheduler reads any other exit as a broken node.
Standard library only, and little of it: this must work where nothing else can be imported.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, cast

from preflight.hook.child import (
    HEALTHY,
    RESERVE_S,
    UNHEALTHY,
    UNJUDGED,
    HookResult,
    Options,
    begin_probe,
    end_probe,
    end_with_parent,
    say,
)

if TYPE_CHECKING:
    import argparse

    from preflight.hook.hook_values import Occasion


BUDGET_S: Final = {"prolog": 8.0, "healthcheck": 30.0}
"""Used until the configuration has been read, which may set other budgets."""


_PROLOG: Final = """\
Check this node and the GPUs of the job that is to start (SLURM_JOB_GPUS),
within 8 s and without any load on the GPUs. Run it as root from a prolog.

  preflight prolog              Slurm's Prolog=: drains if hook.toml sets
                                `enforce`; by default it only logs
  preflight prolog --plain      other schedulers: the exit code is the result

Prints and logs nothing on a ready node; else one line in syslog, and
state_dir/last.json. What it reads, drains and logs: docs/reference/prolog.md"""

_HEALTHCHECK: Final = """\
Check this node with all its GPUs, within 30 s and without any load on the GPUs.
Run it as root from Slurm's HealthCheckProgram= or cron.

  preflight healthcheck --periodic       also save the facts for prologs
  preflight healthcheck --plain --json   show everything that it finds

Prints and logs nothing on a ready node; else one line in syslog, and
state_dir/last.json. What it reads and drains: docs/reference/prolog.md"""


def option_parser(occasion: Occasion) -> argparse.ArgumentParser:
    """Return the parser of `preflight prolog` or `preflight healthcheck`."""
    from preflight.core.command_line import Parser, path_type

    parser = Parser(
        prog=f"preflight {occasion}",
        allow_abbrev=False,
        description=_PROLOG if occasion == "prolog" else _HEALTHCHECK,
    )
    add = parser.add_argument
    add("--config", metavar="FILE", type=path_type,
        help="the hook's configuration (default: /etc/preflight/hook.toml)")  # fmt: skip
    add("--node", default="", metavar="NAME",
        help="this node's name in the inventory "
        "(default: SLURMD_NODENAME, else the host name)")  # fmt: skip
    add("--plain", action="store_true",
        help="call no scheduler; exit 0 ready, 1 not ready, 2 unknown")  # fmt: skip
    add("--json", action="store_true", help="print what was found, as JSON")
    add("--limit", type=_seconds, metavar="S", dest="limit_s",
        help="the caller ends this after S seconds: refuse a longer budget")  # fmt: skip
    if occasion == "prolog":
        add("--fail-closed", action="store_true",
            help="if preflight itself fails, exit 1 to keep the job from this node")  # fmt: skip
    else:
        add("--periodic", action="store_true",
            help="save the facts in state_dir for prologs, which have less time")  # fmt: skip
    return parser


def parse_options(words: Sequence[str]) -> Options:
    """Read the words behind `preflight`; SystemExit for --help (0) and for wrong usage (4)."""
    occasion = cast("Occasion", words[0])
    parser = option_parser(occasion)
    options = Options(occasion, **vars(parser.parse_args(list(words[1:]))))
    if options.fail_closed and options.plain:
        parser.error("--fail-closed excludes --plain, which exits 2 when the result is unknown")
    return options


def _seconds(text: str) -> float:
    from argparse import ArgumentTypeError

    from preflight.core.command_line import decimal_number

    if not 0 < (number := decimal_number(text)) < math.inf:
        raise ArgumentTypeError(f"give seconds, more than 0, not {text[:40]!a}")
    return number


_LARGEST: Final = 8 << 20
_RESULT: Final = "end"
_LEVELS: Final = ("info", "warning", "error")


class Settings(NamedTuple):
    """The settings that the child read from the configuration."""

    budget_s: float
    observing: bool = False
    log: str = "syslog"


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Judge this node; `argv` begins with "prolog" or "healthcheck". Never returns or raises."""
    words = list(sys.argv[1:] if argv is None else argv)
    code = UNJUDGED if "--plain" in words else int("--fail-closed" in words)
    try:
        _open_standard()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # blocked while this was loaded
        code = _run_guarded(words)
    except SystemExit as exit_request:
        # argparse: 0 is --help. A wrong option in a prolog's script must not empty the fleet.
        code = HEALTHY if exit_request.code in (0, None) else code
        if exit_request.code not in (0, None):
            _log_error(f"wrong usage: this node was not checked; preflight {words[0]} --help")
    except KeyboardInterrupt:
        _log_error("interrupted: this node was not checked")
    except BaseException as error:  # noqa: BLE001  a traceback would exit 1, which drains the node
        _log_error(f"preflight broke: {type(error).__name__}; this node was not checked")
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    os._exit(code)


def _run_guarded(words: Sequence[str]) -> int:
    began = time.monotonic()
    options = parse_options(words)
    settings, result, why = _run_child(options, began, Settings(BUDGET_S[options.occasion]))
    if result is None:
        blocks = options.fail_closed and not settings.observing
        act = "--fail-closed keeps the job away" if blocks else "no reason to drain"
        say(f"{options.occasion}: {why}; this node was not checked: {act}", "error", settings.log)
        code = UNHEALTHY if blocks else UNJUDGED if options.plain else HEALTHY
        if options.json:
            decision = {"action": "none", "exit_code": code, "reason": "", "log": why}
            sys.stdout.write(json.dumps({"trouble": why, "decision": decision}, indent=2) + "\n")
        return code
    # What was done is logged even if standard output is closed.
    with contextlib.suppress(OSError):
        sys.stdout.write(result.out)
    if result.log:
        say(result.log, result.level, settings.log)
    return result.code


def _run_child(
    options: Options, began: float, settings: Settings
) -> tuple[Settings, HookResult | None, str]:
    """Run the work in a child; return its settings and result, or None and why there is none."""
    read_end, pipe = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        _child_main(options, began, pipe, read_end, parent)
    os.close(pipe)
    received = bytearray()
    try:
        while len(received) <= _LARGEST:
            left_s = max(0.0, began + settings.budget_s - RESERVE_S - time.monotonic())
            # After a pause of the machine the time may be up while output is waiting: read it.
            if not select.select([read_end], [], [], left_s)[0]:
                return settings, None, f"it did not finish within {settings.budget_s:g} s"
            chunk = os.read(read_end, 1 << 16)
            if not chunk:
                return settings, *_parse_result(bytes(received))
            received += chunk
            settings = _parse_settings(bytes(received), settings)
        return settings, None, f"its child wrote more than {_LARGEST >> 20} MiB"
    finally:
        os.close(read_end)
        _end_child(pid)


def _parse_settings(received: bytes, defaults: Settings) -> Settings:
    """Read the settings from the first line; the defaults until that line is whole."""
    line, newline, _ = received.partition(b"\n")
    if not newline:
        return defaults
    try:
        fields = json.loads(line)
        return Settings(float(fields["budget_s"]), fields["observing"] is True, str(fields["log"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return defaults


def _parse_result(received: bytes) -> tuple[HookResult | None, str]:
    """Read the result from the last line: only a whole and valid one may keep a job away."""
    *lines, incomplete = received.split(b"\n")
    try:
        if incomplete or not lines:
            return None, "its child ended without a result"
        fields = json.loads(lines[-1])
        if "broke" in fields:
            return None, f"preflight broke: {fields['broke']}"
        fields = fields[_RESULT]
        code, out, log, level = (fields[name] for name in ("code", "out", "log", "level"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, "its child ended without a result"
    is_valid = type(code) is int and code in (HEALTHY, UNHEALTHY, UNJUDGED)
    if not (is_valid and isinstance(out, str) and isinstance(log, str) and level in _LEVELS):
        return None, "its child returned an invalid result"
    return HookResult(code, out, log, level), ""


def _child_main(options: Options, began: float, pipe: int, read_end: int, parent: int) -> NoReturn:
    """Run the child: it holds no descriptor of the scheduler and reports only through its pipe.

    It ends with its parent, which a script's timeout may kill: only the parent logs what it does.
    """
    try:
        gc.disable()  # this process ends in seconds; what it loads is no garbage
        signal.signal(signal.SIGTERM, _exit_child)
        end_with_parent(parent)
        os.close(read_end)
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        with contextlib.suppress(OSError):  # the first request tries again and reports the error
            begin_probe()

        def send_settings(**fields: object) -> None:
            os.write(pipe, json.dumps(fields).encode("ascii") + b"\n")

        from preflight.hook.work import work

        result = work(options, began, send_settings)
        unsent = memoryview(json.dumps({_RESULT: result._asdict()}).encode("ascii") + b"\n")
        while unsent:
            unsent = unsent[os.write(pipe, unsent) :]
    except BaseException as error:  # noqa: BLE001  the child must not go on with the parent's code
        _report_crash(pipe, error)
    finally:
        _exit_child()


def _report_crash(pipe: int, error: BaseException) -> None:
    """Report through the pipe that preflight broke, and where, so that the parent logs it."""
    with contextlib.suppress(BaseException):
        trace = error.__traceback__
        while trace and trace.tb_next:
            trace = trace.tb_next
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
        os.write(pipe, json.dumps({"broke": f"{type(error).__name__} at {place}"}).encode() + b"\n")


def _exit_child(*_: object) -> NoReturn:
    """Exit, after ending the probe and any running call to the scheduler."""
    with contextlib.suppress(BaseException):
        slurm = sys.modules.get("preflight.hook.slurm")
        if slurm is not None:
            slurm.end_programs()
    with contextlib.suppress(BaseException):
        end_probe()
    with contextlib.suppress(BaseException):
        remote_command = sys.modules.get("preflight.core.remote_command")
        if remote_command is not None:
            remote_command.end_leftover_commands()  # as atexit would
    os._exit(0)


def _open_standard() -> None:
    """Open missing standard descriptors, so that no pipe gets one of their numbers."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004  standard error
        pass
    os.close(opened)


def _end_child(pid: int) -> None:
    """End the child, but do not wait for one that hangs in the kernel."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError):
            os.kill(pid, number)
        until_s = time.monotonic() + RESERVE_S / 2
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    return
            time.sleep(0.005)


def _log_error(text: str) -> None:
    with contextlib.suppress(BaseException):
        say(text, "error")


if __name__ == "__main__":
    main()
