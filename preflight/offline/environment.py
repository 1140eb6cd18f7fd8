"""A job's environment as somebody captured it: `env`, /proc/PID/environ, or a launch script.

Nothing is run: of a script, what is assigned counts, whatever `if` stands around it; comments are
no settings, and a value that only the shell could work out is not judged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from preflight.facts.environ.values import read as value_remark
from preflight.facts.environ.variables import variables
from preflight.fleet.starred import starred
from preflight.offline.captured import Captured, bare_facts
from preflight.offline.launches import nodes, read_script, told
from preflight.offline.settings import dump, is_ours, items
from preflight.offline.shell import is_cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

KINDS: Final = ("environment", "launch script")
DUMP, SCRIPT = KINDS
LARGEST: Final = 1 << 20
"""Characters; no environment or script is larger, and a log that is would take minutes."""

_CHECKS: Final = (
    "env.exists",
    "env.values",
    "env.deprecated",
    "env.contradictions",
    "env.transports",
    "env.debugging",
)
_JUDGED_OPTIONS: Final = (
    "SLURM_GPU_BIND",
    "SLURM_NTASKS_PER_GPU",
    "--nproc-per-node",
    "--rdzv-endpoint",
)
_NO_TEXT: Final = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\ufffd]")


def read(text: str) -> Captured | None:
    """Read a dump or a script; None for a text that sets nothing that is judged here."""
    if len(text) > LARGEST or not text.strip():
        return None
    environ = dump(text)
    if environ is not None:
        environ = _starred(environ)
        return _captured(DUMP, environ, _damage(text, cut=_dump_is_cut(text))) if environ else None
    script = read_script(text)
    script.settings |= dict(items(text.splitlines()))
    damaged = _damage(text, cut=is_cut(text))
    by_node = {name: _starred(told(settings)) for name, settings in nodes(script).items()}
    if by_node:
        return _several(by_node, damaged, one_job=True)
    turns = {f"line {one.line}": _starred(told(one.settings)) for one in script.launches}
    turns = {name: settings for name, settings in turns.items() if _says_something(settings)}
    if len({tuple(sorted(settings.items())) for settings in turns.values()}) > 1:
        return _several(turns, damaged, one_job=False)
    merged = _starred(told(script.settings)) | next(iter(turns.values()), {})
    if not _says_something(merged) and not any(is_ours(name) for name in script.settings):
        return None
    return _captured(SCRIPT, merged, damaged)


def _starred(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: starred(value) for name, value in settings.items()}


def _captured(kind: str, environ: dict[str, str], damaged: str) -> Captured:
    return Captured(kind=kind, facts=bare_facts(), checks=_CHECKS, environ=environ, damaged=damaged)


def _several(by_name: Mapping[str, dict[str, str]], damaged: str, *, one_job: bool) -> Captured:
    return Captured(
        kind=SCRIPT,
        facts=bare_facts(),
        checks=(*_CHECKS, "env.ranks") if one_job else _CHECKS,
        environ=_worst(by_name.values()),
        environs=dict(by_name),
        one_job=one_job,
        damaged=damaged,
    )


def _worst(environs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """One environment for several: of each variable the first value, or the first that is wrong."""
    worst: dict[str, str] = {}
    for environ in environs:
        for name, value in environ.items():
            known = variables().get(name)
            if name not in worst or (known and value_remark(known, value, environ)):
                worst[name] = value
    return worst


def _says_something(settings: Mapping[str, str]) -> bool:
    return any(is_ours(name) or name in _JUDGED_OPTIONS for name in settings)


def _damage(text: str, *, cut: bool) -> str:
    if _NO_TEXT.search(text.replace("\0", "")):
        return "it holds bytes that are no text"
    return "it ends in the middle of a line" if cut else ""


def _dump_is_cut(text: str) -> bool:
    last = text.replace("\0", "\n").rpartition("\n")[2].strip()
    return bool(last) and "=" not in last
