"""Whether a node finds the job's master by its name: 127.0.1.1 means it would wait for itself."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from preflight.facts.addresses import addresses_of, family, is_loopback
from preflight.facts.odd_gpus import Oddity

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.facts.model import Facts
    from preflight.facts.network_model import Resolved
    from preflight.facts.node import Group

SLOW_S: Final = 1.0
_HOSTS: Final = "correct /etc/hosts or DNS on this node (getent ahosts {0})"


@cache
def answers(name: str) -> Callable[[Facts], tuple[str, ...] | None]:
    """The reader of where a name leads, for a vote of a group: one for all nodes."""

    def read(facts: Facts) -> tuple[str, ...] | None:
        found = found_of(facts, name)
        return None if found is None else tuple(sorted(found.addresses))

    return read


def found_of(facts: Facts, name: str) -> Resolved | None:
    """What a node said of a name."""
    names = facts.network.names if facts.network else ()
    return next((one for one in names if one.name == name), None)


def misled(
    one: Resolved, facts: Facts, master: Facts | None, group: Group, *, promised: bool
) -> Oddity | None:
    """What is wrong with where a name leads here. `promised`: the job itself uses the name."""
    if not one.addresses:
        return _unknown_name(one, master, group, promised=promised)
    at_master = master is not None and same_machine(facts, master)
    advice = _HOSTS.format(one.name)
    if all(is_loopback(each) for each in one.addresses):
        if at_master:
            return None
        sentence = f"the master's name {one.name} leads to {_list(one)} here, which is this node"
        return Oddity(f"{sentence} itself; its ranks would wait for themselves", advice)
    vote = group.majority(answers(one.name))
    usual = vote.value if vote is not None and vote.decides else ()
    own = addresses_of(master) if master is not None else set()
    if usual and set(usual).isdisjoint(one.addresses) and not own & set(one.addresses):
        whom = f"{', '.join(usual[:2])} on {vote.votes} of {vote.of} nodes" if vote else ""
        return Oddity(f"the master's name {one.name} leads to {_list(one)} here, {whom}", advice)
    if not usual and own and own.isdisjoint(one.addresses):
        sentence = f"the master's name {one.name} leads to {_list(one)}, which none of its"
        return Oddity(f"{sentence} interfaces has", advice, grave=False)
    return _wrong_family(one, facts) or _slow(one)


def same_machine(a: Facts, b: Facts) -> bool:
    """Whether two answers come from one machine."""
    return a.host == b.host and abs(a.boot_s - b.boot_s) < SLOW_S


def _unknown_name(
    one: Resolved, master: Facts | None, group: Group, *, promised: bool
) -> Oddity | None:
    """A name that no node knows is one of our inventory, unless the job says otherwise."""
    there = found_of(master, one.name) if master is not None else None
    vote = group.majority(answers(one.name))
    usual = vote is not None and vote.decides and bool(vote.value)
    if not (promised or usual or (there is not None and there.addresses)):
        return None
    return Oddity(
        f"the master's name {one.name} leads nowhere here: {one.error}", _HOSTS.format(one.name)
    )


def _wrong_family(one: Resolved, facts: Facts) -> Oddity | None:
    """A name of IPv6 addresses alone is of no use to a node that has none."""
    versions = {family(each) for each in one.addresses}
    mine = {family(each) for each in addresses_of(facts) if not each.startswith("fe80")}
    if not mine or versions & mine:
        return None
    here, there = (f"IPv{next(iter(sorted(kinds)))}" for kinds in (mine, versions))
    sentence = f"the master's name {one.name} leads to {_list(one)}: only {there}, this node has"
    return Oddity(f"{sentence} only {here}", "give both ends an address of one family")


def _slow(one: Resolved) -> Oddity | None:
    if one.seconds < SLOW_S:
        return None
    sentence = (
        f"looking up the master's name {one.name} took {one.seconds:.1f} s, under 1 s is usual"
    )
    return Oddity(sentence, "look at the name servers in /etc/resolv.conf", grave=False)


def _list(one: Resolved) -> str:
    return ", ".join(one.addresses[:2])
