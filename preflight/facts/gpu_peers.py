"""What a reading of a GPU ought to be: a promise, else most nodes of the group, else its siblings.

Every answer says where it comes from, so that a sentence can say which number decided.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from preflight.facts.model import Facts, Gpu
    from preflight.facts.node import Group

T = TypeVar("T")

_ENOUGH_SIBLINGS: Final = 3
"""Two against one is a mixed machine; three alike are peers."""


@dataclass(frozen=True, slots=True)
class Wanted(Generic[T]):
    """What it ought to be, and who says so: "promised", "on 12 of 13 nodes of group train"."""

    value: T
    origin: str
    by: Literal["promise", "group", "siblings", "default"]


def wanted(promise: T | None, name: str, facts: Facts, group: Group) -> Wanted[Any] | None:
    """What the field `name` of each GPU ought to be; None where nobody decides."""
    if promise is not None:
        return Wanted(promise, "promised", "promise")
    vote = group.majority(reader(name))
    if vote is not None and vote.decides:
        whom = f"on {vote.votes} of {vote.of} nodes of group {group.name}"
        return Wanted(vote.value, whom, "group")
    values = list(_values(facts, name))
    common, votes = _most(values)
    if common is not None and votes >= _ENOUGH_SIBLINGS:
        return Wanted(common, f"on {votes} of {len(values)} GPUs of this node", "siblings")
    return None


def wanted_of_kind(name: str, facts: Facts, group: Group) -> Wanted[Any] | None:
    """The same for what every kind of board has of its own: nobody decides where they are mixed."""
    kinds = {gpu.name for gpu in facts.gpus or ()}
    return wanted(None, name, facts, group) if len(kinds) == 1 else None


@cache
def reader(name: str) -> Callable[[Facts], Any]:
    """One function per field, always the same: a group counts the vote of each once."""

    def most(facts: Facts) -> Any:
        return _most(_values(facts, name))[0]

    most.__name__ = f"most_{name}"
    return most


def reading(gpu: Gpu, name: str) -> Any:
    """A field of the GPU or of its readings; None where it was not told."""
    if name in gpu.__struct_fields__:
        return getattr(gpu, name)
    return None if gpu.health is None else getattr(gpu.health, name)


def _values(facts: Facts, name: str) -> Iterable[Any]:
    values = (reading(gpu, name) for gpu in facts.gpus or ())
    return (value for value in values if value is not None and value != "")


def _most(values: Iterable[T]) -> tuple[T | None, int]:
    """The value of more than half, and how many those are."""
    counts = Counter(values)
    value, votes = counts.most_common(1)[0] if counts else (None, 0)
    return (value, votes) if 2 * votes > counts.total() else (None, 0)
