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


def settings(files: tuple[ConfFile, ...]) -> dict[str, str]:
    """What the files set together: the user's file wins over the system's."""
    ranked = sorted(files, key=lambda file: file.kind == "user")
    return {one.name: one.value for file in ranked for one in reversed(file.settings)}


def shared(facts: Facts) -> tuple[tuple[str, str], ...] | None:
    """The settings that all nodes of a job should share; None where they are not known."""
    if facts.nccl_conf is None or any(file.error for file in facts.nccl_conf):
        return None
    known = variables()
    return tuple(
        (name, value)
        for name, value in sorted(settings(facts.nccl_conf).items())
        if name not in known or known[name].alike in ("must", "should")
    )


def remarks(file: ConfFile, environ: Mapping[str, str], facts: Facts | None = None) -> list[Remark]:
    """What is wrong with the lines of one file, given the job's own environment."""
    given = {one.name: one.value for one in reversed(file.settings)}
    found = [wrong for name, value in given.items() if (wrong := _line(name, value, given))]
    trimmed = {name: value for name, value in given.items() if _is_name(name)}
    here = editions(facts, environ)
    found += [*unread(trimmed, here), *outdated(trimmed, here)]
    found += [
        Remark(
            f"{show(name, value)} has no effect: the environment has {show(name, environ[name])}",
            f"remove one of the two {name}",
            "warn",
        )
        for name, value in trimmed.items()
        if name in environ and environ[name] != value and name.startswith("NCCL_")
    ]
    if file.without_equals:
        sentence = f"{file.without_equals} lines are not NAME=VALUE, and are skipped"
        found.append(Remark(sentence, "write NAME=VALUE, and # in front of comments", "warn"))
    return [replace(one, sentence=f"{file.path}: {one.sentence}") for one in found]


def left_over(
    files: tuple[ConfFile, ...], environ: Mapping[str, str], expected: Expected, facts: Facts
) -> list[Remark]:
    """Fast paths that the files switch off, not the job."""
    by_job = switched_off(environ, expected, facts)
    together = switched_off({**settings(files), **environ}, expected, facts)
    paths = " and ".join(file.path for file in files)
    return [
        Remark(f"{paths}: {one.sentence}", one.advice, one.weight)
        for one in together
        if one not in by_job
    ]


def drift(mine: tuple[tuple[str, str], ...] | None, group: Group) -> list[Remark]:
    """How this node's files differ from those of most nodes of its group."""
    usual = decided(group.majority(shared))
    if mine is None or usual is None or usual.value == mine:
        return []
    here, there = dict(mine), dict(usual.value)
    name = next(name for name in sorted({**here, **there}) if here.get(name) != there.get(name))
    known = variables().get(name)
    secret = known is not None and known.type == "secret"
    seen = [
        "another value" if secret else show(name, side[name]) if name in side else f"no {name}"
        for side in (here, there)
    ]
    sentence = f"nccl.conf has {seen[0]}, {seen[1]} on {usual.holders}"
    fatal = known is not None and known.alike == "must"
    advice = "give all nodes one nccl.conf: ranks that disagree hang or crawl"
    return [Remark(sentence, advice, "fail" if fatal else "warn")]


def _line(name: str, value: str, given: Mapping[str, str]) -> Remark | None:
    setting = show(name.strip(), value)
    if name != name.strip() or name.startswith("export "):
        wrong = f"{show(name, value)} sets a variable called {name!a}, which nothing reads"
        return Remark(wrong, f"write {name.strip().removeprefix('export ').strip()}=VALUE")
    if "#" in value and value.partition("#")[0].strip():
        return Remark(f"{setting}: the comment is part of the value", "put it on a line of its own")
    if value != value.strip():
        return Remark(f"{setting}: a blank or carriage return is part of it", "remove the blank")
    one = variables().get(name)
    if one is not None and one.owner != "NCCL":
        late = (
            f"{setting} comes too late: {one.owner} has read its variables before NCCL reads this"
        )
        return Remark(late, f"set {name} in the environment", "warn")
    return read(one, value, given) if one is not None else None


def _is_name(name: str) -> bool:
    return name.isidentifier()


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
    found = [one for file in files for one in remarks(file, job, facts)]
    found += left_over(files, job, expected, facts) + drift(shared(facts), group)
    closed = next((file for file in files if file.error), None)
    if closed is not None and not found:
        problem = f"{closed.path} is there and cannot be read: {closed.error}"
        return unknown(
            problem, advice=f"sudo cat {quote(closed.path)}, or make it readable", grant=GRANT
        )
    sources = [f"{file.path}: {count(len(file.settings), 'setting')}" for file in files]
    return verdict(
        found, ok(", ".join(sources) + ", all right" if sources else "no nccl.conf here")
    )


def test_env_nccl_conf(node: Node, conclude: Conclude) -> None:
    """NCCL's configuration files on the node do not break the job."""
    conclude(judge(node.environ, node.expected, node.facts, node.group))
