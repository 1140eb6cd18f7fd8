"""The verbs of the `preflight` command, a module each, and their shared options and output.

Imports only the standard library, and the rest on use: `check` and `prolog` must not load what they
isolate from, and other imports could have been planted. They run in a separate Python, which reads
neither PYTHON* variables nor the working folder.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from msgspec import Struct

    from preflight.fleet.model import Fleet

TARGETS = ("nodes", "inventory", "exclude", "transport", "python")
"""The options of `add_targets`."""

EXIT_CODES = """\
exit codes, the same in every verb:
  0 nothing wrong was found
  1 something is wrong, or a node could not be judged: it is named
  2 interrupted
  3 could not tell: nothing is named
  4 wrong usage
  5 nothing to check
"""


def add_targets(parser: argparse.ArgumentParser, inventory: str = "") -> None:
    """Declare the options that choose nodes; `inventory` is added to the help of that option."""
    add, as_check = parser.add_argument, "as for preflight check"
    add("--nodes", metavar="LIST", help="the same as NODES; "
        "default: the allocation, else this machine")  # fmt: skip
    add("-i", "--inventory", metavar="FILE", help=as_check + inventory)
    add("--exclude", metavar="LIST", help="nodes to leave out")
    add("--transport", metavar="NAME", help=as_check)
    add("--python", metavar="CMD", help=as_check)


def add_nodes_or_folder(parser: argparse.ArgumentParser, metavar: str, about: str) -> None:
    """Declare the words that are nodes, or one folder of an earlier run, which `about` explains."""
    parser.add_argument(
        "words", metavar="NODES", nargs="*", help=f"as in 'gpu[001-064]'; or {metavar}, {about}"
    )


def folder_among(arguments: argparse.Namespace) -> Path | None:
    """Return the folder or file among the words, if there is one.

    A word is a path if something of that name exists, or if no node can have that name.
    """
    from preflight.core.files import typed_path
    from preflight.errors import UsageError

    words: list[str] = arguments.words
    paths = [word for word in words if "/" in word or word.isdecimal() or os.path.lexists(word)]
    if paths and len(words) > 1:
        raise UsageError(f"{paths[0]!a:.80} is taken for a path: give one folder, or only nodes")
    if len(words) == 1 and not paths and FILE_NAME.fullmatch(words[0]):
        raise UsageError(
            f"there is no file or folder {words[0]!a:.80}; give one that exists. To ask a node of "
            f"this name, type --nodes={words[0]:.80}"
        )
    return typed_path(paths[0]) if paths else None


FILE_NAME: Final = re.compile(r".+\.(json|toml|ya?ml|html|gz|log|txt)")
"""A word in the place of a node that is a file's name."""


_PYTEST_NAME = re.compile(r"(?<!-m )pytest\s+--preflight(?![\w-])|--preflight-(?=[a-z])([a-z-]*)")
NO_ALIASES: Mapping[str, str] = {}


def short_names(text: str, aliases: Mapping[str, str] = NO_ALIASES) -> str:
    """Replace pytest's names of options by those of `preflight check`, or by a verb's `aliases`."""

    def alias(match: re.Match[str]) -> str:
        if match[1] is None:
            return "preflight check"
        return aliases.get(match[0], f"--{match[1]}")

    return _PYTEST_NAME.sub(alias, text)


def fleet_of(arguments: argparse.Namespace) -> Fleet:
    """Find the nodes that these options name; UsageError if they name none."""
    from preflight.fleet.sources import FleetRequest, resolve

    if arguments.words:
        if arguments.nodes is not None:
            from preflight.errors import UsageError

            raise UsageError("nodes are given twice: as NODES and as --nodes; give them once")
        arguments.nodes = ",".join(arguments.words)
    targets = {name: getattr(arguments, name) for name in TARGETS}
    return resolve(FleetRequest(**targets, environ=dict(os.environ)))


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare `--json`, for every verb that can also print a document."""
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def add_ras(parser: argparse.ArgumentParser) -> None:
    """Declare `--ras`, for the verbs that read what the ranks of a job do."""
    parser.add_argument("--ras", choices=("auto", "always", "never"), default="auto",
                        help="ask NCCL's RAS service once (auto: not an NCCL before 2.29.2, "
                        "which may crash when asked)")  # fmt: skip


def print_lines(lines: Callable[[int], Iterable[str]]) -> None:
    """Print lines laid out for the terminal's width, at most 100 columns."""
    from preflight.core.command_line import columns

    sys.stdout.write("".join(f"{line}\n" for line in lines(columns())))


def print_answer(
    arguments: argparse.Namespace,
    document: Struct,
    lines: Callable[[int], Iterable[str]],
    indent: int = 1,
) -> None:
    """Print the document with --json, else the lines."""
    if arguments.json:
        from preflight.core.text import plain_json

        sys.stdout.write(plain_json(document, indent))
    else:
        print_lines(lines)


def remark(words: str) -> None:
    """Print a remark on standard error, apart from the answer."""
    from preflight.core.command_line import say

    say(f"preflight: {words}")


def open_streams() -> None:
    """Open /dev/null for each stream that the caller closed: our next file would take its number.

    A watched launch would then write its output into that file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number, which is the stream's own; a launch inherits it.
            handle = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(handle, True)  # noqa: FBT003  its only argument
            setattr(sys, name, os.fdopen(handle, mode, encoding="utf-8", closefd=False))


_DROPPED = ("PYTHON", "PYTEST_")
"""Variables that make Python or pytest load code or options from elsewhere."""

_KEPT_FOR_ROOT = re.compile(
    r"PATH|LD_LIBRARY_PATH|LANG|LC_\w+|TZ|TERM|NO_COLOR|COLUMNS|LINES|USER|LOGNAME|TMPDIR"
    r"|XDG_RUNTIME_DIR|SSH_AUTH_SOCK|SLURMD?_(?!CONF_SERVER)\w+|PREFLIGHT_\w+"
    r"|_ARGCOMPLETE\w*|COMP_(LINE|POINT|TYPE)|PG(PASSWORD|PASSFILE|SSLMODE|SSLROOTCERT)|(OMPI_COMM_WORLD|PMI)_RANK"
)
"""Variables that root keeps, besides the job's variables that checks read. Another user may have
set any other."""

_NOT_PATHS = ("SSH_AUTH_SOCK", "PREFLIGHT_HISTORY", "COMP_LINE")
"""Variables that are kept without a check of their paths: an agent only signs, a history may be a
database URL, a typed line is only completed."""

_ISOLATION = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    # xdist starts its workers as `python -c`, which would look for modules here first.
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
}


def start(
    argv: Sequence[str],
    module: str = "preflight.commands.check",
    program: str = "",
    *,
    quiet: bool = False,
) -> NoReturn:
    """Replace this process by an isolated Python; for root, with `root_environment`.

    `program`: lines of Python instead of a module. It writes no compiled files, which a full disk
    could damage; nor do root's runs, whose files others could not read. `quiet`: do not name the
    removed variables.
    """
    no_pyc = ["-B"] if program or os.geteuid() == 0 else []
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    if argv:
        environ.pop("_ARGCOMPLETE", None)  # pytest would take the run for a completion, and exit 0
    if os.geteuid() == 0:
        environ, refusals = root_environment(environ)
        if refusals and not quiet:
            from preflight.core.text import printable

            names = "; ".join(map(printable, refusals))
            print("preflight: not taken from the environment:", names, file=sys.stderr)  # noqa: T201
    if sys.stdout is not None:
        sys.stdout.flush()
    entry = ("-c", program) if program else ("-m", module)
    words = [sys.executable, "-I", *no_pyc, *entry, *argv]
    workers = {**_ISOLATION, "PYTHONDONTWRITEBYTECODE": "1"} if no_pyc else _ISOLATION
    os.execve(words[0], words, {**environ, **workers})  # noqa: S606  no shell is wanted


HOOK_PROGRAM: Final = """
import os, sys
try:
    from preflight.hook.entry import main
except BaseException as error:
    line = "preflight: it cannot be loaded (%s), so this node was not checked; install it again"
    sys.stderr.write(line % type(error).__name__ + chr(10))
    os._exit(2 if "--plain" in sys.argv else int("--fail-closed" in sys.argv))
main()
"""
"""For `python -I -c`: Python exits 1 where a module cannot be loaded, which means a bad node."""


def hide_files() -> None:
    """From now on, make no file that all users can read, and so no compiled files."""
    sys.dont_write_bytecode = True
    os.umask(0o027)


def start_hook(words: Sequence[str]) -> None:
    """Become the scheduler's hook if `words` begin with one of its two verbs; else return.

    `preflight healthcheck` checks all GPUs, periodically, for Slurm or cron; `preflight prolog`
    checks those of the job that is about to start, in seconds. If the hook is broken, exit as for
    a node that was not judged.
    """
    if words[:1] not in (["prolog"], ["healthcheck"]):
        return
    try:
        hide_files()
        start(words, program=HOOK_PROGRAM, quiet=True)
    except Exception as error:  # noqa: BLE001  a traceback would exit 1, which drains the node
        message = f"preflight: {words[0]} cannot be started ({type(error).__name__})"
        print(f"{message}, so this node was not judged; install it again", file=sys.stderr)  # noqa: T201
        sys.exit(2 if "--plain" in words else int("--fail-closed" in words))


def root_environment(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that root keeps of an environment, and why others are not kept.

    A path is kept if no other user can change or make it; HOME is root's own.
    """
    from preflight.core.trust import NAMES_CODE, safe_paths_for_root
    from preflight.fleet.job_environment import public_variables

    variables, refusals = {"HOME": pwd.getpwuid(0).pw_dir}, []
    job_variables = public_variables(environ)
    for name, value in environ.items():
        if not _KEPT_FOR_ROOT.fullmatch(name):
            if name not in job_variables:
                continue
            if re.match(NAMES_CODE, name):
                refusals.append(f"{name} (it may name a file, code or an address)")
                continue
        kept, reasons = (value, []) if name in _NOT_PATHS else safe_paths_for_root(name, value)
        refusals += [f"{name} ({reason})" for reason in reasons]
        if kept or not value:
            variables[name] = kept
    return variables, refusals
