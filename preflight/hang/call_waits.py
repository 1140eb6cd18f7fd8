"""Follows the waits of a stuck job across its groups to the ranks that no other rank holds up.

A rank waits in its oldest unfinished call, for the ranks that have not come to it. Some of these
wait in a call of another group: they are not the cause. The cause is at the end of the waits.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import grouped
from preflight.hang.wrong_call import Collective, Group, UsualCalls, call_words, sides

if TYPE_CHECKING:
    from preflight.hang.flight_recorder import Call, Recording

_SYNCHRONIZING = re.compile(r"_?(all|barrier|reduce_scatter|ALLGATHER|REDUCE_SCATTER)")
"""Collectives that no rank ends before all have begun."""
_PEER = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")
_COUNTERPART = {"send": "recv", "recv": "send"}
_Node = TypeVar("_Node", bound=Hashable)
_STALLED_CALLS = 2
"""Calls that the other ranks have ended: they cannot end a second one without this rank."""

Kind = Literal[
    "absent", "differs", "stalled", "not_started", "crossed", "extra", "idle", "no_dump", "all_in",
]  # fmt: skip
"""`absent`: has not made the call, and waits nowhere. `stalled`: others ended its calls, its GPU
did not. `not_started`: its GPU has not begun what the others' have. `crossed`: calls in another
order. `extra`: a call that most ranks do not make. `idle`: as `absent`, and no rank has come to
the call that waits for it. `all_in`: all made the call, none ended it."""


class Spot(NamedTuple):
    """Where ranks wait: a collective of a group, or a rank's send or receive (`rank` >= 0)."""

    group: Group
    number: int
    rank: int = -1


class Root(Struct, frozen=True, kw_only=True):
    """An end of the waits."""

    kind: Kind
    ranks: tuple[int, ...]
    """The ranks at fault; empty if none is."""
    group: str = ""
    """`group 35 (TENSOR_MODEL_PARALLEL_GROUP)`."""
    number: int = 0
    calls: tuple[tuple[tuple[int, ...], str], ...] = ()
    """(ranks, their call), most ranks first."""
    since_ns: int = 0
    few: bool = True
    """Whether `ranks` are the minority, whatever the missing ranks did."""
    proven: bool = True
    """False if a rank with a dump, or another rank without one, may be at fault instead."""


class Wait(Struct, frozen=True, kw_only=True):
    """Ranks that wait in one call, or in like sends and receives of several groups."""

    ranks: tuple[int, ...]
    group: str
    number: int
    call: str
    state: str
    waits_for: tuple[int, ...]
    """Ranks that have not come to this call; empty if all have."""


class Waits(Struct, frozen=True, kw_only=True):
    """The waits of a job."""

    roots: tuple[Root, ...] = ()
    """Oldest first."""
    rows: tuple[Wait, ...] = ()
    """Calls that some ranks have not made before those of all; most ranks first."""


def follow(
    recorded: Mapping[int, Recording], missing: int = 0, no_dump: Collection[int] = ()
) -> Waits:
    """Find the ends of the waits.

    `missing`: the number of ranks without a recording, which may be on either side; `no_dump`:
    those of them whose numbers are known.
    """
    job = _Job(recorded, missing, frozenset(no_dump))
    return Waits(roots=tuple(job.roots()), rows=tuple(job.rows()))


def group_words(call: Call) -> str:
    """`group 3 (tp)`."""
    about = call.about if call.about and call.about != "undefined" else ""
    return f"group {call.group}{f' ({about})' if about else ''}"


class _Job:
    """What the ranks of a job have called, and where each waits."""

    def __init__(
        self, recorded: Mapping[int, Recording], missing: int, no_dump: frozenset[int]
    ) -> None:
        self.recorded, self.unrecorded, self.no_dump = recorded, missing, no_dump
        self._members_by_name = {
            name: at for recording in recorded.values() for name, at in recording.members.items()
        }
        """For dumps that lack the members of their groups."""
        self._groups: dict[Group, Group] = {}
        self._of_rank: dict[tuple[int, str], Group] = {}
        """The same object for the same group: thousands of members are compared once per rank."""
        self.calls: dict[tuple[Group, int], dict[int, Call]] = defaultdict(dict)
        self.usual = UsualCalls(self.calls, recorded)
        self.last_ended: dict[Group, dict[int, int]] = defaultdict(dict)
        """The last collective that ended, by group and rank."""
        self.last_called: dict[Group, dict[int, int]] = defaultdict(dict)
        self.pending = {rank: self._enter_calls(rank) for rank in recorded}
        batched = {about for recording in recorded.values() for about in recording.batched}
        for rank, calls in self.pending.items():
            # What is left of a batch that has ended, in a dump of unfinished calls only.
            self.pending[rank] = [
                call for call in calls if not call.alone or call.parts or call.about not in batched
            ]
        self.members = {
            group: group.members or tuple(sorted({*ranks, *(no_dump if _is_world(group) else ())}))
            for group, ranks in self.last_called.items()
        }
        self.stalled = self._drop_stalled()
        self.oldest = {rank: calls[0] for rank, calls in self.pending.items() if calls}
        self.spot_of = {
            rank: Spot(self._group(rank, call), call.number, rank if call.alone else -1)
            for rank, call in self.oldest.items()
        }
        self.ranks_at = grouped((spot, rank) for rank, spot in self.spot_of.items())
        self.call_at = {spot: self.oldest[there[0]] for spot, there in self.ranks_at.items()}
        """The call of any of the ranks that wait there."""
        self.since_ns = {
            spot: min(self.oldest[rank].begun_ns for rank in there)
            for spot, there in self.ranks_at.items()
        }
        self.waits_for = {spot: self._missing_from(spot) for spot in self.ranks_at}
        self.differing = {spot for spot in self.ranks_at if len(sides(self._calls_at(spot))) > 1}
        self.shows_starts = any(call.state == "started" for call in self.oldest.values())
        """Whether the recorder shows which calls the GPUs have begun."""

    # -- where each rank is

    def _group(self, rank: int, call: Call) -> Group:
        group = self._of_rank.get((rank, call.group))
        if group is None:
            members = self.recorded[rank].members.get(call.group, ())
            new = Group(call.group, members or self._members_by_name.get(call.group, ()))
            group = self._of_rank[rank, call.group] = self._groups.setdefault(new, new)
        return group

    def _enter_calls(self, rank: int) -> list[Call]:
        """Enter a rank's collectives; return its unfinished calls, oldest first."""
        pending, recording = [], self.recorded[rank]
        first_pending: dict[Group, int] = {}
        for call in recording.calls:
            if call.pending:
                pending.append(call)
            if call.alone:
                continue
            group, number = self._group(rank, call), call.number
            self.calls[group, number][rank] = call
            last_called = self.last_called[group]
            enqueued = recording.enqueued.get(call.group, 0)
            last_called[rank] = max(number, last_called.get(rank, 0), enqueued)
            if call.pending:
                first_pending.setdefault(group, number)
            # The calls of a group end in order: none has ended after the first unfinished one.
            self.last_ended[group][rank] = first_pending.get(group, number + 1) - 1
        return pending

    def _drop_stalled(self) -> list[int]:
        """Ranks with calls that others ended; such calls hold up no other rank."""
        last_ended = {group: max(done.values()) for group, done in self.last_ended.items()}
        stalled = []
        for rank, calls in self.pending.items():
            last = ended = 0
            for place, call in enumerate(calls, 1):
                group = self._group(rank, call)
                if (
                    not call.alone and call.number <= last_ended[group]
                    and _SYNCHRONIZING.match(call.op)
                    and len(sides(self.calls[group, call.number])) == 1
                ):  # fmt: skip
                    last, ended = place, ended + bool(call.state)
            if ended >= _STALLED_CALLS:
                stalled.append(rank)
            if ended >= _STALLED_CALLS or not all(call.state for call in calls[:last]):
                for call in calls[:last]:
                    if not call.alone:
                        self.last_ended[self._group(rank, call)][rank] = call.number
                del calls[:last]
        return stalled

    def _missing_from(self, spot: Spot) -> tuple[int, ...]:
        """The ranks that have not come to this call."""
        if spot.rank >= 0:
            return tuple(sorted(self._peers_elsewhere(spot)))
        done = self.last_ended[spot.group]
        return tuple(
            rank
            for rank in self.members[spot.group]
            if self.spot_of.get(rank) != spot and done.get(rank, 0) < spot.number
        )

    def _peers(self, rank: int, call: Call) -> Iterable[tuple[str, int]]:
        """(send or recv, the other rank) of each part."""
        members = self._group(rank, call).members
        for op in call.parts or (call.op,):
            match = _PEER.match(op)
            if match is None:
                continue
            way, peer = match[1], int(match[3])
            if not members or peer < len(members):
                yield way, members[peer] if members else peer

    def _peers_elsewhere(self, spot: Spot) -> set[int]:
        rank, call = spot.rank, self.oldest[spot.rank]
        elsewhere = set()
        for way, peer in self._peers(rank, call):
            peer_call = self.oldest.get(peer)
            if peer != rank and (
                peer_call is None or not peer_call.alone or peer_call.group != call.group
                or (_COUNTERPART[way], rank) not in self._peers(peer, peer_call)
            ):  # fmt: skip
                elsewhere.add(peer)
        return elsewhere

    # -- the ends of the waits

    def roots(self) -> list[Root]:
        """Oldest first, by the clocks of the ranks that wait there."""
        roots: dict[tuple[Kind, object], Root] = {}
        idle: dict[int, list[Spot]] = defaultdict(list)
        for ends in self._ends():
            ranks = [end for end in ends if isinstance(end, int)]
            spots = sorted((end for end in ends if isinstance(end, Spot)), key=self._age)
            if spots and ranks:
                root = self._crossed(spots)
                roots[root.kind, spots[0]] = root
            elif spots:
                root = self._all_in(spots[0])
                roots[root.kind, spots[0] if root.kind != "all_in" else root.group] = root
            else:
                idle[ranks[0]] = []
        for spot, waits_for in self.waits_for.items():
            for rank in waits_for:
                if rank in idle:
                    idle[rank].append(spot)
        roots.update(self._absent({rank: spots for rank, spots in idle.items() if spots}))
        absent = {rank for root in roots.values() if root.kind == "absent" for rank in root.ranks}
        idle_ranks = sorted({*self.recorded} - {*self.oldest} - absent)
        if absent and idle_ranks:
            roots["idle", 0] = Root(
                kind="idle",
                ranks=tuple(idle_ranks),
                few=(len(absent) + len(idle_ranks) + self.unrecorded) * 2 < len(self.recorded),
            )
        if self.stalled:
            few = self._are_few(self.stalled)
            at_fault = tuple(sorted(self.stalled)) if few else ()
            roots["stalled", 0] = Root(kind="stalled", ranks=at_fault, few=few)
        last_kinds = ("no_dump", "idle")
        return sorted(
            roots.values(), key=lambda root: (root.kind in last_kinds, root.since_ns, root.group)
        )

    def _are_few(self, ranks: Collection[int]) -> bool:
        """Whether these are the minority, even if all ranks without a recording belong to them."""
        return (len(ranks) + self.unrecorded) * 2 < len(self.recorded) + self.unrecorded

    def _age(self, spot: Spot) -> tuple[object, ...]:
        """Orders calls: the oldest first, and those of one time always alike."""
        return self.since_ns[spot], spot.group.name, spot.group.members, spot.number, spot.rank

    def _absent(self, idle: Mapping[int, Sequence[Spot]]) -> dict[tuple[Kind, object], Root]:
        """Ranks that wait nowhere, by the call that the others wait in."""
        recorded_ranks = [rank for rank in idle if rank in self.recorded]
        few = self._are_few(recorded_ranks)
        if recorded_ranks and not few and len(recorded_ranks) * 2 > len(self.recorded):
            spots = {spot for rank in recorded_ranks for spot in idle[rank]}
            odd = sorted({rank for spot in spots for rank in self.ranks_at[spot]})
            oldest = min(spots, key=self.since_ns.__getitem__)
            root = self._root("extra", oldest, odd if self._are_few(odd) else ())
            return {("extra", oldest): root}
        main_spots = (
            (rank, min(spots, key=lambda spot: (-len(self.ranks_at[spot]), self.since_ns[spot])))
            for rank, spots in idle.items()
        )
        kinds: tuple[Kind, Kind] = ("no_dump", "absent")
        by_spot = grouped(((kinds[rank in self.recorded], spot), rank) for rank, spot in main_spots)
        proven = len(recorded_ranks) == len(idle) or self._shows_death()
        return {
            (kind, spot): self._root(kind, spot, ranks, few=few, proven=proven or kind != "no_dump")
            for (kind, spot), ranks in by_spot.items()
        }

    def _shows_death(self) -> bool:
        """Whether the rank without a dump is the only one that can be at fault.

        It is not if others lack a dump too, if a rank waits nowhere, if a GPU has not begun its
        oldest call, or if a rank waits for it in a call that may be wrong: like groups make
        another, nothing shows that any of these calls is right, or most ranks make the next call
        first.
        """
        waiting = self.oldest.values()
        right = [
            self.usual.is_right(Collective(*spot[:2], self._calls_at(spot)), self.ranks_at[spot])
            for spot, waits_for in self.waits_for.items()
            if spot.rank < 0 and self.no_dump.intersection(waits_for)
        ]
        return (
            self.unrecorded == 1
            and len(waiting) == len(self.recorded)
            and not (self.shows_starts and any(call.state == "scheduled" for call in waiting))
            and False not in right
            and (True in right or not right)
            and not self.usual.is_out_of_order(self.pending)
        )

    def _all_in(self, spot: Spot) -> Root:
        """All have come to this call: their calls differ, or some GPUs have not begun it."""
        calls = self._calls_at(spot)
        if len(sides(calls)) > 1:
            members = spot.group.members
            unrecorded = len(self.no_dump.intersection(members)) if members else self.unrecorded
            odd = self.usual.odd_side(Collective(spot.group, spot.number, calls), unrecorded)
            return self._root("differs", spot, odd)
        if spot.rank >= 0:
            peers = (peer for _, peer in self._peers(spot.rank, self.oldest[spot.rank]))
            calls = {rank: self.oldest[rank] for rank in (spot.rank, *peers)}
        late = self._late(calls)
        return self._root("not_started" if late else "all_in", spot, late)

    @staticmethod
    def _late(calls: Mapping[int, Call]) -> list[int]:
        """The ranks whose GPU has not begun a call that others have begun."""
        late = [rank for rank, call in calls.items() if call.state == "scheduled"]
        return late if any(call.state == "started" for call in calls.values()) else []

    def _calls_at(self, spot: Spot) -> dict[int, Call]:
        if spot.rank >= 0:
            return {spot.rank: self.oldest[spot.rank]}
        return self.calls[spot.group, spot.number]

    def _crossed(self, spots: Sequence[Spot]) -> Root:
        """Ranks that wait for each other: those few without whose wait no circle is left."""
        edges: dict[Spot, Collection[Spot]] = {
            spot: {*spots}.intersection(map(self.spot_of.get, self.waits_for[spot]))
            for spot in spots
        }
        # Of the ranks in a call, only those for which other calls of the circle wait.
        awaited = {rank for spot in spots for rank in self.waits_for[spot]}
        blocking = {spot: sorted(awaited.intersection(self.ranks_at[spot])) for spot in spots}
        smallest: list[Spot] = []
        for spot in sorted(spots, key=lambda spot: len(blocking[spot])):
            if smallest and len(blocking[spot]) > len(blocking[smallest[0]]):
                break
            if all(len(part) == 1 for part in components({**edges, spot: ()})):
                smallest.append(spot)  # no circle is left if the ranks here did not wait
        if len(smallest) == 2:  # noqa: PLR2004
            first, second = (self.call_at[spot] for spot in smallest)
            parties = {rank: self.oldest[rank] for spot in smallest for rank in blocking[spot]}
            later_one = self.usual.later_call(first, second, parties)
            smallest = [smallest[later_one]] if later_one is not None else smallest
        odd_ranks = blocking[smallest[0]] if len(smallest) == 1 else []
        odd_ranks = odd_ranks if len(odd_ranks) * 2 < len(self.recorded) else []
        rest = [spot for spot in spots if spot not in smallest[:1]]
        others = max(rest, key=lambda spot: len(self.ranks_at[spot]))
        root = self._root("crossed", others, odd_ranks)
        calls = ((tuple(blocking[at]), self.call_at[at]) for at in (others, *smallest[:1]))
        call_sides = ((at, f"{call_words(call)} of {group_words(call)}") for at, call in calls)
        return replace(root, calls=tuple(call_sides))

    def _root(
        self, kind: Kind, spot: Spot, ranks: Iterable[int], *, few: bool = True, proven: bool = True
    ) -> Root:
        call = self.call_at[spot]
        return Root(
            kind=kind,
            ranks=tuple(sorted(ranks)),
            group=group_words(call),
            number=call.number,
            calls=sides(self._calls_at(spot)),
            since_ns=self.since_ns[spot],
            few=few,
            proven=proven,
        )

    def _ends(self) -> list[set[int | Spot]]:
        """The strongly connected parts of the graph of waits that lead to no other part."""
        edges: dict[int | Spot, Sequence[int | Spot]] = {}
        for spot, waits_for in self.waits_for.items():
            # A call in which ranks differ does not end, whoever comes to it.
            # A rank without a dump may wait too: it is an end only if no other rank is missing.
            recorded = [rank for rank in waits_for if rank in self.recorded]
            is_end = spot in self.differing or (not recorded and self._late(self._calls_at(spot)))
            edges[spot] = () if is_end else recorded or waits_for
            for rank in self.ranks_at[spot]:
                edges[rank] = (spot,)
        return [
            component for component in components(edges)
            if all(component.issuperset(edges.get(member, ())) for member in component)
        ]  # fmt: skip

    # -- the table

    def rows(self) -> list[Wait]:
        """One row per collective; like sends and receives of several groups are one row."""
        rows = []
        folded = grouped((self._likeness(spot), spot) for spot in self.ranks_at)
        for (group, ops, state), spots in folded.items():
            call = self.call_at[spots[0]]
            ranks = sorted(rank for spot in spots for rank in self.ranks_at[spot])
            waits_for = {rank for spot in spots for rank in self.waits_for[spot]}
            is_folded = call.alone and len(ranks) > 1
            rows.append(Wait(
                ranks=tuple(ranks),
                group=str(group) if is_folded else group_words(call),
                number=0 if is_folded else call.number,
                call=ops if is_folded else call_words(call),
                state=state, waits_for=tuple(sorted(waits_for)),
            ))  # fmt: skip
        return sorted(rows, key=lambda row: (not row.waits_for, -len(row.ranks), row.ranks))

    def _likeness(self, spot: Spot) -> tuple[object, str, str]:
        """What calls in one row have in common: group, whether they send or receive, state."""
        call = self.call_at[spot]
        ways = re.findall(r"send|recv", " ".join(call.parts or (call.op,)))
        group = call.about or call.group if call.alone else spot
        return group, " and ".join(dict.fromkeys(ways)), call.state


def _is_world(group: Group) -> bool:
    return group.name in ("0", "default_pg")


def components(edges: Mapping[_Node, Collection[_Node]]) -> list[set[_Node]]:
    """The strongly connected parts of a graph, by Kosaraju; one comes after those it leads to."""
    back = grouped((target, node) for node, targets in edges.items() for target in targets)
    order, visited = [*_in_postorder(edges, edges, set())], set[_Node]()
    parts = ({*_in_postorder((node,), back, visited)} for node in reversed(order))
    return [part for part in parts if part][::-1]


def _in_postorder(
    starts: Iterable[_Node], edges: Mapping[_Node, Collection[_Node]], visited: set[_Node]
) -> Iterator[_Node]:
    """Visit what is reached from these; no recursion: a chain may have thousands of ranks."""
    for start in starts:
        path = [] if start in visited else [(start, iter(edges.get(start, ())))]
        visited.add(start)
        while path:
            node, targets = path[-1]
            for target in targets:
                if target not in visited:
                    visited.add(target)
                    path.append((target, iter(edges.get(target, ()))))
                    break
            else:
                path.pop()
                yield node
