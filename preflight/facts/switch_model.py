"""A switch as its own tools tell of it: one whose fans stand still takes a whole rail down."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from preflight.facts.basics import Count, Line


class SwitchPart(Struct, frozen=True, forbid_unknown_fields=True):
    """A fan, a power supply, or something of one."""

    name: Line
    """"PSU0 fan status", "fan#3"."""
    status: Line = ""
    """In the tool's word: "OK", "ERROR"; "" where it has none."""
    rpm: Count | None = None


class Switch(Struct, frozen=True, forbid_unknown_fields=True):
    """One switch, from a captured text: nodes cannot ask without root and the maker's tools."""

    name: Line
    parts: Annotated[tuple[SwitchPart, ...], Meta(max_length=512)] = ()
