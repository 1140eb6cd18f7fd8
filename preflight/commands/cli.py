"""The command line: reads which verb was typed, and runs that verb's module.

Imports only the standard library at the top: `check` must not load what it isolates itself from.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import re
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NoReturn

from preflight import __version__
from preflight.commands import EXIT_CODES, hide_files, short_names, start
from preflight.core.command_line import (
    UNCLEAR,
    USAGE,
    WIDTH,
    Parser,
    columns,
    refuse_small_limits,
    say,
)
from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.core.registry import Registered

HELP = {
    "check": "check a fleet before a job starts, and name what is wrong",
    "list-checks": "list the checks, or explain one",
    "nightly": "check a whole fleet by night, in waves of idle nodes",
    "prolog": "check this node before a job starts: for schedulers, as root",
    "healthcheck": "check this node from time to time: for Slurm or cron",
    "install-hook": "install Slurm's prolog and health check on this node",
    "completion": "print what a shell needs to complete commands",
    "lint": "find what a training script will hang on; runs nothing",
    "watch": "start a launch, and keep evidence where it hangs or dies",
    "diagnose": "name the rank that a hanging job waits for",
    "explain": "name from a dead job's logs what ended it",
    "report": "write any report of a past run again",
    "history": "show what earlier runs measured",
    "blame": "name the component at fault from stored samples",
    "learn": "write an inventory of what the nodes have",
    "capture": "collect what a machine shows and measures, in one file",
    "read": "check outputs captured on a machine out of reach",
}
_OTHER_CODES = """\
`watch` exits as its launch does; `prolog` and `healthcheck`: see their --help;
`report`, `list-checks` and `completion` only print: 0
"""
_COMPLETION = """\
examples:
  eval "$(preflight completion bash)"        in ~/.bashrc; the same for zsh
  preflight completion fish >~/.config/fish/completions/preflight.fish
"""
_LIST_CHECKS = """\
examples:
  preflight list-checks               all of them
  preflight list-checks gpu.count     one: why, what it compares, how to fix it
"""
_RENAMED = {"run": "check", "checks": "list-checks", "sweep": "nightly"}
"""Verbs of version 0.1, and what they are called now."""

COMMANDS = (
    *("blame", "capture", "diagnose", "explain", "history", "install-hook", "learn", "lint"),
    *("read", "report"),
)
"""Verbs with a module of their own."""

ISOLATED = {
    "check": "preflight.commands.check",
    "nightly": "preflight.commands.nightly.command",
}
"""Verbs that load nothing from the current folder: for root, cron and schedulers."""

_OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a standard output that takes no more; a command that writes a file names it itself."""
_LIMIT_ERRORS = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
"""Errors of a limit (`ulimit`), or of a machine that is used up."""

VERBS = tuple(HELP)


_MAIN = "import sys; from preflight.commands.cli import main; sys.exit(main(sys.argv[1:], {}))"


def main(argv: Sequence[str] | None = None, env_fd: int | None = None) -> int:
    """Run one verb; wrong usage is one line and exit 4.

    `env_fd`: a descriptor that holds the environment for the launch that `watch` starts; None
    to pass on this process's own.
    """
    words = sys.argv[1:] if argv is None else argv
    is_completing = not words and "_ARGCOMPLETE" in os.environ
    if code := _guard(lambda: _isolate(words, is_first=argv is None, quiet=is_completing)):
        return code
    if is_completing:
        _complete(os.environ["COMP_LINE"])
    from preflight.commands.check import until_interrupted

    return until_interrupted(lambda: _guard(lambda: _run_verb(words, env_fd)))


def _isolate(words: Sequence[str], *, is_first: bool, quiet: bool) -> int:
    """Become an isolated Python if the verb or root needs one; else return 0."""
    if words[:1] and words[0] in ISOLATED:
        refuse_small_limits()
        hide_files()
        start(words[1:], ISOLATED[words[0]])
    if is_first and os.geteuid() == 0:
        env_fd = _environment_fd() if words[:1] == ["watch"] else None
        start(words, program=_MAIN.format(env_fd), quiet=quiet or env_fd is not None)
    return 0


def _guard(work: Callable[[], int]) -> int:
    """Return the code of this work; wrong usage, a limit or a full disk becomes one line."""
    from preflight.commands.check import output_failed

    try:
        return work()
    except UsageError as error:
        say(short_names(f"preflight: {error}"))
        return USAGE
    except ValueError as error:
        if "integer string conversion" not in str(error):
            raise
        say(
            "preflight: the input holds a number of more than 4,300 digits; correct it and run "
            "again"
        )
        return USAGE
    except MemoryError:
        return _report_limit(errno.ENOMEM)
    except OSError as error:
        if error.errno in _LIMIT_ERRORS:
            return _report_limit(error.errno)
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
            raise
        return output_failed(error)


def _report_limit(number: int) -> int:
    say(f"preflight: cannot go on: {os.strerror(number)}; raise the limit (ulimit -a shows it)")
    return UNCLEAR


def _complete(typed_line: str) -> None:
    """Print what may follow in a line that a shell completes, and exit."""
    import argcomplete

    verb = next((word for word in typed_line.split()[1:] if word in VERBS), "")
    parser = _parser(verb)
    subparsers: Any = parser._subparsers  # noqa: SLF001  argparse has no other way
    verbs: dict[str, Any] = subparsers._group_actions[0].choices  # noqa: SLF001
    if verb in ISOLATED:
        verbs[verb] = importlib.import_module(ISOLATED[verb]).parser()
    elif verb in ("prolog", "healthcheck"):
        verbs[verb] = importlib.import_module("preflight.hook.entry").option_parser(verb)
    elif verb == "watch":
        _module(verb).add_watch_options(verbs[verb])
    for action in verbs[verb]._actions if verb else ():  # noqa: SLF001
        if action.dest in ("id", "checks", "--preflight-checks"):
            action.completer = _ids_after_comma
        elif action.dest == "nodes" and not action.option_strings:
            action.completer = argcomplete.completers.SuppressCompleter()
    argcomplete.autocomplete(parser, always_complete_options="long")


def _ids_after_comma(prefix: str, **_: object) -> list[str]:
    from preflight.core.registry import shipped_checks

    before, comma, _last = prefix.rpartition(",")
    return [before + comma + registered.check.id for registered in shipped_checks()]


def _environment_fd() -> int:
    """Return a descriptor that holds the environment; the isolated Python inherits it."""
    import json

    handle = os.memfd_create("environment", 0)
    os.write(handle, json.dumps(dict(os.environ)).encode())
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def _run_verb(words: Sequence[str], env_fd: int | None) -> int:
    if words[:1] == ["watch"]:
        return _run_watch(words[1:], env_fd)
    arguments = _parser(next((word for word in words if word in COMMANDS), "")).parse_args(words)
    if arguments.verb == "completion":
        from argcomplete.shell_integration import shellcode

        print(shellcode(["preflight"], shell=arguments.shell))  # noqa: T201
        code = 0
    elif arguments.verb == "list-checks":
        code = _list_checks(arguments.id, as_json=arguments.json)
    elif arguments.verb in COMMANDS:
        code = int(_module(arguments.verb).run(arguments))
    else:
        _parser().print_help()
        code = 0
    sys.stdout.flush()  # so that `main` reports a full disk, and not Python at exit
    return code


def _module(verb: str) -> Any:
    return importlib.import_module(f"preflight.commands.{verb.replace('-', '_')}")


def _run_watch(words: Sequence[str], env_fd: int | None) -> int:
    """Run `watch` without loading the other verbs: it stays as long as the job runs."""
    from preflight.commands.watch import run

    if env_fd is None:
        return run(words, os.environ)
    import json

    with os.fdopen(env_fd, encoding="utf-8") as file:
        return run(words, json.load(file))


class _Verbs(Parser):
    def error(self, message: str) -> NoReturn:
        """Name the nearest verb for one that there is not."""
        unknown = re.match(r"argument VERB: invalid choice: '([^']*)'", message)
        if unknown:
            from preflight.core.text import did_you_mean

            new_name = _RENAMED.get(unknown[1])
            hint = f"; it is called {new_name} now" if new_name else did_you_mean(unknown[1], VERBS)
            message = f"unknown verb {unknown[1]!a}{hint}"
        super().error(message)


def _parser(chosen: str = "") -> argparse.ArgumentParser:
    parser = _Verbs(
        prog="preflight",
        description="Prove that a GPU fleet is ready before a job starts, and name the culprit "
        "when\nit is not.\nBegin with: preflight check 'gpu[001-064]'",
        epilog=f"{EXIT_CODES}\n{_OTHER_CODES}",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, 2, 16, WIDTH),
    )
    parser.add_argument("--version", action="version", version=f"preflight {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    for verb, about in HELP.items():
        description = f"{about[0].upper()}{about[1:]}."
        options = verbs.add_parser(verb, help=about, description=description)
        if verb == "completion":
            options.add_argument("shell", choices=("bash", "zsh", "fish"))
            options.epilog = _COMPLETION
        elif verb == "list-checks":
            options.add_argument("id", nargs="?", help="a check id such as gpu.count")
            options.add_argument("--json", action="store_true", help="print one JSON document")
            options.epilog = _LIST_CHECKS
        elif verb == chosen and verb in COMMANDS:
            # Only this one: all verbs take a second to load, and load what `check` must not.
            _module(verb).add_options(options)
    return parser


def _list_checks(check_id: str | None, *, as_json: bool) -> int:
    """List the checks, or print the page of one: what, why, what it costs, how to fix."""
    from preflight.core.registry import Registry, load_folder, shipped_folder
    from preflight.core.text import markdown_for_terminal

    shipped = load_folder(shipped_folder())
    matches = [registered for registered in shipped if registered.check.id == check_id]
    if not matches:
        from preflight.session.site import site_checks

        registry = Registry([*shipped, *site_checks()])
        matches = [*registry] if check_id is None else [registry.find(check_id)]
    if as_json:
        import json

        rows = [_row(registered, with_page=check_id is not None) for registered in matches]
        print(json.dumps({"schema": 1, "checks": rows}, indent=1))  # noqa: T201
    elif check_id is not None:
        print(markdown_for_terminal(_page(matches[0]), columns()))  # noqa: T201
    else:
        checks = [registered.check for registered in matches]
        id_width = max(len(check.id) for check in checks)
        tier_width = max(len(check.tier) for check in checks)
        for registered in matches:
            check = registered.check
            start = f"{check.id:<{id_width}}  {check.tier:<{tier_width}}  {check.stage:<6}  "
            first, indent = registered.about.splitlines()[0], " " * len(start)
            print(textwrap.fill(first, WIDTH, initial_indent=start, subsequent_indent=indent))  # noqa: T201
    return 0


def _row(registered: Registered, *, with_page: bool) -> dict[str, object]:
    check = registered.check
    row = {"id": check.id, "tier": check.tier, "stage": check.stage, "drains": check.drains,
           "about": registered.about.splitlines()[0]}  # fmt: skip
    return {**row, "page": _page(registered)} if with_page else row


def _page(registered: Registered) -> str:
    """Return the page of a check in docs/checks; of a site's, what its author wrote in the file."""
    from preflight.core.registry import page_of

    if page := page_of(registered.check.id):
        return page
    text = f"# {registered.check.id}\n\n{registered.about.strip()}\n\n(from {registered.path})"
    return "\n".join(line.rstrip() for line in text.splitlines())
