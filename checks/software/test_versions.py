"""Driver, torch, CUDA and NCCL fit each other, the GPUs, and the group."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from preflight.check import Check
from preflight.checks.env.remark import UNKNOWN_JOB
from preflight.checks.fleet_view import FleetView
from preflight.core.files import shipped_table
from preflight.core.text import count
from preflight.facts import Facts, Group, Node
from preflight.facts.machine import Software, Torch
from preflight.fleet.nodeset import fold
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

_DRIVER_ANSWERS = ("reach.answer", "host.driver_hung")
CHECKS = (
    # Not in quick runs: a head node's torch may well be without CUDA. From `standard` on, torch
    # loads the GPUs.
    Check("software.arch", stage="facts", tier="standard", requires=_DRIVER_ANSWERS),
    Check("software.drift", stage="facts", tier="quick", requires=("reach.answer",)),
    Check("software.driver", stage="facts", tier="prolog", requires=_DRIVER_ANSWERS),
    Check("software.nccl_plugin", stage="facts", tier="prolog", requires=("reach.answer",)),
)


UNREAD = "the packages of the job's Python could not be read"
READ_IT = "look at the file system that holds that Python: does `ls` on it hang?"


class Drift(NamedTuple):
    """One node that differs from its group in one version; `usual` is None without a majority."""

    node: str
    what: str
    has: str
    usual: str | None
    voters: str
    """How many nodes of the group have the usual version."""
    grave: bool


@cache
def minimum_drivers() -> dict[str, str]:
    """The oldest driver by CUDA's major version."""
    table = shipped_table(__file__, "cuda_drivers.toml")
    return {major: entry["driver"] for major, entry in table.items()}


def version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, to compare: "570.86.15" is (570, 86, 15)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def torch_or_verdict(facts: Facts) -> Torch | Verdict:
    """The torch that a job would load, or the verdict where there is none."""
    if facts.software is None:
        return unknown(UNREAD, advice=READ_IT)
    python = facts.python.executable or "this Python"
    reason = f"no torch in {python}: name the job's with --preflight-python"
    return facts.software.torch or not_run(reason)


def no_cuda_reason(torch: Torch) -> str:
    """Why this torch cannot use NVIDIA's GPUs; "" for one that can."""
    if torch.cuda is not None:
        return ""
    kind = f"built for ROCm {torch.hip}" if torch.hip else "built without CUDA"
    return f"torch {torch.version} is {kind}"


def runs_on(archs: tuple[str, ...], compute: str) -> bool:
    """Whether kernels that are compiled for `archs` run on a GPU of compute capability "9.0".

    Code runs on its own major version from its minor version on; PTX on everything later.
    Source: CUDA C++ Programming Guide, binary and PTX compatibility.
    """
    capability = version(compute)
    for arch in archs:
        kind, _, digits = arch.partition("_")
        number = re.match(r"\d+", digits)
        if number is None or len(capability) < 2:  # noqa: PLR2004  major and minor
            continue
        built = divmod(int(number[0]), 10)
        if digits.endswith("a") and built != capability[:2]:
            continue  # "sm_90a", "compute_90a": for that GPU alone
        if kind == "compute" and built <= capability[:2]:
            return True
        if kind == "sm" and built[0] == capability[0] and built[1] <= capability[1]:
            return True
    return False


def torch_of(facts: Facts) -> str | None:
    """The torch of a node, for the vote of its group."""
    if facts.software is None:
        return None
    return facts.software.torch.version if facts.software.torch else "none"


def _cuda(facts: Facts) -> str | None:
    """The CUDA that its torch is built for: one version is built for several."""
    return facts.software.torch.cuda if facts.software and facts.software.torch else None


_VOTES: tuple[tuple[str, Callable[[Facts], str | None], bool], ...] = (
    ("torch", torch_of, True),
    ("CUDA", _cuda, True),
    ("NCCL", lambda facts: facts.software.nccl if facts.software else None, True),
    ("cuDNN", lambda facts: facts.software.cudnn if facts.software else None, False),
    ("Python", lambda facts: ".".join(facts.python.version.split(".")[:2]) or None, False),
)
"""A library, how to read its version, and whether different versions hang or end a job."""


def drifts(group: Group) -> Iterator[Drift]:
    """Every node that differs from its group, by the first version in which it does.

    Another torch brings its own CUDA and NCCL: that is one cause.
    """
    reported: set[str] = set()
    for what, reader, grave in _VOTES:
        usual = group.majority(reader)
        values = {name: reader(facts) for name, facts in group.facts.items()}
        if usual is None or len({value for value in values.values() if value is not None}) < 2:  # noqa: PLR2004
            continue
        voters = f"on {usual.holders}"
        common = usual.value if usual.decides else None
        for name, has in values.items():
            if has is None or has == common or name in reported:
                continue
            yield Drift(name, what, has, common, voters, grave)
            reported.add(name)


def judge_arch(facts: Facts) -> Verdict:
    """Compare what its kernels are compiled for with the GPUs' compute capability."""
    if not facts.gpus:
        return not_run("no GPUs here")
    torch = torch_or_verdict(facts)
    if isinstance(torch, Verdict):
        return torch
    if why := no_cuda_reason(torch):
        gpus = count(len(facts.gpus), "GPU")
        return fail(f"{why}, and {gpus} of NVIDIA are here", advice="install torch with CUDA")
    computes = [gpu.compute for gpu in facts.gpus if gpu.compute]
    if torch.archs is None or len(computes) < len(facts.gpus):
        gap = "for which GPUs torch is built" if torch.archs is None else "what kind its GPUs are"
        return unknown(
            f"its files and driver do not show {gap}",
            advice="compare torch.cuda.get_arch_list() with torch.cuda.get_device_capability()",
        )
    built = f"torch {torch.version} is built for {', '.join(torch.archs)}"
    no_kernel = [compute for compute in computes if not runs_on(torch.archs, compute)]
    if not no_kernel:
        return ok(built, archs=torch.archs)
    kind = f"sm_{no_kernel[0].replace('.', '')}"
    return fail(
        f"{built}; {len(no_kernel)} of {len(computes)} GPUs are {kind}: no kernel runs on them",
        advice=f"install a torch that is built for {kind}",
        archs=torch.archs,
    )


def test_software_arch(node: Node, conclude: Conclude) -> None:
    """The job's torch has kernels for the GPUs that are there."""
    conclude(judge_arch(node.facts))


_USE_ONE_IMAGE = "point them to one image or environment (inventory key python), or leave them out"


def judge_drift(groups: tuple[Group, ...]) -> Verdict:
    """Name the nodes that differ from most of their group; without a majority, name none."""
    several = [group for group in groups if len(group.facts) > 1]
    if not several:
        return not_run("one node in each group: nothing to compare")
    nodes = [node for group in several for node in group.facts.items()]
    unread = [name for name, facts in nodes if facts.software is None]
    if differences := [drift for group in several for drift in drifts(group)]:
        return _drift_verdict(sorted(differences, key=lambda drift: not drift.grave))
    if unread:
        return unknown(f"{UNREAD} on {fold(unread)}", advice=READ_IT, culprits=unread)
    versions = {group.name: group.majority(torch_of) for group in several}
    if all(usual is None or usual.value == "none" for usual in versions.values()):
        return not_run("no torch in the job's Python: name it with --preflight-python")
    words = [f"torch {usual.value} on {usual.votes}" for usual in versions.values() if usual]
    return ok(f"{'; '.join(words)} nodes")


def _drift_verdict(differences: list[Drift]) -> Verdict:
    """The gravest differences alone decide; the rest is evidence."""
    first = differences[0]
    decisive = [drift for drift in differences if drift.grave == first.grave]
    sentences = [
        f"{drift.what} {drift.has} on {drift.node}, {drift.usual} {drift.voters}"
        if drift.usual
        else f"{drift.what} {drift.has} on {drift.node}, and there is no majority"
        for drift in decisive
    ]
    more = f" (and {len(sentences) - 3} more)" if len(sentences) > 3 else ""  # noqa: PLR2004  a sentence
    fail_or_warn = fail if first.grave else warn
    return fail_or_warn(
        "; ".join(sentences[:3]) + more,
        advice=_USE_ONE_IMAGE,
        culprits=sorted({drift.node for drift in decisive if drift.usual}),
        drifts=[drift._asdict() for drift in differences],
    )


def test_software_drift(fleet: FleetView, conclude: Conclude) -> None:
    """All nodes of a group have the same torch, CUDA, NCCL and cuDNN in the job's Python."""
    conclude(judge_drift(tuple(fleet.groups.values())))


def judge_driver(facts: Facts) -> Verdict:
    """Compare the driver with the oldest one that runs this CUDA's major version."""
    if facts.driver.state == "absent":
        return not_run("no NVIDIA driver here")
    torch = torch_or_verdict(facts)
    if isinstance(torch, Verdict):
        return torch
    if torch.cuda is None:
        return not_run(no_cuda_reason(torch))
    minimum = minimum_drivers().get(torch.cuda.split(".")[0])
    if minimum is None:
        return not_run(f"which driver CUDA {torch.cuda} needs is not known to this preflight")
    return _driver_verdict(facts.driver.version, torch.cuda, minimum, facts.software)


def _driver_verdict(driver: str, cuda: str, minimum: str, software: Software | None) -> Verdict:
    release, compat = version(driver), software.cuda_compat if software else None
    comparison = f"driver {driver}, CUDA {cuda} of torch needs {minimum} or later"
    if not release:
        return unknown("the driver does not report its version", advice="run nvidia-smi there")
    if release >= version(minimum):
        return ok(comparison, driver=driver, cuda=cuda, needed=minimum)
    if compat is not None and version(compat) >= version(minimum):
        return warn(
            f"{comparison}; its compatibility libraries ({compat}) may stand in",
            advice="see that the job's LD_LIBRARY_PATH begins with cuda/compat, or update it",
            driver=driver,
        )
    advice = f"install driver {minimum} or later, or a torch for an older CUDA"
    return fail(comparison, advice=advice, driver=driver, cuda=cuda, needed=minimum)


def test_software_driver(node: Node, conclude: Conclude) -> None:
    """The driver is new enough for the CUDA that the job's torch is built for."""
    conclude(judge_driver(node.facts))


_INTERNAL = ("ib", "socket")
"""Networks that NCCL has without a plugin; `NCCL_NET` is compared without case."""

_FALLBACK = "libnccl-net.so"
"""What NCCL loads where the one that was named is missing."""


class PluginRequest(NamedTuple):
    """The file names that would do, and the setting that asks for them."""

    names: tuple[str, ...]
    """Any `libnccl-net*` where a network is asked for by its own name only."""
    setting: str


def requested_plugin(environ: Mapping[str, str]) -> PluginRequest | None:
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
            return PluginRequest((first,), setting)
        return PluginRequest((f"libnccl-net-{first}.so", first), setting)
    if network and network.lower() not in _INTERNAL and not plugin:
        return PluginRequest((), f"NCCL_NET={network[:80]!r}")
    return None


def plugin_path(request: PluginRequest, plugins: tuple[str, ...]) -> str:
    """The path of the plugin that was asked for; empty if none of these is it."""
    for path in plugins:
        name = path.rsplit("/", 1)[-1]
        spellings = (path, name, name.split(".so")[0] + ".so")
        if not request.names or any(spelling in request.names for spelling in spellings):
            return path
    return ""


def judge_nccl_plugin(environ: Mapping[str, str] | None, facts: Facts) -> Verdict:
    """Look for the library where the job's loader would."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    request = requested_plugin(environ)
    if request is None:
        return not_run("the job names no NCCL network plugin")
    if facts.software is None:
        return unknown(UNREAD, advice=READ_IT)
    plugins = facts.software.net_plugins
    if path := plugin_path(request, plugins):
        return ok(f"{request.setting}: {path}", plugins=plugins)
    name = request.names[0] if request.names else "libnccl-net*.so"
    sentence = f"{request.setting}: {name} is not where the loader looks"
    if fallback := next((path for path in plugins if path.endswith(f"/{_FALLBACK}")), ""):
        return warn(
            f"{sentence}; NCCL would take {fallback} in its place",
            advice="correct the name, or put the plugin's folder into LD_LIBRARY_PATH",
            plugins=plugins,
        )
    effect = "NCCL goes over sockets or plain IB" if request.names else "the job ends with an error"
    return fail(
        f"{sentence}: {effect}",
        advice="install it (aws-ofi-nccl on EFA), or add its folder to LD_LIBRARY_PATH",
        plugins=plugins,
    )


def test_software_nccl_plugin(node: Node, conclude: Conclude) -> None:
    """The NCCL network plugin that the job names is on the node."""
    conclude(judge_nccl_plugin(node.environ, node.facts))
