"""Nodes of a group are alike: how far one is from the rest, and in whose words."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from preflight.facts.node import Majority

T = TypeVar("T")


def decided(usual: Majority[T] | None) -> Majority[T] | None:
    """The majority, if it is one that a node can be odd against."""
    return usual if usual is not None and usual.decides else None


def others(usual: Majority[T], what: str) -> str:
    """12 of 13 nodes of its group have WHAT."""
    return f"{usual.votes} of {usual.of} nodes of its group have {what}"
