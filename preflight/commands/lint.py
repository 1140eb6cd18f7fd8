"""`preflight lint`: finds in a training script what will make it hang, before it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from preflight import __version__
from preflight.commands import add_json, print_answer
from preflight.core.command_line import EMPTY, FINE, FOUND, UNCLEAR, path_type
from preflight.core.files import file_errors
from preflight.core.text import count, printable, wrapped
from preflight.errors import UsageError
from preflight.fleet.model import TrainingScript
from preflight.fleet.sources import LARGEST_SCRIPT, read_script
from preflight.lint import LintResult, lint
from preflight.lint.script import Severity

_INDENT = " " * 7


class Document(Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    preflight: str
    exit: int
    files: tuple[LintResult, ...]


_EXAMPLES = """\
examples:
  preflight lint train.py
  preflight lint src/*.py --json
  git show HEAD:train.py | preflight lint -
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument("scripts", metavar="SCRIPT", type=path_type, nargs="+",
                        help="train.py, ...; - is standard input")  # fmt: skip
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check every script: 0 ok, 1 error or warning, 3 one unreadable, 5 none is distributed.

    UsageError (exit 4) for a file that cannot be opened or is too large.
    """
    scripts = map(_script, arguments.scripts)
    files = tuple(lint(script.content, script.path) for script in scripts)
    code = _exit_code(files)
    document = Document(preflight=__version__, exit=code, files=files)
    print_answer(arguments, document, lambda width: _lines(files, code, width))
    return code


def _script(path: Path) -> TrainingScript:
    if str(path) != "-":
        return read_script(path)
    with file_errors("cannot read standard input", "give a script, as in: preflight lint train.py"):
        content = sys.stdin.buffer.read(LARGEST_SCRIPT + 1)
    if len(content) > LARGEST_SCRIPT:
        most = f"{LARGEST_SCRIPT >> 20} MiB"
        raise UsageError(f"standard input is larger than {most}; give the training script itself")
    return TrainingScript("-", content)


def _exit_code(files: Sequence[LintResult]) -> int:
    if any(file.of(Severity.ERROR) or file.of(Severity.WARNING) for file in files):
        return FOUND
    if any(file.unread for file in files):
        return UNCLEAR
    return FINE if any(file.distributed for file in files) else EMPTY


def _lines(files: Sequence[LintResult], code: int, width: int) -> Iterator[str]:
    for file in files:
        yield from _file_lines(file, width)
    numbers = [
        (severity.value, sum(len(file.of(severity)) for file in files)) for severity in Severity
    ]
    summary = ", ".join(count(number, word) for word, number in numbers)
    ignored = sum(file.ignored for file in files)
    summary += f", {ignored} ignored by comments" if ignored else ""
    yield f"{summary}    exit {code}"


def _file_lines(file: LintResult, width: int) -> Iterator[str]:
    path = printable(file.path)
    if file.unread is not None:
        sentence = f"{path} was not checked: {file.unread.reason}; {file.unread.remedy}"
        yield from wrapped(sentence, first="", indent=_INDENT, width=width)
    elif not file.distributed:
        yield f"{path}: not a distributed script ({count(file.lines, 'line')} read)"
    elif not file.findings:
        yield f"{path}: nothing found ({count(file.lines, 'line')} read)"
    for finding in file.findings:
        yield f"{path}:{finding.line}  {finding.severity.value}  {finding.rule}"
        rows = (("", finding.sentence), ("then: ", finding.will), ("do: ", finding.remedy))
        for label, words in rows:
            first, indent = _INDENT + label, _INDENT + " " * len(label)
            yield from wrapped(words, first=first, indent=indent, width=width)
