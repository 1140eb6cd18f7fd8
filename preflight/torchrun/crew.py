"""All ranks of the job as rank 0 knows them: who is on which node, who was never heard of."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.errors import UsageError
from preflight.fleet.nodeset import check_host_name, fold
from preflight.fleet.ranked import Ranked, RankedNode
from preflight.torchrun.announce import address_towards
from preflight.torchrun.notes import Present
from preflight.torchrun.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_BY_RANK = frozenset(("RANK", "LOCAL_RANK", "ROLE_RANK", "CUDA_VISIBLE_DEVICES"))


class Member(Struct, frozen=True, kw_only=True):
    """One rank; `present` is None if it was never heard of."""

    rank: int
    seat: int
    group: int
    present: Present | None = None

    @property
    def is_regular(self) -> bool:
        """Whether it runs where its number says: torchrun numbers ranks node by node."""
        return self.present is None or self.present.group == self.group


class Crew(Struct, frozen=True, kw_only=True):
    """The ranks of the job, in order."""

    members: tuple[Member, ...]
    place: Place

    @classmethod
    def of(cls, place: Place, present: Mapping[int, Present]) -> Crew:
        """Place every rank of the world on its node; torchrun numbers them node by node."""
        members = [
            Member(
                rank=rank,
                seat=rank % place.per_node,
                group=rank // place.per_node,
                present=present.get(rank),
            )
            for rank in range(place.world)
        ]
        return cls(members=tuple(members), place=place)

    @property
    def groups(self) -> dict[int, tuple[Member, ...]]:
        """The ranks of each node, by its group rank."""
        found: dict[int, list[Member]] = {}
        for member in self.members:
            found.setdefault(member.group, []).append(member)
        return {group: tuple(members) for group, members in found.items()}

    def words(self, member: Member) -> str:
        """Name a rank for a person: "rank 5 (h3, local rank 1)"."""
        known = next((m.present for m in self.groups[member.group] if m.present), None)
        where = known.hostname[:64] if known else f"node of group rank {member.group}"
        return f"rank {member.rank} ({where}, local rank {member.seat})"

    def ranked(self) -> Ranked:
        """The nodes of these ranks, for the fleet."""
        groups = self.groups
        labels = _labels(groups)
        nodes = [self._node(group, labels[group]) for group in groups]
        return Ranked(
            nodes=tuple(nodes),
            ranks=len(self.members),
            per_node=self.place.per_node,
            restarts=self.place.max_restarts,
        )

    def _node(self, group: int, label: str) -> RankedNode:
        told = [member.present for member in self.groups[group] if member.present]
        if not told:
            return RankedNode(group=group, label=label, address=label)
        first = told[0]
        return RankedNode(
            group=group,
            label=label,
            hostname=first.hostname,
            address=_sound(self._address(first)) or label,
            python=(first.python,),
            environ=_joined([one.environ for one in told]),
            uneven=_uneven([one.environ for one in told]),
        )

    def _address(self, one: Present) -> str:
        """How the other nodes reach it. Rank 0's own node may know its own name as loopback."""
        others = [m.present.address for m in self.members if m.present and m.group != one.group]
        if one.rank < self.place.per_node and one.address.startswith("127.") and others:
            return address_towards(others[0]) or one.address
        return one.address


def _labels(groups: Mapping[int, Sequence[Member]]) -> dict[int, str]:
    """A name for each node: short where that is enough, numbered where agents share a host."""
    full = {group: _hostname(members, group) for group, members in groups.items()}
    short = {group: _sound(name.partition(".")[0]) or name for group, name in full.items()}
    for labels in (short, full):
        if len(set(labels.values())) == len(labels):
            return labels
    times = Counter(full.values())
    return {
        group: f"{name.partition('.')[0]}-{group}" if times[name] > 1 else name
        for group, name in full.items()
    }


def _hostname(members: Iterable[Member], group: int) -> str:
    told = next((member.present.hostname for member in members if member.present), "")
    return _sound(told) or f"group-{group}"


def _sound(name: str) -> str:
    """Give the name or address; "" for what is none, which a rank may say all the same."""
    try:
        check_host_name(name)
    except UsageError:
        return ""
    return name


def _joined(environs: Sequence[dict[str, str]]) -> dict[str, str]:
    """The environment of a node's ranks: what differs among them by rank is not the node's.

    Where each rank is given GPUs of its own, the node's are all of theirs.
    """
    name = "CUDA_VISIBLE_DEVICES"
    told = list(dict.fromkeys(one[name] for one in environs if name in one))
    joined = dict(environs[0])
    if len(told) > 1:
        joined[name] = ",".join(told)
    return joined


def _uneven(environs: Sequence[dict[str, str]]) -> dict[str, tuple[str | None, ...]]:
    """What the ranks of a node do not share, but for what torchrun itself gives each of them."""
    names = {name for environ in environs for name in environ}
    values = {name: tuple(environ.get(name) for environ in environs) for name in sorted(names)}
    return {
        name: each
        for name, each in values.items()
        if len(set(each)) > 1 and name not in _BY_RANK and not name.startswith("TORCHELASTIC_")
    }


def missing(crew: Crew) -> str:
    """Who was never heard of, in words; nothing if all were."""
    silent = [member for member in crew.members if member.present is None]
    named = ", ".join(crew.words(member) for member in silent[:4])
    more = f" and ranks {fold(str(m.rank) for m in silent[4:])}" if len(silent) > 4 else ""  # noqa: PLR2004
    return named + more
