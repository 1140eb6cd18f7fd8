"""Settings that defeat one another: each is right by itself, and one of them does nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from preflight.facts.environ.numbers import number, switched_on
from preflight.facts.environ.remark import Remark, told
from preflight.facts.environ.variables import variables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Environ = Mapping[str, str]
    Rule = Callable[[Environ], "Remark | None"]

MOST_SOCKETS: Final = 64
"""NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD: NCCL user guide."""

_TRUE: Final = ("1", "y", "yes", "t", "true")
_FALSE: Final = ("0", "n", "no", "f", "false")
_IB_ONLY: Final = ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT",
                   "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_QPS_PER_CONNECTION")  # fmt: skip


def clashes(environ: Environ) -> list[Remark]:
    """Remarks on settings that contradict one another."""
    return [*_twins(environ), *(one for rule in _RULES if (one := rule(environ)) is not None)]


def _twins(environ: Environ) -> list[Remark]:
    """An old name and its new one, with two values."""
    found = []
    for old in filter(environ.__contains__, variables()):
        one = variables()[old]
        new = one.use.partition("=")[0]
        if new not in environ or environ[old] == environ[new]:
            continue
        both = f"{told(old, environ[old])} and {told(new, environ[new])}"
        if one.type == "alloc":
            said = f"{both}: torch reads one in some places, the other in others"
            found.append(Remark(said, f"keep {new} only, or both with one value"))
        elif one.owner == "torch" and not one.removed:
            found.append(Remark(f"{both}: the new name wins", f"unset {old}", "warn"))
        elif not one.removed:
            found.append(Remark(f"{both}: the stricter one wins", f"unset {old}", "warn"))
    return found


def _blocking_wait(environ: Environ) -> Remark | None:
    blocking = _either(environ, "TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
    handling = _either(environ, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
    if not blocking or blocking[1].lower() not in _TRUE or not handling or handling[1] == "0":
        return None
    said = (
        f"{told(*blocking)} with {told(*handling)}: a wait that blocks takes the place of the other"
    )
    return Remark(said, f"keep one: {handling[0]} for training", "warn")


def _desync(environ: Environ) -> Remark | None:
    desync = environ.get("TORCH_NCCL_DESYNC_DEBUG", "").lower() in _TRUE
    if not desync or environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") != "0":
        return None
    said = "TORCH_NCCL_DESYNC_DEBUG=1 does nothing with TORCH_NCCL_ASYNC_ERROR_HANDLING=0"
    return Remark(said, "unset TORCH_NCCL_ASYNC_ERROR_HANDLING", "warn")


def _dump_of_nothing(environ: Environ) -> Remark | None:
    size = _either(environ, "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    dumps = environ.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "").lower() in _TRUE
    if not dumps or not size or number(size[1], "stoi") != 0:
        return None
    said = f"TORCH_NCCL_DUMP_ON_TIMEOUT=1 has nothing to write with {told(*size)}"
    return Remark(said, f"set {size[0]}=2000", "warn")


def _unwatched(environ: Environ) -> Remark | None:
    off = environ.get("TORCH_NCCL_ENABLE_MONITORING", "").lower() in _FALSE
    if not off or "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC" not in environ:
        return None
    said = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC does nothing with TORCH_NCCL_ENABLE_MONITORING=0"
    return Remark(said, "unset TORCH_NCCL_ENABLE_MONITORING", "warn")


def _ib_off(environ: Environ) -> Remark | None:
    if not switched_on(environ.get("NCCL_IB_DISABLE")):
        return None
    if environ.get("NCCL_NET", "").upper() == "IB":
        said = "NCCL_NET=IB demands what NCCL_IB_DISABLE=1 switches off: NCCL will not start"
        return Remark(said, "unset NCCL_IB_DISABLE, or NCCL_NET")
    idle = next((name for name in _IB_ONLY if environ.get(name)), None)
    if idle is None:
        return None
    said = f"{told(idle, environ[idle])} does nothing with NCCL_IB_DISABLE=1"
    advice = f"unset the wrong one of NCCL_IB_DISABLE and {idle}"
    return Remark(said, advice, "warn", cause="NCCL_IB_DISABLE")


def _chosen_gid(environ: Environ) -> Remark | None:
    index = number(environ.get("NCCL_IB_GID_INDEX"))
    names = ("NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE")
    idle = next((name for name in names if environ.get(name)), None)
    if index is None or index < 0 or idle is None:
        return None
    said = (
        f"{told(idle, environ[idle])} does nothing while NCCL_IB_GID_INDEX={index} chooses the GID"
    )
    return Remark(said, "unset NCCL_IB_GID_INDEX", "warn")


def _sockets(environ: Environ) -> Remark | None:
    threads, each = (
        number(environ.get(name)) for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    )
    if threads is None or each is None or threads * each <= MOST_SOCKETS:
        return None
    said = f"{threads} threads x {each} sockets is {threads * each}, NCCL takes {MOST_SOCKETS}"
    return Remark(said, "lower NCCL_SOCKET_NTHREADS or NCCL_NSOCKS_PERTHREAD", "warn")


def _least_above_most(environ: Environ) -> Remark | None:
    for what in ("CTAS", "NCHANNELS"):
        least, most = (number(environ.get(f"NCCL_{end}_{what}")) for end in ("MIN", "MAX"))
        if least is not None and most is not None and 0 < most < least:
            said = f"NCCL_MIN_{what}={least} is above NCCL_MAX_{what}={most}"
            return Remark(said, f"set NCCL_MIN_{what} to at most {most}")
    return None


def _mute_log(environ: Environ) -> Remark | None:
    names = ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
    idle = next((name for name in names if environ.get(name)), None)
    loud = environ.get("NCCL_DEBUG", "").upper()
    needed = ("INFO", "TRACE") if idle == "NCCL_DEBUG_SUBSYS" else ("INFO", "TRACE", "WARN", "ATTN")
    if idle is None or loud in needed or "NCCL_DEBUG_LEVELS" in environ:
        return None
    seen = f"NCCL_DEBUG={loud}" if loud else "NCCL_DEBUG not set"
    said = f"{told(idle, environ[idle])} does nothing with {seen}"
    return Remark(said, f"set NCCL_DEBUG={needed[0]}, or unset {idle}", "warn")


def _no_nvls(environ: Environ) -> Remark | None:
    wanted = {word for word in re.split(r"[,;:]", environ.get("NCCL_ALGO", "").upper()) if word}
    if not wanted or wanted - {"NVLS", "NVLSTREE", "ALLREDUCE"}:
        return None
    if number(environ.get("NCCL_NVLS_ENABLE")) != 0:
        return None
    said = f"{told('NCCL_ALGO', environ['NCCL_ALGO'])} demands what NCCL_NVLS_ENABLE=0 switches off"
    return Remark(said, "unset NCCL_ALGO, or NCCL_NVLS_ENABLE")


def _no_cumem(environ: Environ) -> Remark | None:
    forced = number(environ.get("NCCL_MNNVL_ENABLE")) == 1
    if not forced or number(environ.get("NCCL_CUMEM_ENABLE")) != 0:
        return None
    said = "NCCL_MNNVL_ENABLE=1 needs cuMem, which NCCL_CUMEM_ENABLE=0 switches off"
    return Remark(said, "unset NCCL_CUMEM_ENABLE")


def _bootstrap_name(environ: Environ) -> Remark | None:
    if not environ.get("NCCL_OOB_NET_IFNAME") or switched_on(environ.get("NCCL_OOB_NET_ENABLE")):
        return None
    said = "NCCL_OOB_NET_IFNAME does nothing without NCCL_OOB_NET_ENABLE=1"
    return Remark(said, "set NCCL_OOB_NET_ENABLE=1, or unset it", "warn")


def _unordered_graphs(environ: Environ) -> Remark | None:
    unordered = number(environ.get("NCCL_GRAPH_STREAM_ORDERING")) == 0
    if not unordered or number(environ.get("NCCL_GRAPH_MIXING_SUPPORT")) != 1:
        return None
    said = "NCCL_GRAPH_STREAM_ORDERING=0 with NCCL_GRAPH_MIXING_SUPPORT=1 is not supported"
    return Remark(said, "unset NCCL_GRAPH_STREAM_ORDERING")


def _either(environ: Environ, new: str, old: str) -> tuple[str, str] | None:
    name = new if new in environ else old
    return (name, environ[name]) if name in environ else None


_RULES: Final[tuple[Rule, ...]] = (
    _blocking_wait,
    _desync,
    _dump_of_nothing,
    _unwatched,
    _ib_off,
    _chosen_gid,
    _sockets,
    _least_above_most,
    _mute_log,
    _no_nvls,
    _no_cumem,
    _bootstrap_name,
    _unordered_graphs,
)
