"""What an interrupt leaves whole is judged, stage by stage; the rest stays open."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from preflight.check import Check
    from preflight.judgement import Judgement, Key, Names
    from preflight.registry import Registry


NVLINK_DOMAIN = "fabric.nvlink_domain"


class CutShort:
    """Judges those of the selected subjects that an interrupted stage has measured."""

    def __init__(self, registry: Registry, judgement: Judgement) -> None:
        self._registry = registry
        self._judgement = judgement

    def probing(self, arrived: Container[str], selected: Iterable[Key]) -> None:
        """Judge those who had answered."""
        for check_id, nodes in selected:
            first_stages = self._check(check_id).stage in ("reach", "facts")
            if first_stages and nodes and all(name in arrived for name in nodes):
                self._judgement.verdict(check_id, nodes)

    def loading(self, selected: Iterable[Key]) -> None:
        """Judge what needs no peers, as they may be missing.

        What a node may be drained for is in its own answers: that is judged by itself.
        """
        for check_id, nodes in selected:
            check = self._check(check_id)
            burn = self._judgement.burn.get(nodes[0]) if len(nodes) == 1 else None
            if burn is None or check.stage != "local" or not check.drains:
                continue
            if burn.state == "measured" or burn.wrong or burn.lost:
                self._judgement.verdict(check_id, nodes)

    def sweeping(self, selected: Iterable[Key]) -> None:
        """Judge the pairs, the insides of nodes and NVLink between them that were measured."""
        for check_id, nodes in selected:
            if self._check(check_id).stage == "fabric" and self._was_swept(check_id, nodes):
                self._judgement.verdict(check_id, nodes)

    def _check(self, check_id: str) -> Check:
        return self._registry[check_id].check

    def _was_swept(self, check_id: str, nodes: Names) -> bool:
        decoded = self._judgement.sweep
        if check_id == NVLINK_DOMAIN:
            over_nvlink = decoded.over_nvlink.get(nodes[0])
            return over_nvlink is None or over_nvlink.state != "not_run"
        if len(nodes) == 1:
            inside = decoded.inside.get(nodes[0])
            return inside is not None and inside.state != "not_run"
        pair = decoded.pairs.get((nodes[0], nodes[1])) if nodes else None
        return pair is not None and (pair.state != "not_run" or bool(pair.trouble))
