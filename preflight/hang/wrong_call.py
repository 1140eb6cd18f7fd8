"""Decides which ranks of a group made the wrong call: the one that differs from what is usual.

The usual call is what most members of the group make, what like groups make under this number, what
followed the same calls before, and, where a call was replaced or two were exchanged, which call
follows which elsewhere.
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

_SAME_SHAPES = frozenset({
    "all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "_allgather_base",
    "all_gather_into_tensor", "all_gather_single", "_reduce_scatter_base",
    "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "all_reduce_coalesced",
})  # fmt: skip
"""Collectives that need the same shapes on all ranks; others may differ."""
_HISTORY = 1000
"""Earlier calls of a group in which a repetition is looked for."""
_PROBES, _LONGEST_REPETITION = 24, 32
"""The last calls that the repetition must predict; most calls of a repetition that are compared."""
_NEAR, _CONTEXT = 12, 4
"""Calls before and after that are compared, and how many of them must be known."""
_LONGEST_REPLACED = 3
"""Calls that one rank made in another way or order, before it went on as the others."""


class Group(Struct, frozen=True, cache_hash=True):
    """A process group: its name, and its members where the recordings have them."""

    name: str
    members: tuple[int, ...] = ()


class Collective(NamedTuple):
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


def call_words(call: Call, *, shapes: bool = True) -> str:
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
        (call_words(call, shapes=shapes), rank)
        for rank, call in sorted(calls.items())
        if rank not in vague or len(vague) == len(calls)
    )
    if len(vague) < len(calls):
        max(by_call.values(), key=len).extend(vague)
    ordered = sorted(by_call.items(), key=lambda pair: (-len(pair[1]), pair[1]))
    return tuple((tuple(sorted(callers)), call) for call, callers in ordered)


class UsualCalls:
    """What the groups of a job usually call."""

    def __init__(
        self,
        calls: Mapping[tuple[Group, int], Mapping[int, Call]],
        recorded: Mapping[int, Recording],
    ) -> None:
        self._calls, self._recorded = calls, recorded

    def odd_side(self, collective: Collective, missing: int) -> Sequence[int]:
        """The smaller side; of two equal ones, the one whose call is not usual.

        `missing`: members without a recording, which may be on either side.
        """
        all_sides = sides(collective.calls)
        total = sum(len(ranks) for ranks, _ in all_sides)
        minority = [rank for ranks, _ in all_sides[1:] for rank in ranks]
        if (len(minority) + missing) * 2 < total + missing:
            return sorted(minority)
        for votes in self._evidence(collective):
            wrong = [ranks for ranks, call in all_sides if not votes[call]]
            if len(wrong) == len(all_sides) - 1:
                return sorted(rank for ranks in wrong for rank in ranks)
        return self._replaced_side(collective, all_sides) if len(all_sides) == 2 else ()  # noqa: PLR2004

    def is_right(self, collective: Collective, waiting: Sequence[int]) -> bool | None:
        """Whether this is the right call; None if nothing shows it."""
        if len(waiting) * 2 > len(collective.group.members) > 0:
            return True
        call = call_words(collective.calls[waiting[0]])
        all_votes = [*self._evidence(collective)]
        if any(votes and not votes[call] for votes in all_votes):
            return False
        return True if len(waiting) > 1 or any(votes[call] for votes in all_votes) else None

    def _evidence(self, collective: Collective) -> Iterator[Counter[str]]:
        """How often each call is usual here, by the strongest comparison first."""
        yield self._votes(collective)
        yield self._predicted_calls(collective)
        yield self._votes(collective, any_number=True)

    def _votes(self, collective: Collective, *, any_number: bool = False) -> Counter[str]:
        """What groups for the same purpose call under this number, or with this operation at all.

        A pipeline stage makes other calls than the next: the calls around must be equal too.
        """
        call = collective.first
        at, shapes, own_group = collective.number, collective.shapes, collective.group
        near = [number for number in range(at - _NEAR, at + _NEAR) if number != at]
        own_calls = [self._common_call(own_group, number, shapes=shapes) for number in near]
        needed = min(_CONTEXT, sum(map(bool, own_calls)))
        similar: dict[Group, bool] = {}
        votes: Counter[str] = Counter()
        for (group, number), others in self._calls.items():
            other = next(iter(others.values()))
            if (
                not call.about or other.about != call.about or group == own_group
                or (number == at) == any_number
                or (any_number and not (shapes and other.op == call.op))
            ):  # fmt: skip
                continue
            if group not in similar:
                calls = [self._common_call(group, place, shapes=shapes) for place in near]
                equal = [a == b for a, b in zip(own_calls, calls, strict=True) if a and b]
                similar[group] = all(equal) and len(equal) >= needed
            if any_number or similar[group]:
                votes.update(call_words(call, shapes=shapes) for call in others.values())
        return votes if needed or any_number or len(votes) == 1 else Counter()

    def _common_call(self, group: Group, number: int, *, shapes: bool) -> str:
        """What the group called, if all its ranks called the same."""
        calls = self._calls.get((group, number), {})
        texts = {call_words(call, shapes=shapes) for call in calls.values()}
        return texts.pop() if len(texts) == 1 else ""

    def _predicted_calls(self, collective: Collective) -> Counter[str]:
        """The calls that followed the same earlier calls before: a training loop repeats itself.

        Empty if this would not have predicted each of the last calls.
        """
        group, shapes, last = collective.group, collective.shapes, collective.number
        numbers = range(max(1, last - _HISTORY), last)
        earlier = [self._common_call(group, number, shapes=shapes) for number in numbers]
        for place in range(max(0, len(earlier) - _PROBES), len(earlier)):
            if {*_followers(earlier[:place])} != {earlier[place]}:
                return Counter()
        return _followers(earlier)

    def _replaced_side(self, collective: Collective, both_sides: Sequence[Side]) -> Sequence[int]:
        """The side on which calls follow each other as they do nowhere else.

        Only if both sides go on with equal calls: one was replaced, or some were exchanged. A rank
        that left a call out goes on with others, and then the call itself may be a rare one.
        """
        group, first = collective.group, collective.number
        one_side, other_side = (
            [self._call_of(ranks[0], group, first + at) for at in range(-1, _NEAR)]
            for ranks, _ in both_sides
        )
        for end in range(2, _LONGEST_REPLACED + 2):
            pairs = [*zip(one_side[end:], other_side[end:], strict=True)][:_CONTEXT]
            equal = len(pairs) == _CONTEXT and all(one and one == other for one, other in pairs)
            if equal and len({*pairs}) > 1:
                break
        else:
            return ()
        usual = self._successions(collective, range(first - 1, first + end))
        both = (filter(all, pairwise(side[: end + 1])) for side in (one_side, other_side))
        strange = [not usual.issuperset(successions) for successions in both]
        return both_sides[strange.index(True)][0] if sum(strange) == 1 else ()

    def _call_of(self, rank: int, group: Group, number: int) -> str:
        call = self._calls.get((group, number), {}).get(rank)
        return call_words(call) if call else ""

    def _successions(self, collective: Collective, excluded: range) -> set[tuple[str, str]]:
        """Which call follows which, in groups for the same purpose and elsewhere in this one."""
        about = collective.first.about
        pairs = set()
        for (group, number), calls in self._calls.items():
            here = group == collective.group and number in excluded
            if here or next(iter(calls.values())).about != about:
                continue
            after = self._calls.get((group, number + 1), {})
            pairs |= {
                (call_words(calls[rank]), call_words(after[rank]))
                for rank in calls.keys() & after.keys()
            }
        return pairs

    # -- the order of calls of several groups

    def is_out_of_order(self, pending: Mapping[int, Sequence[Call]]) -> bool:
        """Whether a rank's two oldest unfinished calls have the other order on most ranks.

        Only of ranks that make the same calls around: other pipeline stages have other numbers.
        """
        neighbours: dict[tuple[_Key, _Key], list[_Key]] = {}
        several = ((rank, calls[:2]) for rank, calls in pending.items() if len(calls) > 1)
        for rank, (first, second) in several:
            if first.about != second.about and not (first.alone or second.alone):
                pair = _key(first), _key(second)
                neighbours[pair] = self._neighbours(rank, first, pair)
        votes: Counter[object] = Counter()
        for recording in self._recorded.values() if neighbours else ():
            places = {key: at for at, key in enumerate(map(_key, recording.calls))}
            for pair, keys in neighbours.items():
                before, after = (places.get(key) for key in pair)
                if before is not None and after is not None and _in_order(keys, places):
                    votes[pair] += 1 if after < before else -1
        return any(count >= 0 for count in votes.values())

    def later_call(self, first: Call, second: Call, waiting: Mapping[int, Call]) -> int | None:
        """Which of two calls, 0 or 1, most ranks of like groups make after the other.

        The ranks that wait in them are no witnesses: one may have kept its calls, the other not.
        """
        pair = _key(first), _key(second)
        neighbours = [self._neighbours(rank, call, pair) for rank, call in waiting.items()]
        votes: Counter[int] = Counter()
        for rank, recording in self._recorded.items():
            places = {call: at for at, call in enumerate(map(_key, recording.calls))}
            if rank in waiting or not all(_in_order(keys, places) for keys in neighbours):
                continue
            one, other = _position(recording, first), _position(recording, second)
            if one is not None and other is not None and one != other:
                votes[int(one < other)] += 1
        most = votes.most_common(2)
        if not most or (len(most) > 1 and most[1][1] * 2 > most[0][1]):
            return None
        return most[0][0]

    def _neighbours(self, rank: int, call: Call, pair: tuple[_Key, _Key]) -> list[_Key]:
        """The calls that a rank makes around one of its own, in their order."""
        calls = self._recorded[rank].calls
        place = calls.index(call)
        near_keys = map(_key, calls[max(0, place - _CONTEXT) : place + _CONTEXT])
        return [key for key in near_keys if key not in pair]


def _in_order(calls: Sequence[_Key], places: Mapping[_Key, int]) -> bool:
    """Whether a rank makes these in this order, as far as it is known: other stages do not."""
    order = [places[key] for key in calls if key in places]
    return order == sorted(order)


def _key(call: Call) -> _Key:
    """What a call has in common on ranks in other groups for the same purpose."""
    return call.about, call.number, call.op


def _position(recording: Recording, like: Call) -> int | None:
    """The place of such a call among a rank's calls; after all if it has not made it yet."""
    keys = [_key(call) for call in recording.calls]
    if _key(like) in keys:
        return keys.index(_key(like))
    numbers = [number for about, number, _ in keys if about == like.about]
    return len(keys) if numbers and numbers[-1] < like.number else None


def _followers(calls: Sequence[str]) -> Counter[str]:
    """What came after the longest repetition of the last calls."""
    for length in range(min(len(calls) - 1, _LONGEST_REPETITION), 1, -1):
        recent = calls[-length:]
        followers = Counter(
            calls[place + length]
            for place in range(len(calls) - length)
            if calls[place : place + length] == recent
        )
        if followers and all(recent) and len(set(recent)) > 1:
            return followers
    return Counter()
