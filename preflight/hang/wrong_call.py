"""Decides which ranks of a group made the wrong call: the one that differs from what is usual.

Usual is what most members of the group call, what like groups call under this number, what followed
the same calls before, and, where a call was replaced or two were exchanged, which call follows
which elsewhere.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from preflight.core.statistics import grouped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.hang.flight_recorder import Call, Recording

_SAME_SHAPES = frozenset(
    {
        *("all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "_allgather_base"),
        *("all_gather_into_tensor", "all_gather_single", "_reduce_scatter_base"),
        *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "all_reduce_coalesced"),
    }
)
"""Collectives that need the same shapes on all ranks; others may differ."""
_HABIT = 1000
"""Earlier calls of a group in which a repetition is looked for."""
_PROBES, _LONGEST = 24, 32
_NEAR, _CONTEXT = 12, 4
"""Calls before and after that are compared, and how many of them must be known."""
_LONGEST_REPLACED = 3
"""Calls that one rank made in another way or order, before it went on as the others."""


class Group(Struct, frozen=True, cache_hash=True):
    """A process group: its name, and its members where the recordings have them."""

    name: str
    members: tuple[int, ...] = ()


class Made(NamedTuple):
    """A collective of a group, and the call of each rank that has made it."""

    group: Group
    number: int
    calls: Mapping[int, Call]

    @property
    def first(self) -> Call:
        """The call of any rank."""
        return next(iter(self.calls.values()))

    @property
    def shapes(self) -> bool:
        """Whether shapes are to be compared: all ranks make the same operation."""
        return len({call.op for call in self.calls.values()}) == 1


Side = tuple[tuple[int, ...], str]
"""Ranks, and their call in words."""
_Key = tuple[str, int, str]


def words(call: Call, *, shapes: bool = True) -> str:
    """The parts of a call that must be equal: `all_reduce of [64, 64] Float`."""
    if call.parts:
        return f"{call.op} ({', '.join(call.parts[:4])}{' ...' * (len(call.parts) > 4)})"  # noqa: PLR2004
    if not shapes or call.op not in _SAME_SHAPES:
        return call.op
    sizes = ", ".join(str(list(size)) for size in call.sizes[:3]) + " ..." * (len(call.sizes) > 3)  # noqa: PLR2004
    return f"{call.op} of {sizes or 'nothing'} {'/'.join(Counter(call.types))}".rstrip()


def sides(calls: Mapping[int, Call]) -> tuple[Side, ...]:
    """(ranks, their call), most ranks first; a call of unknown shapes is as most ranks' calls."""
    shapes = len({call.op for call in calls.values()}) == 1
    vague = {rank for rank, call in calls.items() if shapes and call.shapeless}
    by_call = grouped(
        (words(call, shapes=shapes), rank)
        for rank, call in sorted(calls.items())
        if rank not in vague or len(vague) == len(calls)
    )
    if len(vague) < len(calls):
        max(by_call.values(), key=len).extend(vague)
    ordered = sorted(by_call.items(), key=lambda pair: (-len(pair[1]), pair[1]))
    return tuple((tuple(sorted(callers)), call) for call, callers in ordered)


class Usual:
    """What the groups of a job usually call."""

    def __init__(
        self,
        calls: Mapping[tuple[Group, int], Mapping[int, Call]],
        recorded: Mapping[int, Recording],
    ) -> None:
        self._calls, self._recorded = calls, recorded

    def odd_side(self, made: Made, missing: int) -> Sequence[int]:
        """The smaller side; of two equal ones, the one whose call is not usual.

        `missing`: members without a recording, which may be on either side.
        """
        apart = sides(made.calls)
        total = sum(len(ranks) for ranks, _ in apart)
        few = [rank for ranks, _ in apart[1:] for rank in ranks]
        if (len(few) + missing) * 2 < total + missing:
            return sorted(few)
        for votes in self._evidence(made):
            wrong = [ranks for ranks, call in apart if not votes[call]]
            if len(wrong) == len(apart) - 1:
                return sorted(rank for ranks in wrong for rank in ranks)
        return self._replaced(made, apart) if len(apart) == 2 else ()  # noqa: PLR2004

    def is_right(self, made: Made, waiting: Sequence[int]) -> bool | None:
        """Whether this is the right call; None if nothing shows it."""
        if len(waiting) * 2 > len(made.group.members) > 0:
            return True
        call = words(made.calls[waiting[0]])
        every = [*self._evidence(made)]
        if any(votes and not votes[call] for votes in every):
            return False
        return True if len(waiting) > 1 or any(votes[call] for votes in every) else None

    def _evidence(self, made: Made) -> Iterator[Counter[str]]:
        yield self._votes(made)
        yield self._habits(made)
        yield self._votes(made, any_number=True)

    def _votes(self, made: Made, *, any_number: bool = False) -> Counter[str]:
        """What groups for the same purpose call under this number, or with this operation at all.

        A pipeline stage makes other calls than the next: the calls around must be equal too.
        """
        call, shapes = made.first, made.shapes
        near = [at for at in range(made.number - _NEAR, made.number + _NEAR) if at != made.number]
        own = [self._at(made.group, number, shapes=shapes) for number in near]
        need = min(_CONTEXT, sum(map(bool, own)))
        alike: dict[Group, bool] = {}
        votes: Counter[str] = Counter()
        for (group, number), others in self._calls.items():
            other = next(iter(others.values()))
            if (
                not call.about or other.about != call.about or group == made.group
                or (number == made.number) == any_number
                or (any_number and not (shapes and other.op == call.op))
            ):  # fmt: skip
                continue
            if group not in alike:
                calls = [self._at(group, at, shapes=shapes) for at in near]
                equal = [a == b for a, b in zip(own, calls, strict=True) if a and b]
                alike[group] = all(equal) and len(equal) >= need
            if any_number or alike[group]:
                votes.update(words(call, shapes=shapes) for call in others.values())
        return votes if need or any_number or len(votes) == 1 else Counter()

    def _at(self, group: Group, number: int, *, shapes: bool) -> str:
        """What the group called, if all its ranks called the same."""
        calls = self._calls.get((group, number), {})
        texts = {words(call, shapes=shapes) for call in calls.values()}
        return texts.pop() if len(texts) == 1 else ""

    def _habits(self, made: Made) -> Counter[str]:
        """What followed the same earlier calls before: a training loop repeats itself.

        Nothing if this would not have foretold each of the last calls.
        """
        numbers = range(max(1, made.number - _HABIT), made.number)
        earlier = [self._at(made.group, number, shapes=made.shapes) for number in numbers]
        for place in range(max(0, len(earlier) - _PROBES), len(earlier)):
            if {*_followers(earlier[:place])} != {earlier[place]}:
                return Counter()
        return _followers(earlier)

    def _replaced(self, made: Made, apart: Sequence[Side]) -> Sequence[int]:
        """The side on which calls follow each other as they do nowhere else.

        Only if both sides go on with equal calls: one was replaced, or some were exchanged. A rank
        that left a call out goes on with others, and then the call itself may be a rare one.
        """
        group, first = made.group, made.number
        one, two = (
            [self._of_rank(ranks[0], group, first + at) for at in range(-1, _NEAR)]
            for ranks, _ in apart
        )
        for end in range(2, _LONGEST_REPLACED + 2):
            after = [*zip(one[end:], two[end:], strict=True)][:_CONTEXT]
            equal = len(after) == _CONTEXT and all(left and left == right for left, right in after)
            if equal and len({*after}) > 1:
                break
        else:
            return ()
        usual = self._pairs(made, range(first - 1, first + end))
        strange = [
            any(pair not in usual for pair in pairwise(side[: end + 1])
                if all(pair))
            for side in (one, two)
        ]  # fmt: skip
        odd = [ranks for (ranks, _), is_strange in zip(apart, strange, strict=True) if is_strange]
        return odd[0] if len(odd) == 1 else ()

    def _of_rank(self, rank: int, group: Group, number: int) -> str:
        call = self._calls.get((group, number), {}).get(rank)
        return words(call) if call else ""

    def _pairs(self, made: Made, without: range) -> set[tuple[str, str]]:
        """Which call follows which, in groups for the same purpose and elsewhere in this one."""
        about = made.first.about
        pairs = set()
        for (group, number), calls in self._calls.items():
            if (group == made.group and number in without) or next(
                iter(calls.values())
            ).about != about:
                continue
            later = self._calls.get((group, number + 1), {})
            pairs |= {
                (words(call), words(later[rank])) for rank, call in calls.items() if rank in later
            }
        return pairs

    # -- the order of calls of several groups

    def is_out_of_order(self, pending: Mapping[int, Sequence[Call]]) -> bool:
        """Whether a rank's two oldest unfinished calls have the other order on most ranks.

        Only of ranks that make the same calls around: other pipeline stages have other numbers.
        """
        near: dict[tuple[_Key, _Key], list[_Key]] = {}
        for rank, calls in pending.items():
            first, *others = calls[:2] or (None,)
            if others and first and first.about != others[0].about and not (
                first.alone or others[0].alone
            ):  # fmt: skip
                pair = _key(first), _key(others[0])
                near[pair] = self._beside(rank, first, pair)
        later: Counter[object] = Counter()
        for recording in self._recorded.values() if near else ():
            places = {key: at for at, key in enumerate(map(_key, recording.calls))}
            for pair, around in near.items():
                before, after = (places.get(key) for key in pair)
                if before is not None and after is not None and _in_order(around, places):
                    later[pair] += 1 if after < before else -1
        return any(count >= 0 for count in later.values())

    def made_later(self, one: Call, two: Call, parties: Mapping[int, Call]) -> int | None:
        """Which of two calls, 0 or 1, most ranks of like groups make after the other.

        The ranks that wait in them are no witnesses: one may have kept its calls, the other not.
        """
        pair = _key(one), _key(two)
        near = [self._beside(rank, call, pair) for rank, call in parties.items()]
        votes: Counter[int] = Counter()
        for rank, recording in self._recorded.items():
            places = {call: at for at, call in enumerate(map(_key, recording.calls))}
            if rank in parties or not all(_in_order(around, places) for around in near):
                continue
            begun = [_begun(recording, like) for like in (one, two)]
            if begun[0] is not None and begun[1] is not None and begun[0] != begun[1]:
                votes[1 if begun[0] < begun[1] else 0] += 1
        most = votes.most_common(2)
        if not most or (len(most) > 1 and most[1][1] * 2 > most[0][1]):
            return None
        return most[0][0]

    def _beside(self, rank: int, call: Call, pair: tuple[_Key, _Key]) -> list[_Key]:
        """The calls that a rank makes around one of its own, in their order."""
        every = self._recorded[rank].calls
        at = every.index(call)
        beside = map(_key, every[max(0, at - _CONTEXT) : at + _CONTEXT])
        return [key for key in beside if key not in pair]


def _in_order(calls: Sequence[_Key], places: Mapping[_Key, int]) -> bool:
    """Whether a rank makes these in this order, as far as it is known: other stages do not."""
    order = [places[key] for key in calls if key in places]
    return order == sorted(order)


def _key(call: Call) -> _Key:
    """What a call has in common on ranks in other groups for the same purpose."""
    return call.about, call.number, call.op


def _begun(recording: Recording, like: Call) -> int | None:
    """The place of such a call among a rank's calls; after all if it has not made it yet."""
    same = [(at, call) for at, call in enumerate(recording.calls) if call.about == like.about]
    if not same:
        return None
    place = next((at for at, call in same if (call.number, call.op) == (like.number, like.op)), -1)
    if place < 0 and same[-1][1].number < like.number:
        return len(recording.calls)
    return place if place >= 0 else None


def _followers(calls: Sequence[str]) -> Counter[str]:
    """What came after the longest repetition of the last calls."""
    for length in range(min(len(calls) - 1, _LONGEST), 1, -1):
        recent = calls[-length:]
        followers = Counter(
            calls[place + length]
            for place in range(len(calls) - length)
            if calls[place : place + length] == recent
        )
        if followers and all(recent) and len(set(recent)) > 1:
            return followers
    return Counter()
