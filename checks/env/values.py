"""Whether the program that reads a variable accepts its value, and what the value will do.

`^` and `=` count only in front of the whole list (NCCL user guide, NCCL_SOCKET_IFNAME, NCCL_IB_HCA;
src/misc/utils.cc parseStringList): what stands in front of a later name is part of that name.

NCCL reads by strtoll with base 0 and looks at overflow only (src/misc/param.cc); torch reads by
std::stoi and std::stod, and stops where there is no number at all (c10d/Utils.hpp).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from preflight.checks.env.remark import Remark, show
from preflight.checks.env.variables import Variable, table, variables
from preflight.core.text import did_you_mean


class Setting(NamedTuple):
    """A variable and its value; as text NAME=value."""

    variable: Variable
    value: str

    def __str__(self) -> str:
        return show(self.variable.name, self.value)


LEAST_SPLIT_MIB: Final = 20
"""max_split_size_mb must be above kLargeBuffer: c10/core/AllocatorConfig.h of torch 2.13."""

_PART: Final = re.compile(r"([^:=\[\],]*)([:=]?)(\[[^\]]*\]|[^,]*)(?:,|$)")


def allocator_keys() -> frozenset[str]:
    """Every key of torch's allocator."""
    keys = table("torch")["allocator"]
    return frozenset((*keys["booleans"], *keys["others"]))


def allocator(setting: Setting) -> Remark | None:
    """`key:value,key:value`; blanks do not count, a list stands in brackets."""
    for part in _PART.finditer(setting.value.replace(" ", "")):
        key, sign, content = part.groups()
        if not part.group():
            continue
        if wrong := _allocator_fault(key, sign, content):
            return Remark(f"{setting}: {wrong}, and torch stops with it", _advice(key, sign))
    return None


def _allocator_fault(key: str, sign: str, value: str) -> str:
    if key not in allocator_keys():
        return f"{key[:40]!a} is no setting of the allocator"
    if sign != ":":
        return f"{key} is not followed by a colon"
    if key in table("torch")["allocator"]["booleans"]:
        return "" if value in ("True", "False") else f"{key} is neither True nor False"
    if key == "backend":
        valid = value in ("native", "cudaMallocAsync", "hipMallocAsync")
        return "" if valid else "backend is neither native nor cudaMallocAsync"
    return _number_fault(key, value)


def _number_fault(key: str, value: str) -> str:
    if key == "roundup_power2_divisions" and value.startswith("["):
        return ""
    if not re.fullmatch(r"-?[0-9]{1,15}(?:\.[0-9]{0,15})?", value):
        return f"{key} has no number"
    number = float(value)
    if key in ("garbage_collection_threshold", "per_process_memory_fraction"):
        whole = key.startswith("per") and number == 1
        return "" if 0 < number < 1 or whole else f"{key} is {value}, not between 0 and 1"
    if key == "max_split_size_mb" and number <= LEAST_SPLIT_MIB:
        return f"max_split_size_mb is {value}, not above {LEAST_SPLIT_MIB}"
    if key == "roundup_power2_divisions" and int(number) & (int(number) - 1):
        return f"roundup_power2_divisions is {value}, no power of 2"
    return "" if number >= 0 else f"{key} is {value}, below 0"


def _advice(key: str, sign: str) -> str:
    if key in allocator_keys():
        return f"write {key}:VALUE" if sign != ":" else f"correct {key}"
    return f"remove {key[:40]!a}{did_you_mean(key, allocator_keys())}"


LONGEST_INTERFACE: Final = 15
"""IFNAMSIZ of Linux is 16, with the byte that ends the name."""

MOST_HCAS: Final = 32
"""NCCL user guide, NCCL_IB_HCA: a fixed upper limit."""

_HCA: Final = re.compile(r"[^:\s]+(?::[0-9]*(?::-?[0-9]*(?::-?[0-9]*)?)?)?")


def interfaces(setting: Setting) -> Remark | None:
    """NCCL's list of interfaces."""
    if not setting.value:
        return None
    if len(setting.value) == 1:
        sentence = f"{setting}: a value of one character is ignored"
        return Remark(sentence, "give at least two letters")
    names, wrong = _names(setting)
    long = next((name for name in names if len(name) > LONGEST_INTERFACE), None)
    if wrong is None and long is not None:
        hint = "separate names with commas" if " " in long or ";" in long else "give its real name"
        return Remark(f"{setting}: no interface has a name of {len(long)} characters", hint)
    return wrong


def interface_names(setting: Setting) -> Remark | None:
    """Gloo's: exact names."""
    if setting.value.startswith(("^", "=")):
        sentence = f"{setting}: gloo takes exact names, and knows no ^ and no ="
        return Remark(sentence, "name one interface")
    return _names(setting)[1]


def hcas(setting: Setting) -> Remark | None:
    """NCCL's list of HCAs: name[:port[:rail[:plane]]]."""
    if not setting.value:
        return None
    names, wrong = _names(setting)
    if wrong is not None:
        return wrong
    malformed = next((name for name in names if not _HCA.fullmatch(name)), None)
    if malformed is not None:
        return Remark(f"{setting}: {malformed[:40]!a} is not NAME:PORT", "write it as mlx5_0:1")
    if len(names) > MOST_HCAS:
        sentence = f"{setting.variable.name} lists {len(names)} devices, NCCL takes {MOST_HCAS}"
        return Remark(sentence, "list fewer, or a prefix", "warn")
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        return Remark(f"{setting}: {double[:40]} is listed twice", "list each device once", "warn")
    return None


def endpoint(setting: Setting) -> Remark | None:
    """host:port, an IPv6 address in brackets."""
    host, _, port = setting.value.rpartition(":")
    valid = bool(host) and port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535  # noqa: PLR2004 TCP
    if not setting.value or valid:
        return None
    advice = f"write {setting.variable.name} as localhost:28028, IPv6 as [::1]:28028"
    return Remark(f"{setting} is not HOST:PORT", advice)


def _names(setting: Setting) -> tuple[list[str], Remark | None]:
    """The names of a list, and what is wrong with its commas, blanks and signs."""
    names = re.sub(r"^\^?=?", "", setting.value).split(",")
    blank = next((name for name in names if name != name.strip()), None)
    if blank is not None:
        wrong = f"{setting}: the blank in {blank[:40]!a} is part of the name, which no device has"
        return names, Remark(wrong, "write the list without blanks")
    with_sign = next((name for name in names if name.startswith(("^", "="))), None)
    if with_sign is not None:
        wrong = f"{setting}: the sign in {with_sign[:40]!a} is part of the name: "
        return names, Remark(wrong + "^ and = count only in front of the whole list", "write ^=a,b")
    with_space = next((name for name in names if re.search(r"[\s;|]", name)), None)
    if with_space is not None:
        return names, Remark(f"{setting}: only a comma separates names", "write a,b")
    return [name for name in names if name], None


_STRTOLL: Final = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", re.ASCII)
_STOI: Final = re.compile(r"\s*([+-]?)([0-9]+)", re.ASCII)
_INT64: Final = 1 << 63
_INT32: Final = 1 << 31
_MOST_DIGITS: Final = 30


class Number(Struct, frozen=True):
    """What a reader makes of a text. `how`: why that is not what was meant."""

    value: int | None
    """None: the default counts (empty, or overflow), or the reader raises."""
    how: Literal["fine", "empty", "rest", "octal", "words", "huge"] = "fine"


def as_strtoll(text: str) -> Number:
    """Read it as C's strtoll with base 0, as NCCL does."""
    if not text:
        return Number(None, "empty")
    match = _STRTOLL.match(text)
    if match is None:
        return Number(0, "words")
    digits = match[2].lower()
    if len(digits) > _MOST_DIGITS:
        return Number(None, "huge")
    octal = len(digits) > 1 and digits[0] == "0" and digits[1] != "x"
    value = int(digits, 8 if octal else 16 if digits.startswith("0x") else 10)
    value = -value if match[1] == "-" else value
    if not -_INT64 <= value < _INT64:
        return Number(None, "huge")
    if text[match.end() :].strip():
        return Number(value, "rest")
    return Number(value, "octal" if octal and int(digits) != abs(value) else "fine")


def as_stoi(text: str) -> Number:
    """Read it as C++'s stoi, as torch does; None where that raises."""
    match = _STOI.match(text)
    if match is None:
        return Number(None, "words")
    value = int(match[2][:20]) * (-1 if match[1] == "-" else 1)
    if not -_INT32 <= value < _INT32:
        return Number(None, "huge")
    return Number(value, "rest" if text[match.end() :].strip() else "fine")


def number(text: str | None, read_as: str = "strtoll") -> int | None:
    """The number that counts; None where the text is not set, or sets none."""
    if text is None:
        return None
    return (as_stoi if read_as == "stoi" else as_strtoll)(text).value


def switched_on(text: str | None) -> bool:
    """Whether NCCL takes a switch for on: any number but 0."""
    return bool(number(text))


ACK_UNIT_S: Final = 4.096e-6
"""Local Ack Timeout: this times 2^value. InfiniBand specification, volume 1, 12.7.34."""

_MOST_RETRIES: Final = 7
_FIVE_BITS: Final = 31
_MOST_TRIES: Final = 1 << 31


def effect(kind: str, environ: Mapping[str, str]) -> str:
    """What the settings of one kind of effect do together; "" where they do nothing."""
    if kind == "ib_timeout":
        return _dead_link(environ)
    if kind == "socket_retry":
        return _absent_peer(environ)
    return _watchdog(environ) if kind == "heartbeat" else ""


def duration(seconds: float) -> str:
    """67 ms, 4.3 s, 30 s, 2.3 min, 16 min, 1.5 h."""
    for least, unit, size in ((7200, "h", 3600), (120, "min", 60), (1, "s", 1)):
        if seconds >= least:
            return f"{_two_digits(seconds / size)} {unit}"
    return f"{_two_digits(seconds * 1000)} ms"


def _two_digits(amount: float) -> str:
    return f"{float(f'{amount:.2g}'):g}"


def _dead_link(environ: Mapping[str, str]) -> str:
    timeout = _amount(environ, "NCCL_IB_TIMEOUT")
    retries = _amount(environ, "NCCL_IB_RETRY_CNT")
    if not 1 <= timeout <= _FIVE_BITS:
        return "a dead link will never be noticed"
    after_s = ACK_UNIT_S * 2**timeout * max(1, min(retries, _MOST_RETRIES))
    return f"a dead link will be noticed after {duration(after_s)}"


def _absent_peer(environ: Mapping[str, str]) -> str:
    tries = _amount(environ, "NCCL_SOCKET_RETRY_CNT")
    pause_ms = _amount(environ, "NCCL_SOCKET_RETRY_SLEEP_MSEC")
    if not 0 < tries < _MOST_TRIES or pause_ms <= 0:
        return ""
    # The pauses grow by one each time: NCCL user guide, NCCL_SOCKET_RETRY_SLEEP_MSEC.
    after_s = (tries + 1) * tries / 2 * pause_ms / 1000
    return f"a peer that refuses connections will be given up after {duration(after_s)}"


def _watchdog(environ: Mapping[str, str]) -> str:
    seconds = _amount(environ, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")
    return f"a stuck watchdog will end its rank after {duration(seconds)}" if seconds > 0 else ""


def _amount(environ: Mapping[str, str], name: str) -> int:
    """The number that counts: the one that is set, or the default."""
    variable = variables()[name]
    amount = number(environ.get(name), variable.read_as)
    return int(variable.default or 0) if amount is None else amount


def choice(setting: Setting) -> Remark | None:
    """One word of a list."""
    is_known = not setting.value or _listed(setting.variable, setting.value)
    return None if is_known else _unknown_word(setting, setting.value)


def listed_words(setting: Setting) -> Remark | None:
    """Words of a list; `^` in front inverts where the variable knows that.

    `ring,tree;allreduce:^tree` are lists, each for one function (since NCCL 2.24).
    """
    variable, texts = setting.variable, [setting.value]
    if variable.type == "functions":
        texts = [part.rpartition(":")[2] for part in setting.value.split(";")]
    for text in texts:
        inverts = variable.invert or variable.type == "functions"
        for word in (text.removeprefix("^") if inverts else text).split(","):
            if word and not _listed(variable, word):
                return _unknown_word(setting, word)
    return None


def level(setting: Setting) -> Remark | None:
    """A distance by name, in capitals, or one of the old numbers."""
    variable, value = setting
    if not value or value in variable.values:
        return None
    number = as_strtoll(value)
    if number.how == "fine" and 0 <= (number.value or 0) <= (variable.max or 0):
        return None
    capitals = f"write {value.strip().upper()}" if value.strip().upper() in variable.values else ""
    advice = capitals or f"give one of {', '.join(variable.values)}"
    return Remark(f"{setting} is silently ignored", advice)


def float_number(setting: Setting) -> Remark | None:
    """A positive number with a point."""
    try:
        valid = not setting.value or float(setting.value) > 0
    except ValueError:
        valid = False
    sentence = f"{setting} is no positive number, and is ignored"
    return None if valid else Remark(sentence, f"give {setting.variable.name} a number such as 1.5")


def path(setting: Setting) -> Remark | None:
    """A path: nothing but a shell knows the tilde, and quotes and blanks are part of the name."""
    if setting.value.startswith("~"):
        sentence = f"{setting}: only a shell replaces ~, here it is part of the name"
        return Remark(sentence, "write the whole path")
    if setting.value != setting.value.strip():
        return Remark(f"{setting}: the blank at its end is part of the name", "remove the blank")
    return None


def _listed(variable: Variable, word: str) -> bool:
    words = [value.upper() for value in variable.values] if variable.fold else variable.values
    return (word.upper() if variable.fold else word) in words


def _unknown_word(setting: Setting, word: str) -> Remark:
    variable, sentence = setting.variable, f"{setting}: "
    if word.strip() != word and _listed(variable, word.strip()):
        sentence += f"the blank in {word!a} is part of the word, so it is not known"
        advice = "remove the blank"
    elif not variable.fold and word.upper() in variable.values:
        sentence += f"{word[:40]!a} is not known, capitals count"
        advice = f"write {word.upper()}"
    else:
        sentence += f"{word[:40]!a} is not one of {', '.join(variable.values)}"
        near = get_close_matches(word.upper(), variable.values, 1)
        advice = f"write {near[0]}" if near else f"unset {variable.name}, or give one of these"
    sentence += f"; {variable.beyond}" if variable.beyond else ""
    return Remark(sentence, advice, "warn" if variable.mild else "fail")


_HIDDEN: Final = re.compile(r"[<\[(]?(?:redacted|masked|removed|hidden)[>\])]?", re.IGNORECASE)
_TEMPLATE: Final = re.compile(r"<[^<>]+>|\{\{.*\}\}|%\w+%|(?:YOUR|MY)_\w+|TODO|FIXME|CHANGEME")
_YES, _NO = ("true", "yes", "on", "y", "t", "enable"), ("false", "no", "off", "n", "f", "disable")
_TORCH_WORDS: Final = ("y", "yes", "1", "t", "true", "n", "no", "0", "f", "false")


def read(variable: Variable, value: str, environ: Mapping[str, str]) -> Remark | None:
    """What is wrong with one value; None where nothing is. `environ` holds its companions."""
    if variable.type in ("undocumented", "secret"):
        return None
    if "***" in value or _HIDDEN.fullmatch(value.strip()):
        sentence = f"{variable.name} was hidden when it was captured"
        return Remark(sentence, f"look at {variable.name} in the job itself", "unknown")
    setting = Setting(variable, value)
    if _TEMPLATE.fullmatch(value.strip()):
        sentence = f"{setting} is a placeholder that was never filled in"
        return Remark(sentence, f"set {variable.name}: {variable.does}")
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        advice = f"write {variable.name}={value[1:-1]} where the file is read by no shell"
        return Remark(f"{setting}: the quotes are part of the value", advice)
    reader = _READERS.get(variable.type)
    wrong = reader(setting) if reader else None
    remark = wrong or _harmful(setting) or _unusual(setting, environ)
    if remark is None or variable.name in remark.advice:
        return remark
    return replace(remark, advice=f"{variable.name}: {remark.advice}")


def read_all(environ: Mapping[str, str]) -> list[Remark]:
    """Remarks on every value of a variable that is known."""
    by_name = variables()
    names = sorted(by_name.keys() & environ)
    return list(filter(None, (read(by_name[name], environ[name], environ) for name in names)))


def _number(setting: Setting) -> Remark | None:
    variable, value = setting
    torch = variable.read_as == "stoi"
    read_as = as_stoi(value) if torch else as_strtoll(value)
    if torch and read_as.value is None:
        return Remark(f"{setting} is no number, and torch stops with it", _correction(variable))
    if read_as.how == "empty":
        return None
    if read_as.how == "huge":
        return Remark(f"{setting} is too large a number, and is ignored", _correction(variable))
    if read_as.how in ("words", "rest", "octal"):
        return _misread(setting, read_as)
    return _out_of_range(variable, str(setting), read_as.value or 0)


def _misread(setting: Setting, read_as: Number) -> Remark:
    """A text that is a number only up to a point."""
    variable, word = setting.variable, setting.value.strip().lower()
    means = f"{setting} is read as {read_as.value}"
    if read_as.how == "octal":
        return Remark(f"{means}: a leading 0 means octal", "write it without the 0")
    if variable.type == "switch" and word in _NO:
        return Remark(f"{means}, which happens to be meant", "write 0", "warn")
    if variable.type == "switch" and word in _YES:
        return Remark(f"{means}, which is off: it knows numbers only", "write 1")
    if re.fullmatch(r"[0-9]+\s*[kmgt]i?b?", word):
        advice = f"write the number of {variable.unit or 'units'}"
        return Remark(f"{means}: it knows no units", advice)
    wrong = _out_of_range(variable, means, read_as.value or 0)
    return wrong or Remark(f"{means}, the rest is dropped", _correction(variable))


def _out_of_range(variable: Variable, subject: str, number: int) -> Remark | None:
    if variable.type == "number_of":
        if str(number) in variable.values:
            return None
    elif variable.type == "switch":
        if number in (0, 1) or number < 0:  # NCCL's own -2 and -1 leave it to NCCL
            return None
        return Remark(f"{subject} is a switch, and is taken for 1", "write 0 or 1", "warn")
    elif (variable.min is None or number >= variable.min) and (
        variable.max is None or number <= variable.max
    ):
        return None
    effect_words = f": {variable.beyond}" if variable.beyond else ""
    verb = ", not" if " is read as " in subject else " is not"
    return Remark(
        f"{subject}{verb} {_choice_words(variable)}{effect_words}",
        _correction(variable),
        hangs=variable.hangs,
    )


def _boolean(setting: Setting) -> Remark | None:
    if setting.value.lower() in _TORCH_WORDS:
        return None
    return Remark(f"{setting} is neither 0 nor 1, and torch stops with it", "write 0 or 1")


_READERS: Final[Mapping[str, Callable[[Setting], Remark | None]]] = {
    **dict.fromkeys(("integer", "switch", "number_of", "bytes"), _number),
    "boolean": _boolean,
    "choice": choice,
    "list": listed_words,
    "functions": listed_words,
    "level": level,
    "float": float_number,
    "ifname": interfaces,
    "names": interface_names,
    "hca": hcas,
    "endpoint": endpoint,
    "path": path,
    "alloc": allocator,
}
"""By the type of a variable; a text of any other type is always accepted."""


def _harmful(setting: Setting) -> Remark | None:
    """A value that is right and does harm."""
    variable, value = setting
    key = {"true": "1", "yes": "1", "false": "0", "no": "0"}.get(value.lower(), value.strip())
    harm = variable.warn.get(key)
    return Remark(f"{setting}: {harm}", _correction(variable), "warn") if harm else None


def _unusual(setting: Setting, environ: Mapping[str, str]) -> Remark | None:
    variable, value = setting
    low, high, amount = variable.soft_min, variable.soft_max, number(value, variable.read_as)
    if low is None or high is None or amount is None or low <= amount <= high:
        return None
    does = effect(variable.effect, environ)
    usual = f"{setting} (usual: {low:g} to {high:g})"
    return Remark(f"{usual}: {does}" if does else usual, _correction(variable), "warn")


def _choice_words(variable: Variable) -> str:
    if variable.values:
        return "one of " + ", ".join(variable.values)
    if variable.type == "switch":
        return "0 or 1"
    if variable.min is not None and variable.max is not None:
        return f"{variable.min:g} to {variable.max:g}"
    return f"a number from {variable.min:g} on" if variable.min is not None else "a number"


def _correction(variable: Variable) -> str:
    if variable.advice:
        return f"{variable.name}: {variable.advice}"
    return f"unset {variable.name}, or give it {_choice_words(variable)}"
