"""Single variables of the job: misspelt, renamed, of a wrong value, or set for debugging only."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from shlex import quote
from typing import Final

from preflight.check import Check
from preflight.checks.env.remark import UNKNOWN_JOB, Remark, show, verdict
from preflight.checks.env.values import effect, number, read_all, switched_on
from preflight.checks.env.variables import editions, outdated, unread, variables
from preflight.core.text import count
from preflight.facts import Facts, Node
from preflight.fleet.model import Expected
from preflight.verdict import Conclude, Verdict, not_run, ok

CHECKS = (
    Check("env.values", stage="facts", tier="prolog", requires=("reach.answer",), user=True),
    Check("env.exists", stage="facts", tier="prolog", requires=("reach.answer",), user=True),
    Check("env.deprecated", stage="facts", tier="prolog", requires=("reach.answer",), user=True),
    Check("env.debugging", stage="facts", tier="prolog", requires=("reach.answer",), user=True),
    Check("env.transports", stage="facts", tier="prolog", requires=("reach.answer",), user=True),
)


def judge_values(environ: Mapping[str, str] | None, origin: str) -> Verdict:
    """Read each value as NCCL, torch, CUDA or gloo will."""
    return not_run(UNKNOWN_JOB) if environ is None else _judge(frozenset(environ.items()), origin)


@lru_cache(maxsize=64)  # the nodes of a job have few environments
def _judge(settings: frozenset[tuple[str, str]], origin: str) -> Verdict:
    environ = dict(settings)
    known = [variable for name, variable in variables().items() if name in environ]
    present = [variable for variable in known if variable.type != "undocumented"]
    effects_set = [effect(var.effect, environ) for var in present if var.effect]
    effects = "; ".join(dict.fromkeys(filter(None, effects_set)))
    fine = count(len(present), "setting") + " of NCCL, torch, CUDA and gloo, each in its range"
    return verdict(read_all(environ), ok(f"{fine}; {effects}" if effects else fine), origin)


def test_env_values(node: Node, conclude: Conclude) -> None:
    """Every value is one that its reader takes, and the sentence says what it will do."""
    conclude(judge_values(node.environ, node.job.environ_origin))


def judge_exists(
    environ: Mapping[str, str] | None, origin: str, facts: Facts | None = None
) -> Verdict:
    """Compare the names with those that the installed NCCL, torch, CUDA and gloo read."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    names = sum(name in variables() for name in environ)
    summary = f"{count(names, 'variable')} of NCCL, torch, CUDA and gloo, each read by one of them"
    fine = ok(summary if names else "it sets no variable of NCCL, torch, CUDA or gloo")
    return verdict(unread(environ, editions(facts, environ)), fine, origin)


def test_env_exists(node: Node, conclude: Conclude) -> None:
    """NCCL, torch, CUDA or gloo reads each of the job's variables: a misspelt one does nothing."""
    conclude(judge_exists(node.environ, node.job.environ_origin, node.facts))


def judge_deprecated(
    environ: Mapping[str, str] | None, origin: str, facts: Facts | None = None
) -> Verdict:
    """Name what takes the place of each old variable, and since when."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    return verdict(outdated(environ, editions(facts, environ)), ok("no old names"), origin)


def test_env_deprecated(node: Node, conclude: Conclude) -> None:
    """No variable is one that was renamed or removed: the next version will not read it."""
    conclude(judge_deprecated(node.environ, node.job.environ_origin, node.facts))


_EVERY_CALL: Final = frozenset(("ALL", "COLL", "CALL", "P2P", "NET", "PROXY"))
"""Subsystems that write a line for every operation or message, not only at the start."""

_RECORDER: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_ADVICE: Final = (
    "export TORCH_FR_BUFFER_SIZE=2000 (torch before 2.8: TORCH_NCCL_TRACE_BUFFER_SIZE), "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1 and NCCL_DEBUG=WARN"
)


def costly_logging(environ: Mapping[str, str]) -> list[Remark]:
    """Settings for debugging that cost a production run its speed, or its disk."""
    level = environ.get("NCCL_DEBUG", "").strip().upper()
    subsystems = {part.strip().upper() for part in environ.get("NCCL_DEBUG_SUBSYS", "").split(",")}
    remarks = []
    if level == "TRACE":
        sentence = "NCCL_DEBUG=TRACE logs every call of every rank"
        remarks.append(Remark(sentence, "use NCCL_DEBUG=WARN in production", "warn"))
    elif level == "INFO" and subsystems & _EVERY_CALL:
        setting = show("NCCL_DEBUG_SUBSYS", environ["NCCL_DEBUG_SUBSYS"])
        sentence = f"NCCL_DEBUG=INFO with {setting} logs every operation of every rank"
        remarks.append(Remark(sentence, "use NCCL_DEBUG=WARN, or unset NCCL_DEBUG_SUBSYS", "warn"))
    for name in filter(environ.__contains__, variables()):
        value, var = environ[name].strip(), variables()[name]
        key = "1" if var.type == "boolean" and value.lower() in ("true", "yes", "y", "t") else value
        cost = var.loud.get(key.upper()) if value else None
        if cost:
            sentence = f"{show(name, value)}: {cost}"
            remarks.append(Remark(sentence, f"unset {quote(name)} outside of debugging", "warn"))
    return remarks


def missing_diagnostics(environ: Mapping[str, str]) -> list[Remark]:
    """Settings because of which a hang or crash will leave nothing to read."""
    recorder = next((name for name in _RECORDER if name in environ), None)
    if recorder and number(environ[recorder], "stoi") == 0:
        result = "no flight recorder, so a hang will not show which rank waits for which"
        return [Remark(f"{recorder}=0: {result}", f"set {recorder}=2000", "warn")]
    logs = environ.get("NCCL_DEBUG", "").strip().upper() not in ("", "NONE", "VERSION")
    if recorder or logs or environ.get("TORCHELASTIC_ERROR_FILE"):
        return []
    sentence = (
        "debugging is off altogether: no flight recorder requested (only new torch keeps one "
        "by default), no error file, no NCCL_DEBUG; a hang will leave nothing to read"
    )
    return [Remark(sentence, _ADVICE, "warn")]


def judge_debugging(environ: Mapping[str, str] | None, origin: str, facts: Facts) -> Verdict:
    """Too loud anywhere; too quiet where there are GPUs that a job will use."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    costly = costly_logging(environ)
    if not costly and facts.gpus is None and facts.driver.state == "unknown":
        sentence = "nothing here shows whether that node has GPUs"
        return not_run(f"{sentence}, without which NCCL logs nothing")
    if not costly and not facts.gpus:
        return not_run("no GPUs here")
    fine = ok("a hang will leave something to read, and no setting logs every call")
    return verdict([*costly, *(missing_diagnostics(environ) if facts.gpus else ())], fine, origin)


def test_env_debugging(node: Node, conclude: Conclude) -> None:
    """The job logs enough that a hang can be explained, and not so much that it crawls."""
    conclude(judge_debugging(node.environ, node.job.environ_origin, node.facts))


_OFF_LEVELS: Final = ("LOC", "0")
_PORT_UP: Final = "ACTIVE"
_IF_DEBUGGING: Final = "unset it, if it was set for debugging"


def switched_off(environ: Mapping[str, str], expected: Expected, facts: Facts) -> list[Remark]:
    """Fast paths that this node has and the job's settings switch off."""
    rdma, direct, shm = _rdma_off(environ), _p2p_off(environ), _shm_off(environ)
    remarks = list(filter(None, (_nics(rdma, expected, facts), _gpus(direct, expected, facts))))
    if rdma and direct and shm and not any(remark.weight == "fail" for remark in remarks):
        off = f"{rdma}, {direct}, {shm}"
        sentence = f"all fast paths are switched off ({off}): everything goes over TCP"
        advice = "if this was for debugging, unset them; else measure what it costs"
        return [Remark(sentence, advice, "warn")]
    gpudirect = _gpudirect(environ, facts) if not rdma else None
    return [*remarks, gpudirect] if gpudirect else remarks


def unjudged_setting(environ: Mapping[str, str], facts: Facts) -> str:
    """The setting that switches a path off where nothing shows whether the node has it."""
    if facts.driver.state != "unknown" or facts.nics is not None or facts.gpus is not None:
        return ""
    return _rdma_off(environ) or _p2p_off(environ) or _shm_off(environ) or _gpudirect_off(environ)


def _rdma_off(environ: Mapping[str, str]) -> str:
    """The setting that keeps the job from its RDMA NICs."""
    if switched_on(environ.get("NCCL_IB_DISABLE")):
        return show("NCCL_IB_DISABLE", environ["NCCL_IB_DISABLE"])
    net = environ.get("NCCL_NET", "")
    return show("NCCL_NET", net) if net.upper() == "SOCKET" else ""


def _p2p_off(environ: Mapping[str, str]) -> str:
    if switched_on(environ.get("NCCL_P2P_DISABLE")):
        return show("NCCL_P2P_DISABLE", environ["NCCL_P2P_DISABLE"])
    level = environ.get("NCCL_P2P_LEVEL", "")
    return show("NCCL_P2P_LEVEL", level) if level.strip() in _OFF_LEVELS else ""


def _shm_off(environ: Mapping[str, str]) -> str:
    value = environ.get("NCCL_SHM_DISABLE", "")
    return show("NCCL_SHM_DISABLE", value) if switched_on(value) else ""


def _nics(setting: str, expected: Expected, facts: Facts) -> Remark | None:
    """RDMA is off although the inventory expects it or the node has it."""
    if not setting:
        return None
    number_expected = expected.nics or (len(expected.hcas) if expected.hcas else 0)
    if number_expected or expected.nic_gbits or expected.nic_link:
        nics = count(number_expected, "RDMA NIC") + " per node" if number_expected else "RDMA NICs"
        origin = expected.origin or "inventory"
        sentence = f"{setting} sends all over TCP, {nics} expected ({origin})"
        advice = "unset it: it is meant for debugging; else correct the inventory"
        return Remark(sentence, advice, cause=setting.partition("=")[0])
    up = [nic for nic in facts.nics or () if any(_PORT_UP in port.state for port in nic.ports)]
    if not up:
        return None
    hardware = f"{count(len(up), 'RDMA NIC')} here with a port up"
    sentence, cause = f"{setting} sends everything over TCP; {hardware}", setting.partition("=")[0]
    return Remark(sentence, _IF_DEBUGGING, "warn", cause=cause)


def _gpus(setting: str, expected: Expected, facts: Facts) -> Remark | None:
    """Peer access is off although the GPUs have it."""
    if not setting:
        return None
    if expected.nvlinks_per_gpu:
        links = f"{expected.nvlinks_per_gpu} links per GPU expected"
        sentence = f"{setting} keeps the GPUs off NVLink, {links}"
        return Remark(sentence, "unset it: it is meant for debugging; else correct the inventory")
    with_links = [gpu for gpu in facts.gpus or () if any(link.up for link in gpu.links or ())]
    if with_links:
        hardware = f"{count(len(with_links), 'GPU')} here with links up"
        return Remark(f"{setting} keeps the GPUs off NVLink; {hardware}", _IF_DEBUGGING, "warn")
    pairs = [pair for pair in facts.gpu_pairs or () if pair.p2p_read == "ok"]
    if not pairs:
        return None
    hardware = count(len(pairs), "pair of GPUs", "pairs of GPUs")
    sentence = f"{setting} sends data through the host; {hardware} here with peer access"
    return Remark(sentence, _IF_DEBUGGING, "warn")


def _gpudirect_off(environ: Mapping[str, str]) -> str:
    level = environ.get("NCCL_NET_GDR_LEVEL", environ.get("NCCL_IB_GDR_LEVEL", "")).strip()
    return f"NCCL_NET_GDR_LEVEL={level}" if level in _OFF_LEVELS else ""


def _gpudirect(environ: Mapping[str, str], facts: Facts) -> Remark | None:
    """NICs that must not read GPU memory."""
    setting = _gpudirect_off(environ)
    if not setting or not facts.nics or not facts.gpus:
        return None
    sentence = f"{setting} switches GPUDirect off: data go through host memory"
    return Remark(sentence, _IF_DEBUGGING, "warn")


def judge_transports(
    environ: Mapping[str, str] | None, origin: str, expected: Expected, facts: Facts
) -> Verdict:
    """The inventory decides first, then the hardware that was found."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    remarks = switched_off(environ, expected, facts)
    if not remarks and (setting := unjudged_setting(environ, facts)):
        return not_run(f"{setting}: nothing here shows whether that node has what it switches off")
    fine = ok("no fast path that is expected or present is switched off")
    return verdict(remarks, fine, origin)


def test_env_transports(node: Node, conclude: Conclude) -> None:
    """The job may use the node's fast paths: no setting of an old debugging session is left."""
    conclude(judge_transports(node.environ, node.job.environ_origin, node.expected, node.facts))
