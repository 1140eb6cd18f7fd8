"""Command lines travel in reports; the passwords and tokens that people put into them must not.

Rather one word too many than one secret: what is cut shows as `***`.
"""

from __future__ import annotations

import os
import re

from .text import TEXT_LIMIT, clean

CUT = "***"

_TELLTALE = (
    r"(?:token|secret|passw(?:or)?d|passphrase|passwd|pwd|api[-_]?key|access[-_]?key(?:[-_]?id)?|"
    r"auth[-_]?key|account[-_]?key|private[-_]?key|credentials?|authorization|signature|bearer|"
    r"cookie)"
)
_NAMED = re.compile(rf"(?i)^-{{0,2}}[\w.-]*{_TELLTALE}[\"']?$")
_ASSIGNED = re.compile(
    rf"(?i)((?:^|[^\w.-])[\w.-]*{_TELLTALE}[\"']?\s*[=:]+\s*[\"']?)(?:(?:bearer|basic)\s+)?[^&;,\s\"']+"
)
_HEADER = re.compile(r"(?i)((?:authorization|cookie|x-[\w-]*(?:key|token))\s*:).*", re.DOTALL)
_URL_LOGIN = re.compile(r"(://)[^/\s]*@|(://)\S*:\S*@")
_KNOWN_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|sk-|sk_|pk_|rk_|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|nvapi-|AKIA|ASIA|AIza|"
    r"dop_v1_|npm_|pypi-|wandb_v1_|eyJ)[\w.+/=-]{8,}"
)
_HEX = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{32,}(?![0-9A-Za-z])")
_AWS_SECRET = re.compile(
    r"(?<![\w/+])(?=\S{0,39}[A-Z])(?=\S{0,39}[a-z])(?=\S{0,39}\d)[A-Za-z0-9+][A-Za-z0-9/+]{39}(?![\w/+=])"
)
_LONG = re.compile(r"[A-Za-z0-9+_=-]{20,}")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LOGIN_OPTIONS = {"-u", "--user", "--proxy-user"}
_PASSWORD_PROGRAMS = {"sshpass", "mysql", "mysqldump", "mysqladmin", "redis-cli"}
_PASSWORD_FLAGS = {"-p", "-a"}
_INTERPRETER = re.compile(r"^(?:python|pypy|bash|sh|dash|zsh|perl|ruby|node)[\d.]*$")


def command(argv: list[bytes], *, whole: bool) -> str:
    """One printable line for a process. `whole=False` (another user's): program and script only."""
    words = [clean(word, TEXT_LIMIT) for word in argv[:256]]
    if not whole:
        words = program(words)
    return clean(" ".join(redacted(words)), TEXT_LIMIT)


def program(words: list[str]) -> list[str]:
    """Cut a command to its program, with the script or module where the program runs one."""
    if len(words) == 1:
        return [words[0].partition(" ")[0]]  # a title set by the process itself may hold anything
    if not words or not _INTERPRETER.match(os.path.basename(words[0])):
        return words[:1]
    for at, word in enumerate(words[1:], 1):
        if word == "-m":
            return [words[0], *words[at : at + 2]]
        if word[:1] == "-" != word[1:2] and "c" in word:
            break  # `bash -lc` and `python -c`: what follows is code, not a script's name
        if not word.startswith("-"):
            return [words[0], word.partition(" ")[0]]
    return words[:1]


def redacted(words: list[str]) -> list[str]:
    """Return a command's words with everything that looks like a secret cut out."""
    safe: list[str] = []
    takes_password = bool(words) and os.path.basename(words[0]) in _PASSWORD_PROGRAMS
    before = ""
    for word in words:
        if _NAMED.match(before) and not word.startswith("--"):
            safe.append(CUT)
        elif before in _LOGIN_OPTIONS and ":" in word:
            safe.append(f"{word.partition(':')[0]}:{CUT}")
        elif takes_password and before in _PASSWORD_FLAGS:
            safe.append(CUT)
        elif takes_password and word[:2] in _PASSWORD_FLAGS and word[2:]:
            safe.append(word[:2] + CUT)
        else:
            safe.append(_inside(word))
        before = word
    return safe


def _inside(word: str) -> str:
    """Cut secrets inside one word, which may be a whole script after `bash -c`."""
    if " " in word:
        word = _HEADER.sub(rf"\1 {CUT}", word)
        word = " ".join(redacted(word.split(" ")))
    word = _URL_LOGIN.sub(rf"\1\2{CUT}@", word)
    word = _ASSIGNED.sub(rf"\1{CUT}", word)
    word = _KNOWN_SHAPE.sub(CUT, word)
    word = _AWS_SECRET.sub(CUT, _HEX.sub(CUT, word))
    return _LONG.sub(lambda found: CUT if _random(found.group()) else found.group(), word)


def _random(text: str) -> bool:
    """Whether a long word looks drawn by lot: letters and digits mixed, few separators."""
    if _UUID.search(text):
        return False
    kinds = [
        "U" if c.isupper() else "l" if c.islower() else "9" if c.isdigit() else "-" for c in text
    ]
    changes = sum(a != b for a, b in zip(kinds, kinds[1:]))  # noqa: B905, RUF007 (Python 3.8)
    mixed = "9" in kinds and ("l" in kinds or "U" in kinds)
    return mixed and kinds.count("-") <= 0.12 * len(kinds) and changes >= 0.3 * len(kinds)
