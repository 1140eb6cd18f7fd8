"""What one end of a pair, or one rail inside of a node, has to say: measured, or why not."""

from __future__ import annotations

import re

from . import agreed, wall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import plan

ERROR_LIMIT = 300
WHOLE_LIMIT = 508
"""With NCCL's reason; the wire takes 512."""

_REASON_LIMIT = 200
"""NCCL's line on a failed completion names the device at its end."""

_PLACE = re.compile(r"^NCCL error in: \S+, ")
"""Where in torch's source: ProcessGroupNCCL writes it before what went wrong."""


def account(rail: plan.Rail, turn: plan.Turn, state: str, error: str = "") -> dict[str, Any]:
    """Make the event for one pair; `state` as in the controller's samples."""
    return {
        "event": "pair",
        "round": turn.round,
        "a": turn.a,
        "b": turn.b,
        "plan": agreed.digest(rail.go, turn),
        **_account(rail, state, error),
    }


def inside_account(rail: plan.Rail, state: str, error: str = "") -> dict[str, Any]:
    """Make the event for one rail of the all-reduce inside of its node."""
    return {"event": "inside", **_account(rail, state, error)}


def domain_account(rail: plan.Rail, turn: plan.Turn, state: str, error: str = "") -> dict[str, Any]:
    """Make the event for one pair over NVLink between nodes."""
    pair = {"round": turn.round, "a": turn.a, "b": turn.b}
    return {"event": "domain", **pair, **_account(rail, state, error)}


def _account(rail: plan.Rail, state: str, error: str) -> dict[str, Any]:
    return {
        "rail": rail.rail,
        "backend": rail.go.backend,
        "state": state,
        "error": error,
        "started_s": wall.now_s(),
        "setup_ms": 0.0,
        "timings": [],
        "moved": [],
        "unread": "",
        "net": "",
        "stepped_s": 0.0,
        "stalls": [],
    }


def short(error: BaseException) -> str:
    """Keep the first line, as printable ASCII: torch adds source lines and stack traces.

    And NCCL's own reason: torch puts it some lines below (getNcclErrorDetailStr, NCCLUtils.cpp).
    """
    text = str(error).strip()
    first = _PLACE.sub("", text.split("\n", 1)[0]) or type(error).__name__
    if first.startswith("["):  # gloo: "[/src/gloo/transport/tcp/pair.cc:5] Timed out ..."
        first = first.partition("] ")[2] or first
    first = first.partition(", keys: ")[0]  # of the store: they tell an operator nothing
    first = first.partition(" This is typically caused by ")[0]  # gloo's guess at what we know
    last = text.partition("\nLast error:\n")[2].strip().split("\n", 1)[0]
    return because(first, last)


def because(error: str, reason: str) -> str:
    """Add NCCL's reason to an error that lacks it; WHOLE_LIMIT characters at most."""
    error, reason = printable(error, ERROR_LIMIT), printable(reason, 4 * _REASON_LIMIT)
    if len(reason) > _REASON_LIMIT:
        reason = f"{reason[: _REASON_LIMIT - 63]}...{reason[-60:]}"
    return f"{error}; NCCL: {reason}" if reason and reason not in error else error


def printable(text: str, limit: int = 120) -> str:
    """Return the same as printable ASCII of bounded length."""
    plain = text.encode("ascii", "replace").decode("ascii")
    return "".join(each for each in plain if each.isprintable())[:limit]
