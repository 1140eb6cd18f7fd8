"""Samples without iterations, judged: what the decoder finds in them, said with their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.check import subject
from preflight.commands.judged import Judged
from preflight.fabric.blame import Blame
from preflight.fabric.decoding import find
from preflight.fabric.words import either
from preflight.ledger import Entry
from preflight.report.picture.accused import accused_part
from preflight.report.picture.ratios import BANDWIDTH, LATE, LATENCY, SPIKES, cells
from preflight.verdict import fail, not_run, ok, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.fabric.culprit import Found, Symptom
    from preflight.fabric.observed import Observed
from preflight.report.picture.ratios import Cell, Panel

CHECK = "fabric.allreduce"
"""Whose verdicts these are, as in a run."""

_PANELS: Mapping[Symptom, Panel] = {
    "slow": BANDWIDTH,
    "latency": LATENCY,
    "spikes": SPIKES,
    "late": LATE,
}
_WORDS: Mapping[Symptom, tuple[str, str]] = {
    "slow": ("slow", "check link rate, cable, port errors (ethtool -S) and shaping of {0}"),
    "latency": ("slow to answer", "check the path, congestion control and power saving of {0}"),
    "spikes": ("spiking", "reseat or replace the cable of {0}; read its port's error counters"),
    "late": ("late to begin", "look for what keeps the CPUs of {0} busy: its load, throttling"),
    "corrupt": ("giving wrong sums", "take {0} out of service now; run its memory diagnostics"),
    "hung": ("hanging", "look at {0} for stopped or D-state processes and at its link"),
    "no_connect": ("not connecting", "check firewall, route and interface of {0}"),
    "broken": ("breaking off", "look at the kernel log and the link of {0}"),
}
_COUNTED: Mapping[Symptom, str] = {"spikes": "bursts: ", "late": "late starts: "}
_SHARED = "one shared cause is likelier than that many faults; drain none for this"
STOPPED = not_run("it had no turn", stopped=True)
FINE = ok("as its peers")
_APART = "{0}; until then keep them in different jobs"


def judge_short(observed: Observed) -> Judged:
    """Decode, blame, and conclude on every pair that was tried."""
    found = find(observed)
    compared = cells(observed)
    told = [(one, _blame(one, compared)) for one in found.found]
    return Judged(
        entries=(*_entries(observed, told), *_fallen(observed, told)),
        blames=tuple(blame for _, blame in told),
        accused=tuple(accused_part(one, blame) for one, blame in told),
        systemic={CHECK: f"{found.systemic}: {_SHARED}"} if found.systemic else {},
    )


def _entries(observed: Observed, told: Sequence[tuple[Found, Blame]]) -> Iterator[Entry]:
    rest = {(one.a, one.b): STOPPED for one in observed.tried}
    rest |= {(one.a, one.b): FINE for one in observed.tried if one.state != "not_run"}
    for found, blame in told:
        named = found.named
        is_path = named is None or named.kind == "path"
        verdict = fail(
            blame.sentence,
            advice=blame.advice,
            cause=blame.component,
            blame=blame.component if is_path else "",
            culprits=() if is_path or named is None else named.nodes,
        )
        for ends in found.pairs:
            rest.pop(ends, None)
            yield Entry(CHECK, subject(ends), ends, verdict)
    yield from (Entry(CHECK, subject(ends), ends, verdict) for ends, verdict in rest.items())


def _fallen(observed: Observed, told: Sequence[tuple[Found, Blame]]) -> Iterator[Entry]:
    """Nodes that fell silent and are not blamed otherwise: what is missing is no pass."""
    named = {name for one, _ in told for part in one.among for name in part.nodes}
    for name, why in observed.silent.items():
        if name not in named:
            verdict = unknown(f"it fell out of the sweep: {why}", advice="look at it, sweep again")
            yield Entry(CHECK, subject((name,)), (name,), verdict)


def _blame(one: Found, compared: Sequence[Cell]) -> Blame:
    named = one.named
    names = [part.name for part in one.among]
    component = either(names)
    if named is not None and named.kind == "path":
        component = f"pair {'-'.join(named.nodes)}"
    word, advice = _WORDS[one.symptom]
    advice = advice.format(component)
    return Blame(
        kind="unresolved" if named is None else "path" if named.kind == "path" else "node",
        component=component,
        sentence=_sentence(one, component, word, compared),
        confidence=one.confidence,
        advice=_APART.format(advice) if named and named.kind == "path" else advice,
        pairs=tuple(f"{a}-{b}" for a, b in one.pairs),
    )


def _sentence(one: Found, component: str, word: str, compared: Sequence[Cell]) -> str:
    """The worst of its pairs in figures, then with how many it is bad and who is cleared."""
    partners = f"{component} is {word} in {len(one.pairs)} pair{'s' * (len(one.pairs) != 1)}"
    if one.cleared_partners:
        partners += f", {one.cleared_partners} of its partners are fine with others"
    panel = _PANELS.get(one.symptom)
    own = [cell for cell in compared if (cell.a, cell.b) in one.pairs and _on(one, cell)]
    seen = [(cell, against) for cell in own if panel and (against := panel.pick(cell))]
    if panel is None or not seen:
        return partners
    cell, against = max(seen, key=lambda each: each[1].ratio or 0.0)
    where = f"between {cell.a} and {cell.b} on rail {cell.rail}"
    return f"{_COUNTED.get(one.symptom, '')}{panel.say(against)}, {where}; {partners}"


def _on(one: Found, cell: Cell) -> bool:
    return any(part.rail in (None, cell.rail) for part in one.among)
