"""Who takes part in a stage, by the verdicts on what it requires, and why the others do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.facts.busy import BUSY_WORD, busy_with

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from preflight.check import Stage
    from preflight.fleet.model import Host
    from preflight.judgement import Judgement


class Partakers:
    """Asks the judges; `reached` are the names of the nodes to which there is a connection."""

    def __init__(
        self,
        hosts: Sequence[Host],
        judgement: Judgement,
        reached: Container[str],
        *,
        even_if_busy: bool,
    ) -> None:
        self._hosts = hosts
        self._judgement = judgement
        self._reached = reached
        self._even_if_busy = even_if_busy

    def able(self, stage: Stage) -> list[Host]:
        """Ask the judges of a stage's prerequisites who can take part in it."""
        return [
            host
            for host in self._hosts
            if host.name in self._reached and not self._judgement.may_take_part(host.name, stage)
        ]

    def left_out(self, stage: Stage, taking_part: Sequence[Host]) -> dict[str, str]:
        """Who is not among them, and why."""
        able = {host.name for host in taking_part}
        return {
            host.name: self._judgement.may_take_part(host.name, stage)
            or self.hindered(host.name)
            or "no connection"
            for host in self._hosts
            if host.name not in able
        }

    def hindered(self, name: str) -> str:
        """Say why a node that may be loaded must not or cannot be, if so."""
        reach = self._judgement.measured.reach.get(name)
        if reach is not None and reach.shortfall is not None:
            return f"reach.answer of {name}: {reach.shortfall.sentence}"
        return self._busy(name)

    def _busy(self, name: str) -> str:
        """Say whose work a measurement under load would disturb on a node, if anyone's."""
        facts = self._judgement.measured.facts.get(name)
        if self._even_if_busy or facts is None:
            return ""
        work = busy_with(facts)
        return f"{BUSY_WORD}{work} works on its GPUs (--preflight-even-if-busy)" if work else ""
