"""`preflight check`: the entry for root, cron and schedulers; runs no code but preflight's.

It runs in a separate Python, which `preflight.commands.start` begins.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, TypeVar, cast

from preflight.commands import EXIT_CODES, FILE_NAME, NO_ALIASES, short_names
from preflight.core.command_line import INTERRUPTED, UNCLEAR, USAGE, Parser, whole_number
from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Declare = Callable[[argparse.ArgumentParser], object]
    Arguments = TypeVar("Arguments", bound=argparse.Namespace)


PIPE_CLOSED: Final = 128 + signal.SIGPIPE
"""Exit code if the reader of standard output has left, as a shell reports it."""
CONFIG: Final = Path(__file__).resolve().parent.parent / "session" / "isolated.ini"

_WORKERS = (("-n", "--numprocesses"), ("--dist",), ("--max-worker-restart",))
_VALUES = (("-k",), ("-m",), ("--maxfail",), ("--junitxml",), ("--color",), ("-r",))
_CHOICES = {
    "--color": ("yes", "no", "auto"),
    "--dist": ("each", "load", "loadscope", "loadfile", "loadgroup", "worksteal", "no"),
}
_FLAGS = (("-x", "--exitfirst"), ("-v", "--verbose"), ("-q", "--quiet"), ("--collect-only", "--co"))
"""pytest's own options that are allowed; none of them loads code or another configuration."""


def until_interrupted(work: Callable[[], int]) -> int:
    """Return the code of this work, or 2 with one line for a Ctrl-C that nothing in it handles.

    Also one line, and 4, if the work needs the working folder, and that was deleted.

    `__main__` blocks SIGINT, so that it waits while Python starts or modules load; it comes here.
    """
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        code = work()
    except KeyboardInterrupt:
        _say_interrupted()
        drop_output()
        code = INTERRUPTED
    except SystemExit as ending:
        if not ending.code:  # of --help: Python's own flush would complain, and exit 120
            ending.code = _flush(0)
        raise
    except FileNotFoundError:
        try:
            os.getcwd()  # noqa: PTH109
        except FileNotFoundError:
            advice = "change into another one with cd, and run again"
            print(f"preflight: the working folder was deleted; {advice}", file=sys.stderr)  # noqa: T201
            code = USAGE
        else:
            raise
    # CPython ends itself by SIGINT once a Ctrl-C has left an exec() of a text, as in dataclasses;
    # the next such exec() takes that back.
    exec("")  # noqa: S102
    return code


def _say_interrupted() -> None:
    sys.stderr.write("\npreflight: interrupted\n")


class _EarlyInterrupt:
    """Reports a Ctrl-C that ended pytest before its session began: pytest itself prints nothing."""

    _is_interrupted = False

    def pytest_keyboard_interrupt(self) -> None:
        self._is_interrupted = True

    def pytest_sessionfinish(self) -> None:
        """Leave it to the summary: pytest calls this hook only if the session has begun."""
        self._is_interrupted = False

    def pytest_unconfigure(self) -> None:
        if self._is_interrupted:
            _say_interrupted()


def parser() -> _Parser:
    """Return the parser of this verb, which imports pytest."""
    parser = option_parser("preflight check", _DESCRIPTION, declare=add_report_json)
    parser.usage = "preflight check [NODES ...] [options]"
    parser.epilog = f"{_EXAMPLES}\n{EXIT_CODES}"
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run pytest on preflight's configuration; the exit codes are those of `pytest --preflight`."""
    import pytest

    arguments = parser().read(argv, argparse.Namespace())
    folders = " ".join(shlex.quote(str(Path(folder).absolute())) for folder in arguments.folder)
    shorten_names()
    report = PrintedReport() if arguments.json else None
    code = pytest.main(
        [
            f"-c{CONFIG}",
            f"--rootdir={CONFIG.parent}",
            "--noconftest",
            "--assert=plain",
            "-pno:cacheprovider",
            "-pno:doctest",
            *(["-pxdist.plugin"] if arguments.workers else []),
            "-ppreflight.plugin",
            f"-opreflight_checks={folders}",
            "--preflight",
            *arguments.words,
        ],
        plugins=[_EarlyInterrupt(), *([report] if report else [])],
    )
    return report.print(int(code)) if report else _flush(int(code))


class _ShortNames(io.TextIOWrapper):
    """A standard stream on which every option has the name that this verb gives it."""

    aliases = NO_ALIASES

    def write(self, text: str, /) -> int:
        """Write the text with these names, and return the length of the given text.

        pytest adds an empty line to the error for a wrong option; an error is one line here.
        """
        line = text.removesuffix("\n") if text.startswith("ERROR: ") else text
        super().write(short_names(line, self.aliases))
        return len(text)


def shorten_names(aliases: Mapping[str, str] = NO_ALIASES) -> None:
    """From now on, print `--tier` where a message says --preflight-tier; `aliases`: other names."""

    def wrap(stream: TextIO) -> _ShortNames:
        raw = cast("io.TextIOWrapper", stream)
        short = _ShortNames(raw.buffer, raw.encoding, raw.errors, line_buffering=raw.line_buffering)
        short.aliases = aliases
        return short

    sys.stdout.flush()
    sys.stdout, sys.stderr = wrap(sys.stdout), wrap(sys.stderr)


def _flush(code: int, answer: bytes = b"") -> int:
    """Write the answer and flush; return `code`, or the code of an output that takes no more."""
    try:
        sys.stdout.buffer.write(answer)
        sys.stdout.flush()
    except OSError as error:
        return output_failed(error)
    return code


def drop_output() -> None:
    """Discard what standard output still buffers: Python's flush at exit must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def output_failed(error: OSError) -> int:
    """Drop the output; return 141 for a reader that has left, else print why and return 4."""
    drop_output()
    if isinstance(error, BrokenPipeError):
        return PIPE_CLOSED  # head or less has seen enough; 0 may mean that the fleet is ready
    print(f"preflight: cannot write the answer: {error.strerror}", file=sys.stderr)  # noqa: T201
    return USAGE


class PrintedReport:
    """`--json`: standard output gets report.json alone, standard error what pytest shows."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._stdout = os.dup(1)
        os.dup2(2, 1)
        self.folder: Path | None = None

    def pytest_preflight_report(self, folder: Path) -> None:
        """Remember where the report is; this hook is called once, when it is written."""
        self.folder = folder

    def print(self, code: int) -> int:
        """Write the report to standard output; the exit code, 3 where there is no report."""
        sys.stdout.flush()
        os.dup2(self._stdout, 1)
        path = self.folder / "report.json" if self.folder else None
        if path is None or not path.is_file():
            return code or UNCLEAR
        return _flush(code, path.read_bytes())


_DESCRIPTION = """\
Check a fleet before a job starts, and name what is wrong with which node.
Without NODES and --inventory, check the Slurm job's nodes, or this machine.

The run is that of `pytest --preflight`, where --NAME is --preflight-NAME. This
command ignores the current folder's conftest.py, ini file and plugins, so root,
cron and schedulers can use it.
"""

_EXAMPLES = """\
examples:
  preflight check                            this machine, or the job's nodes
  preflight check 'gpu[001-064]'             64 nodes over SSH
  preflight check -i fleet.toml              what each group must have
  preflight check -i fleet.toml --co         what would run, and how long
  preflight check 'gpu[1-8]' --json > f.json the report for a program
"""


def add_report_json(parser: argparse.ArgumentParser) -> None:
    """Declare `--json` of the verbs that show how a run goes on."""
    about = "print report.json on standard output; the rest goes to standard error"
    parser.add_argument("--json", action="store_true", help=about)


class _Forward(argparse.Action):
    """Hands an option on to pytest, which knows its type."""

    pytest_name = ""
    """The option's name in pytest, if the user typed another."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Store the option in the typed order, by its name in pytest."""
        del parser
        name = self.pytest_name or str(option_string)
        word = f"{name}={values}" if name.startswith("--") else f"{name}{values}"
        namespace.words.append(name if self.nargs == 0 else word)
        namespace.workers |= bool({*self.option_strings} & {names[0] for names in _WORKERS})


def _keep_text(kind: Callable[[str], object]) -> Callable[[str], str]:
    """Return a type for argparse that checks a word by `kind`, and keeps it as it was typed."""

    def number(text: str) -> str:
        kind(text)
        return text

    return number


_whole = _keep_text(whole_number)


def _workers(text: str) -> str:
    return text if text in ("auto", "logical") else _whole(text)


def _expression(text: str) -> str:
    """Refuse what pytest cannot parse, which it would report after the run's header."""
    from _pytest.mark.expression import Expression

    try:
        Expression.compile(text)
    except Exception as error:  # noqa: BLE001  its type differs between versions of pytest
        reason = getattr(error, "msg", error)
        raise argparse.ArgumentTypeError(f"cannot read {text[:40]!a}: {reason}") from None
    return text


def _new_file(text: str) -> str:
    from preflight.core.files import typed_path

    try:
        is_folder = typed_path(text).is_dir()
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if is_folder or text in ("", "-") or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is no name of a file; give one")
    return text


_TYPES = {"-k": _expression, "-m": _expression, "--junitxml": _new_file, "--maxfail": _whole,
          "-n": _workers, "--max-worker-restart": _whole}  # fmt: skip


_SHORT_OPTIONS = {"--preflight-inventory": ("-i",)}


class _Parser(Parser):
    aliases = NO_ALIASES
    """The verb's own names for the plugin's options whose `--NAME` means something else there."""

    def add_run_options(self) -> None:
        """Add `--preflight-NAME` of the plugin, and `--NAME` or the name that the verb gives it."""
        from preflight.session.flags import GROUPS, value_settings

        for title, options in GROUPS.values():
            add = self.add_argument_group(title.partition(" (")[0]).add_argument
            for pytest_name, (value, about) in options.items():
                if pytest_name == "--preflight":
                    add(pytest_name, action="store_true", help=argparse.SUPPRESS)
                    continue
                settings = value_settings(value)
                if "type" in settings:
                    settings["type"] = _keep_text(settings["type"])
                settings |= {"action": _Forward, "nargs": None if value else 0}
                add(pytest_name, dest=pytest_name, help=argparse.SUPPRESS, **settings)
                verb_name = f"--{pytest_name.removeprefix('--preflight-')}"
                spellings = (*_SHORT_OPTIONS.get(pytest_name, ()),
                             self.aliases.get(pytest_name, verb_name))  # fmt: skip
                option = add(*spellings, help=about, **settings)
                cast("_Forward", option).pytest_name = pytest_name

    def read(self, argv: Sequence[str] | None, namespace: Arguments) -> Arguments:
        """Parse; `words` are the options for pytest, in the typed order."""
        namespace.words, namespace.workers = [], False
        arguments: Arguments = self.parse_args(argv, namespace)
        for folder in arguments.folder:
            if not folder or not Path(folder).is_dir():
                self.error(f"--site-checks={folder}: there is no such folder")
        if arguments.json and {"--co", "--collect-only"} & {*arguments.words}:
            self.error("--json prints the report, and --co makes none: leave one of them out")
        self._refuse_checks(arguments)
        if arguments.nodes:
            if FILE_NAME.fullmatch(name := arguments.nodes[0][:80]):
                self.error(f"{name!a} is no node; give an inventory as --inventory={name}")
            if any(word.startswith("--preflight-nodes=") for word in arguments.words):
                self.error("nodes are given twice: as NODES and as --nodes; give them once")
            arguments.words.append(f"--preflight-nodes={','.join(arguments.nodes)}")
        return arguments

    def _refuse_checks(self, arguments: argparse.Namespace) -> None:
        """Refuse ids of checks among the nodes: `--checks a b` takes one word.

        Also unknown ids, before an inventory or Slurm is asked; those of a folder of the site are
        known to the session.
        """
        from preflight.core.registry import shipped_checks, shipped_folder

        options = [word for word in arguments.words if word.startswith("--preflight-checks=")]
        check_ids = [word for word in arguments.nodes if re.fullmatch(r"[a-z]+\.[a-z_]+", word)
                 and (shipped_folder() / word.partition(".")[0]).is_dir()]  # fmt: skip
        if check_ids:
            ids = [option.partition("=")[2] for option in options] + check_ids
            self.error(f"{check_ids[0]!a} is a check, not a node: type --checks={','.join(ids)}")
        try:
            if options and not arguments.folder:
                shipped_checks().select(options[-1].partition("=")[2])
        except UsageError as error:
            self.error(short_names(str(error), self.aliases))


def option_parser(
    prog: str, description: str, declare: Declare, aliases: Mapping[str, str] = NO_ALIASES
) -> _Parser:
    """Return a parser with every option of the plugin, and those of pytest that load no code.

    `declare` adds the verb's own options, which are shown first; `aliases` are the names
    of the plugin's options whose `--NAME` is one of these.
    """
    parser = _Parser(prog=prog, allow_abbrev=False, description=description)
    parser.aliases = aliases
    declare(parser)
    add = parser.add_argument
    add("nodes", metavar="NODES", nargs="*", help="as --nodes: 'gpu[001-064]', a,b or @group")
    add("--site-checks", dest="folder", metavar="DIR", action="append", default=[],
        help="folder with the site's own checks; may be given several times")  # fmt: skip
    parser.add_run_options()
    pytests = parser.add_argument_group("pytest's own, as `pytest --help` explains them")
    for names in (*_WORKERS, *_VALUES):
        kind, choices = _TYPES.get(names[0]), _CHOICES.get(names[0])
        pytests.add_argument(*names, action=_Forward, type=kind or str, choices=choices)
    for names in _FLAGS:
        pytests.add_argument(*names, action=_Forward, nargs=0)
    return parser


if __name__ == "__main__":
    sys.exit(until_interrupted(main))
