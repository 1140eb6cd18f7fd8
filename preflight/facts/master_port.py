"""Whether the rendezvous gets its port, and if not, who has it: "in use" alone helps nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.facts.words import count, kill_command, process
from preflight.verdict import Verdict, fail, ok, warn

if TYPE_CHECKING:
    from preflight.facts.ports import MasterPort


def taken(master: MasterPort, origin: str) -> Verdict:
    """Explain a port that could not be bound by its owner."""
    port = f"port {master.port} ({origin})"
    holder = master.holder
    if holder is not None and holder.ours:
        return ok(f"{port} is held by this run's own store, {process(holder)}")
    if holder is not None:
        end = "ask root to find it: ss -ltnp"
        if holder.pid:
            end = f"end it: {kill_command([holder.pid])}"
        return fail(
            f"{port} is taken by {process(holder)}",
            advice=f"{end}; or choose another --master-port",
            cause=f"pid {holder.pid}" if holder.pid else "",
            blocks=False,
            pid=holder.pid,
        )
    if master.lingering:
        left = count(master.lingering, "connection")
        return warn(
            f"{port} still has {left} of an ended job closing; the kernel keeps them a minute",
            advice="wait a minute, or choose another --master-port",
        )
    return fail(
        f"{port} cannot be bound: {master.error}",
        advice="choose another --master-port",
        blocks=False,
    )


def unfit(master: MasterPort, origin: str) -> Verdict | None:
    """What is wrong with a port that was free: it was not given back."""
    port = f"port {master.port} ({origin})"
    if master.free_again is False:
        return fail(
            f"{port} was free, but not again after our listener had left",
            advice="look who took it: ss -tanp; or choose another --master-port",
            blocks=False,
        )
    return None
