"""The command line of every verb: one kind of parser, errors that fit a terminal, and Ctrl-C.

Also the limits (`ulimit`) under which no verb that checks nodes can work.

Imports the standard library only, as `check` and `prolog` must not load what they isolate from.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType


FINE, FOUND, INTERRUPTED, UNCLEAR, USAGE, EMPTY = range(6)
"""The exit codes, which mean the same in every verb: docs/reference/exit-codes.md."""

WIDTH: Final = 80
"""Columns of the narrowest terminal that people use, and of output that is no terminal."""
_MOST_COLUMNS: Final = 100
_KEPT_BLANK: Final = "\N{OPEN BOX}"
_MOST_QUOTED: Final = 80
"""Characters of a typed word that an error quotes."""

_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{0,18}\.?[0-9]{1,18}(?:[eE][+-]?[0-9]{1,3})?")


def path_type(text: str) -> Path:
    """Read a typed path, a type of argparse; an empty one would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give a path")
    return Path(text)


def whole_number(text: str) -> int:
    """Read a typed whole number, a type of argparse; int() also reads other alphabets, and 5_0."""
    if not _WHOLE_NUMBER.fullmatch(text):
        size = " of at most 18 digits" if re.fullmatch("[+-]?[0-9]+", text) else ""
        raise argparse.ArgumentTypeError(f"give a whole number{size}, not {text[:40]!a}")
    return int(text)


def decimal_number(text: str) -> float:
    """Read a typed number, a type of argparse; float() also reads nan, other alphabets, and 5_0."""
    if not _DECIMAL.fullmatch(text):
        raise argparse.ArgumentTypeError(f"give a number, not {text[:40]!a}")
    return float(text)


def columns() -> int:
    """Return the columns for lines that a person reads."""
    import shutil  # with bz2 and lzma

    return min(shutil.get_terminal_size((WIDTH, 24)).columns, _MOST_COLUMNS)


def message(words: str, first: str = "", indent: str = "  ") -> str:
    """Lay out an error: on a terminal wrapped, a command after "type: " on a line of its own.

    In a pipe or a log it is one line, so that it can be searched for.
    """
    from preflight.core.text import printable, sanitize, wrapped

    if not sys.stderr.isatty():
        return first + printable(words)
    about, mark, command = words.rpartition("; type: ")
    if not mark or len(first) + len(words) <= columns():
        about, mark, command = words.partition("ee: ")  # "see: COMMAND", which is not wrapped
        words = about + mark + command.replace(" ", _KEPT_BLANK)
        lines = wrapped(words, first=first, indent=indent, width=columns())
        return "\n".join(lines).replace(_KEPT_BLANK, " ")
    lines = wrapped(f"{about}; type:", first=first, indent=indent, width=columns())
    return "\n".join([*lines, f"{indent}{sanitize(command)}"])


def say(words: str) -> None:
    """Print a message on standard error."""
    sys.stderr.write(message(words) + "\n")


class Parser(argparse.ArgumentParser):
    """Refuses wrong usage with exit 4, in words that name the verb and the nearest option.

    Its help keeps the lines of a description and of examples as they are written.
    """

    def __init__(
        self, *, formatter_class: Any = argparse.RawDescriptionHelpFormatter, **settings: Any
    ) -> None:
        super().__init__(formatter_class=formatter_class, **settings)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all words; the parser of the verb refuses those that no option takes."""
        arguments, words = self.parse_known_args(args, namespace)
        if words:
            self._parser_of_verb(arguments).refuse(words)
        return arguments

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options before missing words, and `--option=--`, argparse's empty list."""
        words = list(sys.argv[1:] if args is None else args)
        for word in words if self._subparsers is None else ():
            name, _, value = word.partition("=")
            if word == "--":
                break
            if value == "--" and name.startswith("-"):
                self.error(f"{name[:_MOST_QUOTED]}=--: give a value")
            if name.startswith("--") and not self._knows(name):
                self.error(unknown_option(name, self._option_string_actions))
        return super().parse_known_args(words, namespace)

    def _knows(self, name: str) -> bool:
        options = self._option_string_actions
        return name in options or (
            self.allow_abbrev and any(option.startswith(name) for option in options)
        )

    def error(self, message: str) -> NoReturn:
        """Exit 4, as everywhere in preflight; argparse would exit 2, which means interrupted."""
        see = " See" if message.endswith("?") else "; see"
        say(f"{self.prog}: {message}{see}: {self.prog} --help")
        raise SystemExit(USAGE)

    def _parser_of_verb(self, arguments: argparse.Namespace) -> Parser:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  argparse has no other way
                verb: Parser | None = action.choices.get(getattr(arguments, action.dest))
                return verb or self
        return self

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Exit 4 for words that no option takes."""
        option = next((word for word in words if word.startswith("-")), "")
        self.error(unknown_option(option, self._option_string_actions) if option
                   else f"{words[0][:_MOST_QUOTED]!a} is one word too many")  # fmt: skip


def unknown_option(word: str, known: Sequence[str] | dict[str, Any]) -> str:
    """Say that there is no such option, and which known one is nearest."""
    import difflib

    name = word.partition("=")[0][:_MOST_QUOTED]
    names = [option.removeprefix("--") for option in known if option.startswith("--")]
    near = difflib.get_close_matches(name.lstrip("-"), names, n=1)
    return f"unknown option {name!a}" + (f"; did you mean '--{near[0]}'?" if near else "")


_LEAST_LIMITS: Final = {
    "NOFILE": ("open {} files", 32, "-n"),
    "FSIZE": ("write files of {} bytes", 1 << 20, "-f"),
    "DATA": ("use {} bytes of memory", 96 << 20, "-d"),
}
"""What a run on this machine needs, measured: with less its own processes fail, not the node."""


def refuse_small_limits(names: Iterable[str] = _LEAST_LIMITS) -> None:
    """Raise UsageError if a limit of this process is too small: it would look like a bad node."""
    import resource

    for name in names:
        what, least, option = _LEAST_LIMITS[name]
        limit = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
        if resource.RLIM_INFINITY != limit < least:
            raise UsageError(
                f"preflight may only {what.format(limit)}, at least {least} are needed; "
                f"raise the limit (ulimit {option})"
            )


_REPEAT_S = 0.5
"""One Ctrl-C may arrive twice: from the terminal, and from a wrapper such as timeout(1)."""

_EXIT_WITHOUT_REPORT = 130
_NO_REPORT = b"\npreflight: left at once, without a report; the nodes end what runs there\n"
_LATE = b"\npreflight: interrupted: finishing the report; Ctrl-C again leaves without it\n"


class Interrupts:
    """Ends a run on SIGINT, SIGTERM and SIGHUP, unless other code or nohup handles them.

    The first signal raises KeyboardInterrupt, so that a report is written; a later Ctrl-C exits
    without one.
    """

    def __init__(self) -> None:
        self._first_at: float | None = None
        self._is_reporting = False
        self.came_late = False
        """A signal came while the results were written: it does not stop that."""
        self._replaced: dict[signal.Signals, Callable[..., object] | int | None] = {}

    def __enter__(self) -> None:
        self.install()

    def __exit__(self, *_: object) -> None:
        self.restore()

    def install(self) -> None:
        """Handle the signals that have Python's own handler; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(number)
            if handler in (signal.SIG_DFL, signal.default_int_handler):
                self._replaced[number] = handler
                signal.signal(number, self._on_signal)

    def protect_report(self) -> None:
        """Let the report be written: from now on the first signal only sets `came_late`."""
        self._is_reporting = True

    def restore(self) -> None:
        """Put back the handlers that `install` replaced."""
        while self._replaced:
            number, handler = self._replaced.popitem()
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
            if self._is_reporting:
                self.came_late = True
                os.write(2, _LATE)
                return
            raise KeyboardInterrupt
        if number == signal.SIGINT and now - self._first_at > _REPEAT_S:
            # The agents' input ends with this process: they exit by themselves.
            os.write(2, _NO_REPORT)
            os._exit(_EXIT_WITHOUT_REPORT)
