"""`preflight blame`: judge a past night's samples again, by the code that a run judges with.

So that a rule can be tried on what was measured before it may take nodes out of service.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from preflight.commands.asked_file import write_asked
from preflight.commands.placing import hosts_of, placed
from preflight.commands.verdicts import EMPTY, judge_stored, tell
from preflight.fabric.stored import read_stored
from preflight.report.fabric_page import fabric_page
from preflight.report.offline import encode, lines

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from preflight.commands.judged import Judged
    from preflight.fabric.stored import Stored

_WIDTH = 100


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 0 nobody is blamed, 1 somebody is, 3 not all was judged, 5 no times.

    UsageError (exit 4) for samples that cannot be used.
    """
    topology = arguments.topology
    stored = read_stored(arguments.samples.expanduser())
    hosts = hosts_of(stored, topology.expanduser() if topology is not None else None)
    stored = placed(stored, hosts)
    judged = judge_stored(stored, hosts)
    told = tell(stored, judged)
    if arguments.picture is not None:
        _draw(arguments.picture.expanduser(), stored, judged)
    if arguments.json:
        sys.stdout.write(encode(told))
    elif told.exit == EMPTY:
        lacking = f"of {told.pairs} pairs none has times" if told.pairs else "no pair was tried"
        sys.stdout.write(f"{told.samples}: {lacking}, there is nothing to judge\n")
    else:
        width = min(shutil.get_terminal_size().columns, _WIDTH)
        sys.stdout.write("".join(f"{line}\n" for line in lines(told, width)))
    return told.exit


def _draw(path: Path, stored: Stored, judged: Judged) -> None:
    origin = str(stored.path)
    page = fabric_page(stored.observed, judged.accused, sweep=stored.sweep, origin=origin)
    write_asked(path, page.encode())
