"""Each node's own GPUs against those of its peers: a bad NVLink or PCIe path no network pair shows.

Peers are the other nodes of its group with as many rails. Then promise and shipped floor; without
any of them nothing is known.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.fabric.advice import OWN_CAUSES, advice_on
from preflight.fabric.inside_measure import measure_inside
from preflight.fabric.inside_peers import Bound, Peers
from preflight.fabric.limits import limit
from preflight.fabric.measure import LATENCY_BELOW
from preflight.fabric.observed import STOOD_STILL
from preflight.fabric.words import gbs, size, time_us
from preflight.facts.board_links import nvlink_gbs
from preflight.facts.inside import Inside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.inside_measure import Events, Measured
    from preflight.fabric.samples import InsideSamples, Sweep
    from preflight.facts import Gpu
    from preflight.fleet.model import Host

_LEAST_EVENTS, _TIMES_PEERS = 4, 4
"""What comes and goes: at least so often, and so many times what it costs the worst peer."""

_STARVED = 0.5
"""On gloo, waiting for a CPU that explains so much of it is no fault of what carries the data."""

_SLOW = (
    "look at NVLink errors and link counts (nvidia-smi nvlink), PCIe width and rate, ACS and IOMMU "
    "settings of {0}; exclude it until then"
)
_NVLINK_FROM = 64 << 20
_NO_NVLINK = (
    "look why NCCL does not use NVLink: NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and NCCL_SHM_DISABLE in "
    "the job's environment, ranks in separate containers, nvidia-fabricmanager, ACS; run again"
)
_EVENTS = "look at what else runs on {0} (load, throttling, IRQs) and at its Xids; run again"
_STUCK = "look at {0} for Xids, stopped or D-state processes; exclude it, run again"
_CORRUPT = "take {0} out of service now and run its memory and NVLink diagnostics (dcgmi diag -r 3)"


_AWAITED = re.compile(r"^rail (\d{1,4}) of this node did not come").match
_NEVER = "it never reported"
_STOPPED = "stopped by a signal"  # as its supervisor says
_DID: dict[str, str] = {
    "hung": "hung",
    "no_connect": "never began",
    "absent": "never began",
    "error": "broke off",
}


def judge_inside(sweep: Sweep, hosts: Sequence[Host]) -> dict[str, Inside]:
    """Judge every node of the fleet, by name; also those that were not measured, with why."""
    samples = {one.node: one for one in sweep.inside}
    measured = {name: measure_inside(one) for name, one in samples.items()}
    fleet = {host.name: host for host in hosts}
    found: dict[str, Inside] = {}
    for name, host in fleet.items():
        missing = _missing(name, samples.get(name), sweep)
        one = missing or _judged(
            measured[name],
            samples[name],
            _peers(host, measured, fleet),
            host,
            short=name in sweep.short,
        )
        found[name] = replace(one, lacks=sweep.short.get(name, ""))
    return found


def held_to_nvlink(inside: Inside, gpus: Sequence[Gpu]) -> Inside:
    """Blame a node of which NVML says that NVLinks join its GPUs, where they did not carry it.

    Needs no peer, promise or model in the inventory: whatever falls back to PCIe or to memory is
    far below what NVLinks carry.
    """
    share = limit("nvlink", "inside_share")
    linked = nvlink_gbs(gpus, inside.rails)
    if inside.backend != "nccl" or inside.why or inside.best_gbs is None or not (share and linked):
        return inside
    if inside.at_bytes < _NVLINK_FROM or inside.best_gbs >= share * linked:
        return inside
    way = f", carried by {inside.way}" if inside.way else ""
    reached = f"{gbs(inside.best_gbs)} at best at {size(inside.at_bytes)}"
    why = (
        f"{reached} among {inside.rails} GPUs{way}; their NVLinks carry {gbs(linked)} each way, "
        f"and at least {gbs(share * linked)} is expected"
    )
    return replace(inside, why=why, advice=_NO_NVLINK)


def _missing(name: str, samples: InsideSamples | None, sweep: Sweep) -> Inside | None:
    """Why there is nothing to judge, if there is nothing."""
    whole = samples is not None and all(end is not None for end in samples.rails)
    rails = len(samples.rails) if samples is not None else 0
    if whole:
        return None
    if name in sweep.troubles:
        said, advice = sweep.troubles[name], sweep.advice.get(name, "")
        out = f"{name} fell out of the sweep: {said}"
        return Inside(state="trouble", rails=rails, reason=out, advice=advice)
    if name in sweep.left_out:
        return Inside(state="not_run", rails=rails, reason=sweep.left_out[name])
    if name in sweep.waited or sweep.unfinished:
        why = sweep.waited.get(name) or sweep.unfinished
        return Inside(state="not_run", rails=rails, reason=why, stopped=True)
    return Inside(state="one_rail") if samples is None else None


def _peers(host: Host, measured: Mapping[str, Measured], fleet: Mapping[str, Host]) -> Peers:
    own = measured[host.name]
    return Peers(
        tuple(
            one
            for name, one in measured.items()
            if name != host.name
            and name in fleet
            and fleet[name].group == host.group
            and one.state == "measured"
            and one.rails == own.rails
        )
    )


def _judged(
    own: Measured, samples: InsideSamples, peers: Peers, host: Host, *, short: bool
) -> Inside:
    """Judge one node; of a `short` one only failures: no promise and no floor is meant for it."""
    plain = Inside(state=own.state, rails=own.rails, backend=own.backend, peers=len(peers.nodes))
    if own.state == "not_run":
        why = next(end.error for end in samples.rails if end and end.state == "not_run")
        return replace(plain, reason=why)
    if own.state != "measured":
        return _broken(plain, own, samples)
    top = own.sizes[-1]
    bound = Bound(None, "", None, 0) if short else peers.bound(own, host.promised)
    compared = replace(
        plain,
        at_bytes=top.size_bytes,
        busbw_gbs=top.busbw_gbs,
        best_gbs=top.best_gbs,
        limit_gbs=bound.gbs,
        limit_origin=bound.origin,
        peers_gbs=bound.peers_gbs,
        latency_us=own.sizes[0].p50_us,
        way=own.net,
    )
    if short:
        return compared
    why = _slow(own, bound) or _latent(own, peers)
    if why:
        return replace(compared, why=why + _way(own, peers), advice=_SLOW.format(own.name))
    return _eventful(compared, own, peers)


def _broken(plain: Inside, own: Measured, samples: InsideSamples) -> Inside:
    """It came to no result: the rail that says so of itself, else the node."""
    said = {
        rail: _NEVER if end is None else end.error
        for rail, end in samples.numbered.items()
        if end is None or end.state != "measured"
    }
    guilty = _guilty(said, own.state)
    told = next((rail for rail in guilty if rail in said), next(iter(said)))
    if own.state == "corrupt":
        what, advice = "sums came out wrong", _CORRUPT
    else:
        known = advice_on(own.name, said[told]) if guilty else ""
        did, advice = ("broke off", known) if known else (_DID[own.state], _STUCK)
        what = f"the all-reduce among its {own.rails} rails {did}"
    named = guilty if len(guilty) < own.rails else []
    where = f" on {_rails(named, own.backend)} of {own.name}" if named else ""
    reason = f"{_rails([told], own.backend)}: {said[told]}"
    return replace(
        plain, reason=reason, why=f"{what}{where} ({reason})", advice=advice.format(own.name)
    )


def _guilty(said: Mapping[int, str], state: str) -> list[int]:
    """The rails at fault by what all of them say, the surest sign first; none: nobody can say."""
    if state == "corrupt":
        return [rail for rail, error in said.items() if "WRONG" in error] or list(said)
    signs = [
        [rail for rail, error in said.items() if error == _NEVER],
        *(
            [rail for rail, error in said.items() if words in error]
            for words in (*OWN_CAUSES, _STOPPED, STOOD_STILL)
        ),
        [rail for rail, error in said.items() if _failed_itself(error)],
        sorted({int(m[1]) for error in said.values() if (m := _AWAITED(error))}),
    ]
    return next((rails for rails in signs if rails), [])


def _failed_itself(error: str) -> bool:
    """Whether NCCL failed on this GPU, and not because another one had left (ncclRemoteError)."""
    return "NCCL version" in error and "remote process exited" not in error


def _slow(own: Measured, bound: Bound) -> str:
    """Even its fastest operation: a slow link slows them all, a busy machine leaves some alone."""
    top = own.sizes[-1]
    if bound.beyond:
        reached, wanted = size(top.size_bytes), size(bound.beyond)
        return f"only {reached} of the {wanted} that its peers came to, in the time for it"
    if bound.gbs is None or top.best_gbs >= bound.gbs:
        return ""
    peers = f"peers' median {gbs(bound.peers_gbs)}, " if bound.peers_gbs is not None else ""
    return (
        f"{gbs(top.busbw_gbs)} at {size(top.size_bytes)} among its {own.rails} rails; {peers}limit "
        f"{gbs(bound.gbs)} ({bound.origin})"
    )


def _latent(own: Measured, peers: Peers) -> str:
    least = own.sizes[0]
    limit_us = peers.latency_limit_us(own)
    if least.size_bytes >= LATENCY_BELOW or limit_us is None or least.p50_us <= limit_us:
        return ""
    usual = time_us(peers.latency_us(own) or 0.0)
    return (
        f"{time_us(least.p50_us)} at {size(least.size_bytes)} among its {own.rails} rails; peers' "
        f"median {usual}, limit {time_us(limit_us)}"
    )


def _way(own: Measured, peers: Peers) -> str:
    """Say it where its data went another way than its peers'."""
    usual = peers.way
    return f"; carried by {own.net}, at its peers by {usual}" if usual and own.net != usual else ""


def _eventful(compared: Inside, own: Measured, peers: Peers) -> Inside:
    """What comes and goes is held against the worst peer: all machines have some of it."""
    events, usual = own.events, peers.worst_events
    if usual is None or events.count < _LEAST_EVENTS:
        return compared
    starved = own.backend == "gloo" and own.cpu_wait_us >= _STARVED * events.lost_us
    if starved or events.lost_us <= _TIMES_PEERS * usual.lost_us:
        return compared
    rail = events.rail
    worst = time_us(events.worst_us)
    if rail is None:
        why = f"operations among the rails of {own.name} took up to {worst}"
    else:
        who = _rails([rail], own.backend)
        why = f"{who} of {own.name} kept the others waiting, up to {worst}, by its own clock"
    return replace(
        compared,
        why=f"{why}; at the worst of its {len(peers.nodes)} peers {_often(usual)}",
        advice=_EVENTS.format(own.name),
        events=events.count,
        operations=events.operations,
    )


def _often(events: Events) -> str:
    if not events.count:
        return "none"
    return f"{events.count} of {events.operations}, up to {time_us(events.worst_us)}"


def _rails(rails: Sequence[int], backend: str) -> str:
    word = "GPU" if backend == "nccl" else "rail"
    return f"{word}{'s' * (len(rails) > 1)} {', '.join(map(str, rails))}"
