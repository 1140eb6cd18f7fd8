"""`preflight run`: the entry for root, cron and schedulers; runs no code but preflight's.

`start` uses only the standard library, as other imports could have been planted; the rest runs in a
separate Python that reads neither PYTHON* variables nor the working folder.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pytest

    Own = Callable[[argparse.ArgumentParser], object]


USAGE: Final = 4
CONFIG: Final = Path(__file__).resolve().parent.parent / "session" / "isolated.ini"

_DROPPED = ("PYTHON", "PYTEST_")
"""Variables that make Python or pytest load code or options from elsewhere."""

_FOR_ROOT = re.compile(
    r"PATH|LD_LIBRARY_PATH|LANG|LC_\w+|TZ|TERM|NO_COLOR|COLUMNS|LINES|USER|LOGNAME|TMPDIR"
    r"|XDG_RUNTIME_DIR|SSH_AUTH_SOCK|SLURMD?_\w+|PREFLIGHT_\w+"
    r"|PG(PASSWORD|PASSFILE|SSLMODE|SSLROOTCERT)|(OMPI_COMM_WORLD|PMI)_RANK"
)
"""Variables that root keeps, besides those of a job that checks read: another user may have set the
others."""

_NO_PATHS = ("SSH_AUTH_SOCK", "PREFLIGHT_HISTORY")
"""Variables that are not checked as paths: an agent only signs, a history may be a database URL."""

_SET = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    # xdist starts its workers as `python -c`, which would look for modules here first.
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
}

_WORKERS = (("-n", "--numprocesses"), ("--dist",), ("--max-worker-restart",))
_VALUES = (("-k",), ("-m",), ("--maxfail",), ("--junitxml",), ("--color",), ("-r",))
_FLAGS = (("-x", "--exitfirst"), ("-v", "--verbose"), ("-q", "--quiet"), ("--collect-only", "--co"))
"""pytest's own options that are allowed; none of them loads code or another configuration."""


def start(
    argv: Sequence[str],
    module: str = "preflight.commands.run",
    program: str = "",
    *,
    quiet: bool = False,
) -> NoReturn:
    """Become an isolated Python, with the environment that `for_root` leaves. Never returns.

    `program`: lines of Python instead of a module; it writes no compiled files, which a full disk
    could damage. `quiet`: do not name the removed variables.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    if os.geteuid() == 0:
        kept, refused = for_root(kept)
        if refused and not quiet:
            from preflight.core.text import printable

            names = "; ".join(map(printable, refused))
            print("preflight: not taken from the environment:", names, file=sys.stderr)  # noqa: T201
    if sys.stdout is not None:
        sys.stdout.flush()
    words = [sys.executable, "-I", *(("-B", "-c", program) if program else ("-m", module)), *argv]
    os.execve(words[0], words, {**kept, **_SET})  # noqa: S606  no shell is wanted


PROGRAM: Final = """
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


def judge_node(words: Sequence[str]) -> NoReturn:
    """Become an isolated Python that checks this node; `words` begin with the verb.

    `preflight healthcheck` checks all GPUs, periodically, for Slurm or cron; `preflight prolog`
    those of the job that is about to start, in seconds.
    """
    os.umask(0o027)
    start(words, program=PROGRAM, quiet=True)


def for_root(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that root keeps of an environment, and the others with the reason.

    Kept folders and files are those that no other user can change or make; HOME is root's own.
    """
    from preflight.core.trust import NAMES_CODE, roots_paths
    from preflight.fleet.job_environment import public

    kept, refused = {"HOME": pwd.getpwuid(0).pw_dir}, []
    jobs = public(environ)
    for name, value in environ.items():
        if not _FOR_ROOT.fullmatch(name):
            if name not in jobs:
                continue
            if re.match(NAMES_CODE, name):
                refused.append(f"{name} (it names a file or code)")
                continue
        safe, why = (value, []) if name in _NO_PATHS else roots_paths(name, value)
        refused += [f"{name} ({each})" for each in why]
        if safe or not value:
            kept[name] = safe
    return kept, refused


def main(argv: Sequence[str] | None = None) -> int:
    """Run pytest on preflight's configuration; the exit codes are those of `pytest --preflight`."""
    import pytest

    parser = option_parser(
        "preflight run",
        "Check a fleet as `pytest --preflight` does, but ignore any conftest.py, ini file, plugin "
        "and variable of the working folder: for root, cron and schedulers.",
    )
    arguments = parser.parse_args(argv, argparse.Namespace(words=[], workers=False))
    folders = " ".join(shlex.quote(str(Path(each).absolute())) for each in arguments.folder)
    return pytest.main(
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
        ]
    )


class _Pass(argparse.Action):
    """Passes an option on to pytest, which knows its type and choices."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Store the option in the typed order."""
        del parser
        name = str(option_string)
        valued = f"{name}={values}" if name.startswith("--") else f"{name}{values}"
        namespace.words.append(name if self.nargs == 0 else valued)
        namespace.workers |= bool({*self.option_strings} & {each[0] for each in _WORKERS})


class _Parser(argparse.ArgumentParser):
    beside: argparse._ArgumentGroup | None = None
    """The group for the plugin's options, if the verb has its own options too."""

    def getgroup(self, *_: str) -> _Parser:
        """Act as pytest's parser, to which the plugin adds its options."""
        return self

    def addoption(self, *names: str, action: str = "store", **options: Any) -> None:
        """Add an option of the plugin, apart from the verb's own."""
        flag = action == "store_true"
        known = {key: options[key] for key in ("help", "metavar") if key in options}
        place = self.beside or self
        place.add_argument(*names, action=_Pass, nargs=0 if flag else None, **known)

    def addini(self, *_: object, **__: object) -> None:
        """Ignore the ini keys: there is no ini file."""

    def error(self, message: str) -> NoReturn:
        """Exit 4, as everywhere in preflight; argparse would exit 2, which means interrupted."""
        self.exit(USAGE, f"{self.prog}: {message}; see: {self.prog} --help\n")


def option_parser(prog: str, description: str, own: Own | None = None) -> _Parser:
    """Return a parser with every option of the plugin, and those of pytest that load no code.

    Typed options are stored in `words`; the namespace needs `words` and `workers`. `own` adds the
    verb's own options, which are shown first.
    """
    from preflight.plugin import pytest_addoption

    parser = _Parser(prog=prog, allow_abbrev=False, description=description)
    if own is not None:
        own(parser)
        parser.beside = parser.add_argument_group("as for pytest --preflight")
    place = parser.beside or parser
    parser.add_argument("folder", nargs="*", help="folders with the site's own checks")
    for names in (*_WORKERS, *_VALUES):
        place.add_argument(*names, action=_Pass, help="as pytest's")
    for names in _FLAGS:
        place.add_argument(*names, action=_Pass, nargs=0, help="as pytest's")
    pytest_addoption(cast("pytest.Parser", parser))
    return parser


if __name__ == "__main__":
    sys.exit(main())
