"""Runs one prolog or health check: checks this node within its time, acts, and writes last.json."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from preflight import __version__
from preflight.core.command_line import refuse_small_limits
from preflight.core.files import read_text, reason_of, refuse_untrusted, remove, write_atomically
from preflight.core.remote_command import OUTPUT_LIMIT, LocalConnection, PipeRemote, ReachError
from preflight.core.text import did_you_mean, plain_json
from preflight.errors import PreflightError, UsageError, WireError
from preflight.facts.model import DRIVER_S, Facts, decode_document
from preflight.fleet.model import Fleet, Host
from preflight.hook.act import act
from preflight.hook.child import HEALTHY, RESERVE_S, UNHEALTHY, HookResult, Level, Options, probe
from preflight.hook.decision import notes, plain_code, why_observing
from preflight.hook.hook_values import (
    Assessment,
    Call,
    Decision,
    Unjudged,
    load_config,
    refuse_longer,
)
from preflight.transport.bundle import start_payload

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.core.registry import Registry
    from preflight.hook.hook_values import HookConfig, Occasion


NAME: Final = "last.json"
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


def write(folder: Path, document: Document) -> None:
    """Write last.json, and a copy for the job; OSError or UsageError where that is not safe."""
    refuse_untrusted(folder)
    content = plain_json(document, indent=2).encode()
    write_atomically(folder / NAME, content)
    if _NUMBER.fullmatch(document.call.job):
        jobs = folder / _JOBS
        # The hook removes files in it: others may not change it, nor may it be a link.
        if jobs.is_symlink():
            problem = f"{jobs} is a symbolic link, which preflight does not follow"
            raise UsageError(f"{problem}; make it a folder")
        refuse_untrusted(jobs)
        write_atomically(jobs / f"{document.call.job}.json", content)
        _prune(jobs)


def _prune(folder: Path) -> None:
    """Keep the newest files, so that those of ended jobs do not fill the disk.

    Files of other users, or with other names, stay.
    """
    # Two prologs of one node may do this at once, so a file may be gone already.
    with suppress(FileNotFoundError):
        files = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if _FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_uid == os.geteuid():
                        files.append((status.st_mtime, entry.name))
        for _, name in sorted(files)[:-_MOST_JOBS]:
            remove(folder / name)


def work(options: Options, began: float, send_settings: Callable[..., None]) -> HookResult:
    """Check this node and act on the result; `began` (time.monotonic) is when the hook started.

    `send_settings` sends the parent the fields of its `Settings`, before anything can go wrong.
    """
    name = node_name(os.environ, options.node)
    call = _call(options)
    try:
        refuse_small_limits(("NOFILE",))  # without the others a node is judged all the same
        config = load_config(options.config)
        refuse_longer(config, options.occasion, options.limit_s)
    except UsageError as error:
        # Without a configuration the folder and `enforce` are unknown: the error is only logged.
        assessment = Assessment(node=name, trouble=str(error))
        code = UNHEALTHY if options.fail_closed else HEALTHY
        decision = Decision("none", code, log=notes(assessment))
        return _result(options, Document(call=call, assessment=assessment, decision=decision))
    budget_s = config.budget_s if options.occasion == "prolog" else config.healthcheck_budget_s
    send_settings(budget_s=budget_s, observing=bool(why_observing(config)), log=config.log)
    end_s = began + budget_s - RESERVE_S
    inspection = inspect_node(
        name, config, options.occasion, os.environ, end_s, plain=options.plain
    )
    return _act_and_report(options, call, inspection, config, end_s)


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
    look: Inspection, call: Call, config: HookConfig, options: Options
) -> tuple[Assessment, str]:
    """Save the findings before acting on them; return also what could not be saved, or "".

    A full disk hides no fault, except one that two looks in a row must see: a look counts only if
    it could be recorded.
    """
    from preflight.hook.judging import FILES, save_facts, save_look

    assessment = look.assessment
    try:
        save_look(config.state_dir, look.saw)
        if options.periodic and look.facts is not None:
            refuse_untrusted(config.state_dir)
            save_facts(config.state_dir, look.facts)
        if _has_news(assessment):
            write(config.state_dir, Document(call=call, assessment=assessment))
    except (OSError, UsageError) as error:
        failed = [row for row in assessment.findings if row.check in FILES and row.makes_not_ready]
        unsure = [row for row in failed if look.saw.get(row.check, True)]  # False: needs no other
        unknown = tuple(Unjudged(check=row.check, why=row.sentence) for row in unsure)
        others = tuple(row for row in assessment.findings if row not in unsure)
        assessment = replace(assessment, findings=others, unknown=assessment.unknown + unknown)
        return assessment, f"cannot write {config.state_dir}: {reason_of(error)}"
    return assessment, ""


def _has_news(assessment: Assessment) -> bool:
    """Whether there is anything to write: not for a ready node."""
    has_fault = any(finding.makes_not_ready for finding in assessment.findings)
    return bool(has_fault or assessment.trouble or assessment.unknown)


def _act_and_report(
    options: Options, call: Call, inspection: Inspection, config: HookConfig, end_s: float
) -> HookResult:
    """Decide, carry it out and report it; last.json then also holds what was done."""
    assessment, unwritten = _save_findings(inspection, call, config, options)
    document = Document(call=call, assessment=assessment)
    if options.plain:
        return _result(options, document, unwritten)
    document = replace(document, decision=act(call, assessment, config, end_s))
    if _has_news(assessment):
        try:
            write(config.state_dir, document)
        except (OSError, UsageError) as error:
            unwritten = unwritten or f"cannot write {config.state_dir / NAME}: {reason_of(error)}"
    return _result(options, document, unwritten)


def _result(options: Options, document: Document, unwritten: str = "") -> HookResult:
    """Turn the outcome into exit code, output and log line; with --plain there is no decision."""
    assessment, decision = document.assessment, document.decision
    text = plain_json(document, indent=2) if options.json else ""
    is_drain = decision is not None and decision.action == "drain"
    level: Level = "error" if assessment.trouble or unwritten or is_drain else "warning"
    code, log = plain_code(assessment), notes(assessment)
    if decision is not None and not options.plain:
        code, log = decision.exit_code, decision.log
    return HookResult(code, text, "; ".join(filter(None, (log, unwritten))), level)


LAST_S: Final = 1.8
"""Part of the probe's time reserved for the processes, which it lists after the driver's values,
and for its reply."""

LEAST_S: Final = 0.5


class SilentError(PreflightError):
    """The probe did not finish in time: nothing is known about the node, good or bad."""


class _LocalProbe(LocalConnection):
    """Runs the installed payload, so that none has to be packed."""

    def start_entry(self, entry: str, *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> PipeRemote:
        """Return the probe, which the hook has started already and which awaits its request."""
        del entry
        try:
            return PipeRemote(probe(), timeout_s, limit)
        except OSError as error:
            advice = "install coreutils' timeout"
            raise ReachError("python", f"cannot start a process here: {error}", advice) from error


@contextmanager
def read_facts(
    name: str, config: HookConfig, deadline_s: float, *, skip_smi: bool
) -> Iterator[Callable[[], Facts]]:
    """Start to read this node's facts; yield a function that waits for them and returns them.

    `skip_smi` leaves out nvidia-smi, which takes longer than all the rest. SilentError when the
    time is up; WireError for an invalid reply, which is an error of preflight.
    """
    host = Host(name=name, address="127.0.0.1", transport="local", python=(sys.executable,))
    request = {
        "nonce": (nonce := os.urandom(16).hex()),
        "name": name,
        "deadline_s": deadline_s,
        "driver_deadline_s": driver_s(deadline_s),
        "sysfs": str(config.sysfs),
        "kmsg": str(config.kernel_log),
        "spare": skip_smi,
    }
    began = time.monotonic()
    try:
        with closing(start_payload(_LocalProbe(), host, "probe", request, deadline_s)) as session:
            session.finish()
            yield lambda: decode_document(Facts, session.read(deadline_s), nonce)
    except (ReachError, TimeoutError) as error:
        if time.monotonic() - began >= deadline_s:
            raise SilentError(f"the probe did not answer within {deadline_s:.1f} s") from error
        raise WireError(f"the probe did not answer: {error}") from error


def driver_s(deadline_s: float) -> float:
    """How long the driver may take, of `deadline_s` for the whole probe."""
    return max(LEAST_S, min(DRIVER_S, deadline_s - LAST_S))


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}")

JUDGE_S: Final = 0.5
"""Part of the budget for the judges: they take some tenths of a second on a busy machine."""

ACT_S: Final = 2.0
"""Part of the budget for calls to the scheduler."""

ACT_SHARE: Final = 1 / 4
JUDGE_SHARE: Final = 1 / 16
"""At most these shares of a budget that is shorter than the default."""


class Inspection(Struct, frozen=True):
    """What was found, and the facts that it rests on; None where none could be read."""

    assessment: Assessment
    facts: Facts | None = None
    saw: Mapping[str, bool] = {}
    """Whether each check of `judging.FILES` saw its fault this time."""


def node_name(environ: Mapping[str, str], typed: str = "") -> str:
    """Return this node's name: as typed, else from slurmd, else its host name."""
    return typed or environ.get("SLURMD_NODENAME", "") or os.uname().nodename.partition(".")[0]


def inspect_node(
    name: str,
    config: HookConfig,
    occasion: Occasion,
    environ: Mapping[str, str],
    end_s: float,
    *,
    plain: bool = False,
) -> Inspection:
    """Check this node before `end_s` (time.monotonic). Raises no expected error.

    A prolog checks only the job's GPUs, a health check all of them.
    """
    began = time.monotonic()
    judge_by = end_s - min(ACT_S, ACT_SHARE * (end_s - began))
    ask_by = judge_by - min(JUDGE_S, JUDGE_SHARE * (end_s - began))
    try:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name[:80]!a} is not a node name: give one with --node=NAME")
        deadline_s = max(LEAST_S, ask_by - time.monotonic())
        prolog = occasion == "prolog"
        with read_facts(name, config, deadline_s, skip_smi=prolog) as answer:
            # The judges are imported while the probe reads: both take about as long.
            from preflight.core.registry import shipped_checks
            from preflight.hook import judging

            registry = shipped_checks()
            fleet = node_fleet(name, config, registry)
            before = judging.load_faults(config.state_dir)
            facts = answer()
            # Another hook may meanwhile have seen that the fault is over.
            before &= judging.load_faults(config.state_dir)
    except SilentError as error:
        unanswered = Unjudged(check="reach.answer", why=str(error), out_of_time=True)
        assessment = Assessment(node=name, unknown=(unanswered,), seconds=time.monotonic() - began)
        return Inspection(assessment)
    except (PreflightError, OSError) as error:
        trouble = str(error) or type(error).__name__
        return Inspection(Assessment(node=name, trouble=trouble, seconds=time.monotonic() - began))
    completed, age_s = judging.complete_facts(facts, config) if prolog else (facts, None)
    job = judging.job_gpus(environ, config) if prolog else judging.JobGpus()
    view = judging.job_view(completed, fleet.hosts[0].expected, job)
    assessment, saw = judging.judge(
        registry, fleet, completed, view, judge_by, before=before, plain=plain
    )
    seconds = time.monotonic() - began
    return Inspection(replace(assessment, facts_age_s=age_s, seconds=seconds), facts, saw)


def node_fleet(name: str, config: HookConfig, registry: Registry) -> Fleet:
    """Return this node as the inventory has it; UsageError where the inventory lacks it."""
    if config.inventory is None:
        fleet = Fleet(hosts=(Host(name=name, address="127.0.0.1"),), origin="this machine")
    else:
        from preflight.fleet.sources import FleetRequest, resolve

        names = _inventory_names(config.inventory)
        if name not in names:
            # A run may check nodes of no group; here nothing would be expected, which hides a loss.
            problem = f"{config.inventory} does not name {name}{did_you_mean(name, names)}"
            raise UsageError(f"{problem}; add it there, or give its name with --node=NAME")
        fleet = resolve(FleetRequest(nodes=name, inventory=str(config.inventory), ask_slurm=False))
    (host,) = fleet.hosts
    skipped = {registry.find(check_id).check.id: "hook.toml" for check_id in config.skip}
    local_host = replace(
        host,
        address="127.0.0.1",
        transport="local",
        python=(sys.executable,),
        off={**host.off, **skipped},
    )
    return replace(fleet, hosts=(local_host,))


def _inventory_names(path: Path) -> tuple[str, ...]:
    """Return the nodes of the inventory; UsageError that names hook.toml, not the command line."""
    from preflight.fleet.inventory import LARGEST, inventory_of

    refuse_untrusted(path)
    words = f"the inventory of hook.toml, {path}"
    return inventory_of(path, read_text(path, LARGEST, words, "give a readable TOML file")).names
