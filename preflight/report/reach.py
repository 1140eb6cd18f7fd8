"""How the fleet is reached, in a line: which way serves which nodes, and what decided it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fleet.model import Host
    from preflight.transport.ways import Way

_WORDS: Final = {"paramiko": "paramiko", "openssh": "OpenSSH", "ssh": "paramiko or OpenSSH"}
_OTHERS: Final = {"local": "local processes", "torchrun": "torchrun (the job's own store)"}
_MOST_PARTS: Final = 4


def reach_words(hosts: Sequence[Host], known: Mapping[str, Way], slurm_job: str = "") -> str:
    """Say how the nodes are reached; `known`: the ways found out so far, by node name."""
    job = f"Slurm job {slurm_job}, one step" if slurm_job else "one Slurm step"
    said = {**_OTHERS, "srun": f"srun ({job})"}
    others: dict[str, list[str]] = {}
    by_ssh: dict[tuple[str, str], list[str]] = {}
    for host in hosts:
        way = known.get(host.name)
        name, why = (way.transport, way.why) if way else (host.transport, "")
        if name in _WORDS:
            by_ssh.setdefault((name, why), []).append(host.name)
        else:
            others.setdefault(name, []).append(host.name)
    parts = [f"ssh ({_ssh(by_ssh)}, known hosts only)"] if by_ssh else []
    mixed = len(others) + len(by_ssh) > 1
    for name, names in others.items():
        words = said.get(name, name)
        parts.append(f"{words} x{len(names)}" if mixed else words)
    return ", ".join(parts)


def _ssh(by_ssh: Mapping[tuple[str, str], Sequence[str]]) -> str:
    whose = len(by_ssh) > 1
    parts = [
        _WORDS[name] + (f" for {fold(names)}" if whose else "") + (f": {why}" if why else "")
        for (name, why), names in by_ssh.items()
    ]
    more = len(parts) - _MOST_PARTS
    return "; ".join(parts[:_MOST_PARTS] + ([f"and {more} more ways"] if more > 0 else []))
