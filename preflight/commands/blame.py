"""`preflight blame`: judge a past night's samples again, by the code that a run judges with.

So that a rule can be tried on what was measured before it may take nodes out of service.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from preflight.commands.verdicts import EMPTY, judge_stored
from preflight.report.offline import encode, lines

if TYPE_CHECKING:
    import argparse

_WIDTH = 100


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 0 nobody is blamed, 1 somebody is, 3 not all was judged, 5 no pairs.

    UsageError (exit 4) for samples that cannot be used.
    """
    from preflight.fabric.stored import read_stored

    told = judge_stored(read_stored(arguments.samples.expanduser()))
    if arguments.json:
        sys.stdout.write(encode(told))
    elif told.exit == EMPTY:
        sys.stdout.write(f"{told.samples}: no pair was tried, there is nothing to judge\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines(told, _width())))
    return told.exit


def _width() -> int:
    import shutil

    return min(shutil.get_terminal_size().columns, _WIDTH)
