"""What the nodes saw when they tried the job's ports on each other, typed and frozen."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from preflight.facts.basics import Count, Index, Line, Seconds, Text
from preflight.facts.model import Process

Connected = Literal["ok", "refused", "timeout", "unreachable", "reset", "wrong_answer", "error"]
"""`wrong_answer`: somebody accepted who is not this run's listener."""


class Attempt(Struct, frozen=True, forbid_unknown_fields=True):
    """One connection this node tried to a listener of this run on another node."""

    target: Line
    """Name of the node that listens."""
    port: Index
    kind: Literal["master", "data"]
    result: Connected
    error: Text = ""
    ms: Seconds = 0.0


class MasterPort(Struct, frozen=True, forbid_unknown_fields=True):
    """The master port as the master itself found it: bound for real, without SO_REUSEADDR."""

    port: Index
    bound: bool
    error: Text = ""
    holder: Process | None = None
    """Who holds it; `user` is known (from the socket's uid) even where the pid is hidden (0)."""
    lingering: Count = 0
    """Connections of that port still in TIME_WAIT or other closing states."""
    free_again: bool | None = None
    """After our listener left: bound once more without SO_REUSEADDR. None when never bound."""


class Ports(Struct, frozen=True, forbid_unknown_fields=True):
    """One node's whole answer to the port stage."""

    wire: int
    nonce: Line
    host: Line
    seconds: Seconds
    ephemeral_low: Annotated[int, Meta(ge=0, le=65535)]
    ephemeral_high: Annotated[int, Meta(ge=0, le=65535)]
    listening: tuple[Index, ...] = ()
    """The data ports on which this node listened."""
    master: MasterPort | None = None
    """Only from the master."""
    attempts: tuple[Attempt, ...] = ()
