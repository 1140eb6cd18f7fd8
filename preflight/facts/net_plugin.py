"""Which network plugin a job makes NCCL load: without it NCCL goes over sockets, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_INTERNAL = ("ib", "socket")
"""Networks that NCCL has without a plugin; `NCCL_NET` is compared without case."""

_DEFAULT = "libnccl-net.so"


class Asked(NamedTuple):
    """The file names that would do, and the setting that asks for them."""

    names: tuple[str, ...]
    """Any `libnccl-net*` where a network is asked for by its own name only."""
    setting: str


def asked(environ: Mapping[str, str]) -> Asked | None:
    """What a job's environment asks for; None where it asks for no plugin.

    `NCCL_NET_PLUGIN` is a library or the suffix of one (libnccl-net-SUFFIX.so), "none" for none;
    `NCCL_NET` names a network, which a plugin has if NCCL itself has not. Source: NCCL's user
    guide, environment variables.
    """
    plugin, network = environ.get("NCCL_NET_PLUGIN", ""), environ.get("NCCL_NET", "")
    if plugin and plugin.lower() != "none":
        first = plugin.split(",")[0].strip()
        setting = f"NCCL_NET_PLUGIN={plugin[:80]}"
        if "/" in first:
            return Asked((first,), setting)
        return Asked((f"libnccl-net-{first}.so", first), setting)
    if network and network.lower() not in _INTERNAL and not plugin:
        return Asked((), f"NCCL_NET={network[:80]!r}")
    return None


def found(wanted: Asked, there: tuple[str, ...]) -> str:
    """The path of the plugin that was asked for; empty if none of these is it."""
    for path in there:
        name = path.rsplit("/", 1)[-1]
        fits = (path, name, name.split(".so")[0] + ".so")
        if not wanted.names or any(one in wanted.names for one in fits):
            return path
    return ""


def instead(there: tuple[str, ...]) -> str:
    """What NCCL loads where the one that was named is missing."""
    return next((path for path in there if path.endswith(f"/{_DEFAULT}")), "")
