"""Runs one prolog or health check from options to result, and writes last.json."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from preflight import __version__
from preflight.core.files import refuse_others, remove, write_atomically
from preflight.core.text import plain_json
from preflight.errors import UsageError
from preflight.hook.act import act, reason_of
from preflight.hook.arguments import parse_options
from preflight.hook.child import HEALTHY, SHARE_S, UNHEALTHY, UNJUDGED, HookResult
from preflight.hook.config import load, refuse_longer
from preflight.hook.decision import notes, only_observing
from preflight.hook.hook_values import Assessment, Call, Decision, Unjudged
from preflight.hook.local_node import inspect_node, node_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from preflight.hook.arguments import Options
    from preflight.hook.child import Level
    from preflight.hook.hook_values import HookConfig
    from preflight.hook.local_node import Inspection


LAST: Final = "last.json"
_JOBS: Final = "jobs"
_MOST_JOBS: Final = 100
"""How many jobs' files are kept on a node: the newest."""

_NUMBER: Final = re.compile(r"[0-9]{1,12}")
_FILE: Final = re.compile(r"[0-9]{1,12}\.json")


class Document(Struct, frozen=True, kw_only=True):
    """What `--json` prints and last.json holds; docs/reference/prolog.md."""

    schema: int = 1
    preflight: str = __version__
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """When the node was checked, UTC."""
    call: Call
    assessment: Assessment = field(name="judged")
    decision: Decision | None = None
    """None with --plain, and in the file that is written before the decision."""

    def text(self) -> str:
        """Return the document as indented JSON."""
        return plain_json(self, indent=2)


def write(folder: Path, one: Document) -> None:
    """Write last.json, and a copy for the job; OSError or UsageError where that is not safe."""
    refuse_others(folder)
    content = one.text().encode()
    write_atomically(folder / LAST, content)
    if _NUMBER.fullmatch(one.call.job):
        jobs = folder / _JOBS
        # The hook removes files in it: others may not change it, nor may it be a link.
        if jobs.is_symlink():
            problem = f"{jobs} is a symbolic link, which preflight does not follow"
            raise UsageError(f"{problem}; make it a folder")
        refuse_others(jobs)
        write_atomically(jobs / f"{one.call.job}.json", content)
        _prune(jobs)


def _prune(folder: Path) -> None:
    """Keep the newest files, so that those of ended jobs do not fill the disk.

    Files of other users, or with other names, stay.
    """
    # Two prologs of one node may do this at once, so a file may be gone already.
    with suppress(FileNotFoundError):
        ours = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if _FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False)
                    if found.st_uid == os.geteuid():
                        ours.append((found.st_mtime, entry.name))
        for _, name in sorted(ours)[:-_MOST_JOBS]:
            remove(folder / name)


class SendSettings(Protocol):
    """Sends the settings to the parent, before anything can go wrong."""

    def __call__(self, *, budget_s: float, observing: bool, log: str) -> None:
        """Send them once."""


def work(words: Sequence[str], began: float, send_settings: SendSettings) -> HookResult:
    """Check this node and act on the result; `began` (time.monotonic) is when the hook started."""
    options = parse_options(words)
    name = node_name(os.environ, options.node)
    call = _call(options)
    try:
        config = load(options.config)
        refuse_longer(config, options.occasion, options.limit_s)
    except UsageError as error:
        # Without a configuration the folder and `enforce` are unknown: the error is only logged.
        assessment = Assessment(node=name, trouble=str(error))
        code = UNHEALTHY if options.fail_closed else HEALTHY
        decision = Decision(action="none", exit_code=code, log=notes(assessment))
        return _present(options, call, assessment, decision)
    prolog = options.occasion == "prolog"
    budget_s = config.budget_s if prolog else config.healthcheck_budget_s
    send_settings(budget_s=budget_s, observing=bool(only_observing(config)), log=config.log)
    ends = began + budget_s - SHARE_S
    seen = inspect_node(name, config, options.occasion, os.environ, ends)
    return _act_and_report(options, call, seen, config, ends)


def plain_code(assessment: Assessment) -> int:
    """Return 0 for ready, 1 for not ready, 2 for unknown. Findings about users do not count.

    After an error of preflight itself the result is unknown, whatever else was seen.
    """
    if assessment.trouble:
        return UNJUDGED
    if any(each.makes_not_ready and not each.user for each in assessment.findings):
        return UNHEALTHY
    return UNJUDGED if assessment.unknown else HEALTHY


def _call(options: Options) -> Call:
    if options.occasion != "prolog":
        return Call(occasion=options.occasion)
    return Call(
        occasion="prolog",
        job=os.environ.get("SLURM_JOB_ID", "")[:40],
        partition=os.environ.get("SLURM_JOB_PARTITION", "")[:80],
        fail_closed=options.fail_closed,
    )


def _save_findings(
    seen: Inspection, call: Call, config: HookConfig, options: Options
) -> tuple[Assessment, str]:
    """Save the findings before acting on them; return also what could not be saved, or "".

    A full disk hides no fault, except one that two looks in a row must see: a look counts only if
    it could be recorded.
    """
    from preflight.hook.confirmation import FILES, save_look
    from preflight.hook.judging import save_facts

    assessment = seen.assessment
    try:
        save_look(config.state_dir, seen.saw)
        if options.periodic and seen.facts is not None:
            refuse_others(config.state_dir)
            save_facts(config.state_dir, seen.facts)
        if _worth_a_file(assessment):
            write(config.state_dir, Document(call=call, assessment=assessment))
    except (OSError, UsageError) as error:
        bad = [each for each in assessment.findings if each.check in FILES and each.makes_not_ready]
        twice = [each for each in bad if seen.saw.get(each.check, True)]  # False: it needs no other
        unsure = tuple(Unjudged(check=each.check, why=each.sentence) for each in twice)
        others = tuple(each for each in assessment.findings if each not in twice)
        assessment = replace(assessment, findings=others, unknown=assessment.unknown + unsure)
        return assessment, f"cannot write {config.state_dir}: {reason_of(error)}"
    return assessment, ""


def _worth_a_file(assessment: Assessment) -> bool:
    """Whether there is anything to write: not for a ready node."""
    bad = any(each.makes_not_ready for each in assessment.findings)
    return bool(bad or assessment.trouble or assessment.unknown)


def _act_and_report(
    options: Options, call: Call, seen: Inspection, config: HookConfig, ends: float
) -> HookResult:
    """Decide, carry it out and report it; last.json then also holds what was done."""
    assessment, unwritten = _save_findings(seen, call, config, options)
    if options.plain:
        return _present(options, call, assessment, None, unwritten)
    decision = act(call, assessment, config, ends)
    if _worth_a_file(assessment):
        try:
            done = Document(call=call, assessment=assessment, decision=decision)
            write(config.state_dir, done)
        except (OSError, UsageError) as error:
            unwritten = unwritten or f"cannot write {config.state_dir / LAST}: {reason_of(error)}"
    return _present(options, call, assessment, decision, unwritten)


def _present(
    options: Options,
    call: Call,
    assessment: Assessment,
    decision: Decision | None,
    unwritten: str = "",
) -> HookResult:
    """Turn the outcome into exit code, output and log line; with --plain there is no decision."""
    done = Document(call=call, assessment=assessment, decision=decision)
    text = done.text() if options.json else ""
    grave = assessment.trouble or unwritten or (decision is not None and decision.action == "drain")
    level: Level = "error" if grave else "warning"
    code, log = plain_code(assessment), notes(assessment)
    if decision is not None and not options.plain:
        code, log = decision.exit_code, decision.log
    return HookResult(code, text, "; ".join(filter(None, (log, unwritten))), level)
