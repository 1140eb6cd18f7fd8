"""A job's environment as somebody captured it: `env`, /proc/PID/environ, or a launch script.

Nothing is run: of a script, what is assigned counts, whatever `if` stands around it; comments are
no settings, and a value that only the shell could work out is not judged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from preflight.captured.captured import Captured, bare_facts
from preflight.captured.settings import (
    LAUNCH_NAMES,
    UNTOLD,
    Known,
    assignment,
    commands,
    dump,
    expanded,
    is_cut,
    is_ours,
    items,
    logical_lines,
    structured,
)
from preflight.checks.env.values import read as value_remark
from preflight.checks.env.variables import variables
from preflight.core.text import starred

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_STARTERS: Final = re.compile(
    r"(?:torchrun|python[0-9.]*|srun|sbatch|salloc|mpirun|mpiexec|accelerate|deepspeed|docker|"
    r"podman|singularity|apptainer|horovodrun|ray|vllm|sglang)"
)
_SKIPPED: Final = frozenset((
    "export", "declare", "typeset", "readonly", "local", "env", "sudo", "time", "nohup", "exec",
    "then", "do", "else", "if", "!", "ENV", "set", "Environment", "-x", "-gx", "-e", "--env",
))  # fmt: skip
"""Words in front of a setting or a command that change nothing of it."""

_DIRECTIVE: Final = re.compile(r"^\s*#(?:SBATCH|BSUB|PBS)\s+(.*)$")
_PBS_GPUS: Final = re.compile(r"ngpus=(\d+)")
_HEADING: Final = re.compile(
    r"^\s*+(?:#+|//|\*+|=+|-+|\[|<)?+\s*+(?:on\s+|run\s+on\s+|for\s+|at\s+)?"
    r"((?:node|host|machine|server|worker|master|rank|head)s?+(?:[\s_#-]*+\d++|\s+node)?+)"
    r"\s*+[\])>:*=#-]*+\s*+(?:\([^)]*\))?+\s*+:?+\s*$",
    re.IGNORECASE,
)
_CODE: Final = re.compile(r"`([^`]+)`")
_SLURM: Final = {
    "gpu-bind": "SLURM_GPU_BIND",
    "tres-bind": "SLURM_TRES_BIND",
    "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU",
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "gpus-per-node": "SLURM_GPUS_PER_NODE",
}
_MAY_SAY: Final = re.compile(rf"=|^\s*unset\s|(?:^|[\s/;&|(]){_STARTERS.pattern}(?:\s|$)")
"""Lines without any of these set and start nothing: splitting a long log into words takes long."""

MOST_LAUNCHES: Final = 64
_RANKS: Final = ("--node-rank", "--machine-rank", "--rank", "--node-id")


@dataclass(slots=True)
class Launch:
    """One command that starts ranks, and what was set when it was reached."""

    line: int
    settings: dict[str, str]
    heading: str = ""


@dataclass(slots=True)
class Script:
    """What a script sets and starts; `settings` are those that stand when it ends."""

    settings: dict[str, str] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    headings: dict[str, dict[str, str]] = field(default_factory=dict)
    """By node that a heading names, what is set below it (and above the first heading)."""


class _Reader:
    def __init__(self) -> None:
        self.script = Script()
        self._known = Known()
        self._before: dict[str, str] = {}
        self._heading = ""

    def line(self, number: int, text: str) -> None:
        """Take in one logical line."""
        directive, heading = _DIRECTIVE.match(text), _HEADING.match(text)
        if heading and not directive:
            self._begin(" ".join(heading[1].lower().split()))
        elif directive:
            gpus = _PBS_GPUS.search(directive[1])
            self._set(gpus and "PBS_NGPUS", gpus[1] if gpus else "")
            self.script.settings |= _options(directive[1].split(), self._known)
        elif text.lstrip().startswith("|") or text.count("`") > 1:
            self._quoted(number, text)
        elif (told := structured(text)) is not None:
            self._set(told[0], expanded(told[1], self._known))
        elif not text.lstrip().startswith("#") and _MAY_SAY.search(text):
            for words in commands(text):
                self._command(number, words)

    def _begin(self, heading: str) -> None:
        if not self._heading:
            self._before = dict(self.script.settings)
        self._heading = heading
        self.script.settings = dict(self._before)
        self.script.headings[heading] = self.script.settings

    def _set(self, name: str | None, value: str) -> None:
        if name is None:
            return
        self._known[name] = value
        if UNTOLD in value:
            del self._known[name]
            value = UNTOLD
        if is_ours(name) or name == "PBS_NGPUS":
            self.script.settings[name] = value

    def _quoted(self, number: int, text: str) -> None:
        """A table or a sentence with commands between backticks: each stands for itself."""
        for code in _CODE.findall(text):
            words = code.split()
            if words and (words[0].startswith("--") or _STARTERS.fullmatch(words[0])):
                inline = dict(pair for word in words if (pair := assignment(word)) is not None)
                own = {name: value for name, value in inline.items() if is_ours(name)}
                self.script.launches.append(Launch(number, own | _options(words, Known())))

    def _command(self, number: int, words: Sequence[str]) -> None:
        if words[0] == "unset":
            for name in words[1:]:
                self.script.settings.pop(name, None)
            return
        inline: dict[str, str] = {}
        starter = ""
        for word in words:
            pair = assignment(word)
            if pair is not None:
                inline[pair[0]] = expanded(pair[1], self._known)
            elif word.startswith("--export="):
                parts = (assignment(part) for part in word[9:].split(","))
                inline |= dict(part for part in parts if part is not None)
            elif not starter and _STARTERS.fullmatch(word.rpartition("/")[2]):
                starter = word
            elif not starter and word not in _SKIPPED and not word.startswith("-"):
                return  # somebody else's command: echo, cd, module load
        if not starter:
            for name, value in inline.items():
                self._set(name, value)
            return
        own = {name: value for name, value in inline.items() if is_ours(name)}
        settings = self.script.settings | own | _options(words, self._known)
        self.script.launches.append(Launch(number, settings, self._heading))


def read_script(text: str) -> Script:
    """Read settings and launches; what is not understood is passed over."""
    reader = _Reader()
    for number, line in logical_lines(text):
        reader.line(number, line)
        if max(len(reader.script.launches), len(reader.script.headings)) > MOST_LAUNCHES:
            break  # each has all settings above it
    return reader.script


def nodes(script: Script) -> dict[str, dict[str, str]]:
    """The settings of each node that a script shows, by heading or number; {} if it shows one."""
    found = {name: settings for name, settings in script.headings.items() if settings}
    found |= {one.heading: one.settings for one in script.launches if one.heading}
    if len(found) > 1:
        return found
    numbers = [(_number(one), one.settings) for one in script.launches]
    told = {f"rank {number}": settings for number, settings in numbers if number}
    return told if len(told) > 1 else {}


def _number(launch: Launch) -> str:
    return next((launch.settings[name] for name in _RANKS if name in launch.settings), "")


def _options(words: Sequence[str], known: Known) -> dict[str, str]:
    """`--name value` and `--name=value`; Slurm's own by the variable that it exports."""
    found = {}
    for at, word in enumerate(words):
        if not re.match(r"--?[A-Za-z]", word) or word.startswith(("-x", "-e")):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            value = words[at + 1] if at + 1 < len(words) and words[at + 1][:1] != "-" else ""
        value = expanded(value, known)
        key = name.replace("_", "-")
        if key == "gres" and value.startswith("gpu"):
            key = "gpus-per-node"
        if value and UNTOLD not in value:
            found[_SLURM.get(key, f"--{key}")] = value
    return found


def told(settings: dict[str, str]) -> dict[str, str]:
    """Without the values that only the shell knows, unless the name alone is the mistake."""
    return {
        name: "" if UNTOLD in value else value
        for name, value in settings.items()
        if UNTOLD not in value or (name not in LAUNCH_NAMES and name not in variables())
    }


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
    if max(len(script.launches), len(script.headings)) > MOST_LAUNCHES:
        damaged = f"it starts ranks over {MOST_LAUNCHES} times: give each script by itself"
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
