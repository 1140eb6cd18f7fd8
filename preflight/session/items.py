"""Checks as pytest items, named by check id and subject: `fabric.allreduce[h1-h2]`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from preflight.check import FLEET, subject
from preflight.report.text import printable
from preflight.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.judgement import Key
    from preflight.registered import Registered
    from preflight.run import Run

GROUP_ABOVE = 20_000
"""Expected verdicts above which there is one item per check and group instead of per subject."""

_WORST_FIRST = (
    Outcome.FAIL,
    Outcome.FLAKY,
    Outcome.UNKNOWN,
    Outcome.BROKEN,
    Outcome.LOST,
    Outcome.WARN,
    Outcome.WAIVED,
    Outcome.OK,
    Outcome.NOT_RUN,
)


class Unfit(Exception):  # noqa: N818  it is a finding about a node, not an error of ours
    """Carries a verdict that fails its item; shown as a sentence, never as a traceback."""


class CheckFile(pytest.File):
    """One file of `checks/`: an item per subject, or per group of subjects in large fleets."""

    run: Run
    registered: Registered
    grouped: bool

    def collect(self) -> Iterator[CheckItem]:
        """Make the items; measures nothing."""
        keys = self.run.expected([self.registered.check.id])
        for label, own in self._split(keys):
            name = f"{self.registered.check.id}[{label}]"
            # pytest 9.2 keeps a node id in parts and would take `a[b]` for a name without
            # parameters; --lf then finds none of its failures again.
            item = CheckItem.from_parent(self, name=name, nodeid=f"{self.nodeid}::{name}")
            item.run, item.keys = self.run, own
            item.add_marker("preflight")
            item.add_marker(f"preflight_{self.registered.check.stage}")
            yield item

    def _split(self, keys: Sequence[Key]) -> Iterator[tuple[str, list[Key]]]:
        if not self.grouped:
            for key in keys:
                yield subject(key[1]), [key]
            return
        # A group's name is free text of the inventory; an id is shown, pasted and parsed.
        group_of = {h.name: re.sub(r"[^\w.-]+", "_", h.group) for h in self.run.fleet.hosts}
        groups: dict[str, list[Key]] = {}
        whole = {"pair": "pairs", "fleet": FLEET}.get(self.registered.subject)
        for key in keys:
            label = whole or group_of[key[1][0]]
            groups.setdefault(label, []).append(key)
        yield from groups.items()


class CheckItem(pytest.Item):
    """Asks the run for its verdicts; all measuring is done before the first item runs."""

    run: Run
    keys: list[Key]
    said: list[dict[str, Any]]

    def runtest(self) -> None:
        """Pass, skip or fail by the worst verdict."""
        verdicts = [(key, self.run.judgement.verdict(*key)) for key in self.keys]
        self.said = [
            {"check": check, "nodes": list(nodes), "verdict": msgspec.to_builtins(verdict)}
            for (check, nodes), verdict in verdicts
        ]
        worst = min((v for _, v in verdicts), key=lambda v: _WORST_FIRST.index(v.outcome))
        self.user_properties.append(("preflight_outcome", str(worst.outcome)))
        self.user_properties.append(("preflight_sentence", printable(worst.sentence)))
        if worst.outcome is Outcome.NOT_RUN:
            pytest.skip(printable(worst.sentence))
        if worst.condemns or worst.outcome in (Outcome.BROKEN, Outcome.LOST):
            raise Unfit(_words(worst))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *_: Any) -> str:
        """A finding is its sentence; only a fault of ours shows a traceback."""
        if isinstance(excinfo.value, Unfit):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Name the item in words; pytest's listing would turn the id's dots into colons."""
        return self.path, None, self.name.replace("[", " on ").rstrip("]")


def _words(verdict: Verdict) -> str:
    advice = f"\ndo: {printable(verdict.advice)}" if verdict.advice else ""
    trace = verdict.evidence.get("traceback", "") if verdict.outcome is Outcome.BROKEN else ""
    return f"{verdict.outcome}: {printable(verdict.sentence)}{advice}\n{trace}".rstrip()
