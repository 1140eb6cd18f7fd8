"""Removes passwords and tokens from command lines, which travel in reports.

Secrets have no common form, so only what is known to be harmless stays: the program and script of
another user's command; of our own also options' names, numbers, paths and the values of options
that hold no secret. `***` replaces the rest.
"""

from __future__ import annotations

import os
import re

from .node_files import TEXT_LIMIT, clean

CUT = "***"

_HARMLESS = frozenset((
    "backend", "config", "config-name", "data", "dataset", "device", "devices", "device-map",
    "dtype", "gres", "hostfile", "host", "job-name", "launcher", "local-addr", "log-dir", "logdir",
    "master-addr", "master-address", "mixed-precision", "model", "model-name", "module",
    "optimizer", "output-dir", "partition", "precision", "rdzv-backend", "rdzv-endpoint",
    "rdzv-id", "run-path", "save-dir", "scheduler", "strategy", "tokenizer", "tokenizer-name",
    "type", "world-size",
))  # fmt: skip
"""Options whose values describe a job and are never secret."""
_VERBS = frozenset(("agent", "exec", "launch", "run", "serve", "start", "train"))
"""Subcommands of programs: vllm serve, ray start."""
_TELLTALE = re.compile(
    r"(?i)(?:pass|pwd|secret|token(?!s|iz)|key|auth|cred|pin$|pw(?![a-z])|bearer|jwt"
    r"|(?<![a-z])(?:psk|otp|sas|sig)(?![a-z]))"
)
"""Names whose value is never shown, not even a number or a path."""
_TELLTALE_INSIDE = re.compile(rf"{_TELLTALE.pattern}[\w.-]{{0,60}}[:%+;|~\[]")
"""key:VALUE, and key%3dVALUE."""
SECRET_VARIABLE = re.compile(
    r"(?i)TOKEN|SECRET|(?<!BY)PASS(?!IVE|THR)|CREDENTIAL|(?:_|API|ACCESS|PRIVATE)KEY(?:_|$)|JWT|AUTH"
    r"|BEARER|COOKIE|PWD|(?<![A-Z])PW(?![A-Z])|_(?:PSK|SAS|OTP|SIG)$"
)
"""The controller has the same expression, for text that does not come from a node."""
_SETTING = re.compile(r"[\^=]{0,2}(?!-[A-Za-z])[\w./:,;+~%^|*\[\]-]{0,4000}")
"""A list of devices, protocols or folders: a value with blanks or a login may hold a secret."""
_ASSIGNABLE = re.compile(r"(?:--)?[A-Za-z_][A-Za-z0-9_.-]{0,60}")
"""--name=value, NAME=value, and Hydra's a.name=value."""
_NAME = re.compile(r"--[A-Za-z][\w.-]{0,60}|-[A-Za-z]")
_GLUED = re.compile(r"-[A-Za-z]")
"""-pVALUE."""
_NUMBER = re.compile(
    r"[-+]?(?:\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})(?:[eE][-+]?\d{1,3})?[kKMGTmsh%]?(?:,\d{1,6}){0,32}"
    r"|inf|nan|true|false|none|auto|yes|no",
    re.IGNORECASE,
)
_PATH = re.compile(
    r"(?:~|\.{0,2})(?:/[\w.+@,-]{1,80}){1,24}/?|(?:[\w+-]{1,60}/){0,8}[\w.+-]{1,60}"
    r"\.(?:bin|cfg|conf|csv|ini|ipynb|jsonl?|log|out|parquet|pt|py|pyz|safetensors|sh|so|toml|txt|ya?ml)"
)
_PLAIN = re.compile(r"(?:[\w./,+~%-]|:(?=/|\d{1,6}(?!\w))){0,400}")
"""The value of a harmless option: a query (?sig=), a login or a document may hold a secret."""
_GPU = re.compile(r"(?:GPU|MIG)-[0-9a-f-]{36}")
_TAKES_MODULE = re.compile(
    r"(?:python|pypy)[\d.]*|torchrun|accelerate|torch\.distributed\.(?:run|launch)"
)
"""Programs whose -m takes a module."""
_SHELLS = re.compile(r"bash|sh|dash|zsh")
_CODE = re.compile(r"-[a-zA-Z]{0,3}c")
_PROGRAM = re.compile(r"(?:[\w./+-]|::(?=\w))+(?=[\s:,;=(]|$)")
"""A program's name, as in "sshd: alice" and "ray::IDLE"; what follows may be secret."""
_FLAG = re.compile(r"-[uBx]")
"""Options of an interpreter that take no value."""

_ENCODED = re.compile(r"(?<!\S)\S*%[0-9A-Fa-f]{2}\S*")
_URL_LOGIN = re.compile(
    r"(://)[^/\s]*@|(://)[^\s:]*:\S*@|(?<![^\s\"'=,;])[^\s:@/\"'=,;]+:(?!/)\S*@"
)
"""Of a URL, or user:password@host alone; a Lustre server, 10.0.0.1@tcp:/fs, has no login."""
_UP_TO_AT = re.compile(r"(?<!\S)\S*@")  # a word's login ends at its last @
TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|api_org_|sk-|[spr]k_|whsec_|gh[pousr]_|github_pat_|xox[a-z]-|xapp-"
    r"|gl(?:pat|dt|rt|ft|imt|agent|oas|soat|cbt|ptt|ffct)-|nvapi-|A[KS]IA|ABIA|ACCA|LTAI|AKCp|AIza"
    r"|GOCSPX-|ya29\.|1//0|do[opr]_v1_|dckr_pat_|npm_|pypi-|rubygems_|wandb_v1_|eyJ|hv[bsr]\."
    r"|gsk_|xai-|pplx-|csk-|r8_|tgp_v1_|lsv2_|shp[a-z]{2}_|lin_(?:api|oauth)_|SG\.|sq0[a-z]{3}-"
    r"|dapi(?=[0-9a-f]{10})|dp\.[a-z]{2,5}\.|dt0[a-z]\d\d\.|PMAK-|NRAK-|pul-|ph[cx]_|sntry[su]_"
    r"|gls?[ac]_|AT[AC]TT3|ATBB|pscale_|tskey-|figd_|ntn_|fm[12][a-z]?_|sgp_|AGE-SECRET-KEY-"
    r")[\w.+=-]{10,}"
)
"""Prefixes that issuers give their tokens; the controller has the same expression."""
_HEX = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{32,}(?![0-9A-Za-z])")
_AWS_SECRET = re.compile(
    r"(?<![\w/+])(?=\S{0,39}[A-Z])(?=\S{0,39}[a-z])(?=\S{0,39}\d)[A-Za-z0-9+][A-Za-z0-9/+]{39}(?![\w/+=])"
)
_LONG = re.compile(r"[A-Za-z0-9+_=-]{20,}")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_INTERPRETER = re.compile(r"^(?:python|pypy|bash|sh|dash|zsh|perl|ruby|node)[\d.]*$")


def command(argv: list[bytes], *, whole: bool) -> str:
    """Return a process's command as one printable line; if not `whole`, only program and script."""
    words = [clean(word, TEXT_LIMIT) for word in argv[:256]]
    if whole and words:
        # A title set by the process itself is a whole command in one word.
        first, *rest = words[0].split() or [CUT]
        words = [_program(first), *rest, *words[1:]]
    else:
        words = _program_and_script(words)
    return clean(" ".join(redact_words(words)), TEXT_LIMIT)


def _program_and_script(words: list[str]) -> list[str]:
    """Cut a command to its program, with the script or module where the program runs one."""
    if not words:
        return []
    kept = [_program(words[0])]
    name = os.path.basename(kept[0])
    pos = next((pos for pos, word in enumerate(words) if pos and not _FLAG.fullmatch(word)), 0)
    if not pos or not _INTERPRETER.match(name):
        return kept
    if words[pos] == "-m" and _TAKES_MODULE.fullmatch(name):
        return [*kept, "-m", *map(_program, words[pos + 1 : pos + 2])]
    is_script = _PATH.fullmatch(words[pos]) and words[pos] == _program(words[pos])
    return [*kept, words[pos]] if is_script else kept


def _program(word: str) -> str:
    """Cut a word to the name of a program; only a login shell's begins with a dash."""
    match = _PROGRAM.match(word)
    return match[0] if match and (word[0] != "-" or _SHELLS.fullmatch(match[0][1:])) else CUT


def redact_words(words: list[str]) -> list[str]:
    """Return a command's words, with `***` for all that is not known to be harmless."""
    shell = bool(words) and _SHELLS.fullmatch(os.path.basename(words[0])) is not None
    safe: list[str] = []
    before, module_next = "", False
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        is_value = before[:1] == "-" and "=" not in before and name[:1] != "-"
        if shell and _CODE.fullmatch(before):
            safe.append(CUT)
        elif equals and not is_value and _ASSIGNABLE.fullmatch(name):
            safe.append(_assignment(name, value))
        elif index == 0:
            safe.append(_cut_secrets(name) + (equals and f"={_value('', value)}"))
        elif (
            _NAME.fullmatch(word)
            or (shell and _CODE.fullmatch(word))
            or (len(safe) == 1 and word in _VERBS)
        ):
            safe.append(word)
        elif _GLUED.match(word):
            safe.append(word[:2] + CUT)
        elif before == "-m" and module_next:
            safe.append(_cut_secrets(word) if _PLAIN.fullmatch(word) else CUT)
        else:
            safe.append(_value(before if before.startswith("-") else "", word))
        if index == 0 or before == "-m":
            module_next = _TAKES_MODULE.fullmatch(os.path.basename(word)) is not None
        elif word.endswith(".py") or not (
            word.startswith("-") or before.startswith("--") or before in ("-W", "-X")
        ):
            module_next &= word in _VERBS  # it is the script, and its own options follow
        before = word
    return safe


def _assignment(name: str, value: str) -> str:
    """Redact `name=value`; drop `name=` and `name==`, as base64 can end like this."""
    if name[0] != "-" and not value.strip("="):
        return CUT
    return f"{_cut_secrets(name)}={_value(name, value)}"


def setting(name: str, value: str) -> str:
    """Return the value of a variable of NCCL or one of its libraries, or `***`."""
    harmless = _SETTING.fullmatch(value.strip()) and not _TELLTALE_INSIDE.search(value)
    return CUT if SECRET_VARIABLE.search(name) or not harmless else _cut_secrets(value)


def _value(name: str, value: str) -> str:
    """Redact a word: the value of the option `name`, or "" for any other word."""
    formed = any(kind.fullmatch(value) for kind in (_NUMBER, _PATH, _GPU))
    harmless = _normalize(name) in _HARMLESS and _PLAIN.fullmatch(value) is not None
    harmless = harmless and not _TELLTALE_INSIDE.search(value)
    return _cut_secrets(value) if (harmless or formed) and not _TELLTALE.search(name) else CUT


def _normalize(name: str) -> str:
    """Normalize an option's name: --trainer.data and --DATA become "data"."""
    return name.lstrip("-").rpartition(".")[2].replace("_", "-").lower()


def without_login(text: str) -> str:
    """Cut the login out of each URL, and each word with an encoded character: %40 is @."""
    text = _ENCODED.sub(CUT, text)
    return _UP_TO_AT.sub(lambda match: _URL_LOGIN.sub(rf"\1\2{CUT}@", match.group()), text)


def _cut_secrets(word: str) -> str:
    """Cut words of a secret's form wherever they are: a key in a path or a file's name."""
    word = TOKEN.sub(CUT, without_login(word))
    word = _AWS_SECRET.sub(CUT, _HEX.sub(CUT, word))
    return _LONG.sub(lambda match: CUT if _looks_random(match.group()) else match.group(), word)


def _looks_random(text: str) -> bool:
    """Whether a long word looks random: mixed letters and digits, few separators."""
    if _UUID.search(text):
        return False
    kinds = [
        "U" if c.isupper() else "l" if c.islower() else "9" if c.isdigit() else "-" for c in text
    ]
    changes = sum(a != b for a, b in zip(kinds, kinds[1:]))  # noqa: B905, RUF007 (Python 3.8)
    mixed = "9" in kinds and ("l" in kinds or "U" in kinds)
    return mixed and kinds.count("-") <= 0.12 * len(kinds) and changes >= 0.3 * len(kinds)
