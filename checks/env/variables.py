"""The known variables: who reads each, which values it takes, and what a misspelt name means.

Keys of an entry, all but `type`, `does` and `source` optional:

type      integer, switch (0 or 1), boolean (torch's words), number_of, choice, list, functions,
          level, bytes, float, ifname, names, hca, endpoint, path, alloc, text, secret
values, fold, invert   the words it takes; in any case; `^` in front inverts
min, max, unit, default, soft_min, soft_max   outside of the last two a value is unusual
beyond, mild, warn, advice   what a wrong value does; only a warning; right but unwise values
loud      values for debugging that cost a run its speed
deprecated, removed, use, quiet   since when, what to use; no warning by itself
since     the first version that reads it; compared with the version in the job's Python
alike     must, should, free, unique: among the ranks of one job
effect    what preflight.checks.env.values works out

A job may have thousands of variables, and it takes 2 ms to compare an unknown name with all known
ones: only some hundred are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from difflib import get_close_matches
from functools import cache, lru_cache
from shlex import quote
from typing import Any, Final, Literal

from msgspec import Struct, convert, structs

from preflight.checks.env.remark import Remark
from preflight.checks.software.test_versions import version
from preflight.core.files import shipped_table
from preflight.facts.model import Facts

Alike = Literal["must", "should", "free", "unique"]

_OWNERS: Final = ("nccl", "torch", "cuda", "gloo")


class Variable(Struct, frozen=True, kw_only=True):
    """One variable, as its reader takes it; the module explains the fields."""

    name: str
    owner: str
    read_as: str
    """How a number is read: "strtoll" takes what it can and logs nothing, "stoi" raises."""
    date: date
    source: str
    type: str = "undocumented"
    does: str = ""
    values: tuple[str, ...] = ()
    fold: bool = False
    invert: bool = False
    mild: bool = False
    min: float | None = None
    max: float | None = None
    soft_min: float | None = None
    soft_max: float | None = None
    unit: str = ""
    default: int | str | None = None
    beyond: str = ""
    hangs: bool = False
    """A number out of range makes the job wait forever and log nothing."""
    warn: Mapping[str, str] = {}
    loud: Mapping[str, str] = {}
    advice: str = ""
    deprecated: str = ""
    deprecated_value: str = ""
    removed: str = ""
    use: str = ""
    quiet: bool = False
    since: str = ""
    alike: Alike = "should"
    effect: str = ""


class Family(Struct, frozen=True):
    """All names with one prefix. `closed`: no other program may invent names with it."""

    owner: str
    prefix: str
    closed: bool
    edition: str
    foreign: Mapping[str, str]
    """Prefixes of names that another program reads, with that program."""


class UnreadName(Struct, frozen=True):
    """A name that public advice recommends and no program reads."""

    hope: str
    instead: str


@cache
def variables() -> dict[str, Variable]:
    """Every variable that is known, by name."""
    return {variable.name: variable for owner in _OWNERS for variable in _variables_of(owner)}


@cache
def families() -> tuple[Family, ...]:
    """The prefixes that are judged; PYTORCH_ and TORCH_NCCL_ are torch's too."""
    of_owners = [convert(table(owner), Family) for owner in _OWNERS]
    torch = next(candidate for candidate in of_owners if candidate.owner == "torch")
    nccl = structs.replace(torch, prefix="TORCH_NCCL_", closed=True)
    return (nccl, structs.replace(torch, prefix="PYTORCH_", closed=False), *of_owners)


@cache
def unread_names() -> dict[str, UnreadName]:
    """Names that no program reads."""
    return {name: UnreadName(**entry) for name, entry in table("unread_names")["names"].items()}


def family(name: str) -> Family | None:
    """The family that a name seems to belong to; None for a name of other programs."""
    return next((candidate for candidate in families() if name.startswith(candidate.prefix)), None)


@cache
def table(owner: str) -> dict[str, Any]:
    """What is known of the variables of one owner, from its TOML file."""
    return shipped_table(__file__, f"{owner}.toml")


def _variables_of(owner: str) -> list[Variable]:
    entries = table(owner)
    common: dict[str, Any] = {name: entries[name] for name in ("owner", "read_as", "date")}
    prefix = entries["prefix"] if owner == "nccl" else ""
    alike: Alike = "should" if owner == "nccl" else "free"
    undocumented = [
        Variable(name=prefix + name, source=entries["edition"], alike=alike, **common)
        for name in entries["undocumented"].split()
    ]
    described = [
        Variable(name=name, **common, **{**entry, "values": tuple(entry.get("values", ()))})
        for name, entry in entries["variables"].items()
    ]
    return [*undocumented, *described]


_MIN_SIMILARITY: Final = 0.85
"""As difflib counts it: one or two letters of a name differ."""
_MIN_LENGTH: Final = 8
_MAX_LENGTH_DIFFERENCE: Final = 2


def nearest_name(name: str) -> str:
    """The variable that a wrong name is probably meant to be; "" where none is near."""
    upper = name.upper()
    if upper in variables():
        return upper
    candidates = [
        known
        for known in variables()
        if len(known) >= _MIN_LENGTH and abs(len(known) - len(upper)) <= _MAX_LENGTH_DIFFERENCE
    ]
    matches = get_close_matches(upper, candidates, 1, _MIN_SIMILARITY)
    return _names_by_words().get(_sorted_words(upper), "") or "".join(matches)


def _sorted_words(name: str) -> tuple[str, ...]:
    return tuple(sorted(name.split("_")))


@cache
def _names_by_words() -> Mapping[tuple[str, ...], str]:
    """The known names by their words in any order; of several the first."""
    return {_sorted_words(name): name for name in reversed(variables())}


Editions = Mapping[str, str]
"""Versions by owner of a variable: "NCCL" to "2.21.5"; of others nothing is known.

From the job's Python (`software` of the facts). Where that shows no version, or another library is
put in front of it, nothing is judged by versions.
"""


def editions(facts: Facts | None, environ: Mapping[str, str]) -> Editions:
    """Read the versions of a node, as far as this job will load them."""
    if facts is None or facts.software is None:
        return {}
    torch = facts.software.torch.version if facts.software.torch else ""
    has_preload = "nccl" in environ.get("LD_PRELOAD", "")
    return {"NCCL": "" if has_preload else facts.software.nccl or "", "torch": torch}


def _is_older(versions: Editions, owner: str, first: str) -> bool:
    """Whether the version of a variable's owner is known to be older than `first`, "2.24"."""
    current = version(versions.get(owner, ""))
    return bool(current) and current < version(first)


MOST_COMPARED: Final = 512
"""Unknown names that are compared with the known ones; any more are reported as left out."""

_UNKNOWN_EDITIONS: Final[Editions] = {}
_MISSPELT_PREFIXES: Final = ("NCLL_", "NCC_", "NCCLL_", "NNCCL_", "PYTROCH_", "TROCH_", "GOLO_")


def unread(environ: Mapping[str, str], versions: Editions = _UNKNOWN_EDITIONS) -> list[Remark]:
    """Names that no program reads, or none of these versions, with the name probably meant."""
    by_name = variables()
    others = [name for name in sorted(environ) if name not in by_name]
    unknown = [name for name in others if _looks_like_ours(name, by_name)]
    left_out = frozenset(unknown[MOST_COMPARED:])
    names = [name for name in sorted(environ) if name not in left_out]
    remarks = [_unread(name) or _too_new(name, environ, versions) for name in names]
    if left_out:
        sentence = f"{len(left_out)} of {len(unknown)} unknown names were not looked up: too many"
        remarks.append(Remark(sentence, "give the job's own variables only", "unknown"))
    return list(filter(None, remarks))


def outdated(environ: Mapping[str, str], versions: Editions = _UNKNOWN_EDITIONS) -> list[Remark]:
    """Names that were renamed or removed; where old and new are both set, the old may go.

    A version older than the new name needs the old one.
    """
    by_name = variables()
    names = sorted(by_name.keys() & environ)
    return list(filter(None, (_outdated(by_name[name], environ, versions) for name in names)))


@lru_cache(maxsize=MOST_COMPARED)
def _unread(name: str) -> Remark | None:
    """One name; cached, because a thousand nodes have the same names."""
    by_name = variables()
    if name in by_name:
        return None
    if name in unread_names():
        entry = unread_names()[name]
        sentence = f"{name} has no effect: nothing reads it (hoped for: {entry.hope})"
        return Remark(sentence, f"in place of {name}: {entry.instead}", "warn")
    return _unknown_name(name, by_name) if _looks_like_ours(name, by_name) else None


def _looks_like_ours(name: str, by_name: Mapping[str, Variable]) -> bool:
    """Whether a name seems meant for NCCL, torch, CUDA or gloo, and not for a plugin or image."""
    group = family(name)
    if group is None:
        wrong_case = name.upper() in by_name and family(name.upper()) is not None
        return wrong_case or name.upper().startswith(_MISSPELT_PREFIXES)
    return not any(name.startswith(prefix) for prefix in group.foreign)


def _unknown_name(name: str, by_name: Mapping[str, Variable]) -> Remark | None:
    group, nearest = family(name), nearest_name(name)
    if nearest and (group is None or group.closed or by_name[nearest].type != "undocumented"):
        why = ": capitals count" if nearest == name.upper() else ""
        sentence = f"{name} has no effect: nothing reads it{why}"
        return Remark(sentence, f"did you mean {nearest}?", "warn")
    if group is None or not group.closed:
        return None
    sentence = f"{name} has no effect that is known: {group.edition} does not read it"
    advice = f"unset {quote(name)}, or ask the person who set it which program reads it"
    return Remark(sentence, advice, "warn")


def _too_new(name: str, environ: Mapping[str, str], versions: Editions) -> Remark | None:
    """A name that only a later version reads, unless its old name is set beside it."""
    new = variables().get(name)
    if new is None or not new.since or not _is_older(versions, new.owner, new.since):
        return None
    old_names = [
        old
        for old in variables().values()
        if old.use == name and version(old.deprecated) >= version(new.since)
    ]
    if any(old.name in environ for old in old_names):
        return None
    sentence = f"{name} has no effect: {new.owner} reads it since {new.since}, and here is "
    old = max(old_names, key=lambda old: version(old.deprecated), default=None)
    instead = f"set {old.name}" if old is not None else f"unset {quote(name)}"
    advice = f"{instead}, or update {new.owner} to {new.since} or later"
    return Remark(sentence + versions[new.owner], advice, "warn")


def _removed(variable: Variable, versions: Editions) -> Remark:
    name, owner = variable.name, variable.owner
    instead = f"use {variable.use}" if variable.use else f"unset {quote(name)}"
    current = versions.get(owner, "")
    if _is_older(versions, owner, variable.removed):
        sentence = f"{name} works with {owner} {current}, which is here, and no longer from"
        return Remark(f"{sentence} {variable.removed} on", instead, "warn")
    sentence = f"{name} has no effect: {owner} {variable.removed} removed it"
    return Remark(sentence + (f", and here is {current}" if current else ""), instead, "warn")


def _outdated(variable: Variable, environ: Mapping[str, str], versions: Editions) -> Remark | None:
    name = variable.name
    if variable.removed:
        return _removed(variable, versions)
    if variable.deprecated_value and environ[name].strip() == variable.deprecated_value:
        sentence = f"{name}={variable.deprecated_value} is deprecated in {variable.owner}"
        return Remark(sentence, f"unset {quote(name)}", "warn")
    if not variable.deprecated or variable.quiet:
        return None
    if _is_older(versions, variable.owner, variable.deprecated):
        return None
    since, current = f"{variable.owner} {variable.deprecated}", versions.get(variable.owner, "")
    here_is = f", and here is {current}" if current else ""
    sentence = f"{name} is the old name of {variable.use} (deprecated since {since}{here_is})"
    return Remark(sentence, f"set {variable.use} in its place", "warn")
