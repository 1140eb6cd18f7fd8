"""What a node's kernel log holds of hardware in trouble, as it travels: few lines, each counted."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

_Text = Annotated[str, Meta(max_length=512)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Seconds = Annotated[float, Meta(ge=0, le=1e12)]


class LogLine(Struct, frozen=True, forbid_unknown_fields=True):
    """One line, and how often its like came; `at_s` and `last_s` are seconds since boot."""

    text: _Text
    """Without its time stamp and what a log daemon put before it."""
    at_s: _Seconds | None = None
    last_s: _Seconds | None = None
    times: Annotated[int, Meta(ge=1, le=2**53)] = 1


class KernelLog(Struct, frozen=True, forbid_unknown_fields=True):
    """The lines that matter, in the order in which each came first."""

    source: Literal["kmsg", "journal", "dmesg", "text"]
    seen: _Count
    """How many lines the log held; a running kernel has never said nothing."""
    begins_s: _Seconds | None = None
    """When the oldest line that is still there was said; the kernel forgets what was before."""
    after_s: _Seconds = 0.0
    """Only lines from then on were looked at: 0 for all since boot."""
    lines: Annotated[tuple[LogLine, ...], Meta(max_length=4096)] = ()
    dropped: _Count = 0
    """Further lines that matter, of which only the number is known."""
    dropped_of: dict[_Text, _Count] = {}
    """The same by the node's kind of line; "any": records that were not read at all."""
