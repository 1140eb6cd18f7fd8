"""The contestants: each reads the files of a case with a command, and names ranks or nothing."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from tests.bench.contest_cases import KINDS, RAS_TEXT, Case, Kind

Verdict = Literal["right", "wrong", "unclear"]
UNSURE, SURE = 0.5, 0.8
"""An answer that is less sure says that it is unclear; a wrong one that is surer is confident."""
_RANK = re.compile(r"\brank\W{0,3}(\d{1,6})\b", re.IGNORECASE)
_REPORT = re.compile(r"missing ranks: \{([^}]*)\}|error msg: (.*)")
_CULPRIT = re.compile(r"Culprit rank (\d+)")


class Answer(Struct, frozen=True, kw_only=True):
    """What a contestant says of a case."""

    readings: tuple[frozenset[str], ...] = ()
    """The culprits; a contestant whose answer can be read in several ways gets the best one."""
    category: str = ""
    confidence: float = 1.0
    """1 for those that give none."""
    line: str = ""
    """Of those that answer with a line; it is only shown."""
    failure: str = ""
    """How it failed to answer."""


class Score(Struct, frozen=True, kw_only=True):
    """How one case went."""

    kind: Kind
    seed: int
    fault: str
    unseen: bool
    contestant: str
    verdict: Verdict
    confident: bool
    named: str
    cpu_s: float


class Contestant(Struct, frozen=True):
    """A tool, and the kinds of cases that it reads."""

    name: str
    kinds: tuple[Kind, ...]
    answer: Callable[[Case], Answer]

    def play(self, case: Case) -> Score:
        """Read the case, and judge the answer; the time is the processor time of the answer."""
        before = _spent()
        answer = self.answer(case)
        verdict = judge(case, answer)
        return Score(
            kind=case.kind, seed=case.seed, fault=case.fault, unseen=case.is_unseen,
            contestant=self.name, verdict=verdict,
            confident=verdict == "wrong" and answer.confidence >= SURE,
            named=answer.failure or _words(answer), cpu_s=_spent() - before,
        )  # fmt: skip


def judge(case: Case, answer: Answer) -> Verdict:
    """Right: the culprits and no others, and the category if both have one.

    Of logs and RAS only ranks are compared: their labels name no nodes, ports and links.
    """
    if answer.failure or answer.confidence < UNSURE:
        nothing = case.nameless or ("unknown" in case.categories and answer.category)
        return "right" if nothing and not answer.failure else "unclear"
    if case.categories and answer.category and answer.category not in case.categories:
        return "wrong"
    readings = answer.readings or (frozenset(),)
    if case.kind in ("ras", "log", "corpus"):
        readings = tuple(frozenset(x for x in one if x.startswith("rank ")) for one in readings)
    fitting = [one for one in readings if case.culprits <= one <= case.culprits | case.besides]
    if not fitting:
        return "wrong" if any(readings) else "unclear"
    complete = any(fitting) or "no_failure" in case.categories or case.nameless
    return "right" if complete or (answer.category and not case.must_name) else "unclear"


def preflight(case: Case) -> Answer:
    """`preflight explain` of the files, `preflight diagnose` of a job's recorded state."""
    import preflight.commands.diagnose
    import preflight.commands.explain  # noqa: F401  it must be there before the copies
    from preflight.commands import cli

    verb = "diagnose" if case.kind in ("hang", "ras") else "explain"
    done = _forked(lambda: cli.main([verb, "--json", str(case.folder)]))
    try:
        answer: dict[str, Any] = json.loads(done.out)
    except ValueError:
        return Answer(failure=f"exit {done.exit}: {done.err[-200:]}")
    category = answer["category"]
    known = {"unknown": 0.0, "no_failure": 1.0}
    return Answer(
        readings=(frozenset(answer["culprits"]),), category=category,
        confidence=known.get(category, answer.get("confidence", 1.0)),
    )  # fmt: skip


def torchfrtrace(case: Case) -> Answer:
    """Its first report, or all of them together: it prints one per mismatch that it sees."""
    from torch.distributed.flight_recorder import fr_trace

    words = ["--prefix", "nccl_trace_rank_", "--allow-incomplete-ranks", str(case.folder)]
    done = _forked(lambda: fr_trace.main(words))
    if done.exit:
        return Answer(failure=(done.err.strip().splitlines() or ["?"])[-1])
    reports = [
        frozenset(f"rank {one}" for one in re.findall(r"\d+", missing) or _CULPRIT.findall(errors))
        for missing, errors in _REPORT.findall(done.out + done.err)
    ]
    return Answer(readings=(reports[0], frozenset().union(*reports))) if reports else Answer()


def first_error(case: Case) -> Answer:
    """The first line with "error", and the rank in it."""
    return _line(next((one for one in _lines(case) if "error" in one.lower()), ""))


def last_line(case: Case) -> Answer:
    """The last line, and the rank in it."""
    return _line(next((one for one in reversed(_lines(case)) if one.strip()), ""))


CONTESTANTS = (
    Contestant("preflight", KINDS, preflight),
    Contestant("torchfrtrace", ("dumps",), torchfrtrace),
    Contestant("first error", ("ras", "log"), first_error),
    Contestant("last line", ("ras", "log"), last_line),
)


class _Done(NamedTuple):
    exit: int
    out: str
    err: str


def _forked(work: Callable[[], object]) -> _Done:
    """Run a command in a copy of this process: its modules are imported, its state is its own."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = 70
            try:
                code = int(work() or 0)  # type: ignore[call-overload]
            except BaseException:  # noqa: BLE001  it must not go on as its parent
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        out.seek(0)
        err.seek(0)
        texts = [one.read().decode(errors="replace") for one in (out, err)]
    return _Done(os.waitstatus_to_exitcode(status), *texts)


def _spent() -> float:
    """Processor time of this process and of its children that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in uses)


def _lines(case: Case) -> list[str]:
    paths = [case.folder / RAS_TEXT] if case.kind == "ras" else [case.folder]
    return [line for one in paths for line in one.read_text(errors="replace").splitlines()]


def _line(line: str) -> Answer:
    rank = _RANK.search(line)
    return Answer(readings=(frozenset([f"rank {rank[1]}"] if rank else []),), line=line)


def _words(answer: Answer) -> str:
    named = ", ".join(sorted(answer.readings[0])) if answer.readings else ""
    return f"{answer.category} {named} {answer.line}".strip()[:200]
