"""Which variables exist, who reads them, and what they take: the TOML files beside this module.

Keys of an entry, all but `type`, `does` and `source` optional:

type      integer, switch (0 or 1), boolean (torch's words), number_of, choice, list, functions,
          level, bytes, float, ifname, names, hca, endpoint, path, alloc, text, secret
values, fold, invert   the words it takes; in any case; `^` in front inverts
min, max, unit, default, soft_min, soft_max   outside of the last two a value is unusual
beyond, mild, warn, advice   what a wrong value does; only a warning; right but unwise values
loud      values for debugging that cost a run its speed
deprecated, removed, use, quiet   since when, what to use; no warning by itself
since     the first version that reads it; held against the version in the job's Python
alike     must, should, free, unique: among the ranks of one job
effect    what preflight.facts.environ.effects works out
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

Alike = Literal["must", "should", "free", "unique"]

_OWNERS: Final = ("nccl", "torch", "cuda", "gloo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable, as whoever reads it takes it; see the module for the fields."""

    name: str
    owner: str
    read_as: str
    """How a number is read: "strtoll" takes what it can and says nothing, "stoi" raises."""
    date: date
    source: str
    type: str = "untold"
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
    """A number out of range makes the job wait for ever, without a word."""
    warn: Mapping[str, str] = field(default_factory=dict)
    loud: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""
    deprecated: str = ""
    deprecated_value: str = ""
    removed: str = ""
    use: str = ""
    quiet: bool = False
    since: str = ""
    alike: Alike = "should"
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """All names with one prefix. `closed`: no other program may invent names with it."""

    owner: str
    prefix: str
    closed: bool
    edition: str
    foreign: Mapping[str, str]
    """Prefixes of names that somebody else reads, and who."""


@dataclass(frozen=True, slots=True)
class Nobody:
    """A name that advice spreads and nothing reads."""

    hope: str
    instead: str


@cache
def variables() -> dict[str, Variable]:
    """Every variable that is known, by name."""
    return {one.name: one for owner in _OWNERS for one in _of(owner)}


@cache
def families() -> tuple[Family, ...]:
    """The prefixes that are judged; PYTORCH_ and TORCH_NCCL_ are torch's too."""
    found = []
    for owner in _OWNERS:
        table = _table(owner)
        known = (table["owner"], table["prefix"], table["closed"], table["edition"])
        found.append(Family(*known, table["foreign"]))
    torch = next(one for one in found if one.owner == "torch")
    nccl = Family("torch", "TORCH_NCCL_", True, torch.edition, torch.foreign)  # noqa: FBT003
    pytorch = Family("torch", "PYTORCH_", False, torch.edition, torch.foreign)  # noqa: FBT003
    return (nccl, pytorch, *found)


@cache
def nobody() -> dict[str, Nobody]:
    """Names that nothing reads."""
    return {name: Nobody(**entry) for name, entry in _table("nobody")["names"].items()}


def family(name: str) -> Family | None:
    """Whose name it looks like; None for everybody else's."""
    return next((one for one in families() if name.startswith(one.prefix)), None)


def _table(owner: str) -> dict[str, Any]:
    text = files("preflight.facts.environ").joinpath(f"{owner}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _of(owner: str) -> list[Variable]:
    table = _table(owner)
    who: dict[str, Any] = {name: table[name] for name in ("owner", "read_as", "date")}
    prefix = table["prefix"] if owner == "nccl" else ""
    alike: Alike = "should" if owner == "nccl" else "free"
    plain = [
        Variable(name=prefix + name, source=table["edition"], alike=alike, **who)
        for name in table["undocumented"].split()
    ]
    told = [
        Variable(name=name, **who, **{**entry, "values": tuple(entry.get("values", ()))})
        for name, entry in table["variables"].items()
    ]
    return [*plain, *told]
