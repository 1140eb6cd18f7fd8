"""What a node's files of NCCL settings hold: they change a job that never named them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from preflight.facts.basics import Count, Line, Text


class ConfSetting(Struct, frozen=True, forbid_unknown_fields=True):
    """One NAME=VALUE line as it stands, blanks included; a strange name's value is not told."""

    name: Line
    value: Text


class ConfFile(Struct, frozen=True, forbid_unknown_fields=True):
    """One file that exists. `error`: why it could not be read."""

    path: Text
    kind: Literal["user", "system"]
    settings: Annotated[tuple[ConfSetting, ...], Meta(max_length=512)] = ()
    without_equals: Count = 0
    """Lines that are neither empty, nor a comment, nor NAME=VALUE: NCCL skips them."""
    error: Text = ""
