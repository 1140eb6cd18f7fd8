"""Whether a value is what its reader takes: neither NCCL nor CUDA says that it is not.

Words are read in `words`, lists of devices in `devices`, numbers in `numbers`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from preflight.facts.environ.alloc import alloc
from preflight.facts.environ.devices import endpoint, hcas, interface_names, interfaces
from preflight.facts.environ.effects import effect
from preflight.facts.environ.numbers import as_stoi, as_strtoll
from preflight.facts.environ.remark import Remark, told
from preflight.facts.environ.variables import variables
from preflight.facts.environ.words import choice, float_number, functions, level, path, word_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from preflight.facts.environ.numbers import Number
    from preflight.facts.environ.variables import Variable

_HIDDEN: Final = re.compile(
    r"\*{3,}|[<\[(]?(?:redacted|masked|removed|hidden)[>\])]?", re.IGNORECASE
)
_TEMPLATE: Final = re.compile(r"<[^<>]+>|\{\{.*\}\}|%\w+%|(?:YOUR|MY)_\w+|TODO|FIXME|CHANGEME")
_NUMBERS: Final = ("integer", "switch", "number_of", "bytes")
_YES, _NO = ("true", "yes", "on", "y", "t", "enable"), ("false", "no", "off", "n", "f", "disable")
_TORCH_WORDS: Final = ("y", "yes", "1", "t", "true", "n", "no", "0", "f", "false")


def read(variable: Variable, value: str, environ: Mapping[str, str]) -> Remark | None:
    """What is wrong with one value; None where nothing is. `environ` holds its companions."""
    if variable.type in ("untold", "secret"):
        return None
    if _HIDDEN.fullmatch(value.strip()):
        said = f"{variable.name} was hidden when it was captured"
        return Remark(said, f"look at {variable.name} in the job itself", "unknown")
    if _TEMPLATE.fullmatch(value.strip()):
        said = f"{told(variable.name, value)} is a placeholder that nobody filled in"
        return Remark(said, f"set {variable.name}: {variable.does}")
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    if quoted:
        inner = value[1:-1]
        return Remark(
            f"{told(variable.name, value)}: the quotes are part of the value",
            f"write {variable.name}={inner} where the file is read by no shell",
        )
    wrong = _by_type(variable, value)
    return wrong or _unwise(variable, value) or _unusual(variable, value, environ)


def read_all(environ: Mapping[str, str]) -> list[Remark]:
    """Remarks on every value of a variable that is known."""
    known = variables()
    found = (read(known[name], environ[name], environ) for name in sorted(environ) if name in known)
    return [one for one in found if one is not None]


def _by_type(variable: Variable, value: str) -> Remark | None:
    if variable.type in _NUMBERS:
        return _number(variable, value)
    if variable.type == "boolean":
        return _boolean(variable, value)
    reader: Callable[[Variable, str], Remark | None] | None = {
        "choice": choice,
        "list": word_list,
        "functions": functions,
        "level": level,
        "float": float_number,
        "ifname": interfaces,
        "names": interface_names,
        "hca": hcas,
        "endpoint": endpoint,
        "path": path,
        "alloc": alloc,
    }.get(variable.type)
    return reader(variable, value) if reader else None


def _number(variable: Variable, value: str) -> Remark | None:
    torch = variable.read_as == "stoi"
    read_as = as_stoi(value) if torch else as_strtoll(value)
    said = told(variable.name, value)
    if torch and read_as.value is None:
        return Remark(f"{said} is no number, and torch stops with it", _instead(variable))
    if read_as.how == "empty":
        return None
    if read_as.how == "huge":
        return Remark(f"{said} is too large a number, and is ignored", _instead(variable))
    if read_as.how in ("words", "rest", "octal"):
        return _misread(variable, value, read_as)
    return _out_of_range(variable, said, read_as.value or 0)


def _misread(variable: Variable, value: str, read_as: Number) -> Remark:
    """A text that is a number only up to a point."""
    word, said = value.strip().lower(), told(variable.name, value)
    means = f"{said} is read as {read_as.value}"
    if read_as.how == "octal":
        return Remark(f"{means}: a leading 0 means octal", "write it without the 0")
    if variable.type == "switch" and word in _NO:
        return Remark(f"{means}, which happens to be meant", "write 0", "warn")
    if variable.type == "switch" and word in _YES:
        return Remark(f"{means}, which is off: it knows numbers only", "write 1")
    if re.fullmatch(r"\s*[0-9]+\s*[kmgt]i?b?\s*", value, re.IGNORECASE):
        return Remark(
            f"{means}: it knows no units", f"write the number of {variable.unit or 'units'}"
        )
    wrong = _out_of_range(variable, means, read_as.value or 0)
    return wrong or Remark(f"{means}, the rest is dropped", _instead(variable))


def _out_of_range(variable: Variable, said: str, number: int) -> Remark | None:
    if variable.type == "number_of":
        if str(number) in variable.values:
            return None
    elif variable.type == "switch":
        if number in (0, 1) or number < 0:  # NCCL's own -2 and -1 leave it to NCCL
            return None
        return Remark(f"{said} is a switch, and is taken for 1", "write 0 or 1", "warn")
    elif (variable.min is None or number >= variable.min) and (
        variable.max is None or number <= variable.max
    ):
        return None
    then = f": {variable.beyond}" if variable.beyond else ""
    verb = ", not" if " is read as " in said else " is not"
    return Remark(
        f"{said}{verb} {_what_is_taken(variable)}{then}", _instead(variable), hangs=variable.hangs
    )


def _boolean(variable: Variable, value: str) -> Remark | None:
    if value.lower() in _TORCH_WORDS:
        return None
    said = f"{told(variable.name, value)} is neither 0 nor 1, and torch stops with it"
    return Remark(said, "write 0 or 1")


def _unwise(variable: Variable, value: str) -> Remark | None:
    """A value that is right and does harm."""
    key = {"true": "1", "yes": "1", "false": "0", "no": "0"}.get(value.lower(), value.strip())
    harm = variable.warn.get(key)
    if harm is None:
        return None
    return Remark(f"{told(variable.name, value)}: {harm}", _instead(variable), "warn")


def _unusual(variable: Variable, value: str, environ: Mapping[str, str]) -> Remark | None:
    low, high = variable.soft_min, variable.soft_max
    if low is None or high is None:
        return None
    number = (as_stoi(value) if variable.read_as == "stoi" else as_strtoll(value)).value
    if number is None or low <= number <= high:
        return None
    does = effect(variable.effect, environ)
    usual = f"{told(variable.name, value)} (usual: {low:g} to {high:g})"
    return Remark(f"{usual}: {does}" if does else usual, _instead(variable), "warn")


def _what_is_taken(variable: Variable) -> str:
    if variable.values:
        return "one of " + ", ".join(variable.values)
    if variable.type == "switch":
        return "0 or 1"
    if variable.min is not None and variable.max is not None:
        return f"{variable.min:g} to {variable.max:g}"
    return f"a number from {variable.min:g} on" if variable.min is not None else "a number"


def _instead(variable: Variable) -> str:
    if variable.advice:
        return f"{variable.name}: {variable.advice}"
    return f"unset {variable.name}, or give it {_what_is_taken(variable)}"
