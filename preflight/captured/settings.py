"""Settings in whatever form people keep them: scripts, YAML, Dockerfiles, Python, `env` itself.

A value that only the shell could work out (`$(hostname)`, a variable that nothing sets) is UNTOLD.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from preflight.checks.env.variables import nobody, unread, variables
from preflight.fleet.job_environment import ASSIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterator


UNTOLD: Final = "\0"

_LONGEST: Final = 128 << 10
"""Characters of a line that shlex splits: Linux takes no longer word, and shlex copies each anew
for every character."""

_OPERATOR: Final = re.compile(r"[;&|()<>]+")
_EXPANSION: Final = re.compile(
    r"\$\{([A-Za-z_]\w*)(?::?[-=]([^{}]*))?\}|\$([A-Za-z_]\w*)|\$\{[^}]*\}?|`[^`]*`?|\$[(0-9@*#?!$]?"
)
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#.*")
_PROMPT: Final = re.compile(r"^(?:\+{1,3} |\$ |[\w.-]+@[\w.-]+[^$#\n]{0,60}[$#] )")
_ENDS_OPEN: Final = re.compile(r"(?<!\\)(?:\\\\)*\\$")


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, those that end in a backslash joined, prompts taken off."""
    kept, began = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        began = began or number
        if _ENDS_OPEN.search(line) and not line.lstrip().startswith("#"):
            kept += line[:-1] + " "
            continue
        yield began, _PROMPT.sub("", kept + line, count=1)
        kept, began = "", 0
    if kept:
        yield began, kept


def is_cut(text: str) -> bool:
    """Whether a script ends in the middle of a line or of a quoted word."""
    last = text.rstrip("\n").rpartition("\n")[2]
    if _ENDS_OPEN.search(last):
        return True
    return not text.endswith("\n") and (len(last) > _LONGEST or _unbalanced(last))


def commands(line: str) -> list[list[str]]:
    """The simple commands of a line, each as its words; comments are none."""
    words = _words(line)
    found: list[list[str]] = [[]]
    for word in words:
        if _OPERATOR.fullmatch(word):
            found.append([])
        else:
            found[-1].append(word)
    return [one for one in found if one]


class Known(dict[str, str]):
    """Variables by name, and how many characters of their values may yet be filled in elsewhere.

    Linux takes no more in one environment, and 40 lines that each double a value fill any memory.
    """

    left: int = 1 << 20


def expanded(value: str, known: Known) -> str:
    """The value with what is known filled in; UNTOLD where a part of it is not, or is too much."""

    def fill(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        if name in known:
            known.left -= len(known[name])
            return known[name] if known.left >= 0 else UNTOLD
        return found[2] if found[2] is not None else UNTOLD

    filled = _EXPANSION.sub(fill, value)
    return UNTOLD if UNTOLD in filled else filled


def _words(line: str) -> list[str]:
    bare = line if '"' in line or "'" in line else _COMMENT.sub("", line)
    if len(bare) > _LONGEST:
        return _up_to_quotes(bare)
    lexer = shlex.shlex(bare, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if word.startswith("#"):
                break
            words.append(word)
    except ValueError:  # a quote that another line closes
        return _up_to_quotes(bare)
    return words


def _up_to_quotes(line: str) -> list[str]:
    return [re.sub(r"['\"].*", "$", word) for word in line.split()]


def _unbalanced(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return False


_NAME: Final = r"([A-Za-z_][A-Za-z0-9_]*)"
_FORMS: Final = tuple(
    re.compile(form)
    for form in (
        rf"^\s*[\"']?{_NAME}[\"']?\s*:\s++(.*?),?(?:(?<!\s)\s+)?$",  # YAML, JSON, a Python dict
        rf"^\s*(?:setenv|ENV|env)\s+{_NAME}\s+(\S(?:.*\S)?)\s*$",  # csh, Dockerfile
        rf"^\s*os\.environ\[[\"']{_NAME}[\"']\]\s*=\s*+(.*\S)\s*$",
        rf"^\s*os\.(?:environ\.setdefault|putenv)\([\"']{_NAME}[\"'],\s*+(.+)\)\s*$",
    )
)
_ITEM: Final = re.compile(rf"^\s*+-?\s*+name\s*:\s*[\"']?{_NAME}[\"']?\s*$")
_VALUE: Final = re.compile(r"^\s*+-?\s*+value\s*:\s*+(.*\S|)\s*$")
_QUOTED: Final = re.compile(r"([\"'])(.*)\1")
_DUMP_LINE: Final = re.compile(rf"^{_NAME}=(.*)$")
_COMMAND_AFTER: Final = re.compile(
    r"^\w+=\S*\s+(?:\w+=|\S*\b(?:python|torchrun|srun|mpirun|mpiexec|accelerate|deepspeed)\b)"
)
_MOST_OTHER_LINES: Final = 0.3

LAUNCH_NAMES: Final = (
    "NPROC_PER_NODE",
    "NNODES",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "CUDA_VISIBLE_DEVICES",
)


def is_ours(name: str) -> bool:
    """Whether a check reads this variable, or says that nobody does."""
    if name in LAUNCH_NAMES or name in variables() or name in nobody():
        return True
    return name.startswith(("NCCL_", "GLOO_", "TORCH_NCCL_")) or bool(unread({name: ""}))


def structured(line: str) -> tuple[str, str] | None:
    """A setting that is no shell's: `NAME: value`, `setenv NAME value`, `os.environ[...] = ...`."""
    for form in _FORMS:
        found = form.match(line)
        if found and is_ours(found[1]):
            return found[1], _unquoted(found[2])
    return None


def items(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Kubernetes' form: `- name: X` with `value: "Y"` on the next line."""
    for at, line in enumerate(lines[:-1]):
        name, value = _ITEM.match(line), _VALUE.match(lines[at + 1])
        if name and value and is_ours(name[1]):
            yield name[1], _unquoted(value[1])


def dump(text: str) -> dict[str, str] | None:
    """What `env` or /proc/PID/environ printed, each value to the letter; None if it is no such."""
    whole = text.replace("\0", "\n")
    lines = [line for line in whole.split("\n") if line.strip()]
    if not whole.endswith("\n") and lines and not _DUMP_LINE.match(lines[-1]):
        lines = lines[:-1]  # cut off there
    found = [_DUMP_LINE.match(line) for line in lines]
    pairs = {one[1]: one[2].removesuffix("\r") for one in found if one}
    others = sum(one is None for one in found)
    if not pairs or others > _MOST_OTHER_LINES * len(lines):
        return None
    shell = re.compile(r"^\s*(?:export|set|if|fi|echo|source|cd|module|torchrun|srun|#!)\b|^#")
    if any(_COMMAND_AFTER.match(line) or shell.match(line) for line in lines):
        return None
    if any("$" in value for name, value in pairs.items() if is_ours(name)):
        return None
    return {name: value for name, value in pairs.items() if is_ours(name) or name in _SLURM}


def assignment(word: str) -> tuple[str, str] | None:
    """`NAME=VALUE`, also as `-eNAME=VALUE`."""
    found = ASSIGNMENT.fullmatch(word) or re.fullmatch(rf"-[ex]{_NAME}=(.*)", word, re.DOTALL)
    return (found[1], found[2]) if found else None


def _unquoted(value: str) -> str:
    found = _QUOTED.fullmatch(value)
    if found:
        return found[2]
    bare = re.sub(r"(?s)(?<!\s)\s+#.*", "", value)
    return UNTOLD if re.search(r"[(){}]|\bf[\"']", bare) else bare


_SLURM: Final = (
    "SLURM_GPU_BIND",
    "SLURM_TRES_BIND",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_ON_NODE",
)
