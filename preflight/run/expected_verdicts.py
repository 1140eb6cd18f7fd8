"""Which verdicts a run owes, and which others those wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from preflight.check import Tier
    from preflight.fabric.schedule import Pairing
    from preflight.fleet.model import Fleet
    from preflight.judgement import Judgement, Key
    from preflight.registry import Registry


def owed(
    fleet: Fleet,
    registry: Registry,
    tier: Tier,
    pairs: Sequence[Pairing],
    wanted: Container[str] | None = None,
) -> list[Key]:
    """Name every verdict that is owed, in the order in which it will be reached.

    `wanted`: of these checks alone; None or empty: of all that are within the tier.
    """
    keys: list[Key] = []
    for registered in registry:
        check = registered.check
        if not check.within(tier) or (wanted and check.id not in wanted):
            continue
        if registered.subject == "pair":
            keys += [(check.id, pair) for pair in pairs]
        elif registered.subject == "fleet":
            keys.append((check.id, ()))
        else:
            keys += [(check.id, (host.name,)) for host in fleet.hosts]
    return keys


class Selection:
    """The verdicts that somebody selected, and what follows from them."""

    def __init__(
        self, fleet: Fleet, registry: Registry, judgement: Judgement, keys: Sequence[Key]
    ) -> None:
        self.keys = keys
        self._hosts = [host.name for host in fleet.hosts]
        self._registry = registry
        on = (key for key in keys if not judgement.off(*key))
        self._on: dict[str, set[str]] = {}
        for check_id, names in on:
            self._on.setdefault(check_id, set()).update(names or self._hosts)

    @property
    def checks(self) -> Iterable[str]:
        """The checks that are not switched off everywhere: only these are measured."""
        return self._on

    @property
    def of_pairs(self) -> tuple[str, ...]:
        """The checks of pairs among all that were selected."""
        wanted = {check_id for check_id, _ in self.keys}
        own = (one for one in self._registry if one.subject == "pair")
        return tuple(one.check.id for one in own if one.check.id in wanted)

    @property
    def inside(self) -> bool:
        """Whether a check of single nodes wants the sweep."""
        asked = (self._registry[check_id] for check_id in self._on)
        return any(one.check.stage == "fabric" and one.subject == "node" for one in asked)

    def watched(self) -> list[Key]:
        """The selected verdicts after those that they wait for: a gate that is shut is a finding.

        Were it not judged itself, a node that is down would leave nothing but `not_run` behind.
        """
        ways_in = tuple(r.check.id for r in self._registry if r.check.stage == "reach")
        gates: dict[str, set[str]] = {}

        def spread(check_id: str, names: set[str]) -> None:
            check = self._registry[check_id].check
            for gate in check.requires if check.stage == "reach" else (*ways_in, *check.requires):
                new = names - gates.setdefault(gate, set())
                if new:
                    gates[gate] |= new
                    spread(gate, new)

        for check_id, nodes in self._on.items():
            spread(check_id, nodes)
        before = [
            (registered.check.id, (name,))
            for registered in self._registry
            for name in self._hosts
            if name in gates.get(registered.check.id, ())
        ]
        return [*dict.fromkeys([*before, *self.keys])]
