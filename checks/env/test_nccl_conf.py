"""No nccl.conf on a node changes the job's settings for the worse.

The environment wins over both, the user's file over the system's; a line is split at its first `=`
and nothing is trimmed (NVIDIA/nccl, src/misc/param.cc setEnvFile). NCCL_CONF_FILE names a file in
place of the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Final

from msgspec.structs import replace

from preflight.check import Check
from preflight.checks.env.remark import Remark, show, verdict
from preflight.checks.env.test_variables import switched_off
from preflight.checks.env.values import read
from preflight.checks.env.variables import editions, outdated, unread, variables
from preflight.core.text import count
from preflight.facts import Facts, Group, Node
from preflight.facts.node import decided
from preflight.facts.node_network import ConfFile
from preflight.fleet.model import Expected
from preflight.verdict import Conclude, Verdict, ok, unknown

GRANT: Final = "permission to read the file"


def conf_settings(files: tuple[ConfFile, ...]) -> dict[str, str]:
    """What the files set together: the user's file wins over the system's."""
    user_last = sorted(files, key=lambda file: file.kind == "user")
    return {line.name: line.value for file in user_last for line in reversed(file.settings)}


def shared_settings(facts: Facts) -> tuple[tuple[str, str], ...] | None:
    """The settings that all nodes of a job should share; None where they are not known."""
    if facts.nccl_conf is None or any(file.error for file in facts.nccl_conf):
        return None
    by_name = variables()
    return tuple(
        (name, value)
        for name, value in sorted(conf_settings(facts.nccl_conf).items())
        if name not in by_name or by_name[name].alike in ("must", "should")
    )


def conf_remarks(
    file: ConfFile, environ: Mapping[str, str], facts: Facts | None = None
) -> list[Remark]:
    """What is wrong with the lines of one file, given the job's own environment."""
    values = {line.name: line.value for line in reversed(file.settings)}
    line_remarks = (_line_remark(name, value, values) for name, value in values.items())
    troubles = list(filter(None, line_remarks))
    clean = {name: value for name, value in values.items() if name.isidentifier()}
    versions = editions(facts, environ)
    troubles += [*unread(clean, versions), *outdated(clean, versions)]
    troubles += [
        Remark(
            f"{show(name, value)} has no effect: the environment has {show(name, environ[name])}",
            f"remove one of the two {name}",
            "warn",
        )
        for name, value in clean.items()
        if name in environ and environ[name] != value and name.startswith("NCCL_")
    ]
    if file.without_equals:
        sentence = f"{file.without_equals} lines are not NAME=VALUE, and are skipped"
        troubles.append(Remark(sentence, "write NAME=VALUE, and # in front of comments", "warn"))
    return [replace(remark, sentence=f"{file.path}: {remark.sentence}") for remark in troubles]


def paths_off(
    files: tuple[ConfFile, ...], environ: Mapping[str, str], expected: Expected, facts: Facts
) -> list[Remark]:
    """Fast paths that the files switch off, not the job."""
    by_job = switched_off(environ, expected, facts)
    all_remarks = switched_off({**conf_settings(files), **environ}, expected, facts)
    paths = " and ".join(file.path for file in files)
    return [
        Remark(f"{paths}: {remark.sentence}", remark.advice, remark.weight)
        for remark in all_remarks
        if remark not in by_job
    ]


def conf_drift(facts: Facts, group: Group) -> list[Remark]:
    """How this node's files differ from those of most nodes of its group."""
    usual, settings = decided(group.majority(shared_settings)), shared_settings(facts)
    if settings is None or usual is None or usual.value == settings:
        return []
    own, theirs = dict(settings), dict(usual.value)
    name = next(name for name in sorted({**own, **theirs}) if own.get(name) != theirs.get(name))
    variable = variables().get(name)
    secret = variable is not None and variable.type == "secret"
    sides = [
        "another value" if secret else show(name, side[name]) if name in side else f"no {name}"
        for side in (own, theirs)
    ]
    sentence = f"nccl.conf has {sides[0]}, {sides[1]} on {usual.holders}"
    fatal = variable is not None and variable.alike == "must"
    advice = "give all nodes one nccl.conf: ranks that disagree hang or crawl"
    return [Remark(sentence, advice, "fail" if fatal else "warn")]


def _line_remark(name: str, value: str, values: Mapping[str, str]) -> Remark | None:
    setting = show(name.strip(), value)
    if name != name.strip() or name.startswith("export "):
        wrong = f"{show(name, value)} sets a variable called {name!a}, which nothing reads"
        return Remark(wrong, f"write {name.strip().removeprefix('export ').strip()}=VALUE")
    if "#" in value and value.partition("#")[0].strip():
        return Remark(f"{setting}: the comment is part of the value", "put it on a line of its own")
    if value != value.strip():
        return Remark(f"{setting}: a blank or carriage return is part of it", "remove the blank")
    variable = variables().get(name)
    if variable is not None and variable.owner != "NCCL":
        sentence = f"{setting} comes too late: {variable.owner} has read its variables before NCCL"
        return Remark(f"{sentence} reads this", f"set {name} in the environment", "warn")
    return read(variable, value, values) if variable is not None else None


CHECK = Check("env.nccl_conf", stage="facts", tier="prolog", requires=("reach.answer",), user=True)


def judge(
    environ: Mapping[str, str] | None, expected: Expected, facts: Facts, group: Group
) -> Verdict:
    """Read the files as NCCL does: environment, then the user's file, then the system's."""
    files = facts.nccl_conf
    if files is None:
        problem = "whether ~/.nccl.conf and /etc/nccl.conf set anything could not be read"
        return unknown(problem, advice="look why the home or /etc does not answer, then run again")
    job = environ or {}
    troubles = [remark for file in files for remark in conf_remarks(file, job, facts)]
    troubles += paths_off(files, job, expected, facts) + conf_drift(facts, group)
    unreadable = next((file for file in files if file.error), None)
    if unreadable is not None and not troubles:
        problem = f"{unreadable.path} is there and cannot be read: {unreadable.error}"
        return unknown(
            problem,
            advice=f"sudo cat {quote(unreadable.path)}, or make it readable",
            grant=GRANT,
        )
    sources = [f"{file.path}: {count(len(file.settings), 'setting')}" for file in files]
    fine = ", ".join(sources) + ", all right" if sources else "no nccl.conf here"
    return verdict(troubles, ok(fine))


def test_env_nccl_conf(node: Node, conclude: Conclude) -> None:
    """NCCL's configuration files on the node do not break the job."""
    conclude(judge(node.environ, node.expected, node.facts, node.group))
