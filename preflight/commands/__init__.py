"""The verbs of the `preflight` command, a module each, and their shared options and output.

Imports only the standard library, and the rest on use: `run` and `prolog` must not load what they
isolate from.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from msgspec import Struct

    from preflight.fleet.model import Fleet

_TARGETS = ("nodes", "inventory", "exclude", "transport", "python")
_WIDEST = 100


def add_targets(parser: argparse.ArgumentParser, inventory: str = "") -> None:
    """Declare the options that choose nodes; `inventory` is added to the help of that option."""
    parser.add_argument("--nodes", metavar="LIST", help="as --preflight-nodes; default: the "
                        "allocation, else this machine")  # fmt: skip
    parser.add_argument("--inventory", metavar="FILE", help=f"as --preflight-inventory{inventory}")
    parser.add_argument("--exclude", metavar="LIST", help="nodes to leave out")
    parser.add_argument("--transport", metavar="NAME", help="as --preflight-transport")
    parser.add_argument("--python", metavar="CMD", help="as --preflight-python")


def fleet_of(arguments: argparse.Namespace) -> Fleet:
    """Find the nodes that these options name; UsageError if they name none."""
    from preflight.fleet.sources import FleetRequest, resolve

    named = {name: getattr(arguments, name) for name in _TARGETS}
    return resolve(FleetRequest(**named, environ=dict(os.environ)))


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare `--json`, for every verb that can also print a document."""
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def print_lines(lines: Callable[[int], Iterable[str]]) -> None:
    """Print lines laid out for the terminal's width, at most 100 columns."""
    import shutil

    width = min(shutil.get_terminal_size().columns, _WIDEST)
    sys.stdout.write("".join(f"{line}\n" for line in lines(width)))


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
    from preflight.core.text import printable

    sys.stderr.write(f"preflight: {printable(words)}\n")
