"""The history on a terminal: 80 columns, units, and the date of everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.commands.history_days import day, moment
from preflight.commands.history_trends import trend_lines
from preflight.fleet.nodeset import expand, fold
from preflight.report.text import wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from preflight.commands.history_told import Told
    from preflight.history.told import Changes, Episode, GpuPast, NodePast, Ran, Seat, Standing

_LABEL = 11
_RANK = {word: place for place, word in enumerate(("fail", "flaky", "unknown", "broken", "lost"))}
_MOST = 12
"""Findings of one kind that are shown; all are in --json."""


def document_lines(told: Told, width: int) -> list[str]:
    """Lay out whatever was asked for."""
    if told.last is None:
        return [f"{told.history}: no run is remembered here; give it to one: --preflight-history"]
    pieces: Iterator[tuple[str, str]]
    if told.node is not None:
        pieces = _node(told.node, told.nights)
    elif told.gpu is not None:
        pieces = _gpu(told.gpu)
    else:
        pieces = _fleet(told, told.last)
    lines: list[str] = []
    for label, words in pieces:
        first = f"{label:<{_LABEL}}"
        lines += wrapped(words, first=first, indent=" " * _LABEL, width=width)
    return lines


def _fleet(told: Told, last: Ran) -> Iterator[tuple[str, str]]:
    since = f", runs since {day(told.first.started_s)}" if told.first is not None else ""
    yield "history", f"{told.history}{since}"
    runs = told.night
    yield ("last run" if len(runs) == 1 else "last night"), _ran(runs)
    if last.covered is not None and len(runs) == 1:
        yield "coverage", _coverage(last)
    if told.changes is not None:
        yield from _changes(told.changes)
    yield from _worst(told.worst or (), told.nights)


def _ran(runs: Sequence[Ran]) -> str:
    """One run, or the waves of one night together; of one that was done again, the last."""
    runs = tuple({one.fleet: one for one in runs}.values())
    nodes, ready = sum(one.nodes for one in runs), sum(one.ready for one in runs)
    bad = sum(one.not_ready for one in runs)
    whose = fold(name for one in runs for name in expand(one.fleet))
    waves = f" in {len(runs)} runs" if len(runs) > 1 else ""
    cause = (
        ", one shared cause is likely: it counts against nobody"
        if any(one.systemic for one in runs)
        else ""
    )
    return (
        f"{moment(runs[0].started_s)}, {runs[0].tier}, {nodes:,} node{'s' * (nodes != 1)} "
        f"{whose}{waves}: {ready:,} ready, {bad:,} not ready{cause}"
    )


def _coverage(last: Ran) -> str:
    now = last.covered
    if now is None:
        return ""
    known = f"{now.pairs_known:,} of {now.pairs:,} pairs measured in its runs, {now.pairs_run:,} "
    leaves = ""
    if now.leaf_pairs:
        leaves = f"; {now.leaf_pairs_known:,} of {now.leaf_pairs:,} leaf pairs"
    return f"{known}in the last{leaves}"


def _changes(changes: Changes) -> Iterator[tuple[str, str]]:
    if changes.before is None:
        yield "before", "no earlier run looked at these nodes: everything is new"
    else:
        yield "before", f"{moment(changes.before.started_s)}"
    groups: tuple[tuple[str, Sequence[Episode]], ...] = (
        ("new", changes.new),
        ("still", changes.still),
        ("recovered", changes.recovered),
        ("not asked", changes.unseen),
    )
    for label, episodes in groups:
        yield from _listed(label, _folded(episodes))
    if not any(episodes for _, episodes in groups):
        yield "changes", "none: nothing was found, before and now"


def _folded(episodes: Sequence[Episode]) -> list[str]:
    """The worst first; what is said of several nodes, or by several waves, alike is one line."""
    alike: dict[tuple[str, str], dict[str, None]] = {}
    for one in sorted(episodes, key=lambda one: _RANK.get(one.outcome, len(_RANK))):
        own = one.nodes == (one.about,)
        said = "" if own else one.about, _episode(one)
        alike.setdefault(said, {})[one.about] = None
    return [f"{about or fold(names)}  {said}" for (about, said), names in alike.items()]


def _worst(worst: Sequence[Standing], nights: int) -> Iterator[tuple[str, str]]:
    if not worst:
        yield "worst", f"no node was not ready in {nights} nights"
    yield from _listed("worst", [f"{one.node}  {_standing(one)}" for one in worst], most=len(worst))


def _standing(one: Standing) -> str:
    if not one.judged:
        return "was judged in no run of these nights"
    runs = f"{one.judged} run{'s' * (one.judged != 1)}"
    if not one.bad:
        return f"ready in all of {runs}"
    share = f"{100 * one.flaky / one.judged:.0f} %"
    flaky = f", {one.flaky} of them flaky ({share} of its runs)" if one.flaky else ""
    last = f"; last {day(one.last_bad_s)}" if one.last_bad_s is not None else ""
    checks = ", ".join(f"{check} {times}" for check, times in one.checks)
    return f"not ready in {one.bad} of {runs}{flaky}{last}{': ' * bool(checks)}{checks}"


def _node(past: NodePast, nights: int) -> Iterator[tuple[str, str]]:
    one = past.standing
    serial = f"serial {one.serial}" if one.serial else (
        "no serial number told (most logins may not read it): its name stands for it"
    )  # fmt: skip
    yield "node", f"{one.node}, {serial}"
    if past.namesakes:
        others = ", ".join(f"serial {name}" if name else "one without" for name in past.namesakes)
        yield "", f"another machine had this name before: {others}; it is not told of here"
    yield "seen", f"{day(past.first_s)} to {day(past.last_s)}"
    yield f"{nights} nights", _standing(one)
    yield from _listed("GPUs", [_seat(seat) for seat in past.seats], most=len(past.seats))
    yield from _episodes(past.episodes)
    yield from trend_lines(past.trends)


def _gpu(past: GpuPast) -> Iterator[tuple[str, str]]:
    yield "GPU", f"{past.uuid}, {past.model or 'model not told'}"
    seats = [f"{one.node}, GPU {one.slot}, {_while(one)}" for one in past.seats]
    yield from _listed("sat in", seats, most=len(seats))
    yield from _episodes(past.episodes, with_about=True)
    yield from trend_lines(past.trends)


def _episodes(
    episodes: Sequence[Episode], *, with_about: bool = False
) -> Iterator[tuple[str, str]]:
    still = [_episode(one, with_about=with_about) for one in episodes if one.ended_s is None]
    again: dict[tuple[str, str], list[Episode]] = {}
    for one in episodes:
        if one.ended_s is not None:
            again.setdefault((one.check, one.about), []).append(one)
    yield from _listed("open", still)
    yield from _listed("past", [_repeated(own, with_about=with_about) for own in again.values()])
    if not episodes:
        yield "findings", "none in any run"


def _repeated(own: Sequence[Episode], *, with_about: bool) -> str:
    """What came and went, the last time first: how often says more than when."""
    last = own[0]
    if len(own) == 1:
        return _episode(last, with_about=with_about)
    about = f"{last.about}  " if with_about else ""
    runs = sum(one.nights for one in own)
    first_s = min(one.first_s for one in own)
    return (
        f"{about}{last.check} {last.outcome}, came {len(own)} times, {runs} runs "
        f"{day(first_s)} to {day(last.last_s)}, fine on {day(last.ended_s)}: {last.sentence}"
    )


def _episode(one: Episode, *, with_about: bool = False) -> str:
    about = f"{one.about}  " if with_about else ""
    runs = f"{one.nights} run{'s' * (one.nights != 1)}"
    first, last = day(one.first_s), day(one.last_s)
    ended = f"on {first}" if first == last else f"{first} to {last}"
    when = f"since {first}" if one.ended_s is None else f"{ended}, fine on {day(one.ended_s)}"
    return f"{about}{one.check} {one.outcome}, {runs} {when}: {one.sentence}"


def _seat(one: Seat) -> str:
    return f"{one.slot}  {one.uuid}  {one.model}, {_while(one)}"


def _while(one: Seat) -> str:
    until = "" if one.until_s is None else f" until {day(one.until_s)}"
    return f"since {day(one.since_s)}{until}"


def _listed(label: str, rows: Iterable[str], most: int = _MOST) -> Iterator[tuple[str, str]]:
    told = list(rows)
    for place, row in enumerate(told[:most]):
        yield (label if place == 0 else ""), row
    if len(told) > most:
        yield "", f"and {len(told) - most} more: --json"
