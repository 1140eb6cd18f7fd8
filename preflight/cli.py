"""The `preflight` command: what needs no test session, and `run`, which starts its own.

Imports the standard library only, and the rest on use: `run` must not load what it isolates from.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import re
import signal
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from preflight import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.core.registry import Registered

INTERRUPTED, USAGE, UNHEARD = 2, 4, 128 + signal.SIGPIPE
HELP = {
    "checks": "list the checks, or explain one",
    "blame": "name who is to blame in stored samples of a sweep",
    "lint": "say what a training script will hang on; runs nothing",
    "read": "judge outputs captured on a machine out of reach",
    "capture": "collect what a machine shows and measures, in one file",
    "diagnose": "say which rank a job that hangs now waits for",
    "explain": "say from a dead job's log what ended it",
    "history": "tell what earlier runs measured",
    "learn": "write an inventory of what the nodes have",
    "prolog": "judge this node before a job starts: for schedulers, as root",
    "healthcheck": "judge this node from time to time: for Slurm or cron",
    "report": "write any report of a past run again",
    "run": "judge a fleet, isolated: for root, cron and schedulers",
    "sweep": "judge a whole fleet by night, in waves of idle nodes",
    "watch": "start a launch, and keep evidence where it hangs or dies",
}
COMMANDS = ("blame", "capture", "diagnose", "explain", "history", "learn", "lint", "read", "report")
"""Verbs with a module of their own."""

ISOLATED = {"run": "preflight.commands.run", "sweep": "preflight.commands.sweep"}
"""Verbs that load nothing of the place they are started in: for root, cron and schedulers."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What standard output says where it takes no more; a command names a file of its own itself."""

VERBS = (*COMMANDS, *ISOLATED, "checks", "healthcheck", "prolog", "watch")
WIDTH = 80
"""Columns of the narrowest terminal people work in."""


_AGAIN = "import sys; from preflight.cli import main; sys.exit(main(sys.argv[1:], {}))"


def main(argv: Sequence[str] | None = None, launch: int | None = None) -> int:
    """Run one verb; wrong usage is one line and exit 4.

    `launch`: a descriptor that holds the environment of what `watch` starts; None where it is ours.
    """
    words = sys.argv[1:] if argv is None else argv
    _open_streams()
    if words[:1] in (["prolog"], ["healthcheck"]):
        _judge_here(words)
    if words[:1] and words[0] in ISOLATED:
        from preflight.commands.run import start

        os.umask(0o027)
        start(words[1:], ISOLATED[words[0]])
    if argv is None and os.geteuid() == 0:
        from preflight.commands.run import start

        launch = _own_environment() if words[:1] == ["watch"] else None
        start(words, program=_AGAIN.format(launch), quiet=launch is not None)
    from preflight.errors import UsageError

    try:
        return _verb(words, launch)
    except BrokenPipeError:
        _drop_output()  # the reader (head, less) has seen enough; 0 may mean "all is well"
        return UNHEARD
    except KeyboardInterrupt:
        print("\npreflight: interrupted", file=sys.stderr)  # noqa: T201  a command speaks on its terminal
        _drop_output()
        return INTERRUPTED
    except UsageError as error:
        from preflight.core.text import printable

        said = printable(str(error))  # it may name a file whose name is an escape sequence
        print(f"preflight: {said}", file=sys.stderr)  # noqa: T201
        return USAGE
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        print(f"preflight: cannot write the answer: {error.strerror}", file=sys.stderr)  # noqa: T201
        _drop_output()
        return USAGE


def _own_environment() -> int:
    """A descriptor that holds it, and that the next program in this process inherits."""
    import json

    handle = os.memfd_create("environment", 0)
    os.write(handle, json.dumps(dict(os.environ)).encode())
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def _verb(words: Sequence[str], launch: int | None) -> int:
    if words[:1] == ["watch"]:
        return _watch(words[1:], launch)
    arguments = _parser(next((word for word in words if word in COMMANDS), "")).parse_args(words)
    if arguments.verb == "checks":
        code = _checks(arguments.id)
    elif arguments.verb in COMMANDS:
        code = _command(arguments)
    else:
        _parser().print_help()
        code = USAGE
    sys.stdout.flush()  # a full disk is told in a line of ours, and not by Python at exit
    return code


def _command(arguments: argparse.Namespace) -> int:
    command = importlib.import_module(f"preflight.commands.{arguments.verb}")
    try:
        return int(command.run(arguments))
    except ValueError as error:
        if "integer string conversion" not in str(error):
            raise
        from preflight.errors import UsageError

        raise UsageError("what was given holds a number of over 4,300 digits") from error


def _drop_output() -> None:
    """Let go what standard output holds: Python's own flush at exit must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    """Nothing behind a stream that the caller closed: else our next file takes its number.

    A watched launch would then write its output into that file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number, which is the stream's own; a launch inherits it.
            handle = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(handle, True)  # noqa: FBT003  its only argument
            setattr(sys, name, os.fdopen(handle, mode, encoding="utf-8", closefd=False))


def _watch(words: Sequence[str], launch: int | None) -> int:
    """Apart from the other verbs: it stays for as long as a job runs, and loads nothing of them."""
    from preflight.commands.watch import run

    if launch is None:
        return run(words, os.environ)
    import json

    with os.fdopen(launch, encoding="utf-8") as file:
        return run(words, json.load(file))


def _judge_here(words: Sequence[str]) -> None:
    """Hand over to the scheduler's hook; where that is broken, exit as for a node not judged."""
    try:
        importlib.import_module("preflight.commands.run").judge_node(words)
    except Exception as error:  # noqa: BLE001  a traceback would exit 1, which drains the node
        told = f"preflight: {words[0]} cannot be started ({type(error).__name__})"
        print(f"{told}, so this node was not checked; install it again", file=sys.stderr)  # noqa: T201
        sys.exit(2 if "--plain" in words else int("--fail-closed" in words))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        """Exit 4 as everywhere else in preflight; argparse would say 2, which means interrupted."""
        from preflight.core.text import did_you_mean

        unknown = re.match(r"argument VERB: invalid choice: '([^']*)'", message)
        if unknown:
            message = f"unknown verb {unknown[1]!a}{did_you_mean(unknown[1], VERBS)}"
        self.exit(USAGE, f"preflight: {message}; see: preflight --help\n")


def _parser(chosen: str = "") -> argparse.ArgumentParser:
    parser = _Parser(
        prog="preflight",
        description="Prove a GPU fleet fit before the job starts. To judge one, run: "
        "pytest --preflight --preflight-nodes='gpu[001-064]'",
    )
    parser.add_argument("--version", action="version", version=f"preflight {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for verb, about in HELP.items():
        options = verbs.add_parser(verb, help=about)
        if verb == "checks":
            options.add_argument("id", nargs="?", help="a check id such as gpu.count")
        elif verb == chosen and verb in COMMANDS:
            # Only this one: loading every verb would take a second, and much that `run` must not.
            importlib.import_module(f"preflight.commands.{verb}").add_options(options)
    return parser


def _checks(check_id: str | None) -> int:
    from preflight.core.registry import Registry, load_folder, shipped_folder

    shipped = load_folder(shipped_folder())
    if any(registered.check.id == check_id for registered in shipped):
        return _explain(str(check_id))
    from preflight.session.site import site_checks

    registry = Registry([*shipped, *site_checks()])
    if check_id is not None:
        return _explain_own(registry.find(check_id))
    wide = max(len(registered.check.id) for registered in registry)
    for registered in registry:
        check = registered.check
        first = registered.about.splitlines()[0]
        start = f"{check.id:<{wide}}  {check.tier:<6}  {check.stage:<6}  "
        print(  # noqa: T201
            textwrap.fill(first, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
        )
    return 0


def _explain_own(registered: Registered) -> int:
    """Print the page of a site's check: what its author wrote at the top of its file."""
    page = registered.about.strip()
    first = f"# {registered.check.id}\n\n{page}\n\n(from {registered.path})"
    print("\n".join(line.rstrip() for line in first.splitlines()))  # noqa: T201
    return 0


def _explain(check_id: str) -> int:
    """Print the page of one check: what, why, what it costs, how to fix."""
    package = Path(__file__).resolve().parent
    for folder in (package / "docs" / "checks", package.parent / "docs" / "checks"):
        page = folder / f"{check_id}.md"
        if page.is_file():
            print(page.read_text(encoding="utf-8").rstrip())  # noqa: T201
            return 0
    print(f"{check_id} has no page here; see docs/checks in the sources")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
