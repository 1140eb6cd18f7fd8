"""What many decoded fabrics come to: shares with exact intervals, by size and by kind of fault."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.bench.proportion import clopper_pearson
from tests.bench.ratio import Bound, Row, Spread, extremes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.bench.decoding import Fault, Outcome

NAMED = Bound("at least", 99)
WRONG = Bound("at most", 0.1)
DECODE = Bound("at most", 5)
LARGEST = 4096


def rows(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """The promises, each with what was seen of it."""
    faults = [fault for one in outcomes for fault in one.faults]
    sure = [fault for fault in faults if fault.detectable]
    rest = [fault for fault in faults if not fault.detectable]
    named = sum(fault.fate == "named" for fault in sure)
    inside = sum(fault.fate in ("inside", "named") for fault in rest)
    yield _share(
        "named", f"detectable faults named exactly: {named} of {len(sure)}", named, sure, NAMED
    )
    yield _share(
        "inside",
        f"other faults left open or rightly named: {inside} of {len(rest)}",
        inside,
        rest,
        NAMED,
    )
    for faulty, what in ((False, "healthy"), (True, "faulty")):
        fabrics = [one for one in outcomes if one.faulty == faulty]
        wrong = sum(bool(one.wrong) for one in fabrics)
        yield _share(
            f"wrong.{what}",
            f"{what} fabrics in which a healthy part is blamed: {wrong} of {len(fabrics)}",
            wrong,
            fabrics,
            None if faulty else WRONG,
        )
    largest = [one.cpu_s for one in outcomes if one.nodes == LARGEST]
    if largest:
        yield Row(
            id="fabric.decode",
            what=f"decoding {LARGEST} nodes x 8 rails x 8 rounds, processor time of one core",
            unit="s",
            value=extremes(largest),
            value_unit="s",
            runs=len(largest),
            bound=DECODE,
        )


def by_size(outcomes: Sequence[Outcome]) -> str:
    """One line per noise and number of nodes."""
    groups: dict[tuple[str, int], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        groups[one.noise, one.nodes].append(one)
    head = f"{'noise':9} {'nodes':>5} {'named / detectable':>26} {'inside / other':>15}"
    lines = [f"{head} {'healthy wrong':>24} {'faulty wrong':>14} {'decode':>8}"]
    for (noise, nodes), some in sorted(groups.items()):
        healthy, faulty = _wrong(some, faulty=False), _wrong(some, faulty=True)
        lines.append(
            f"{noise:9} {nodes:5} {_named(_faults(some, detectable=True)):>26} "
            f"{_inside(_faults(some, detectable=False)):>15} {_counted(*healthy):>24} "
            f"{f'{faulty[0]} of {faulty[1]}':>14} {max(one.decode_s for one in some):6.2f} s"
        )
    return "\n".join(lines)


def by_kind(outcomes: Sequence[Outcome]) -> str:
    """One line per kind of fault: where the detectable ones went."""
    groups: dict[str, list[Fault]] = defaultdict(list)
    for fault in _faults(outcomes, detectable=True):
        groups[fault.what].append(fault)
    fates = ("named", "misread", "vague", "level", "missed")
    lines = [f"{'planted (detectable)':22} " + " ".join(f"{fate:>8}" for fate in fates)]
    for what, some in sorted(groups.items()):
        counts = [sum(fault.fate == fate for fault in some) for fate in fates]
        lines.append(f"{what:22} " + " ".join(f"{count:8}" for count in counts))
    return "\n".join(lines)


def _faults(outcomes: Iterable[Outcome], *, detectable: bool) -> list[Fault]:
    return [fault for one in outcomes for fault in one.faults if fault.detectable == detectable]


def _named(faults: Sequence[Fault]) -> str:
    return _counted(sum(fault.fate == "named" for fault in faults), len(faults))


def _inside(faults: Sequence[Fault]) -> str:
    good = sum(fault.fate in ("inside", "named") for fault in faults)
    return f"{good} of {len(faults)}"


def _wrong(outcomes: Iterable[Outcome], *, faulty: bool) -> tuple[int, int]:
    some = [one for one in outcomes if one.faulty == faulty]
    return sum(bool(one.wrong) for one in some), len(some)


def _counted(hits: int, tries: int) -> str:
    if not tries:
        return "-"
    low, high = clopper_pearson(hits, tries)
    return f"{hits} of {tries} ({100 * low:.1f}-{100 * high:.1f} %)"


def _share(key: str, what: str, hits: int, of: Sequence[object], bound: Bound | None) -> Row:
    low, high = clopper_pearson(hits, len(of))
    share = hits / len(of) if of else 0.0
    return Row(
        id=f"fabric.{key}",
        what=what,
        unit="%",
        value=Spread(100 * share, 100 * low, 100 * high),
        value_unit="%",
        runs=len(of),
        bound=bound if of else None,
        note="brackets: exact 95 % interval (Clopper-Pearson)",
    )
