"""The hook's whole work, and what it writes into last.json."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from preflight import __version__
from preflight.core.files import refuse_others, remove, write_atomically
from preflight.core.text import plain_json
from preflight.errors import UsageError
from preflight.hook.act import act
from preflight.hook.child import HEALTHY, SHARE_S, UNHEALTHY, UNJUDGED, Ended
from preflight.hook.config import load, refuse_longer
from preflight.hook.decision import notes, only_observing
from preflight.hook.here import look, node_name
from preflight.hook.model import Call, Decision, Judged, Unjudged
from preflight.hook.options import parsed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from preflight.hook.child import Level
    from preflight.hook.here import Look
    from preflight.hook.model import HookConfig
    from preflight.hook.options import Options


LAST: Final = "last.json"
_JOBS: Final = "jobs"
_MOST_JOBS: Final = 100
"""Files of jobs that are kept on a node, the newest."""

_NUMBER: Final = re.compile(r"[0-9]{1,12}")
_FILE: Final = re.compile(r"[0-9]{1,12}\.json")


class Document(Struct, frozen=True, kw_only=True):
    """What `--json` prints and last.json holds; docs/prolog.md."""

    schema: int = 1
    preflight: str = __version__
    time: str
    """When it was judged, UTC."""
    call: Call
    judged: Judged
    decision: Decision | None = None
    """None where nothing was decided: judged with --plain, or what was found comes first."""

    def text(self) -> str:
        """Lay it out for a person and a program alike."""
        return plain_json(self, indent=2)


def document(call: Call, judged: Judged, decision: Decision | None = None) -> Document:
    """Put the time of now on it."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Document(time=now, call=call, judged=judged, decision=decision)


def write(folder: Path, one: Document) -> None:
    """Write last.json, and the same for its job; OSError or UsageError where that is not safe."""
    refuse_others(folder)
    content = one.text().encode()
    write_atomically(folder / LAST, content)
    if _NUMBER.fullmatch(one.call.job):
        _refuse_strange(folder / _JOBS)
        write_atomically(folder / _JOBS / f"{one.call.job}.json", content)
        _prune(folder / _JOBS)


def _refuse_strange(jobs: Path) -> None:
    """Files are removed in there: it must be the hook's own folder, and no link to another."""
    if jobs.is_symlink():
        raise UsageError(f"{jobs} is a symbolic link, which is not followed; make it a folder")
    refuse_others(jobs)


def _prune(folder: Path) -> None:
    """Keep the newest: the files of ended jobs must not fill the disk that they are to explain.

    What somebody else has put there, or named otherwise, is his.
    """
    # Two prologs of one node may do this at once: what the other has removed is no trouble.
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


class Tell(Protocol):
    """Hands on what the configuration says, before anything can go wrong."""

    def __call__(self, *, budget_s: float, observing: bool, log: str) -> None:
        """Say it once."""


def work(words: Sequence[str], began: float, tell: Tell) -> Ended:
    """Judge this node and act on it; `began` (time.monotonic) is when the hook was started."""
    options = parsed(words)
    name = node_name(os.environ, options.node)
    call = _call(options)
    try:
        config = load(options.config)
        refuse_longer(config, options.occasion, options.limit_s)
    except UsageError as error:
        # Where to write, and whether a drain is wanted, is not known then: it is only said.
        judged = Judged(node=name, trouble=str(error))
        code = UNHEALTHY if options.fail_closed else HEALTHY
        decision = Decision(action="none", exit_code=code, log=notes(judged))
        return _said(options, call, judged, decision)
    prolog = options.occasion == "prolog"
    budget_s = config.budget_s if prolog else config.healthcheck_budget_s
    tell(budget_s=budget_s, observing=bool(only_observing(config)), log=config.log)
    ends = began + budget_s - SHARE_S
    seen = look(name, config, options.occasion, os.environ, ends)
    return _ended(options, call, seen, config, ends)


def plain_code(judged: Judged) -> int:
    """0 healthy, 1 unhealthy, 2 could not judge. What a user left behind is no fault of the node's.

    A fault of ours makes us a poor witness, whatever else was seen.
    """
    if judged.trouble:
        return UNJUDGED
    if any(each.condemns and not each.user for each in judged.findings):
        return UNHEALTHY
    return UNJUDGED if judged.unknown else HEALTHY


def _call(options: Options) -> Call:
    if options.occasion != "prolog":
        return Call(occasion=options.occasion)
    return Call(
        occasion="prolog",
        job=os.environ.get("SLURM_JOB_ID", "")[:40],
        partition=os.environ.get("SLURM_JOB_PARTITION", "")[:80],
        fail_closed=options.fail_closed,
    )


def _kept(seen: Look, call: Call, config: HookConfig, options: Options) -> tuple[Judged, str]:
    """Keep what was found before anything is done about it; with what could not be, or "".

    Whoever fills the disk hides no fault by that, but for a hung or slow driver: two looks at that
    are in a row only where each could be written down.
    """
    from preflight.hook.judging import keep
    from preflight.hook.second_look import FILES, keep_look

    judged = seen.judged
    try:
        keep_look(config.state_dir, seen.saw)
        if options.periodic and seen.facts is not None:
            refuse_others(config.state_dir)
            keep(config.state_dir, seen.facts)
        if _worth_a_file(judged):
            write(config.state_dir, document(call, judged))
    except (OSError, UsageError) as error:
        bad = [each for each in judged.findings if each.check in FILES and each.condemns]
        twice = [each for each in bad if seen.saw.get(each.check, True)]  # False: it needs no other
        unsure = tuple(Unjudged(check=each.check, why=each.sentence) for each in twice)
        others = tuple(each for each in judged.findings if each not in twice)
        judged = replace(judged, findings=others, unknown=judged.unknown + unsure)
        return judged, f"cannot write {config.state_dir}: {_words(error)}"
    return judged, ""


def _worth_a_file(judged: Judged) -> bool:
    """Nothing is written of a healthy node."""
    bad = any(each.condemns for each in judged.findings)
    return bool(bad or judged.trouble or judged.unknown)


def _ended(options: Options, call: Call, seen: Look, config: HookConfig, ends: float) -> Ended:
    """Decide, do it, and say so; the file then also holds what was done."""
    judged, unwritten = _kept(seen, call, config, options)
    if options.plain:
        return _said(options, call, judged, None, unwritten)
    decision = act(call, judged, config, ends)
    if _worth_a_file(judged):
        try:
            write(config.state_dir, document(call, judged, decision))
        except (OSError, UsageError) as error:
            unwritten = unwritten or f"cannot write {config.state_dir / LAST}: {_words(error)}"
    return _said(options, call, judged, decision, unwritten)


def _said(
    options: Options, call: Call, judged: Judged, decision: Decision | None, unwritten: str = ""
) -> Ended:
    """Put it in the words of the shell that asked: with --plain nothing was decided."""
    text = document(call, judged, decision).text() if options.json else ""
    grave = judged.trouble or unwritten or (decision is not None and decision.action == "drain")
    level: Level = "error" if grave else "warning"
    code, log = plain_code(judged), notes(judged)
    if decision is not None and not options.plain:
        code, log = decision.exit_code, decision.log
    return Ended(code, text, "; ".join(filter(None, (log, unwritten))), level)


def _words(error: OSError | UsageError) -> str:
    return getattr(error, "strerror", "") or str(error)
