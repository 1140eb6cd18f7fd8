"""Settings that contradict each other, and ranks whose settings differ.

Names as Slurm exports them (SLURM_GPU_BIND, SLURM_NTASKS_PER_GPU), or an option of the launch line
(`--nproc-per-node`). On a live node the GPUs are counted by
`env.cuda_visible_devices`, and the port is tried by `net.ports`.

What must be the same, what should be, what must differ, and what each node may choose is in the
TOML files (`alike`). Options of a launch line stand beside the variables as `--nnodes`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from preflight.check import Check
from preflight.checks.env.remark import UNKNOWN_JOB, Remark, show, verdict
from preflight.checks.env.values import number, switched_on
from preflight.checks.env.variables import Alike, table, variables
from preflight.core.text import count
from preflight.facts import Node
from preflight.fleet.model import Job
from preflight.verdict import Conclude, Verdict, not_run, ok

Environ = Mapping[str, str]

_ANSWER: Final = ("reach.answer",)
CHECKS = (
    Check("env.contradictions", stage="facts", tier="prolog", requires=_ANSWER, user=True),
    Check("env.ranks", stage="facts", tier="prolog", requires=_ANSWER, user=True),
)


MOST_SOCKETS: Final = 64
"""NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD: NCCL user guide."""

_TRUE: Final = ("1", "y", "yes", "t", "true")
_FALSE: Final = ("0", "n", "no", "f", "false")
_IB_ONLY: Final = ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT",
                   "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_QPS_PER_CONNECTION")  # fmt: skip
_GID_CHOICE: Final = ("NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE")


def clashes(environ: Environ) -> list[Remark]:
    """Remarks on settings that contradict one another."""
    return [*_renamed_pairs(environ), *_torch(environ), *_network(environ), *_features(environ)]


def _renamed_pairs(environ: Environ) -> Iterator[Remark]:
    """An old name and its new one, with two values."""
    for old in filter(environ.__contains__, variables()):
        variable = variables()[old]
        new = variable.use.partition("=")[0]
        if new not in environ or environ[old] == environ[new]:
            continue
        settings = f"{show(old, environ[old])} and {show(new, environ[new])}"
        if variable.type == "alloc":
            sentence = f"{settings}: torch reads one in some places, the other in others"
            yield Remark(sentence, f"keep {new} only, or both with one value")
        elif not variable.removed:
            winner = "the new name" if variable.owner == "torch" else "the stricter one"
            yield Remark(f"{settings}: {winner} wins", f"unset {old}", "warn")


def _torch(environ: Environ) -> Iterator[Remark]:
    blocking = _new_or_old(environ, "TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
    handling = _new_or_old(environ, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
    if blocking and blocking[1].lower() in _TRUE and handling and handling[1] != "0":
        settings = f"{show(*blocking)} with {show(*handling)}"
        sentence = f"{settings}: a wait that blocks takes the place of the other"
        yield Remark(sentence, f"keep one: {handling[0]} for training", "warn")
    desync = environ.get("TORCH_NCCL_DESYNC_DEBUG", "").lower() in _TRUE
    if desync and environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "0":
        sentence = "TORCH_NCCL_DESYNC_DEBUG=1 does nothing with TORCH_NCCL_ASYNC_ERROR_HANDLING=0"
        yield Remark(sentence, "unset TORCH_NCCL_ASYNC_ERROR_HANDLING", "warn")
    size = _new_or_old(environ, "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    dumps = environ.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "").lower() in _TRUE
    if dumps and size and number(size[1], "stoi") == 0:
        sentence = f"TORCH_NCCL_DUMP_ON_TIMEOUT=1 has nothing to write with {show(*size)}"
        yield Remark(sentence, f"set {size[0]}=2000", "warn")
    no_monitor = environ.get("TORCH_NCCL_ENABLE_MONITORING", "").lower() in _FALSE
    if no_monitor and "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC" in environ:
        name = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
        sentence = f"{name} does nothing with TORCH_NCCL_ENABLE_MONITORING=0"
        yield Remark(sentence, "unset TORCH_NCCL_ENABLE_MONITORING", "warn")


def _network(environ: Environ) -> Iterator[Remark]:
    if switched_on(environ.get("NCCL_IB_DISABLE")):
        idle = _first_set(environ, _IB_ONLY)
        if environ.get("NCCL_NET", "").upper() == "IB":
            clash = "NCCL_NET=IB demands what NCCL_IB_DISABLE=1 switches off"
            yield Remark(f"{clash}: NCCL will not start", "unset NCCL_IB_DISABLE, or NCCL_NET")
        elif idle is not None:
            sentence = f"{show(idle, environ[idle])} does nothing with NCCL_IB_DISABLE=1"
            advice = f"unset the wrong one of NCCL_IB_DISABLE and {idle}"
            yield Remark(sentence, advice, "warn", cause="NCCL_IB_DISABLE")
    index, idle = number(environ.get("NCCL_IB_GID_INDEX")), _first_set(environ, _GID_CHOICE)
    if index is not None and index >= 0 and idle is not None:
        reason = f"while NCCL_IB_GID_INDEX={index} chooses the GID"
        sentence = f"{show(idle, environ[idle])} does nothing {reason}"
        yield Remark(sentence, "unset NCCL_IB_GID_INDEX", "warn")
    threads = number(environ.get("NCCL_SOCKET_NTHREADS"))
    sockets = number(environ.get("NCCL_NSOCKS_PERTHREAD"))
    if threads is not None and sockets is not None and threads * sockets > MOST_SOCKETS:
        total = threads * sockets
        sentence = f"{threads} threads x {sockets} sockets is {total}, NCCL takes {MOST_SOCKETS}"
        yield Remark(sentence, "lower NCCL_SOCKET_NTHREADS or NCCL_NSOCKS_PERTHREAD", "warn")


def _features(environ: Environ) -> Iterator[Remark]:
    for resource in ("CTAS", "NCHANNELS"):
        least, most = (number(environ.get(f"NCCL_{end}_{resource}")) for end in ("MIN", "MAX"))
        if least is not None and most is not None and 0 < most < least:
            sentence = f"NCCL_MIN_{resource}={least} is above NCCL_MAX_{resource}={most}"
            yield Remark(sentence, f"set NCCL_MIN_{resource} to at most {most}")
            break
    idle = _first_set(environ, ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"))
    debug_level = environ.get("NCCL_DEBUG", "").upper()
    levels = ("INFO", "TRACE") if idle == "NCCL_DEBUG_SUBSYS" else ("INFO", "TRACE", "WARN", "ATTN")
    if idle is not None and debug_level not in levels and "NCCL_DEBUG_LEVELS" not in environ:
        setting = f"NCCL_DEBUG={debug_level}" if debug_level else "NCCL_DEBUG not set"
        sentence = f"{show(idle, environ[idle])} does nothing with {setting}"
        yield Remark(sentence, f"set NCCL_DEBUG={levels[0]}, or unset {idle}", "warn")
    algorithms = {word for word in re.split(r"[,;:]", environ.get("NCCL_ALGO", "").upper()) if word}
    only_nvls = algorithms and not algorithms - {"NVLS", "NVLSTREE", "ALLREDUCE"}
    if only_nvls and number(environ.get("NCCL_NVLS_ENABLE")) == 0:
        setting = show("NCCL_ALGO", environ["NCCL_ALGO"])
        sentence = f"{setting} demands what NCCL_NVLS_ENABLE=0 switches off"
        yield Remark(sentence, "unset NCCL_ALGO, or NCCL_NVLS_ENABLE")
    mnnvl = number(environ.get("NCCL_MNNVL_ENABLE")) == 1
    if mnnvl and number(environ.get("NCCL_CUMEM_ENABLE")) == 0:
        sentence = "NCCL_MNNVL_ENABLE=1 needs cuMem, which NCCL_CUMEM_ENABLE=0 switches off"
        yield Remark(sentence, "unset NCCL_CUMEM_ENABLE")
    if environ.get("NCCL_OOB_NET_IFNAME") and not switched_on(environ.get("NCCL_OOB_NET_ENABLE")):
        sentence = "NCCL_OOB_NET_IFNAME does nothing without NCCL_OOB_NET_ENABLE=1"
        yield Remark(sentence, "set NCCL_OOB_NET_ENABLE=1, or unset it", "warn")
    unordered = number(environ.get("NCCL_GRAPH_STREAM_ORDERING")) == 0
    if unordered and number(environ.get("NCCL_GRAPH_MIXING_SUPPORT")) == 1:
        sentence = "NCCL_GRAPH_STREAM_ORDERING=0 with NCCL_GRAPH_MIXING_SUPPORT=1 is not supported"
        yield Remark(sentence, "unset NCCL_GRAPH_STREAM_ORDERING")


def _first_set(environ: Environ, names: Sequence[str]) -> str | None:
    return next((name for name in names if environ.get(name)), None)


def _new_or_old(environ: Environ, new: str, old: str) -> tuple[str, str] | None:
    name = new if new in environ else old
    return (name, environ[name]) if name in environ else None


_RANKS: Final = ("--nproc-per-node", "NPROC_PER_NODE")
_GPU_GRANTS: Final = ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE", "PBS_NGPUS")
_EPHEMERAL: Final = (32768, 60999)
"""Linux's default net.ipv4.ip_local_port_range."""

_PORTS: Final = ("--master-port", "--rdzv-endpoint", "--dist-init-addr", "--main-process-port")
_SINGLE: Final = re.compile(r"(?:.*,)?(?:gres:gpu:|gres/gpu:)?(?:verbose,)?(?:per_task|single):1")


def launching(environ: Environ) -> list[Remark]:
    """Remarks on how ranks are bound and counted, and on where they meet."""
    remarks = (_gpu_binding(environ), _too_many_ranks(environ), _port(environ))
    return [remark for remark in remarks if remark is not None]


def _gpu_binding(environ: Environ) -> Remark | None:
    """Slurm shows each task its own GPU only: NCCL cannot open a neighbour's memory.

    NVIDIA/nccl issues 1066 and 1948; a task that alone has all GPUs of its node is not meant.
    """
    bind = environ.get("SLURM_GPU_BIND", environ.get("SLURM_TRES_BIND", ""))
    if "none" in bind or environ.get("SLURM_NTASKS_PER_NODE", "") == "1":
        return None
    if _SINGLE.fullmatch(bind):
        sentence = f"--gpu-bind={bind} shows each task only its own GPU"
    elif environ.get("SLURM_NTASKS_PER_GPU"):
        tasks = environ["SLURM_NTASKS_PER_GPU"]
        sentence = f"--ntasks-per-gpu={tasks} binds each task to its own GPU"
    elif environ.get("--gpus-per-task") == "1":
        sentence = "--gpus-per-task=1 binds each task to its own GPU"
    else:
        return None
    effect = f'{sentence}: ranks of one node lose each other, or die of "invalid device ordinal"'
    return Remark(effect, "add --gpu-bind=none, and let LOCAL_RANK choose the GPU", "warn")


def _too_many_ranks(environ: Environ) -> Remark | None:
    ranks = next((environ[name] for name in _RANKS if environ.get(name, "").isdecimal()), None)
    devices = environ.get("CUDA_VISIBLE_DEVICES")
    grant = next((environ[name] for name in _GPU_GRANTS if name in environ), "").rpartition(":")[2]
    gpus = len(devices.split(",")) if devices else int(grant[:6]) if grant.isdecimal() else None
    if ranks is None or gpus is None or int(ranks[:6]) <= gpus:
        return None
    why = f"CUDA_VISIBLE_DEVICES lists {devices[:40]}" if devices else f"{count(gpus, 'GPU')} given"
    sentence = f'{ranks[:6]} ranks per node, {why}: rank {gpus} gets "invalid device ordinal"'
    return Remark(sentence, f"start {gpus} per node, or give {ranks[:6]} GPUs")


def _port(environ: Environ) -> Remark | None:
    """A port of the launch line from which the kernel serves outgoing connections."""
    low, high = _EPHEMERAL
    for name in _PORTS:
        port = environ.get(name, "").rpartition(":")[2]
        if port.isdecimal() and low <= int(port[:6]) <= high:
            setting, advice = show(name, environ[name])[:80], f"choose a port below {low}"
            risk = "any outgoing connection may take it before the job does"
            sentence = f"{setting} is inside the ephemeral range {low}-{high}: {risk}"
            return Remark(sentence, f"{advice}, such as 29500", "warn")
    return None


def judge_contradictions(environ: Environ | None, origin: str) -> Verdict:
    """Compare the settings with one another and with the launch line."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    return verdict([*clashes(environ), *launching(environ)], ok("no two settings clash"), origin)


def test_env_contradictions(node: Node, conclude: Conclude) -> None:
    """No setting is defeated by another one: both look right, and one of them does nothing."""
    conclude(judge_contradictions(node.environ, node.job.environ_origin))


_SHOWN: Final = 3
_MIN_NODES: Final = 2


def differing(name: str, environs: Mapping[str, Mapping[str, str]]) -> list[Remark]:
    """How a node's settings differ from those of the others, where they must or should not.

    `environs`: the job's environment by node; "" are the nodes that have none of their own.
    """
    by_node = {node: environ for node, environ in environs.items() if node}
    if name not in by_node or len(by_node) < _MIN_NODES:
        return []
    remarks = []
    for setting in sorted({key for environ in by_node.values() for key in environ}):
        rule = _sharing(setting)
        if rule == "free":
            continue
        values = {node: environ.get(setting) for node, environ in by_node.items()}
        compare = _same if rule == "unique" else _odd
        remarks.append(compare(setting, name, values))
    return list(filter(None, remarks))


def uneven(values_by_name: Mapping[str, Sequence[str | None]]) -> list[Remark]:
    """How the ranks of one node differ among themselves: values in the order of the local ranks."""
    remarks = []
    for setting, values in sorted(values_by_name.items()):
        rule = _sharing(setting)
        if rule in ("free", "unique") or len(set(values)) < _MIN_NODES:
            continue
        usual = Counter(values).most_common(1)[0][0]
        rank, odd = next(row for row in enumerate(values) if row[1] != usual)
        sentence = f"local rank {rank} has {_value(setting, odd)}, others {_value(setting, usual)}"
        remarks.append(Remark(sentence, _advice(setting), "fail" if rule == "must" else "warn"))
    return remarks


def _odd(setting: str, name: str, values: Mapping[str, str | None]) -> Remark | None:
    own_value = values[name]
    counts = Counter(value for node, value in values.items() if node != name)
    usual, votes = counts.most_common(1)[0]
    if own_value == usual or counts[own_value] >= votes:
        # As many have this value as have that one: both sides say so, unless it is the usual one.
        rival = next((value for value in counts if value != own_value), own_value)
        if rival == own_value or 2 * (counts[own_value] + 1) > len(values):
            return None
        usual, votes = rival, counts[rival]
    holders = f"{votes} of {count(len(values), 'node')}"
    if len(values) == _MIN_NODES:
        holders = next(node for node in values if node != name)
    sentence = f"{_value(setting, own_value)} here, {_value(setting, usual)} on {holders}"
    return Remark(sentence, _advice(setting), "fail" if _sharing(setting) == "must" else "warn")


def _same(setting: str, name: str, values: Mapping[str, str | None]) -> Remark | None:
    """A number that only one node may have, on two."""
    own_value = values[name]
    duplicates = [node for node, value in values.items() if value == own_value and node != name]
    if own_value is None or not duplicates:
        return None
    nodes = ", ".join(duplicates[:_SHOWN]) + (", ..." if len(duplicates) > _SHOWN else "")
    sentence = f"{_value(setting, own_value)} here and on {nodes}: two nodes cannot have one number"
    return Remark(sentence, f"number the nodes: {setting} 0 to {len(values) - 1}")


def _sharing(setting: str) -> Alike:
    if setting.startswith("-"):
        option, options = setting.lstrip("-").replace("_", "-"), table("torch")["launch_options"]
        if option in options["unique"]:
            return "unique"
        return "must" if option in options["must"] else "free"
    variable = variables().get(setting)
    if variable is not None:
        return variable.alike
    return "should" if setting.startswith("NCCL_") else "free"


def _value(setting: str, value: str | None) -> str:
    if value is None:
        return f"{setting} not set"
    variable = variables().get(setting)
    if variable is not None and variable.type == "secret":
        return f"another {setting}"
    return f"{setting} {value[:40]}" if setting.startswith("-") else show(setting, value)


def _advice(setting: str) -> str:
    if _sharing(setting) == "must":
        return f"give every rank the same {setting}: else they wait for one another forever"
    return f"give every node the same {setting}, or make sure that this is intended"


def judge_ranks(name: str, job: Job) -> Verdict:
    """Compare this node with the others, and its ranks among themselves."""
    if job.environ is None:
        return not_run(UNKNOWN_JOB)
    nodes = [node for node in job.environ if node]
    by_rank = job.uneven.get(name, {})
    if len(nodes) < 2 and not by_rank:  # noqa: PLR2004 - it takes two to differ
        return not_run(f"one environment for all nodes ({job.environ_origin}): nothing to compare")
    fine = ok(f"{count(len(nodes), 'node')}, alike in what ranks must share")
    return verdict([*differing(name, job.environ), *uneven(by_rank)], fine, job.environ_origin)


def test_env_ranks(node: Node, conclude: Conclude) -> None:
    """The ranks of the job agree on the settings that they must share."""
    conclude(judge_ranks(node.name, node.job))
