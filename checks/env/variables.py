"""A variable that nobody reads is a wish: its author believes that it is fulfilled."""

from __future__ import annotations

from functools import lru_cache
from shlex import quote
from typing import TYPE_CHECKING, Final

from preflight.facts.environ.editions import Editions
from preflight.facts.environ.nearest import meant
from preflight.facts.environ.remark import Remark
from preflight.facts.environ.variables import family, nobody, variables
from preflight.facts.software import version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.facts.environ.variables import Variable

MOST_COMPARED: Final = 4096
"""Unknown names that are held against the known ones: what takes longer is said to be left out."""

_UNTOLD: Final = Editions()
_MISSPELT_PREFIXES: Final = ("NCLL_", "NCC_", "NCCLL_", "NNCCL_", "PYTROCH_", "TROCH_", "GOLO_")


def unread(environ: Mapping[str, str], here: Editions = _UNTOLD) -> list[Remark]:
    """Names that nothing reads, or nothing of these versions, with what was probably meant."""
    known = variables()
    strange = [one for one in sorted(environ) if one not in known and _looks_like_ours(one, known)]
    left_out = frozenset(strange[MOST_COMPARED:])
    names = [name for name in sorted(environ) if name not in left_out]
    found = [_unread(name) or _too_new(name, environ, here) for name in names]
    if left_out:
        said = f"{len(left_out)} of {len(strange)} unknown names were not looked up: too many"
        found.append(Remark(said, "give the job's own variables only", "unknown"))
    return [one for one in found if one is not None]


def outdated(environ: Mapping[str, str], here: Editions = _UNTOLD) -> list[Remark]:
    """Names that were renamed or removed; where old and new are both set, the old may go.

    A version from before a new name came is right to be given the old one.
    """
    known = variables()
    found = (_outdated(known[name], environ, here) for name in sorted(environ) if name in known)
    return [one for one in found if one is not None]


@lru_cache(maxsize=MOST_COMPARED)
def _unread(name: str) -> Remark | None:
    """One name, once: a thousand nodes have the same ones."""
    known = variables()
    if name in known:
        return None
    if name in nobody():
        one = nobody()[name]
        said = f"{name} has no effect: nothing reads it (hoped for: {one.hope})"
        return Remark(said, f"in place of {name}: {one.instead}", "warn")
    return _strange(name, known) if _looks_like_ours(name, known) else None


def _looks_like_ours(name: str, known: Mapping[str, Variable]) -> bool:
    """Whether it wants to be a variable that is judged here, and no plugin's or image's."""
    own = family(name)
    if own is None:
        wrong_case = name.upper() in known and family(name.upper()) is not None
        return wrong_case or name.upper().startswith(_MISSPELT_PREFIXES)
    return not any(name.startswith(prefix) for prefix in own.foreign)


def _strange(name: str, known: Mapping[str, Variable]) -> Remark | None:
    own, near = family(name), meant(name)
    if near and (own is None or own.closed or known[near].type != "untold"):
        why = ": capitals count" if near == name.upper() else ""
        said = f"{name} has no effect: nothing reads it{why}"
        return Remark(said, f"did you mean {near}?", "warn")
    if own is None or not own.closed:
        return None
    said = f"{name} has no effect that is known: {own.edition} does not read it"
    return Remark(said, f"unset {quote(name)}, or ask whoever set it what reads it", "warn")


def _too_new(name: str, environ: Mapping[str, str], here: Editions) -> Remark | None:
    """A name that only a later version reads; beside its old name it is there for later."""
    one = variables().get(name)
    if one is None or not one.since or not here.before(one.owner, one.since):
        return None
    olds = [
        each
        for each in variables().values()
        if each.use == name and version(each.deprecated) >= version(one.since)
    ]
    if any(each.name in environ for each in olds):
        return None
    said = f"{name} has no effect: {one.owner} reads it since {one.since}, and here is "
    old = max(olds, key=lambda each: version(each.deprecated), default=None)
    instead = f"set {old.name}" if old is not None else f"unset {quote(name)}"
    advice = f"{instead}, or update {one.owner} to {one.since} or later"
    return Remark(said + here.of(one.owner), advice, "warn")


def _removed(variable: Variable, here: Editions) -> Remark:
    name, owner = variable.name, variable.owner
    instead = f"use {variable.use}" if variable.use else f"unset {quote(name)}"
    told = here.of(owner)
    if here.before(owner, variable.removed):
        said = f"{name} works with {owner} {told}, which is here, and no longer from"
        return Remark(f"{said} {variable.removed} on", instead, "warn")
    said = f"{name} has no effect: {owner} {variable.removed} removed it"
    return Remark(said + (f", and here is {told}" if told else ""), instead, "warn")


def _outdated(variable: Variable, environ: Mapping[str, str], here: Editions) -> Remark | None:
    name = variable.name
    if variable.removed:
        return _removed(variable, here)
    if variable.deprecated_value and environ[name].strip() == variable.deprecated_value:
        said = f"{name}={variable.deprecated_value} is deprecated in {variable.owner}"
        return Remark(said, f"unset {quote(name)}", "warn")
    if not variable.deprecated or variable.quiet:
        return None
    if here.before(variable.owner, variable.deprecated):
        return None
    since, told = f"{variable.owner} {variable.deprecated}", here.of(variable.owner)
    here_is = f", and here is {told}" if told else ""
    said = f"{name} is the old name of {variable.use} (deprecated since {since}{here_is})"
    return Remark(said, f"set {variable.use} in its place", "warn")
