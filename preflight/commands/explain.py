"""`preflight explain`: finds in a dead job's logs and flight recorder dumps what ended it.

An operator then need not read 50 MB of NCCL's output to find the first rank that failed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

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
from preflight.hang.watch.watched_launch import watched_launches, with_launch

_MOST_TROUBLES = 20
_EXITS = {"no_failure": FINE, "unknown": UNCLEAR}


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation; 1 a cause is named, 0 no failure, 3 unclear, 5 nothing to read.

    UsageError (exit 4) for a file that cannot be read, or a wrong file of symptoms.
    """
    folders = map(typed_path, arguments.symptoms)
    site_symptoms = [symptom for folder in folders for symptom in _site_symptoms(folder)]
    files = [typed_path(file) for file in arguments.files]
    launches = watched_launches(files)
    dump_paths, logs = separate(files)
    no_logs = [*dump_paths, *(file for launch in launches for file in launch.diagnoses)]
    empty: list[str] = []
    scan = Scanner([*shipped(), *site_symptoms]).read(logs_of(logs, no_logs, empty))
    explanation = explain(scan)
    troubles = [*empty, *scan.troubles]
    if dump_paths:
        dumps = Dumps(dump_paths)
        troubles = dumps.troubles + troubles
        dump_explanation = explain_dumps(dumps)
        explanation = joined(explanation, dump_explanation) if scan.line_count else dump_explanation
    for launch in launches:
        explanation = with_launch(explanation, launch)
    for trouble in troubles[:_MOST_TROUBLES]:
        remark(trouble)
    if len(troubles) > _MOST_TROUBLES:
        remark(f"{len(troubles) - _MOST_TROUBLES} more files are not used")
    print_answer(arguments, explanation, lambda width: lines(explanation, width), indent=2)
    if not (scan.line_count or troubles or no_logs):
        return EMPTY
    return _EXITS.get(explanation.category, FOUND)


def _site_symptoms(folder: Path) -> tuple[Symptom, ...]:
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
