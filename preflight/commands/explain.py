"""`preflight explain`: finds in a dead job's logs what ended it.

An operator then need not read 50 MB of NCCL's output to find the first rank that failed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.commands import add_json, print_lines, remark
from preflight.core.text import plain_json
from preflight.errors import UsageError
from preflight.hang.explain.scan import Scanner, logs_of
from preflight.hang.explain.symptom import load_symptoms, shipped
from preflight.hang.explain.weigh import explain, lines

if TYPE_CHECKING:
    import argparse

    from preflight.hang.explain.symptom import Symptom


NAMED, UNCLEAR, EMPTY = 1, 3, 5
_EXITS = {"no_failure": 0, "unknown": UNCLEAR}


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation; 1 a cause is named, 0 no failure, 3 unclear, 5 nothing to read.

    UsageError (exit 4) for a file that cannot be read, or a wrong file of symptoms.
    """
    own = [one for folder in arguments.symptoms for one in _own_symptoms(folder.expanduser())]
    files = [*logs_of(file.expanduser() for file in arguments.files)]
    found = Scanner([*shipped(), *own]).read(files)
    explanation = explain(found)
    for trouble in found.troubles:
        remark(trouble)
    if arguments.json:
        sys.stdout.write(plain_json(explanation, indent=2))
    else:
        print_lines(lambda width: lines(explanation, width))
    if not found.lines and not found.troubles:
        return EMPTY
    return _EXITS.get(explanation.category, NAMED)


def _own_symptoms(folder: Path) -> tuple[Symptom, ...]:
    """Read a site's symptoms; UsageError where there are none: they would be left out silently."""
    if not folder.is_dir():
        raise UsageError(f"--symptoms={folder}: there is no such folder; give one of .toml files")
    if not (found := load_symptoms(folder)):
        raise UsageError(f"--symptoms={folder}: no .toml file is in it; see docs/explain.md")
    return found


def add_options(explain: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    explain.add_argument(
        "files", metavar="LOG", type=Path, nargs="+",
        help="logs of any size, also gzipped: one for all ranks or one for each; - is standard "
        "input; or the folder of preflight watch or torchrun --log-dir",
    )  # fmt: skip
    add_json(explain)
    explain.add_argument(
        "--symptoms", metavar="DIR", type=Path, action="append", default=[],
        help="a folder with your own symptoms, one .toml file each (docs/reference/explain.md)",
    )  # fmt: skip
