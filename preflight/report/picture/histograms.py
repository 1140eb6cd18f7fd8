"""One histogram as SVG, both axes logarithmic: the blamed as a line over their peers' grey."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from preflight.fabric.words import size, time_us
from preflight.report.picture.markup import number, text
from preflight.report.picture.spread import PER_DECADE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.report.picture.spread import Kind, Spread

_WIDTH, _HEIGHT, _LEFT, _TOP, _FOOT = 400.0, 130.0, 58.0, 10.0, 22.0

_AROUND, _LABEL = 3, 52.0
_FEW, _SOME = (1.0,), (1.0, 2.0, 5.0)
_MANY = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def histogram(who: str, kind: Kind, mine: Spread, peers: Spread | None) -> str:
    """Draw it, with what it shows in words below."""
    axes = _Axes(mine, peers)
    body = [*axes.grid()]
    if peers is not None:
        body.append(axes.outline(peers, "peers"))
    body.append(axes.outline(mine, "mine"))
    what = f"{size(kind[0])} all-reduce{', soak' if kind[1] == 'soak' else ''}"
    others = f"peers (grey): {_said(peers)}" if peers is not None else "no peers"
    words = f"{who}, {what}: {_said(mine)}; {others}"
    width, height = number(_LEFT + _WIDTH + 24), number(_TOP + _HEIGHT + _FOOT)
    return (
        f'<figure><svg class="histogram" width="{width}" height="{height}">{"".join(body)}</svg>'
        f"<figcaption>{text(words)}</figcaption></figure>"
    )


def _said(one: Spread) -> str:
    longest = time_us(one.longest_us)
    pairs = "1 pair" if one.pairs == 1 else f"{one.pairs} pairs"
    return f"{one.operations} operations of {pairs}, longest {longest}"


class _Axes:
    def __init__(self, mine: Spread, peers: Spread | None) -> None:
        both = [one for one in (mine, peers) if one is not None]
        bins = [at for one in both for at in one.shares]
        self._first, self._last = min(bins) - _AROUND, max(bins) + 1 + _AROUND
        most = max(one.operations for one in both)
        self._decades = max(1, math.ceil(math.log10(most)))

    def _ticks(self) -> list[float]:
        """Decades; on a short axis also what lies between them."""
        decades = (self._last - self._first) / PER_DECADE
        steps = _FEW if decades > 2 else _SOME if decades > 0.7 else _MANY  # noqa: PLR2004  what is readable
        low, high = (math.floor(at / PER_DECADE) for at in (self._first, self._last))
        ticks = [step * 10.0**decade for decade in range(low, high + 1) for step in steps]
        return [one for one in ticks if self._first <= math.log10(one) * PER_DECADE <= self._last]

    def _x(self, at: float) -> float:
        return _LEFT + (at - self._first) / (self._last - self._first) * _WIDTH

    def _y(self, share: float) -> float:
        up = 1 + math.log10(share) / self._decades if share > 0 else 0.0
        return _TOP + (1 - max(0.0, up)) * _HEIGHT

    def grid(self) -> Iterator[str]:
        """Lines at round times, and at each decade of share."""
        free = 0.0
        for tick_us in self._ticks():
            x, y = self._x(math.log10(tick_us) * PER_DECADE), number(_TOP + _HEIGHT + 14)
            bottom = number(_TOP + _HEIGHT)
            yield f'<path class="line" d="M{number(x)} {number(_TOP)}V{bottom}"/>'
            if x >= free:
                free = x + _LABEL
                words = time_us(tick_us)
                yield f'<text x="{number(x)}" y="{y}" text-anchor="middle">{words}</text>'
        for decade in range(self._decades + 1):
            y = number(self._y(10.0**-decade))
            words = "all" if decade == 0 else f"10{str(-decade).translate(_RAISED)}"
            yield f'<path class="line" d="M{number(_LEFT)} {y}h{number(_WIDTH)}"/>'
            yield f'<text x="{number(_LEFT - 4)}" y="{y}" text-anchor="end">{words}</text>'

    def outline(self, one: Spread, css: str) -> str:
        """A closed step line over the bins."""
        bottom = self._y(0)
        path = [f"M{number(self._x(self._first))} {number(bottom)}"]
        path += [
            f"V{number(self._y(one.shares.get(at, 0.0)))}H{number(self._x(at + 1))}"
            for at in range(self._first, self._last)
        ]
        return f'<path class="{css}" d="{"".join(path)}V{number(bottom)}z"/>'
