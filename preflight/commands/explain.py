"""`preflight explain`: finds in a dead job's logs and flight recorder dumps what ended it.

An operator then need not read 50 MB of NCCL's output to find the first rank that failed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from preflight.commands import add_json, print_answer, remark
from preflight.core.command_line import EMPTY, FINE, FOUND, UNCLEAR, path_type
from preflight.core.files import read_regular, typed_path
from preflight.core.text import percent
from preflight.errors import UsageError
from preflight.hang.answer_text import Alternative
from preflight.hang.diagnose.job_state import Diagnosis
from preflight.hang.explain.dumps import Dumps, explain_dumps, joined, separate
from preflight.hang.explain.explanation import Explanation, Place, lines
from preflight.hang.explain.log_lines import logs_of
from preflight.hang.explain.scan import Scanner
from preflight.hang.explain.symptom import Category, Symptom, load_symptoms, shipped
from preflight.hang.explain.weigh import explain

_MOST_TROUBLES = 20
_EXITS = {"no_failure": FINE, "unknown": UNCLEAR}


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation; 1 a cause is named, 0 no failure, 3 unclear, 5 nothing to read.

    UsageError (exit 4) for a file that cannot be read, or a wrong file of symptoms.
    """
    folders = map(typed_path, arguments.symptoms)
    site_symptoms = [symptom for folder in folders for symptom in _site_symptoms(folder)]
    files = [typed_path(file) for file in arguments.files]
    launches = list(_watched_launches(files))
    diagnoses = [Path(hang.evidence[0].source) for _, hang in launches if hang]
    dump_paths, logs = separate(files)
    empty: list[str] = []
    log_files = logs_of(logs, [*dump_paths, *diagnoses], empty)
    scan = Scanner([*shipped(), *site_symptoms]).read(log_files)
    explanation = explain(scan)
    troubles = [*empty, *scan.troubles]
    if dump_paths:
        dumps = Dumps(dump_paths)
        troubles = dumps.troubles + troubles
        dump_explanation = explain_dumps(dumps)
        explanation = joined(explanation, dump_explanation) if scan.line_count else dump_explanation
    for ending, hang in launches:
        explanation = _with_launch(explanation, ending, hang)
    for trouble in troubles[:_MOST_TROUBLES]:
        remark(trouble)
    if len(troubles) > _MOST_TROUBLES:
        remark(f"{len(troubles) - _MOST_TROUBLES} more files are not used")
    print_answer(arguments, explanation, lambda width: lines(explanation, width), indent=2)
    if not (scan.line_count or troubles or dump_paths or diagnoses):
        return EMPTY
    return _EXITS.get(explanation.category, FOUND)


class _Ending(Struct):
    """How a launch ended, as `preflight watch` wrote into watch.json."""

    exit: int = 0
    signal: int = 0
    stalled: bool = True
    """Whether it failed in a stall; no such key: it still runs, or its watch was killed."""


_UNREADABLE = (OSError, ValueError, RecursionError, msgspec.MsgspecError)
_LARGEST_BYTES = 16 << 20


def _watched_launches(folders: Sequence[Path]) -> Iterator[tuple[_Ending, Explanation | None]]:
    """How the launches of the watch folders among these ended, and why they hung."""
    for folder in folders:
        with suppress(*_UNREADABLE):
            content = read_regular(folder / "watch.json", _LARGEST_BYTES)
            yield msgspec.json.decode(content, type=_Ending), _hang_in(folder)


_CATEGORIES: dict[str, Category] = {
    "desync": "collective_mismatch", "link": "nic_or_ib_link", "unknown": "unknown",
}  # fmt: skip


def _hang_in(folder: Path) -> Explanation | None:
    """The last diagnosis in a watch folder; its only proof is its file."""
    files = sorted(folder.glob("diagnosis-*.json"), key=lambda file: (len(file.name), file))
    with suppress(*_UNREADABLE):
        for file in files[-1:]:
            hang = msgspec.json.decode(read_regular(file, _LARGEST_BYTES), type=Diagnosis)
            text = f"{hang.category} ({percent(hang.confidence)} sure)"
            return Explanation(
                category=_CATEGORIES.get(hang.category, "timeout_rank_missing"),
                culprits=hang.culprits, sentence=f"the job hung: {hang.sentence}",
                advice=hang.advice, evidence=(Place(str(file.with_suffix(".txt")), 1, text),),
                confidence=hang.confidence, next=hang.next, line=hang.line,
            )  # fmt: skip
    return None


_OF_A_HANG = ("other", "timeout_rank_missing", "collective_mismatch")
"""What the log of a hang shows, if anything, also where its user ended it."""


def _with_launch(answer: Explanation, ending: _Ending, hang: Explanation | None) -> Explanation:
    """Add how the launch ended; if it hung to its end, why it hung is the answer."""
    if answer.category == "no_failure" and (ending.signal or ending.exit):
        how = f"by signal {ending.signal}" if ending.signal else f"with exit code {ending.exit}"
        sentence = f"the launch ended {how}; {answer.sentence}"
        answer = replace(answer, category="unknown", sentence=sentence)
    if hang is None:
        return answer
    less_clear = (*_EXITS, *(_OF_A_HANG if hang.category != "unknown" else ()))
    leads = ending.stalled and answer.category in less_clear
    first, second = (hang, answer) if leads else (answer, hang)
    other = Alternative(second.category, second.sentence, 0.0)
    return replace(
        first, evidence=(*hang.evidence, *answer.evidence), lines=answer.lines, waits=answer.waits,
        alternatives=(*[other] * (second.category not in _EXITS), *first.alternatives)[:3],
    )  # fmt: skip


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
