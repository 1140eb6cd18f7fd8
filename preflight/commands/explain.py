"""`preflight explain`: a dead job's log, and what ended it.

So that nobody reads 50 MB of NCCL's chatter at 3 a.m. to find the one rank that began it.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import msgspec

from preflight.report.explained import lines
from preflight.report.text import printable
from preflight.triage.explain.folders import logs_of
from preflight.triage.explain.scan import Scanner
from preflight.triage.explain.weigh import explain
from preflight.triage.symptom import load_symptoms, shipped

if TYPE_CHECKING:
    import argparse

FOUND, UNKNOWN = 0, 3
_WIDTH = 100


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation; 0 where a cause or a sign was found, 3 where it is unknown.

    UsageError (exit 4) for a file that cannot be read, or a wrong file of symptoms.
    """
    own = [one for folder in arguments.symptoms for one in load_symptoms(folder.expanduser())]
    files = [*logs_of(file.expanduser() for file in arguments.files)]
    found = Scanner([*shipped(), *own]).read(files)
    told = explain(found)
    for trouble in found.troubles:
        sys.stderr.write(f"preflight: {printable(trouble)}\n")
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told)).decode() + "\n")
    else:
        width = min(shutil.get_terminal_size().columns, _WIDTH)
        sys.stdout.write("".join(f"{line}\n" for line in lines(told, width)))
    return UNKNOWN if told.category == "unknown" else FOUND
