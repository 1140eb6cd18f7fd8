"""Samples of either form, judged as a run judges its own: by the shipped checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight.check import subject
from preflight.commands.judged import Judged
from preflight.commands.untold import untold_words
from preflight.fabric.coverage import unread_words
from preflight.fabric.judge import judge_sweep
from preflight.fabric.shapes import shapes
from preflight.fabric.stored.rebuilt import UNTIMED, rebuilt
from preflight.fabric.unsettled import unsettled_words
from preflight.ledger import Entry
from preflight.registry import load_folder, shipped_folder
from preflight.report.findings import suspicions
from preflight.report.picture.accused import accused
from preflight.report.shapes import shape_rows, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from preflight.fabric.judge import Decoded
    from preflight.fabric.observed import Observed
    from preflight.fabric.samples import Sweep
    from preflight.facts.inside import Inside
    from preflight.facts.nvlink_domain import OverNvlink
    from preflight.fleet.model import Host


@dataclass(frozen=True, slots=True)
class _Facts:
    """Samples tell no facts."""

    gpus: None = None


@dataclass(frozen=True, slots=True)
class _Node:
    """All that samples tell of a node by itself."""

    name: str
    inside: Inside
    over_nvlink: OverNvlink | None
    facts: _Facts = _Facts()


def judge_long(sweep: Sweep, observed: Observed, hosts: Sequence[Host]) -> Judged:
    """Compare, decode, blame, and judge pairs and nodes by every shipped check of a sweep."""
    decoded = judge_sweep(sweep, hosts, observed=observed)
    shaped = shape_words(shape_rows(shapes(sweep, observed)))
    return _judged(decoded, sweep, observed, (*filter(None, [shaped]), *_missing(sweep)))


def judge_short(observed: Observed, hosts: Sequence[Host]) -> Judged:
    """The same, as far as it can be done without single times."""
    sweep, known = rebuilt(observed)
    decoded = judge_sweep(sweep, hosts, observed=observed, known=known)
    untimed = sum(pair.error == UNTIMED for pair in decoded.pairs.values())
    note = f"{untimed} pair{'s' * (untimed != 1)} not judged: {UNTIMED}"
    return _judged(decoded, sweep, observed, (note,) * bool(untimed))


def _judged(
    decoded: Decoded, sweep: Sweep, observed: Observed, notes: Iterable[str] = ()
) -> Judged:
    shared = (one for one in decoded.blames if one.kind == "systemic")
    after = dict.fromkeys([*(one.node for one in sweep.inside), *decoded.over_nvlink])
    entries = (*_entries(decoded), *_inside(decoded, tuple(after)))
    return Judged(
        entries=entries,
        systemic=suspicions(entries, len(observed.nodes)),
        blames=decoded.blames,
        accused=accused(decoded.blames, observed),
        notes=(
            *(f"{one.sentence}; {one.advice}" for one in shared),
            *untold_words(observed),
            *notes,
        ),
    )


def _entries(decoded: Decoded) -> Iterator[Entry]:
    for registered in load_folder(shipped_folder()):
        if registered.check.stage == "fabric" and registered.subject == "pair":
            for ends, pair in decoded.pairs.items():
                verdict = registered.conclude(pair)
                yield Entry(registered.check.id, subject(ends), ends, verdict)


def _inside(decoded: Decoded, names: Sequence[str]) -> Iterator[Entry]:
    for registered in load_folder(shipped_folder()):
        if registered.check.stage == "fabric" and registered.subject == "node":
            for name in (each for each in names if each in decoded.inside):
                verdict = registered.conclude(
                    _Node(name, decoded.inside[name], decoded.over_nvlink.get(name))
                )
                yield Entry(registered.check.id, subject((name,)), (name,), verdict)


def _missing(sweep: Sweep) -> Iterator[str]:
    if again := unsettled_words(sweep):
        yield again
    yield from unread_words(sweep)
    if sweep.unfinished:
        yield f"the sweep ended early: {sweep.unfinished}"
    yield from (f"{name} took no part: {why}" for name, why in sweep.left_out.items())
