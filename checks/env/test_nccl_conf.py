"""NCCL reads ~/.nccl.conf and /etc/nccl.conf behind the job's back: what they set, judged alike.

The environment wins over both, the user's file over the system's; a line is split at its first `=`
and nothing is trimmed (NVIDIA/nccl, src/misc/param.cc setEnvFile). NCCL_CONF_FILE names a file in
place of the user's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from preflight.facts.environ.editions import editions
from preflight.facts.environ.names import outdated, unread
from preflight.facts.environ.remark import Remark, told
from preflight.facts.environ.transports import switched_off
from preflight.facts.environ.values import read
from preflight.facts.environ.variables import variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.facts.model import Facts
    from preflight.facts.nccl_conf_model import ConfFile
    from preflight.facts.node import Group
    from preflight.fleet.model import Promise

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
            f"{told(name, value)} has no effect: the environment has {told(name, environ[name])}",
            f"remove one of the two {name}",
            "warn",
        )
        for name, value in trimmed.items()
        if name in environ and environ[name] != value and name.startswith("NCCL_")
    ]
    if file.without_equals:
        said = f"{file.without_equals} lines are not NAME=VALUE, and are skipped"
        found.append(Remark(said, "write NAME=VALUE, and # in front of comments", "warn"))
    return [replace(one, sentence=f"{file.path}: {one.sentence}") for one in found]


def left_over(
    files: tuple[ConfFile, ...], environ: Mapping[str, str], promised: Promise, facts: Facts
) -> list[Remark]:
    """Fast ways that the files switch off, not the job."""
    by_job = switched_off(environ, promised, facts)
    together = switched_off({**settings(files), **environ}, promised, facts)
    paths = " and ".join(file.path for file in files)
    return [
        Remark(f"{paths}: {one.sentence}", one.advice, one.weight)
        for one in together
        if one not in by_job
    ]


def drift(mine: tuple[tuple[str, str], ...] | None, group: Group) -> list[Remark]:
    """How this node's files differ from those of most nodes of its group."""
    usual = group.majority(shared)
    if mine is None or usual is None or not usual.decides or usual.value == mine:
        return []
    here, there = dict(mine), dict(usual.value)
    name = next(name for name in sorted({**here, **there}) if here.get(name) != there.get(name))
    whom = f"{usual.votes} of {usual.of} nodes"
    known = variables().get(name)
    secret = known is not None and known.type == "secret"
    seen = [
        "another value" if secret else told(name, side[name]) if name in side else f"no {name}"
        for side in (here, there)
    ]
    said = f"nccl.conf has {seen[0]}, {seen[1]} on {whom}"
    fatal = known is not None and known.alike == "must"
    advice = "give all nodes one nccl.conf: ranks that disagree hang or crawl"
    return [Remark(said, advice, "fail" if fatal else "warn")]


def _line(name: str, value: str, given: Mapping[str, str]) -> Remark | None:
    said = told(name.strip(), value)
    if name != name.strip() or name.startswith("export "):
        wrong = f"{told(name, value)} sets a variable called {name!a}, which nothing reads"
        return Remark(wrong, f"write {name.strip().removeprefix('export ').strip()}=VALUE")
    if "#" in value and value.partition("#")[0].strip():
        return Remark(f"{said}: the comment is part of the value", "put it on a line of its own")
    if value != value.strip():
        return Remark(f"{said}: a blank or carriage return is part of it", "remove the blank")
    one = variables().get(name)
    if one is not None and one.owner != "NCCL":
        late = f"{said} comes too late: {one.owner} has read its variables before NCCL reads this"
        return Remark(late, f"set {name} in the environment", "warn")
    return read(one, value, given) if one is not None else None


def _is_name(name: str) -> bool:
    return name.isidentifier()
