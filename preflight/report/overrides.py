"""What the inventory laid over the checks, shown before and after every run, used or not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fleet.nodeset import fold
from preflight.numbers import Told, shipped, words
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date

    from preflight.fleet.model import Fleet, Host
    from preflight.ledger import Entry


_BASELINE = "baseline "


class WaiverRow(Struct, frozen=True, kw_only=True):
    """A failure that is accepted for a while, and how many verdicts of this run it was."""

    check: str
    nodes: tuple[str, ...]
    until: str
    reason: str
    expired: bool
    verdicts: int


class OffRow(Struct, frozen=True, kw_only=True):
    """A check that these nodes are not judged by, and where that is written."""

    check: str
    nodes: tuple[str, ...]
    by: str


class NumberRow(Struct, frozen=True, kw_only=True):
    """A number that stands in for a shipped one, and where that is written."""

    name: str
    value: float
    shipped: float | None
    nodes: tuple[str, ...]
    by: str


class Overrides(Struct, frozen=True, kw_only=True):
    """All three; empty where the inventory says nothing of the kind."""

    waivers: tuple[WaiverRow, ...] = ()
    off: tuple[OffRow, ...] = ()
    numbers: tuple[NumberRow, ...] = ()


def overrides(fleet: Fleet, day: date, entries: Iterable[Entry] = ()) -> Overrides:
    """Collect them; `entries` are the run's verdicts, where it is over."""
    waived = Counter(
        (entry.check, name)
        for entry in entries
        if entry.verdict.outcome is Outcome.WAIVED
        for name in set(_named(entry))
    )
    return Overrides(
        waivers=tuple(
            WaiverRow(
                check=one.check,
                nodes=one.nodes,
                until=str(one.until),
                reason=one.reason,
                expired=one.expired(day),
                verdicts=0
                if one.expired(day)
                else sum(waived[one.check, name] for name in set(one.nodes)),
            )
            for one in fleet.waivers
        ),
        off=tuple(_off(fleet.hosts)),
        numbers=tuple(_numbers(fleet.hosts)),
    )


def _named(entry: Entry) -> Sequence[str]:
    verdict = entry.verdict
    named = (*verdict.culprits, *verdict.suspects)
    return named or ((verdict.blame,) if verdict.blame else entry.nodes)


def _off(hosts: Sequence[Host]) -> Iterable[OffRow]:
    alike: dict[tuple[str, str], list[str]] = {}
    for host in hosts:
        for check, where in host.off.items():
            alike.setdefault((check, where), []).append(host.name)
    for (check, where), names in alike.items():
        yield OffRow(check=check, nodes=tuple(names), by=where)


def _numbers(hosts: Sequence[Host]) -> Iterable[NumberRow]:
    alike: dict[tuple[str, float, str], list[str]] = {}
    for host in hosts:
        for name, told in host.promised.limits.items():
            alike.setdefault((name, told.value, told.where), []).append(host.name)
        for name, told in host.promised.baselines.items():
            baseline = (f"{_BASELINE}{name}", told.value, told.where)
            alike.setdefault(baseline, []).append(host.name)
    for (name, value, where), names in alike.items():
        known = shipped().get(name)
        yield NumberRow(
            name=name,
            value=value,
            shipped=known.value if known else None,
            nodes=tuple(names),
            by=where,
        )


def before(fleet: Fleet, day: date) -> list[str]:
    """Lines of the header: an operator must see what this run will not hold against anyone."""
    told = overrides(fleet, day)
    lines = [
        f"expired  {_waiver(one)}; it has no effect: remove or renew it"
        if one.expired
        else f"waived   {_waiver(one)}"
        for one in told.waivers
    ]
    lines += [f"off      {one.check} for {fold(one.nodes)} ({one.by})" for one in told.off]
    for one in told.numbers:
        said = words(one.name, Told(one.value, one.by))
        lines.append(f"number   {said} for {fold(one.nodes)}")
    return lines


def after(told: Overrides) -> list[tuple[str, str]]:
    """Label and line of each, for the summary; a waiver says what it was good for."""
    lines = []
    for one in told.waivers:
        if one.expired:
            lines.append(("expired", f"{_waiver(one)}; it has no effect: remove or renew it"))
        else:
            many = f"{one.verdicts} verdict{'s' * (one.verdicts != 1)}"
            good = many if one.verdicts else "nothing to waive in this run"
            lines.append(("waived", f"{_waiver(one)} ({good})"))
    lines += [("off", f"{one.check} for {fold(one.nodes)} ({one.by})") for one in told.off]
    return lines


def _waiver(one: WaiverRow) -> str:
    return f"{one.check} on {fold(one.nodes)} until {one.until}: {one.reason}"
