"""Reads a pasted job environment: `env`, /proc/PID/environ, or a launch script.

Settings come in many forms: scripts, YAML, Dockerfiles, Python, `env` itself. Nothing is run: in a
script every assignment counts, whatever `if` is around it; comments do not count; a value that only
the shell can compute (`$(hostname)`, an unset variable) is UNKNOWN and not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from preflight.captured import Captured
from preflight.captured.shell import UNKNOWN, Variables, commands, expanded, is_cut, logical_lines
from preflight.checks.env.values import read as value_remark
from preflight.checks.env.variables import unread, unread_names, variables
from preflight.core.files import shipped_table
from preflight.core.text import mask_secrets
from preflight.facts.model import bare_facts
from preflight.fleet.job_environment import ASSIGNMENT

_NAME: Final = r"([A-Za-z_][A-Za-z0-9_]*)"
_FORMS: Final = tuple(
    re.compile(form)
    for form in (
        rf"^\s*[\"']?{_NAME}[\"']?\s*:\s++(.*?),?(?:(?<!\s)\s+)?$",  # YAML, JSON, a Python dict
        rf"^\s*(?:setenv|ENV|env)\s+{_NAME}\s+(\S(?:.*\S)?)\s*$",  # csh, Dockerfile
        # Python: an item of os.environ; setdefault and putenv
        rf"^\s*os\.environ\[[\"']{_NAME}[\"']\]\s*=\s*+(.*\S)\s*$",
        rf"^\s*os\.(?:environ\.setdefault|putenv)\([\"']{_NAME}[\"'],\s*+(.+)\)\s*$",
    )
)
# Kubernetes: "- name: NAME", and on the next line "value: VALUE".
_ITEM_NAME: Final = re.compile(rf"^\s*+-?\s*+name\s*:\s*[\"']?{_NAME}[\"']?\s*$")
_ITEM_VALUE: Final = re.compile(r"^\s*+-?\s*+value\s*:\s*+(.*\S|)\s*$")
_QUOTED: Final = re.compile(r"([\"'])(.*)\1")
_DUMP_LINE: Final = re.compile(rf"^{_NAME}=(.*)$")
# A command behind settings: "NCCL_DEBUG=INFO torchrun ...". Output of `env` has none.
_COMMAND_AFTER: Final = re.compile(
    r"^\w+=\S*\s+(?:\w+=|\S*\b(?:python|torchrun|srun|mpirun|mpiexec|accelerate|deepspeed)\b)"
)
_OTHER_LINES_SHARE: Final = 0.3
"""The share of lines without a setting in output of `env`: values of several lines."""

_WORDS: Final = shipped_table(__file__, "launch_words.toml")


def is_checked(name: str) -> bool:
    """Whether a check reads this variable, or reports that no program reads it."""
    if name in _WORDS["variables"] or name in variables() or name in unread_names():
        return True
    return name.startswith(("NCCL_", "GLOO_", "TORCH_NCCL_")) or bool(unread({name: ""}))


def setting_outside_shell(line: str) -> tuple[str, str] | None:
    """A setting outside a shell: `NAME: value`, `setenv NAME value`, `os.environ[...] = ...`."""
    for form in _FORMS:
        match = form.match(line)
        if match and is_checked(match[1]):
            return match[1], _unquoted(match[2])
    return None


def kubernetes_settings(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Kubernetes' form: `- name: X` with `value: "Y"` on the next line."""
    for at, line in enumerate(lines[:-1]):
        name, value = _ITEM_NAME.match(line), _ITEM_VALUE.match(lines[at + 1])
        if name and value and is_checked(name[1]):
            yield name[1], _unquoted(value[1])


def dumped_settings(text: str) -> dict[str, str] | None:
    """Output of `env` or /proc/PID/environ, with literal values; None for another text."""
    lines_text = text.replace("\0", "\n")
    lines = [line for line in lines_text.split("\n") if line.strip()]
    if not lines_text.endswith("\n") and lines and not _DUMP_LINE.match(lines[-1]):
        lines = lines[:-1]  # cut off there
    matches = [match for line in lines if (match := _DUMP_LINE.match(line))]
    pairs = {match[1]: match[2].removesuffix("\r") for match in matches}
    if not pairs or len(lines) - len(matches) > _OTHER_LINES_SHARE * len(lines):
        return None
    shell = re.compile(r"^\s*(?:export|set|if|fi|echo|source|cd|module|torchrun|srun|#!)\b|^#")
    if any(_COMMAND_AFTER.match(line) or shell.match(line) for line in lines):
        return None
    if any("$" in value for name, value in pairs.items() if is_checked(name)):
        return None
    return {name: value for name, value in pairs.items() if is_checked(name) or name in _SLURM_VARS}


def assignment(word: str) -> tuple[str, str] | None:
    """`NAME=VALUE`, also as `-eNAME=VALUE`."""
    match = ASSIGNMENT.fullmatch(word) or re.fullmatch(rf"-[ex]{_NAME}=(.*)", word, re.DOTALL)
    return (match[1], match[2]) if match else None


def _unquoted(value: str) -> str:
    match = _QUOTED.fullmatch(value)
    if match:
        return match[2]
    bare = re.sub(r"(?s)(?<!\s)\s+#.*", "", value)
    return UNKNOWN if re.search(r"[(){}]|\bf[\"']", bare) else bare


_STARTERS: Final = re.compile(f"(?:{'|'.join(_WORDS['starters'])})")
_DIRECTIVE: Final = re.compile(r"^\s*#(?:SBATCH|BSUB|PBS)\s+(.*)$")
# "#PBS -l select=2:ngpus=8".
_PBS_GPUS: Final = re.compile(r"ngpus=(\d+)")
# The next lines are of one node: "## On node 1:", "[worker-2]", "# head node (10.0.0.1):".
_HEADING: Final = re.compile(
    r"^\s*+(?:#+|//|\*+|=+|-+|\[|<)?+\s*+(?:on\s+|run\s+on\s+|for\s+|at\s+)?"
    r"((?:node|host|machine|server|worker|master|rank|head)s?+(?:[\s_#-]*+\d++|\s+node)?+)"
    r"\s*+[\])>:*=#-]*+\s*+(?:\([^)]*\))?+\s*+:?+\s*$",
    re.IGNORECASE,
)
_CODE: Final = re.compile(r"`([^`]+)`")
_SLURM_VARS: Final = (*_WORDS["slurm_options"].values(), "SLURM_GPUS_ON_NODE")
_MAY_SET_OR_START: Final = re.compile(rf"=|^\s*unset\s|(?:^|[\s/;&|(]){_STARTERS.pattern}(?:\s|$)")
"""Other lines set and start nothing; they are skipped, because splitting is slow."""

MOST_LAUNCHES: Final = 64


@dataclass(slots=True)
class Launch:
    """One command that starts ranks, and the settings at that line."""

    line: int
    settings: dict[str, str]
    heading: str = ""


class Script:
    """What a script sets and starts, read line by line; `settings` are those at its end."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.launches: list[Launch] = []
        self.headings: dict[str, dict[str, str]] = {}
        """By node in a heading: the settings below it (and above the first heading)."""
        self._variables = Variables()
        self._above_headings: dict[str, str] = {}
        self._heading = ""

    def line(self, number: int, text: str) -> None:
        """Read one logical line."""
        directive, heading = _DIRECTIVE.match(text), _HEADING.match(text)
        if heading and not directive:
            self._begin_heading(" ".join(heading[1].lower().split()))
        elif directive:
            if gpus := _PBS_GPUS.search(directive[1]):
                self._set("PBS_NGPUS", gpus[1])
            self.settings |= _options(directive[1].split(), self._variables)
        elif text.lstrip().startswith("|") or text.count("`") > 1:
            self._in_backticks(number, text)
        elif (setting := setting_outside_shell(text)) is not None:
            self._set(setting[0], expanded(setting[1], self._variables))
        elif not text.lstrip().startswith("#") and _MAY_SET_OR_START.search(text):
            for words in commands(text):
                self._command(number, words)

    def _begin_heading(self, heading: str) -> None:
        if not self._heading:
            self._above_headings = dict(self.settings)
        self._heading = heading
        self.settings = dict(self._above_headings)
        self.headings[heading] = self.settings

    def _set(self, name: str, value: str) -> None:
        if UNKNOWN in value:
            self._variables.pop(name, None)
            value = UNKNOWN
        else:
            self._variables[name] = value
        if is_checked(name) or name == "PBS_NGPUS":
            self.settings[name] = value

    def _in_backticks(self, number: int, text: str) -> None:
        """A table or a sentence with commands in backticks: each is separate."""
        for code in _CODE.findall(text):
            words = code.split()
            if words and (words[0].startswith("--") or _STARTERS.fullmatch(words[0])):
                inline = dict(pair for word in words if (pair := assignment(word)) is not None)
                checked = {name: value for name, value in inline.items() if is_checked(name)}
                self.launches.append(Launch(number, checked | _options(words, Variables())))

    def _command(self, number: int, words: Sequence[str]) -> None:
        if words[0] == "unset":
            for name in words[1:]:
                self.settings.pop(name, None)
            return
        inline: dict[str, str] = {}
        starter = ""
        for word in words:
            pair = assignment(word)
            if pair is not None:
                inline[pair[0]] = expanded(pair[1], self._variables)
            elif word.startswith("--export="):
                parts = (assignment(part) for part in word[9:].split(","))
                inline |= dict(part for part in parts if part is not None)
            elif not starter and _STARTERS.fullmatch(word.rpartition("/")[2]):
                starter = word
            elif not starter and word not in _WORDS["prefixes"] and not word.startswith("-"):
                return  # an unrelated command: echo, cd, module load
        if not starter:
            for name, value in inline.items():
                self._set(name, value)
            return
        checked = {name: value for name, value in inline.items() if is_checked(name)}
        settings = self.settings | checked | _options(words, self._variables)
        self.launches.append(Launch(number, settings, self._heading))


def read_script(text: str) -> Script:
    """Read settings and launches; skip everything else."""
    script = Script()
    for number, line in logical_lines(text):
        script.line(number, line)
        if max(len(script.launches), len(script.headings)) > MOST_LAUNCHES:
            break  # each has all settings above it
    return script


def nodes(script: Script) -> dict[str, dict[str, str]]:
    """The settings of each node that a script shows, by heading or number; {} if it shows one."""
    by_heading = {name: settings for name, settings in script.headings.items() if settings}
    by_heading |= {launch.heading: launch.settings for launch in script.launches if launch.heading}
    if len(by_heading) > 1:
        return by_heading
    ranks = [(_rank_option(launch), launch.settings) for launch in script.launches]
    by_rank = {f"rank {rank}": settings for rank, settings in ranks if rank}
    return by_rank if len(by_rank) > 1 else {}


def _rank_option(launch: Launch) -> str:
    options = _WORDS["rank_options"]
    return next((launch.settings[name] for name in options if name in launch.settings), "")


def _options(words: Sequence[str], variables: Variables) -> dict[str, str]:
    """`--name value` and `--name=value`; Slurm's options by the variable that it exports."""
    options = {}
    for at, word in enumerate(words):
        if not re.match(r"--?[A-Za-z]", word) or word.startswith(("-x", "-e")):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            value = words[at + 1] if at + 1 < len(words) and words[at + 1][:1] != "-" else ""
        value = expanded(value, variables)
        key = name.replace("_", "-")
        if key == "gres" and value.startswith("gpu"):
            key = "gpus-per-node"
        if value and UNKNOWN not in value:
            options[_WORDS["slurm_options"].get(key, f"--{key}")] = value
    return options


def _known_values(settings: dict[str, str]) -> dict[str, str]:
    """Without values that only the shell knows, unless the name itself is the mistake."""
    return {
        name: "" if UNKNOWN in value else mask_secrets(value)
        for name, value in settings.items()
        if UNKNOWN not in value or (name not in _WORDS["variables"] and name not in variables())
    }


KINDS: Final = ("environment", "launch script")
DUMP, SCRIPT = KINDS
LARGEST: Final = 1 << 20
"""Characters; no environment or script is larger, and a larger log would take minutes."""

_CHECKS: Final = (
    "env.exists", "env.values", "env.deprecated", "env.contradictions", "env.transports",
    "env.debugging",
)  # fmt: skip
_NOT_TEXT: Final = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\ufffd]")


def has_no_setting(text: str) -> bool:
    """Whether a text is a dump of an environment without a relevant setting."""
    return len(text) <= LARGEST and dumped_settings(text) == {}


def read(text: str) -> Captured | None:
    """Read a dump or a script; None for a text without a relevant setting."""
    if len(text) > LARGEST or not text.strip():
        return None
    environ = dumped_settings(text)
    if environ is not None:
        environ = {name: mask_secrets(value) for name, value in environ.items()}
        damaged = _damage(text, cut=_dump_is_cut(text)) or _two_values(text)
        return _captured(DUMP, damaged, environ=environ) if environ else None
    script = read_script(text)
    script.settings |= dict(kubernetes_settings(text.splitlines()))
    result = _captured_script(script, _damage(text, cut=is_cut(text)))
    if result and max(len(script.launches), len(script.headings)) > MOST_LAUNCHES:
        damaged = f"it starts ranks over {MOST_LAUNCHES} times"
        return replace(result, damaged=damaged, advice="give each script separately")
    return result


def _captured_script(script: Script, damaged: str) -> Captured | None:
    by_node = {name: _known_values(settings) for name, settings in nodes(script).items()}
    if by_node:
        checks = (*_CHECKS, "env.ranks")
        worst = _merge_environs(by_node.values())
        return _captured(SCRIPT, damaged, checks=checks, environ=worst, environs=by_node)
    launches = {f"line {launch.line}": _known_values(launch.settings) for launch in script.launches}
    by_line = {line: settings for line, settings in launches.items() if _has_judged(settings)}
    if len({tuple(sorted(settings.items())) for settings in by_line.values()}) > 1:
        worst = _merge_environs(by_line.values())
        return _captured(SCRIPT, damaged, environ=worst, environs=by_line, one_job=False)
    merged = _known_values(script.settings) | next(iter(by_line.values()), {})
    if not _has_judged(merged) and not any(is_checked(name) for name in script.settings):
        return None
    return _captured(SCRIPT, damaged, environ=merged)


def _captured(kind: str, damaged: str, **fields: Any) -> Captured:
    return Captured(kind=kind, damaged=damaged, facts=bare_facts(), **{"checks": _CHECKS, **fields})


def _merge_environs(environs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Merge several environments: of each variable the first wrong value, or the first value."""
    merged: dict[str, str] = {}
    for environ in environs:
        for name, value in environ.items():
            variable = variables().get(name)
            if name not in merged or (variable and value_remark(variable, value, environ)):
                merged[name] = value
    return merged


def _has_judged(settings: Mapping[str, str]) -> bool:
    return any(is_checked(name) or name in _WORDS["judged_options"] for name in settings)


def _damage(text: str, *, cut: bool) -> str:
    if _NOT_TEXT.search(text.replace("\0", "")):
        return "it contains bytes that are not text"
    return "it ends in the middle of a line" if cut else ""


def _two_values(text: str) -> str:
    """Name a setting with two values: the text holds two environments, or one was edited."""
    values: dict[str, str] = {}
    for match in map(_DUMP_LINE.match, text.replace("\0", "\n").splitlines()):
        if match and is_checked(match[1]) and values.setdefault(match[1], match[2]) != match[2]:
            return f"{match[1]} has two values in it: give each environment in a file of its own"
    return ""


def _dump_is_cut(text: str) -> bool:
    last = text.replace("\0", "\n").rpartition("\n")[2].strip()
    return bool(last) and "=" not in last
