"""`preflight history`: what earlier runs say of a fleet, a node or a GPU."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight import __version__
from preflight.commands.history_lines import document_lines
from preflight.commands.history_options import LONGEST
from preflight.commands.history_told import Told
from preflight.errors import UsageError
from preflight.fleet.words import did_you_mean
from preflight.history.place import VARIABLE, place_of
from preflight.history.reading import reading
from preflight.report.plain import plain

if TYPE_CHECKING:
    import argparse

    from preflight.history.place import Place
    from preflight.history.queries import History

EMPTY = 5
_MOST = 20
_FEW = 5
_WIDTH = 100


def run(arguments: argparse.Namespace) -> int:
    """Print what is asked for; 0 told, 5 no run is remembered. UsageError (exit 4) otherwise."""
    _refuse(arguments)
    place = place_of(arguments.history or os.environ.get(VARIABLE, ""), Path.cwd())
    try:
        with reading(place) as history:
            told = _told(arguments, history, _shown(place))
        width = min(shutil.get_terminal_size().columns, _WIDTH)
        lines = "".join(f"{line}\n" for line in document_lines(told, width))
        shown = plain(told) if arguments.json else lines
    except (TypeError, ValueError) as error:  # SQLite holds any type in any column
        raise UsageError(
            f"the history {place.words} holds what no run wrote ({error}); move it away to begin "
            "anew, or give another: --history=DIR"
        ) from error
    sys.stdout.write(shown)
    return 0 if told.last is not None else EMPTY


def _shown(place: Place) -> str:
    """The file as a person would type it, from where he is."""
    file, here = place.file, Path.cwd()
    inside = file is not None and file.is_relative_to(here)
    return str(file.relative_to(here)) if file is not None and inside else place.words


def _refuse(arguments: argparse.Namespace) -> None:
    if not (arguments.history or os.environ.get(VARIABLE)):
        raise UsageError(
            "which history? give the folder of --preflight-history: preflight history "
            f"--history=DIR (or set {VARIABLE})"
        )
    asked = [bool(arguments.node), arguments.gpu is not None, arguments.worst]
    if sum(asked) > 1:
        raise UsageError("give a NODE, --gpu or --worst: one at a time")
    if not 1 <= arguments.nights <= LONGEST:
        raise UsageError(f"--nights={arguments.nights}: give a number, 1 to {LONGEST}")


def _told(arguments: argparse.Namespace, history: History, words: str) -> Told:
    last = history.last_run()
    nights = arguments.nights
    base = Told(preflight=__version__, history=words, nights=nights, last=last)
    if last is None:
        return base
    base = replace(base, night=history.night(last))
    if arguments.node:
        node = history.node(arguments.node, nights)
        if node is None:
            near = did_you_mean(arguments.node, history.names())
            raise UsageError(f"no run in {words} had a node {arguments.node[:80]!a}{near}")
        return replace(base, node=node)
    if arguments.gpu is not None:
        gpu = history.gpu(arguments.gpu, nights)
        if gpu is None:
            raise UsageError(
                f"no run in {words} had a GPU {arguments.gpu[:80]!a}: give its UUID, as "
                "`preflight history NODE` and nvidia-smi -L show it"
            )
        return replace(base, gpu=gpu)
    worst = history.worst(nights, _MOST if arguments.worst else _FEW)
    if arguments.worst:
        return replace(base, worst=worst)
    changes = history.changes(last, since=history.since(last))
    return replace(base, first=history.first_run(), changes=changes, worst=worst)
