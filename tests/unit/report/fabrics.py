"""Fabrics made up for the picture: short form, any size, with what is wrong said by a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.observed import Digest, Observed, PairResult, Standout, observe
from preflight.fabric.schedule import circle_rounds
from preflight.report.fabric_page import fabric_page
from preflight.report.ready import blame_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from preflight.fabric.phrases import Blame
    from preflight.fabric.samples import PairState, Sweep

SMALL, LARGE = 8, 16 << 20
Says = "float | PairState"


def fabric(
    count: int,
    factor: Callable[[str, str, int], float | PairState] = lambda _a, _b, _rail: 1.0,
    *,
    rails: int = 1,
    rounds: int | None = None,
    leaf: int = 0,
    spikes: Callable[[str, str, int], int] = lambda _a, _b, _rail: 0,
    late: str = "",
) -> Observed:
    """Every pair takes `factor` times as long as usual, or ends in the state that it says.

    `spikes`: how many operations take 10 ms, at both ends; or at one that waits for the node which
    is `late` by its own gap.
    `leaf`: so many nodes under each switch; 0: no topology is known.
    """
    names = tuple(f"n{number:04}" for number in range(count))
    tried, digests = [], []
    for number, around in enumerate(circle_rounds(names, rounds)):
        for a, b in around:
            for rail in range(rails):
                said = factor(a, b, rail)
                state: PairState = "measured" if isinstance(said, float) else said
                tried.append(PairResult(a=a, b=b, rail=rail, round=number, state=state))
                if isinstance(said, float):
                    many = spikes(a, b, rail)
                    digests += [
                        _digest(a, b, rail, number, SMALL, 20.0, many, late=late),
                        _digest(a, b, rail, number, LARGE, 16_000.0 * said, 0),
                    ]
    return Observed(
        nodes=names,
        backend="gloo",
        tried=tuple(tried),
        digests=tuple(digests),
        leaves={name: f"leaf{at // leaf}" for at, name in enumerate(names)} if leaf else {},
    )


def _digest(  # noqa: PLR0917
    a: str,
    b: str,
    rail: int,
    number: int,
    size_bytes: int,
    time_us: float,
    many: int,
    *,
    late: str = "",
) -> Digest:
    return Digest(
        a=a,
        b=b,
        rail=rail,
        round=number,
        size_bytes=size_bytes,
        operations=1000,
        loaded_s=time_us / 1e3,
        best_us=time_us * 0.9,
        p50_us=time_us,
        p99_us=time_us * 1.2,
        p999_us=time_us * 1.3,
        most_us=10_000.0 if many else time_us * 1.4,
        standouts=tuple(_standout(k, a, b, late) for k in range(many)),
        cut_us=5 * time_us,
    )


def _standout(number: int, a: str, b: str, late: str) -> Standout:
    first, second = (20.0 if late == name else 1e4 for name in (a, b))
    gaps = (1e4 if late == name else 1.0 for name in (a, b))
    return Standout(float(number), number, first, second, *gaps)


def picture_of(sweep: Sweep, blames: Iterable[Blame]) -> str:
    """The page of a sweep by itself, as it is drawn with every iteration at hand."""
    observed = observe(sweep)
    return fabric_page(observed, [*map(blame_row, blames)], sweep=sweep)
