"""`preflight report`: any report of a run again, from its folder; `--public` for other eyes."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.commands.asked_file import write_asked
from preflight.commands.fabric_of import fabric_of
from preflight.commands.said import said_in
from preflight.registry import draining
from preflight.report.document import encode
from preflight.report.html.page import Told, page
from preflight.report.junit import junit
from preflight.report.prometheus import MODE, metrics, refuse_unread
from preflight.report.public.hide import Hider
from preflight.report.public.known import secrets
from preflight.report.rebuilt import found_in
from preflight.report.reread import reread
from preflight.report.runs import earlier
from preflight.report.terminal import summary, title

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from preflight.report.document import Report
    from preflight.report.night import Night

_WIDTH = 100


def run(arguments: argparse.Namespace) -> int:
    """Write what was asked for, the summary if nothing was; 0, or UsageError (exit 4)."""
    folder: Path = arguments.folder.expanduser()
    report = reread(folder)
    nights = earlier(folder.resolve())
    hider = None
    if arguments.public:
        hider = Hider(secrets(report, *said_in(folder, report), earlier=nights))
    shown = _unplaced(hider.all_of(report)) if hider else report
    if arguments.prometheus is not None:
        refuse_unread(arguments.prometheus.expanduser())
        write_asked(arguments.prometheus, metrics(shown, found_in(shown)), MODE)
    if arguments.junit is not None:
        write_asked(arguments.junit, junit(shown))
    if arguments.html is not None:
        write_asked(arguments.html, _page(folder, shown, nights, hider).encode())
    if arguments.json:
        sys.stdout.write(encode(shown).decode("ascii"))
    written = (arguments.prometheus, arguments.junit, arguments.html)
    if arguments.text or not (arguments.json or any(written)):
        sys.stdout.write(_text(shown))
    return 0


def _unplaced(report: Report) -> Report:
    """Without the folders of the inventory: they say whose fleet it is."""
    origin = report.fleet.origin.rpartition("/")[2]
    return replace(report, fleet=replace(report.fleet, origin=origin))


def _page(folder: Path, report: Report, nights: tuple[Night, ...], hider: Hider | None) -> str:
    told = Told(
        found=found_in(report),
        earlier=hider.all_of(nights) if hider else nights,
        drains=draining(),
    )
    return page(report, told, fabric_of(folder, report.blames, hider))


def _text(report: Report) -> str:
    width = min(shutil.get_terminal_size().columns, _WIDTH)
    lines = summary(report, found_in(report), where="", hint="", width=width)
    heading = f" {title(report)} ".center(width, "=")
    return "".join(f"{line}\n" for line in (heading, *lines))
