"""`preflight explain`: finds in a dead job's logs and flight recorder dumps what ended it.

An operator then need not read 50 MB of NCCL's output to find the first rank that failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.commands import add_json, print_answer, remark
from preflight.core.command_line import EMPTY, FINE, FOUND, UNCLEAR, path_type
from preflight.core.files import typed_path
from preflight.errors import UsageError
from preflight.hang.explain.dumps import Dumps, explain_dumps, joined, separate
from preflight.hang.explain.explanation import lines
from preflight.hang.explain.log_lines import logs_of
from preflight.hang.explain.scan import Scanner
from preflight.hang.explain.symptom import Symptom, load_symptoms, shipped
from preflight.hang.explain.weigh import explain

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


_TROUBLES = 20
_EXITS = {"no_failure": FINE, "unknown": UNCLEAR}


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation; 1 a cause is named, 0 no failure, 3 unclear, 5 nothing to read.

    UsageError (exit 4) for a file that cannot be read, or a wrong file of symptoms.
    """
    folders = map(typed_path, arguments.symptoms)
    own = [symptom for folder in folders for symptom in _own_symptoms(folder)]
    files = [typed_path(file) for file in arguments.files]
    paths, logs = separate(files)
    empty: list[str] = []
    scan = Scanner([*shipped(), *own]).read(logs_of(logs, beside=paths, empty=empty))
    explanation = explain(scan)
    troubles = [*empty, *scan.troubles]
    if paths:
        dumps = Dumps(paths)
        troubles = dumps.troubles + troubles
        of_dumps = explain_dumps(dumps)
        explanation = joined(explanation, of_dumps) if scan.line_count else of_dumps
    for trouble in troubles[:_TROUBLES]:
        remark(trouble)
    if len(troubles) > _TROUBLES:
        remark(f"{len(troubles) - _TROUBLES} more files are not used")
    print_answer(arguments, explanation, lambda width: lines(explanation, width), indent=2)
    if not scan.line_count and not troubles and not paths:
        return EMPTY
    return _EXITS.get(explanation.category, FOUND)


def _own_symptoms(folder: Path) -> tuple[Symptom, ...]:
    """Read a site's symptoms; UsageError where there are none: they would be left out silently."""
    if not folder.is_dir():
        raise UsageError(f"--symptoms={folder}: there is no such folder; give one of .toml files")
    if not (symptoms := load_symptoms(folder)):
        raise UsageError(
            f"--symptoms={folder}: it has no .toml file; see docs/reference/explain.md"
        )
    return symptoms


_EXAMPLES = """\
examples:
  preflight explain slurm-4711.out
  preflight explain logs/rank*.log.gz
  kubectl logs job/train | preflight explain -
"""


def add_options(explain: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    explain.epilog = _EXAMPLES
    explain.add_argument(
        "files", metavar="LOG", type=path_type, nargs="+",
        help="logs of any size and flight recorder dumps of the ranks, also gzipped; - is standard "
        "input; or a folder of dumps, of preflight watch or of torchrun --log-dir",
    )  # fmt: skip
    add_json(explain)
    explain.add_argument(
        "--symptoms", metavar="DIR", type=path_type, action="append", default=[],
        help="a folder with your own symptoms, one .toml file each (docs/reference/explain.md)",
    )  # fmt: skip
