"""The verbs of the `preflight` command, a module each, and their shared options and output.

Imports only the standard library, and the rest on use: `check` and `prolog` must not load what they
isolate from.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from msgspec import Struct

    from preflight.fleet.model import Fleet

_TARGETS = ("nodes", "inventory", "exclude", "transport", "python")

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
    return typed_path(paths[0]) if paths else None


_LONG = re.compile(r"(?<!-m )pytest\s+--preflight(?![\w-])|--preflight-(?=[a-z])([a-z-]*)")
NO_OTHERS: Mapping[str, str] = {}


def short_names(text: str, others: Mapping[str, str] = NO_OTHERS) -> str:
    """Replace pytest's names of options by those of `preflight check`, or by a verb's `others`."""

    def short(found: re.Match[str]) -> str:
        if found[1] is None:
            return "preflight check"
        return others.get(found[0], f"--{found[1]}")

    return _LONG.sub(short, text)


def fleet_of(arguments: argparse.Namespace) -> Fleet:
    """Find the nodes that these options name; UsageError if they name none."""
    from preflight.fleet.sources import FleetRequest, resolve

    if arguments.words:
        if arguments.nodes is not None:
            from preflight.errors import UsageError

            raise UsageError("nodes are given twice: as NODES and as --nodes; give them once")
        arguments.nodes = ",".join(arguments.words)
    named = {name: getattr(arguments, name) for name in _TARGETS}
    return resolve(FleetRequest(**named, environ=dict(os.environ)))


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
    arguments: argparse.Namespace, document: Struct, lines: Callable[[int], Iterable[str]]
) -> None:
    """Print the document with --json, else the lines."""
    if arguments.json:
        from preflight.core.text import plain_json

        sys.stdout.write(plain_json(document))
    else:
        print_lines(lines)


def remark(words: str) -> None:
    """Print a remark on standard error, apart from the answer."""
    from preflight.core.command_line import say

    say(f"preflight: {words}")
