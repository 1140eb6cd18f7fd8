"""What of a run is worth remembering: findings by component, who took part, what was reached."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from preflight import __version__
from preflight.check import FLEET
from preflight.fleet.nodeset import fold
from preflight.history.night import Found, Machine, Night, Slot
from preflight.measured_numbers import numbers_of
from preflight.report.ready import counts_as_failure, readiness
from preflight.verdict import UNSEEN, Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from preflight.facts.model import Facts
    from preflight.history.night import State
    from preflight.ledger import Entry
    from preflight.run import Run

_PAIR = 2
_WORST_FIRST = (
    *(Outcome.FAIL, Outcome.FLAKY, Outcome.UNKNOWN, Outcome.BROKEN, Outcome.LOST),
    *(Outcome.WARN, Outcome.WAIVED),
)

_NO_SERIAL = frozenset(
    (
        *("none", "n/a", "null", "unknown", "empty", "oem", "o.e.m.", "serial"),
        *("not specified", "not available", "not applicable", "default string"),
        *("system serial number", "to be filled by o.e.m.", "to be filled by oem"),
        *("123456789", "0123456789", "1234567890"),
    )
)
"""What boards say in the place of a serial number that nobody gave them."""

_SHORTEST_SERIAL = 3


def night_of(run: Run, entries: Sequence[Entry], began_s: float, sweep: str = "") -> Night:
    """Turn a finished run into a night. Readiness is the usual one, whatever --strict says.

    `sweep`: the id of the sweep of which the run is a wave.
    """
    names = [host.name for host in run.fleet.hosts]
    counts: dict[str, Counter[str]] = {}
    for entry in entries:
        counts.setdefault(entry.check, Counter())[str(entry.verdict.outcome)] += 1
    return Night(
        run=run.nonce,
        started_s=began_s,
        seconds=round(run.seconds, 3),
        tier=run.settings.tier,
        preflight=__version__,
        leaves=run.fleet.leaves,
        machines=tuple(_machines(run, names, entries)),
        found=tuple(found_in(entries, frozenset(names))),
        fine=fine_in(entries, frozenset(names)),
        counts={check: dict(by_outcome) for check, by_outcome in counts.items()},
        numbers=numbers_of(run),
        folded=fold(sorted(names)),
        sweep=sweep,
    )


def _machines(run: Run, names: Sequence[str], entries: Sequence[Entry]) -> Iterable[Machine]:
    ready = readiness(names, entries, strict=False)
    firm = readiness(
        names, [one for one in entries if one.verdict.outcome is not Outcome.FLAKY], strict=False
    )
    states: dict[str, State] = dict.fromkeys(names, "ready")
    states |= dict.fromkeys(ready.unjudged, "unjudged")
    states |= dict.fromkeys(ready.not_ready, "flaky")
    states |= dict.fromkeys(firm.not_ready, "unfit")
    for name in names:
        facts = run.judgement.measured.facts.get(name)
        yield Machine(name=name, state=states[name], serial=serial_of(facts), gpus=_gpus(facts))


def serial_of(facts: Facts | None) -> str:
    """The serial number of a node's board; empty where it tells none, or only a placeholder."""
    said = (facts.machine.serial if facts is not None and facts.machine is not None else "") or ""
    plain = said.strip()
    letters = set(plain.replace("-", "").replace(".", "").replace(" ", "").lower())
    if plain.lower() in _NO_SERIAL or len(plain) < _SHORTEST_SERIAL or len(letters) <= 1:
        return ""
    return plain[:128]


def _gpus(facts: Facts | None) -> tuple[Slot, ...] | None:
    if facts is None or facts.gpus is None:
        return None
    return tuple(Slot(slot=gpu.index, uuid=gpu.uuid, model=gpu.name) for gpu in facts.gpus)


def found_in(entries: Iterable[Entry], known: frozenset[str]) -> Iterable[Found]:
    """Whatever is not fine, once per check and component, in the words of the worst verdict."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if entry.verdict.outcome in _WORST_FIRST:
            for about in _components(entry):
                groups.setdefault((entry.check, about), []).append(entry)
    for (check, about), group in groups.items():
        worst = min(group, key=lambda one: _WORST_FIRST.index(one.verdict.outcome))
        nodes = [name for one in group for name in _condemned(one, about, known)]
        yield Found(
            check=check,
            about=about[:600],
            outcome=str(worst.verdict.outcome),
            sentence=worst.verdict.sentence,
            nodes=tuple(dict.fromkeys(nodes)),
            verdicts=len(group),
            own=about in known or about.startswith("pair "),
        )


def _components(entry: Entry) -> tuple[str, ...]:
    """Under whom a verdict is kept: whom it condemns, else its subject."""
    return entry.verdict.culprits or (entry.verdict.blame or _subject(entry),)


def _subject(entry: Entry) -> str:
    return f"pair {entry.subject}" if len(entry.nodes) == _PAIR else entry.subject


def _condemned(entry: Entry, about: str, known: Collection[str]) -> tuple[str, ...]:
    if about in known:
        return (about, *(name for name in entry.verdict.suspects if name in known))
    suspects = tuple(name for name in entry.verdict.suspects if name in known)
    return suspects or entry.nodes


def fine_in(entries: Iterable[Entry], known: frozenset[str]) -> dict[str, frozenset[str]]:
    """By check, whatever was judged and is fine: nodes, pairs and their ends, the whole fleet.

    A verdict on the fleet that names culprits clears all others whom it looked at.
    """
    fine: dict[str, set[str]] = {}
    for entry in entries:
        verdict = entry.verdict
        is_fine = verdict.outcome is Outcome.OK
        if entry.nodes and is_fine:
            fine.setdefault(entry.check, set()).update((*entry.nodes, _subject(entry)))
        elif not entry.nodes and (is_fine or (verdict.culprits and _was_judged(entry))):
            named = {*verdict.culprits, *verdict.suspects, *verdict.evidence.get(UNSEEN, ())}
            cleared = known - named
            fine.setdefault(entry.check, set()).update(cleared, [FLEET] if is_fine else [])
    return {check: frozenset(who) for check, who in fine.items()}


def _was_judged(entry: Entry) -> bool:
    return entry.verdict.outcome is Outcome.WARN or counts_as_failure(entry, strict=False)
