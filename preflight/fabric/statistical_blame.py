"""Faults that only the samples of the whole fabric show, in words an operator can act on.

A dead or very slow link condemns its own pairs; 15 per cent on one rail, a spike in a thousand
operations, or a host that is late now and then show against everybody else's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from preflight.fabric.advice import more_partners
from preflight.fabric.blame import Blame
from preflight.fabric.decoding.accounts import EVENTS
from preflight.fabric.explained import ends_words
from preflight.fabric.stood import late_advice, late_words
from preflight.fabric.words import either, gbs, size, time_us
from preflight.facts.xids import explained

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from preflight.fabric.compare import Seen
    from preflight.fabric.culprit import Component, Found, SecondLookSaid
    from preflight.fabric.observed import Observed
    from preflight.fabric.schedule import Pairing

_MOST_NAMES = 3
_AGAIN: Mapping[SecondLookSaid, str] = {
    "": "",
    "none": "",
    "too_short": "; measured again it was quiet, but too shortly to clear it",
    "counter_moved": "; measured again it was quiet, but its counters moved",
}


def subtle(
    found: Iterable[Found], observed: Observed, seen: Sequence[Seen], known: Sequence[Blame]
) -> list[Blame]:
    """Word every fault that is not blamed already; one blame per node, whatever its rails."""
    found = tuple(found)
    blames: list[Blame] = []
    for one in found:
        if one.symptom in ("hung", "no_connect", "broken") or _accounted(one, known):
            continue
        fresh = _blame(one, observed, seen, found)
        same = next((old for old in blames if old.component == fresh.component), None)
        if same is None:
            blames.append(fresh)
        else:
            blames[blames.index(same)] = _joined(same, fresh)
    return blames


def _accounted(one: Found, known: Sequence[Blame]) -> bool:
    """Whether everybody whom it may mean is blamed already, with a grosser sentence."""
    names = {name for blame in known for name in (blame.component, *blame.culprits)}
    if one.named is None and one.symptom != "corrupt":
        names.update(name for blame in known for name in blame.suspects)
    pairs = {pair for blame in known for pair in blame.pairs}
    return all(
        (part.kind == "path" and "-".join(part.nodes) in pairs) or names.issuperset(part.nodes)
        for part in one.among
    )


def _joined(one: Blame, other: Blame) -> Blame:
    return Blame(
        kind=one.kind,
        component=one.component,
        sentence=f"{one.sentence}; {other.sentence}",
        confidence=min(one.confidence, other.confidence),
        advice=one.advice if one.advice == other.advice else f"{one.advice}; {other.advice}",
        pairs=tuple(dict.fromkeys((*one.pairs, *other.pairs))),
        rail=one.rail if one.rail == other.rail else None,
        culprits=one.culprits,
        suspects=one.suspects,
        events=one.events,
        operations=one.operations,
    )


def _blame(one: Found, observed: Observed, seen: Sequence[Seen], found: Sequence[Found]) -> Blame:
    part = one.named
    kind: Literal["node", "endpoint", "path", "leaf_rail", "unresolved"]
    where = _where(one.among[0])
    sentence = _said(one, observed, seen) + _moved(one, observed) + _AGAIN[one.second_look]
    if part is None:
        component, kind = either([_where(each) for each in one.among]), "unresolved"
        sentence += "; the samples do not tell these apart"
    elif part.kind == "path":
        component, kind = f"pair {'-'.join(part.nodes)}", "path"
        sentence += f"; {ends_words(part.nodes[0], part.nodes[1], {part.rail}, found)}"
    elif part.kind == "leaf_rail":
        component, kind = part.name, "leaf_rail"
        sentence += f"; all {len(part.nodes)} nodes under it have it, so it is not theirs"
    else:
        component, kind = part.nodes[0], part.kind
    nodes = part.nodes if part is not None and part.kind == "leaf_rail" else ()
    return Blame(
        kind=kind,
        component=component,
        sentence=sentence,
        confidence=one.confidence,
        advice=_advice(one, observed, where),
        pairs=tuple(f"{a}-{b}" for a, b in _condemned(one, observed)),
        rail=part.rail if part is not None else None,
        culprits=nodes,
        suspects=_suspects(one),
        events=one.events if one.symptom in EVENTS else 0,
        operations=one.operations if one.symptom in EVENTS else 0,
    )


def _condemned(one: Found, observed: Observed) -> Sequence[Pairing]:
    """The pairs that show it: a clean one between a suspect and a third node condemns neither."""
    if one.symptom == "corrupt":
        wrong = {(each.a, each.b) for each in observed.tried if each.state == "corrupt"}
        return [pair for pair in one.pairs if pair in wrong] or one.pairs
    if one.named is not None:
        return one.pairs
    each_of = [set(part.nodes) for part in one.among]
    return [pair for pair in one.pairs if all(nodes & {*pair} for nodes in each_of)] or one.pairs


def _suspects(one: Found) -> tuple[str, ...]:
    """The nodes that are left out where the culprit is one of several; a leaf's only if alone."""
    if one.named is not None:
        return ()
    own = [part for part in one.among if part.kind != "leaf_rail"] or one.among
    return tuple(dict.fromkeys(name for part in own for name in part.nodes))


def _where(part: Component) -> str:
    """The part in an operator's words: "rail 5 of h2", "the path h1-h2"."""
    rail = f"rail {part.rail} of " if part.rail is not None else ""
    name = "-".join(part.nodes) if part.kind == "path" else part.name.split(" rail ")[0]
    return f"the path {name}" if part.kind == "path" and not rail else f"{rail}{name}"


def _said(one: Found, observed: Observed, seen: Sequence[Seen]) -> str:
    where = _where(one.among[0])
    partners = len(one.pairs)
    whom = f" with each of its {partners} partners" if partners > 1 else " with its only partner"
    if one.among[0].kind == "path":
        whom = ""
    if one.symptom == "corrupt":
        said = next((each.summary.error for each in _through(one, seen) if each.summary.error), "")
        often = f"in {one.events} of {one.operations} pairs through {where} sums came out wrong"
        return f"{often} ({said})" if said else often
    if one.symptom == "late":
        return late_words(one, where, observed)
    if one.symptom == "spikes":
        return (
            f"{one.events} of {one.operations} operations through {where} took up to "
            f"{time_us(one.worst_us)}: {_rare(one.events / max(1, one.operations))}, elsewhere "
            f"{_rare(one.elsewhere)}"
        )
    if one.symptom == "latency":
        worst = max(_through(one, seen), key=lambda each: each.latency_us or 0.0, default=None)
        if worst is None or worst.latency_us is None or worst.peers_latency_us is None:
            return f"small messages through {where} are slow{whom}"
        return (
            f"{time_us(worst.latency_us)} at 8 B between {worst.a} and {worst.b}, peers' median "
            f"{time_us(worst.peers_latency_us)}; {where} is slow{whom}"
        )
    return _slow(one, seen, where, whom)


def _slow(one: Found, seen: Sequence[Seen], where: str, whom: str) -> str:
    rows = [each for each in _through(one, seen) if each.busbw_gbs and each.bound.peers_gbs]
    if not rows:
        return f"{where} is slow{whom}"
    worst = min(rows, key=lambda each: (each.busbw_gbs or 0.0) / (each.bound.peers_gbs or 1.0))
    speed, peers = worst.busbw_gbs or 0.0, worst.bound.peers_gbs or 1.0
    with_whom = {worst.a: worst.b, worst.b: worst.a}.get(one.among[0].nodes[0], worst.b)
    return (
        f"{gbs(speed)} at {size(worst.at_bytes)} with {with_whom}, {1 - speed / peers:.0%} less "
        f"than its peers' median {gbs(peers)}; {where} is slow{whom}"
    )


def _rare(rate: float) -> str:
    return f"1 in {1 / rate:,.0f}" if rate > 0 else "none"


def _through(one: Found, seen: Sequence[Seen]) -> list[Seen]:
    pairs, rails = set(one.pairs), {part.rail for part in one.among}
    return [
        each for each in seen if (each.a, each.b) in pairs and (None in rails or each.rail in rails)
    ]


def _moved(one: Found, observed: Observed) -> str:
    """Counters that moved at the culprit's end while it was loaded: a cable confesses there."""
    part = one.named
    if part is None or part.kind not in ("node", "endpoint"):
        return ""
    (name,) = part.nodes
    total: dict[str, float] = {}
    others: dict[str, None] = {}
    for each in observed.tried:
        if part.rail in (None, each.rail) and name in (each.a, each.b):
            for moved in each.moved_a if each.a == name else each.moved_b:
                if moved.assigned:
                    total[moved.name] = total.get(moved.name, 0.0) + moved.by
                else:
                    others[moved.name] = None
    # An Xid says more than a thousand retransmissions: it leads, with what it means.
    most = sorted(total.items(), key=lambda item: (not item[0].startswith("Xid "), -item[1]))
    told = ", ".join(f"{explained(counter)} +{by:g}" for counter, by in most[:_MOST_NAMES])
    words = f"; counters moved there meanwhile: {told}" if told else ""
    if others:  # every rail reads them, so that what they add up to means nothing
        known = ", ".join(map(explained, list(others)[:_MOST_NAMES]))
        words += f"; counters moved on {name} that are tied to no rail: {known}"
    return words


def _advice(one: Found, observed: Observed, where: str) -> str:
    name = one.among[0].nodes[0]
    if one.named is None:
        pairs = {(each.a, each.b) for each in observed.tried}
        partners = more_partners(len(observed.nodes), len(pairs))
        every = {1: "it", 2: "both"}.get(len(_suspects(one)), "them")
        return f"exclude {every}, or run again {partners} to tell them apart"
    if one.symptom == "corrupt":
        return f"take {name} out of service now and run its memory and link diagnostics"
    if one.symptom == "late":
        return late_advice(one, observed)
    if one.named.kind == "path":
        return f"check what lies on {where}: cables, switch ports, routes; keep the two apart"
    if one.named.kind == "leaf_rail":
        return f"look at the leaf switch and its uplinks for {where} before its nodes"
    what = "reseat or swap the cable" if one.symptom == "spikes" else "check link rate and cable"
    return f"{what} of {where}, read its port's error counters; exclude {name} until then"
