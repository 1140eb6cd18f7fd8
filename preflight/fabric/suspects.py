"""Who is worth a second look, and with whom: suspects alone, with partners that are cleared.

A path that was measured once cannot be told from a bad moment; two ends that were only measured
with each other cannot be told apart. Both are settled by a few more rounds in the same launch.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from preflight.fabric.decoding import find
from preflight.fabric.observed import observe
from preflight.fabric.second_look import slow_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.fabric.culprit import Component
    from preflight.fabric.decoding import Findings
    from preflight.fabric.observed import Observed
    from preflight.fabric.samples import Sweep
    from preflight.fabric.schedule import Pairing, Rounds

PARTNERS = 2
"""With so many cleared nodes each suspect is measured again; a path so many times."""

MOST = 8
"""Parts that are looked at again; paths beyond that only where they cost no further round."""

_LASTING = ("slow", "latency", "hung")
_SUBTLE = ("slow", "latency", "spikes", "late")


def suspects(sweep: Sweep) -> Rounds:
    """The pairs to measure again, round by round; none after a retest, or where all is plain.

    What is named for sure is not looked at again: a clean retest would not acquit it. A path that
    was slow in its only round is not for sure.
    """
    if sweep.retested:
        return ()
    observed = observe(sweep)
    findings = find(observed)
    if findings.systemic:
        return ()
    open_ones = [
        part
        for one in findings.found
        if one.named is None and one.symptom in _SUBTLE
        for part in one.among
    ]
    wanted = list(dict.fromkeys([*open_ones, *findings.doubted]))
    blamed = findings.nodes
    parts = [part for part in wanted if blamed.isdisjoint(part.nodes)]
    # A worker that failed once was replaced: its other pairs can be measured as anybody's.
    slow = [part for part in slow_parts(sweep) if findings.lossy.isdisjoint(part.nodes)]
    parts = _once_each([*parts, *slow, *_named_once(findings, observed)])
    parts, beside = parts[:MOST], [part for part in parts[MOST:] if part.kind == "path"]
    doubtful = {name for part in parts for name in part.nodes}
    cleared = [name for name in observed.nodes if name not in doubtful | blamed]
    rounds = _rounds([list(_pairs(part, cleared, observed.nodes)) for part in parts])
    return _with_room(rounds, [_path(part, observed.nodes) for part in beside])


def _named_once(findings: Findings, observed: Observed) -> list[Component]:
    """Paths that are named for being slow, or that hung in their only round.

    Where a hang cannot be told from one of its ends, whether it comes again is told by the path.
    """
    paths = [
        part
        for one in findings.found
        if one.symptom in _LASTING
        for part in one.among
        if part.kind == "path" and (one.named is not None or one.symptom == "hung")
    ]
    rounds: dict[frozenset[str], set[int]] = {frozenset(part.nodes): set() for part in paths}
    for each in observed.tried:
        rounds.get(frozenset((each.a, each.b)), set()).add(each.round)
    blamed = findings.nodes
    return [
        part
        for part in paths
        if len(rounds[frozenset(part.nodes)]) == 1 and blamed.isdisjoint(part.nodes)
    ]


def _once_each(parts: Sequence[Component]) -> list[Component]:
    """A path counts once, whatever its rails: a round measures all of them."""
    found: dict[tuple[object, ...], Component] = {}
    for part in parts:
        key = ("path", frozenset(part.nodes)) if part.kind == "path" else (part,)
        found.setdefault(key, part)
    return list(found.values())


def _with_room(rounds: Rounds, paths: Sequence[Pairing]) -> Rounds:
    """Add paths, each so often as one is measured again, where their nodes would be idle."""
    full = [list(around) for around in rounds]
    for pair in dict.fromkeys(paths):
        free = [around for around in full if _is_free(around, pair)]
        for around in free[:PARTNERS] if len(free) >= PARTNERS else ():
            around.append(pair)
    return tuple(tuple(around) for around in full)


def _pairs(part: Component, cleared: Sequence[str], nodes: Sequence[str]) -> Iterator[Pairing]:
    if part.kind == "path":
        yield from [_path(part, nodes)] * PARTNERS
    elif part.kind in ("node", "endpoint"):
        # Spread over the fleet, so that not all suspects want the same partners.
        at = nodes.index(part.nodes[0])
        turned = sorted(cleared, key=lambda name: (nodes.index(name) - at) % len(nodes))
        for partner in turned[:PARTNERS]:
            yield _ordered(part.nodes[0], partner, nodes)


def _rounds(wanted: Sequence[Sequence[Pairing]]) -> Rounds:
    """Lay them out so that no node is in two pairs at once."""
    rounds: list[list[Pairing]] = []
    for around in zip_longest(*wanted):
        for pair in (one for one in around if one is not None):
            free = (each for each in rounds if _is_free(each, pair))
            found = next(free, None)
            if found is None:
                rounds.append([pair])
            else:
                found.append(pair)
    return tuple(tuple(each) for each in rounds)


def _is_free(around: Sequence[Pairing], pair: Pairing) -> bool:
    return all(set(pair).isdisjoint(other) for other in around)


def _path(part: Component, nodes: Sequence[str]) -> Pairing:
    return _ordered(part.nodes[0], part.nodes[1], nodes)


def _ordered(one: str, other: str, nodes: Sequence[str]) -> Pairing:
    a, b = sorted((one, other), key=nodes.index)
    return a, b
